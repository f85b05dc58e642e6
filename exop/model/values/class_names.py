"""Classes by name: a stored value carries the name of its class, by which the class is found again.

Data that is read is never a reason to import a module: its classes are those of modules that are loaded.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from exop.errors import NotStorable, StoredStateError
from exop.model.items import EndOfStream, Punctuation
from exop.model.types import description
from exop.model.types.description import Type, is_named_tuple, type_of
from exop.model.values.versions import ROOT, find_version

_names: Final[dict[Any, str]] = {}
#: Letters of a name; a longer one is not looked for.
_LONGEST: Final = 500


def name_of(kind: Any) -> str:
    """The name `module:Qualified.Name` under which another process finds a class (or a function) again.

    Raises:
        NotStorable: it stands in a function, or in a script, or under another name than its own.
    """
    known = _names.get(kind)
    if known is not None:
        return known
    module, qualified = kind.__module__, kind.__qualname__
    if module == "__main__":
        raise NotStorable(value=qualified, problem="it stands in a script", cure="define it in a module of a package")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if found is not kind:
        problem = f"{module} does not have it under the name {qualified}"
        raise NotStorable(value=qualified, problem=problem, cure="define it at the top of a module, under its own name")
    return _names.setdefault(kind, f"{module}:{qualified}")


@lru_cache(maxsize=4096)
def named(name: str) -> Any:
    """The class (or function) of this name in a module that is loaded; nothing is imported, and nothing called.

    Raises:
        StoredStateError: there is none.
    """
    # Of a version of a bundle that is loaded no more, the class of the version that is takes its place.
    module, _, qualified = (find_version(name) or name)[:_LONGEST].partition(":")
    found: Any = sys.modules.get(module)
    problem = f"{module} has no {qualified}" if found is not None else f"the module {module} is not loaded here"
    for part in qualified.split("."):
        # The dicts themselves: a module or a class may compute its attributes, and import for that.
        kind: Any = next((one for one in (type, ModuleType) if issubclass(type(found), one)), None)
        found = vars(kind)["__dict__"].__get__(found).get(part) if kind is not None else None
    if found is None:
        cure = f"install the code that has {module}, and import it where the slet is defined"
        raise StoredStateError(what=f"a value of {qualified}", problem=problem, cure=cure)
    return found


def forget(package: str) -> None:
    """Forget the classes of a package whose modules come or go."""
    for kind in [one for one in _names if one.__module__ == package or one.__module__.startswith(f"{package}.")]:
        del _names[kind]
    named.cache_clear()
    description.forget()


class Declared:
    """The classes that untrusted data may name.

    Those are the classes that annotations reach, their subclasses, and the classes of data in the package of *home*,
    a module. An annotation that leaves the type open (`Any`, a bare `list`) admits every class of data that is loaded.

    >>> int in Declared(list[int]), Punctuation in Declared()
    (False, True)
    """

    def __init__(self, *annotations: Any, home: str = "") -> None:
        self._package = _package(home)
        self._open = False
        self._reached: set[type] = {Punctuation, EndOfStream}
        for one in (reached for annotation in annotations for reached in type_of(annotation).reached()):
            self._open |= _admits_all(one)
            if isinstance(one.cls, type) and _package(one.cls.__module__) not in _GENERAL:
                self._reached.add(one.cls)

    def __contains__(self, kind: type) -> bool:
        return self._open or self.names(kind)

    def names(self, kind: Any) -> bool:
        """Whether the class is declared itself, so that its defaults may be made."""
        # Without `issubclass`, which a class may answer itself.
        near = self._package and f"{kind.__module__}.".startswith(f"{self._package}.")
        return bool(near) or not self._reached.isdisjoint(kind.__mro__)


def _admits_all(one: Type) -> bool:
    """Whether it leaves the type of a value open: `Any`, a bare collection, a variable without a bound."""
    if one.kind in ("any", "variable"):
        return not one.arguments
    return one.annotation is one.cls and one.cls in _COLLECTIONS


#: Packages whose classes say nothing of what may be an instance of theirs: `object`, `Enum`, `Protocol`, `Memento`.
_GENERAL: Final = frozenset({*sys.stdlib_module_names, "exop.model"})
_COLLECTIONS: Final = (list, dict, tuple, set, frozenset, deque, OrderedDict, Counter, defaultdict)


def _package(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in ("exop", ROOT) else parts[0]


def class_named(name: str, kind: str, fits: Callable[[type], bool], declared: Declared | None) -> Any:
    """The class of this name, which must be *kind* and *declared*; `None`: data of our own may name all that is loaded.

    Raises:
        StoredStateError: there is none any more, or it is something else.
    """
    found = named(name)
    is_class = issubclass(type(found), type)
    if is_class and declared is not None and found not in declared:
        cure = "name the class in the annotations of the memento or the port, or define it in the same package"
        raise StoredStateError(what=f"a value of {name}", problem="that class is not declared", cure=cure)
    if not is_class or not fits(found):
        cure = "it was not written by ExoP, or the code has changed since"
        raise StoredStateError(what=f"a value of {name}", problem=f"that is no {kind}", cure=cure)
    return found


def factory_named(name: str, declared: Declared | None) -> Any:
    """Return the named factory of a `defaultdict`: a built-in collection or number, or a declared class of data.

    Raises:
        StoredStateError: it is something else.
    """
    if name in _FACTORIES or declared is None:
        return _FACTORIES.get(name) or named(name)
    return class_named(name, "factory of a defaultdict", _is_data, declared)


_FACTORIES: Final[dict[str, type]] = {
    f"{one.__module__}:{one.__qualname__}": one
    for one in (bool, int, float, complex, str, bytes, Decimal, *_COLLECTIONS[:-1])
}


def _is_data(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or is_named_tuple(kind)

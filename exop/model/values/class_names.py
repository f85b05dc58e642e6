"""Classes by name: a stored value contains the name of its class, by which the class is found when it is read.

Reading never imports a module: only classes of loaded modules are found.
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
from exop.model.types.description import is_named_tuple, type_of
from exop.model.values.versions import ROOT, find_version

_names: Final[dict[Any, str]] = {}
#: Letters of the longest name that is looked up.
_LONGEST: Final = 500


def name_of(kind: Any) -> str:
    """Return the name `module:Qualified.Name` by which another process finds a class or function."""
    known = _names.get(kind)
    if known is not None:
        return known
    module, qualified = kind.__module__, kind.__qualname__
    if module == "__main__":
        raise NotStorable(
            value=qualified, problem="it is defined in a script", cure="define it in a module of a package"
        )
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if found is not kind:
        problem = f"{module} does not have it under the name {qualified}"
        raise NotStorable(value=qualified, problem=problem, cure="define it at the top of a module, under its own name")
    return _names.setdefault(kind, f"{module}:{qualified}")


@lru_cache(maxsize=4096)
def named(name: str) -> Any:
    """Return the class or function of this name, if its module is loaded; nothing is imported or called."""
    # A class of an unloaded version of a bundle is replaced by that of the loaded version.
    module, _, qualified = (find_version(name) or name)[:_LONGEST].partition(":")
    found: Any = sys.modules.get(module)
    problem = f"{module} has no {qualified}" if found is not None else f"the module {module} is not loaded here"
    for part in qualified.split("."):
        # From the dicts: a module or class may compute its attributes, and import modules to do so.
        kind: Any = next((one for one in (type, ModuleType) if issubclass(type(found), one)), None)
        found = vars(kind)["__dict__"].__get__(found).get(part) if kind is not None else None
    if found is None:
        cure = f"install the code that has {module}, and import it where the slet is defined"
        raise StoredStateError(what=f"a value of {qualified}", problem=problem, cure=cure)
    return found


def forget(package: str) -> None:
    """Clear the caches of a package whose modules are loaded or unloaded."""
    for kind in [one for one in _names if one.__module__ == package or one.__module__.startswith(f"{package}.")]:
        del _names[kind]
    named.cache_clear()
    description.forget()


class Declared:
    """The classes that untrusted data may name.

    These are the classes that the annotations reach, their subclasses, and the classes in the package of the module
    *home*. An annotation without a type (`Any`, a bare `list`) permits every loaded class of data.

    >>> int in Declared(list[int]), Punctuation in Declared()
    (False, True)
    """

    def __init__(self, *annotations: Any, home: str = "") -> None:
        self._package = _package(home)
        self._open = False
        self._reached: set[type] = {Punctuation, EndOfStream}
        for one in (reached for annotation in annotations for reached in type_of(annotation).reached()):
            # `Any`, a variable without a bound, a bare collection.
            bare = one.annotation is one.cls and one.cls in _COLLECTIONS
            self._open |= not one.arguments if one.kind in ("any", "variable") else bare
            if isinstance(one.cls, type) and _package(one.cls.__module__) not in _GENERAL:
                self._reached.add(one.cls)

    def __contains__(self, kind: type) -> bool:
        return self._open or self.names(kind)

    def names(self, kind: Any) -> bool:
        """Whether the class is declared itself, so that its default factories may be called."""
        # Not by `issubclass`, which a class can override.
        near = self._package and f"{kind.__module__}.".startswith(f"{self._package}.")
        return bool(near) or not self._reached.isdisjoint(kind.__mro__)


#: Packages of bases that are too general to permit their subclasses: `object`, `Enum`, `Protocol`, `Memento`.
_GENERAL: Final = frozenset({*sys.stdlib_module_names, "exop.model"})
_COLLECTIONS: Final = (list, dict, tuple, set, frozenset, deque, OrderedDict, Counter, defaultdict)


def _package(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in ("exop", ROOT) else parts[0]


def class_named(name: str, kind: str, fits: Callable[[type], bool], declared: Declared | None) -> Any:
    """Return the class of this name, if it is a *kind* and *declared*; `None` permits all classes, for trusted data."""
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
    """Return the factory of a `defaultdict`: a built-in collection or number, or a declared class of data."""
    if name in _FACTORIES or declared is None:
        return _FACTORIES.get(name) or named(name)
    fits = lambda kind: dataclasses.is_dataclass(kind) or is_named_tuple(kind)  # noqa: E731
    return class_named(name, "factory of a defaultdict", fits, declared)


_FACTORIES: Final[dict[str, type]] = {
    f"{one.__module__}:{one.__qualname__}": one
    for one in (bool, int, float, complex, str, bytes, Decimal, *_COLLECTIONS[:-1])
}

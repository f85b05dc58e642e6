"""Classes of stored values: their names, their versions in bundles, and instances filled without a call of their code.

A stored value contains the name of its class, by which the class is found when it is read. Reading never imports a
module: only classes of loaded modules are found.

Each version of a bundle has its modules in its own package, `exop_bundles.NAME_vVERSION`. Two classes are versions of
one class if bundle, module within the bundle and qualified name are equal.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from types import BuiltinFunctionType, ModuleType
from typing import Any, Final
from weakref import WeakSet

from exop.errors import NotStorable, StoredStateError
from exop.model.items import Batch, EndOfStream, Punctuation
from exop.model.types import description
from exop.model.types.description import Type, is_named_tuple, type_of
from exop.model.values.depth import PLAIN


def filled(kind: Any, fields: Mapping[str, Any], *, defaults: bool = True) -> Any:
    """Create a dataclass instance or named tuple with these fields.

    Missing fields have their defaults, made by a factory only with *defaults*, or are `None` if nullable.
    """
    new, known = _layout(kind)
    if not fields.keys() <= known.keys():
        unknown = ", ".join(str(name) for name in fields if name not in known)
        problem = f"{shown(full_name(kind))} has no field {unknown}"[:300] + f"; it has {', '.join(known)}"
        cure = "use the code that wrote it"
        raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem, cure=cure)
    if new is tuple.__new__:
        return new(kind, [fields[name] if name in fields else _default(kind, name, defaults) for name in known])
    made = new(kind)
    for name in known:
        object.__setattr__(made, name, fields[name] if name in fields else _default(kind, name, defaults))
    return made


@lru_cache(maxsize=1024)
def _layout(kind: Any) -> tuple[Callable[..., Any], dict[str, dataclasses.Field[Any]]]:
    """The first built-in `__new__`, which calls no code of the class, and the fields by name."""
    new = next(new for one in kind.__mro__ if isinstance(new := vars(one).get("__new__"), BuiltinFunctionType))
    if dataclasses.is_dataclass(kind):
        return new, {field.name: field for field in dataclasses.fields(kind)}
    given = dict.fromkeys(kind._fields, dataclasses.MISSING) | kind._field_defaults
    return new, {name: dataclasses.field(default=default) for name, default in given.items()}


def _default(kind: Any, name: str, factories: bool) -> Any:
    if (field := _layout(kind)[1][name]).default_factory is not dataclasses.MISSING and factories:
        return field.default_factory()
    if field.default is not dataclasses.MISSING:
        return field.default
    if (wanted := type_of(kind).fields[name]).required and wanted.type.nullable:
        return None
    problem = f"{kind.__qualname__} lacks the field {name}, which has no default"
    raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem, cure="give the field a default")


ROOT: Final = "exop_bundles"


def package_name(package: str, version: str) -> str:
    """Return the package of a version of a bundle: `exop_bundles.speeds_v1_2_0` for 1.2.0 of `speeds`."""
    plain = version.replace("!", "_epoch_").replace("+", "_local_").replace(".", "_")
    # A `_v` in the version would make the end of the name ambiguous.
    return f"{ROOT}.{package}_v{plain.replace('_v', '_V')}"


def package_of(module: str) -> tuple[str, str] | None:
    """Return the package of a bundle's version to which a module belongs, and the bundle's name; or `None`."""
    head = ".".join(module.split(".")[:2])
    return (head, head.removeprefix(f"{ROOT}.").rpartition("_v")[0]) if head.startswith(f"{ROOT}.") else None


#: The packages from which that of a loaded version of a bundle imports.
imported: Final[dict[str, Collection[str]]] = {}


def used_packages(code: Any) -> dict[str, str]:
    """Return the packages of bundles that a class or function uses, by bundle: its own, and those imported there."""
    found, left = dict[str, str](), [package_of(code.__module__)]
    while left:
        if (one := left.pop(0)) is not None and one[1] not in found:
            found[one[1]] = one[0]
            left += map(package_of, imported.get(one[0], ()))
    return found


def renewed_packages(old: Any, new: Any) -> set[str]:
    """Return the packages that *new* uses, a class or function, and of which *old* uses another version."""
    before = used_packages(old)
    return {package for bundle, package in used_packages(new).items() if before.get(bundle, package) != package}


def same_class(old: type, new: type) -> bool:
    """Whether two classes are versions of one class of a bundle."""
    names = {unversioned(full_name(one)) for one in (old, new)}
    return len(names) == 1 and None not in (package_of(old.__module__), package_of(new.__module__))


def full_name(kind: type) -> str:
    """`module:Qualified.Name`, which need not lead to the class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def unversioned(name: str) -> str:
    """The name of a class, `module:Qualified.Name`, without the version of its bundle."""
    found = package_of(name.partition(":")[0])
    return name if found is None else name.replace(found[0], found[1], 1)


def shown(name: str, plain: str = "") -> str:
    """The name of a class in errors: that of a class of a bundle with its version, else *plain* or its own name."""
    module, _, qualified = name.partition(":")
    return f"{module.removeprefix(f'{ROOT}.')}.{qualified}" if package_of(module) else plain or qualified


def find_version(name: str) -> str | None:
    """The name, in a loaded version of its bundle, of a class whose own version is not loaded."""
    if (found := package_of(name.partition(":")[0])) is None or found[0] in sys.modules:
        return None
    package, bundle = found
    others = sorted(other for other, whose in filter(None, map(package_of, list(sys.modules))) if whose == bundle)
    return name.replace(package, others[-1], 1) if others else None


class NoVersion(TypeError):
    """The other version of a bundle lacks the class of a value, or the class has other fields."""


@dataclasses.dataclass
class Mover:
    """Converts values of the classes of one version to those of another.

    Values without such parts are returned as they are, by reference; others are copied, and the old value is unchanged.

    Args:
        after: The package of the new version. A class of another version is old, unless the new one has adopted it.
    """

    after: str
    _made: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    _found: dict[type, Any] = dataclasses.field(default_factory=dict)

    def move(self, value: Any) -> Any:
        """Convert a value to the new version."""
        if (kind := type(value)) in PLAIN:
            return value
        if (known := self._made.get(id(value))) is None:
            # A reference to the old value prevents the reuse of its id.
            known = self._made[id(value)] = value, self._moved(value, kind)
        return known[1]

    def concerns(self, annotation: Any) -> bool:
        """Whether a value of this type may contain a value of the old version, as far as is known."""
        return any(
            one.kind in ("any", "open", "variable", "type", "callable")
            or (one.kind in ("list", "table") and not one.arguments)
            or (isinstance(one.cls, type) and self._is_old(one.cls))
            for one in type_of(annotation).reached()
        )

    def _is_old(self, kind: type) -> bool:
        found = package_of(kind.__module__)
        if found is None or found[0] == self.after or f"{ROOT}.{found[1]}" != self.after.rpartition("_v")[0]:
            return False
        return self._find(kind) is not kind

    def _find(self, kind: type) -> Any:
        """The class in the new version, or `None`."""
        if kind not in self._found:
            within = ".".join(kind.__module__.split(".")[2:])
            found: Any = sys.modules.get(f"{self.after}.{within}" if within else self.after)
            for part in kind.__qualname__.split("."):
                found = getattr(found, part, None)
            self._found[kind] = found
        return self._found[kind]

    def _moved(self, value: Any, kind: type) -> Any:
        if isinstance(value, type):
            return self._class(value) if self._is_old(value) else value
        old = self._is_old(kind)
        if isinstance(value, enum.Enum):
            return self._member(value, self._class(kind)) if old else value
        if dataclasses.is_dataclass(kind) or is_named_tuple(kind):
            return self._record(value, self._class(kind) if old else kind)
        if kind in _CONTAINERS:
            return self._container(value, kind)
        if old:
            raise NoVersion(f"{kind.__qualname__} is neither a dataclass nor an enumeration; make it one")
        return value

    def _class(self, kind: type) -> Any:
        if (found := self._find(kind)) is None:
            raise NoVersion(f"the new version has no {kind.__module__.split('.', 2)[-1]}.{kind.__qualname__}")
        return found

    def _member(self, value: enum.Enum, kind: Any) -> Any:
        try:
            return kind[value.name] if value.name is not None else kind(value.value)
        except (KeyError, ValueError):
            raise NoVersion(f"{kind.__qualname__} has no {value.name} any more") from None

    def _record(self, value: Any, kind: Any) -> Any:
        """Convert a dataclass or named tuple; `__init__` and `__post_init__` are not called."""
        was: Any = type(value)
        fields = {name: getattr(value, name) for name in _layout(was)[1]}
        moved = {name: self.move(one) for name, one in fields.items()}
        if kind is was and _same(fields.values(), moved.values()):
            return value
        try:
            return filled(kind, moved)
        except StoredStateError as problem:
            raise NoVersion(problem.problem) from None
        except (TypeError, AttributeError):  # it is no record any more
            raise NoVersion(f"{kind.__qualname__} has other fields") from None

    def _container(self, value: Any, kind: Any) -> Any:
        if not issubclass(kind, dict):
            if _same(value, moved := [self.move(one) for one in value]):
                return value
            return deque(moved, value.maxlen) if kind is deque else kind(moved)
        table = {self.move(key): self.move(one) for key, one in value.items()}
        factory = getattr(value, "default_factory", None)
        if _same(value, table) and _same(value.values(), table.values()) and self.move(factory) is factory:
            return value
        return defaultdict(self.move(factory), table) if kind is defaultdict else kind(table)


_CONTAINERS: Final = (list, tuple, set, frozenset, deque, Batch, dict, defaultdict, OrderedDict, Counter)


def _same(old: Collection[Any], new: Collection[Any]) -> bool:
    return len(old) == len(new) and all(one is other for one, other in zip(old, new, strict=True))


_names: Final[dict[Any, str]] = {}
#: The classes of unloaded modules of bundles. Values of them may be left at another platform of the process, which
#: runs no slet of the bundle; the next load of the same version makes other classes.
_unloaded: Final[WeakSet[type]] = WeakSet()
#: Letters of the longest name that is looked up.
_LONGEST: Final = 500


def name_of(kind: Any) -> str:
    """Return the name `module:Qualified.Name` by which another process finds a class or function."""
    if (known := _names.get(kind)) is not None:
        return known
    module, qualified = kind.__module__, kind.__qualname__
    if module == "__main__":
        cure = "define it in a module of a package"
        raise NotStorable(value=qualified, problem="it is defined in a script", cure=cure)
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if found is not kind and kind not in _unloaded:
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
    if found is None and _imported_meanwhile(module):
        return named.__wrapped__(name)
    if found is None:
        cure = f"install the code that has {module}, and import it where the slet is defined"
        raise StoredStateError(what=f"a value of {qualified}", problem=problem, cure=cure)
    return found


def _imported_meanwhile(module: str) -> bool:
    """Wait until another thread has imported a module; return whether one was doing that, and has done so in time."""
    found, until, waited = sys.modules.get(module), time.monotonic() + 10.0, False
    # From the dict: a module may compute its attributes.
    facts = vars(ModuleType)["__dict__"].__get__(found) if issubclass(type(found), ModuleType) else {}
    while getattr(facts.get("__spec__"), "_initializing", False):
        if time.monotonic() > until:
            return False
        waited = True
        time.sleep(0.005)
    return waited


def note_unloaded(module: str, attributes: Mapping[str, Any], within: str = "") -> None:
    """Keep the names of the classes of a module, and of those within them, although the module is unloaded."""
    for name, kind in list(attributes.items()):
        is_class = issubclass(type(kind), type) and type(kind).__hash__ is not None
        if is_class and (kind.__module__, kind.__qualname__) == (module, within + name):
            _unloaded.add(kind)
            note_unloaded(module, vars(kind), f"{within}{name}.")


def forget() -> None:
    """Clear the caches, when modules are loaded or unloaded."""
    _names.clear()
    named.cache_clear()
    _layout.cache_clear()
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
        self._described: dict[str, str] = {}  # by the name without a version
        for one in (reached for annotation in annotations for reached in type_of(annotation).reached()):
            # `Any`, a variable without a bound, a bare collection.
            bare = one.annotation is one.cls and one.cls in _COLLECTIONS
            self._open |= not one.arguments if one.kind in ("any", "variable") else bare
            if isinstance(one.cls, type) and _package(one.cls.__module__) not in _GENERAL:
                self._reached.add(one.cls)
            elif one.cls is None and one.identity:  # of a description, which has no classes
                self._described[unversioned(one.identity)] = one.identity

    def __contains__(self, kind: type) -> bool:
        return self._open or self.names(kind)

    def in_force(self, kind: type) -> type:
        """Return the class, or the declared one of another version of its bundle: in an update, items of both come."""
        if kind in self._reached or package_of(kind.__module__) is None:
            return kind
        name, *known = (unversioned(full_name(one)) for one in (kind, *self._reached))
        found = next((one for one, other in zip(self._reached, known, strict=True) if other == name), None)
        if found is None and name in self._described:  # as at a host where no slet of the bundle takes the items
            with suppress(StoredStateError):
                found = named(self._described[name])
        return found if isinstance(found, type) else kind

    def names(self, kind: Any) -> bool:
        """Whether the class is declared itself, so that its default factories may be called."""
        # Not by `issubclass`, which a class can override.
        near = self._package and f"{kind.__module__}.".startswith(f"{self._package}.")
        if near or not self._reached.isdisjoint(kind.__mro__):
            return True
        names = (unversioned(full_name(one)) for one in kind.__mro__)
        return bool(self._described) and not self._described.keys().isdisjoint(names)


#: Packages of bases that are too general to permit their subclasses: `object`, `Enum`, `Protocol`, `Memento`.
_GENERAL: Final = frozenset({*sys.stdlib_module_names, "exop.model"})
_COLLECTIONS: Final = (list, dict, tuple, set, frozenset, deque, OrderedDict, Counter, defaultdict)


def _package(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in ("exop", ROOT) else parts[0]


def find_unstorable(described: Type) -> Type | None:
    """Return the part of a type because of which none of its values can be stored; `None` if some may be.

    >>> find_unstorable(type_of(list[Callable[[], int]])).name, find_unstorable(type_of(int | Callable[[], int]))
    ('Callable[[], int]', None)
    """
    for one in described.reached(unions=False):
        if all(each.kind in ("callable", "type") or _is_opaque(each) for each in one.members):
            return one
    return None


def _is_opaque(described: Type) -> bool:
    """Whether a class, and each known class derived from it, is none of data."""
    kind: Any = described.cls
    if described.kind != "class" or not isinstance(kind, type) or _package(kind.__module__) in ("numpy", "pyarrow"):
        return False
    general = getattr(kind, "_is_protocol", False) or getattr(kind, "__abstractmethods__", None)
    derived: list[type] = type.__subclasses__(kind)
    return not general and all(_is_opaque(type_of(one)) for one in derived)


def class_named(name: str, kind: str, fits: Callable[[type], bool], declared: Declared | None) -> Any:
    """Return the class of this name, if it is a *kind* and *declared*; `None` permits all classes, for trusted data."""
    found = named(name)
    is_class = issubclass(type(found), type)
    if is_class and declared is not None and (found := declared.in_force(found)) not in declared:
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

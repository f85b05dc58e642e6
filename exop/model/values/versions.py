"""Versions of the classes of a bundle: which classes correspond, and how a value changes its version.

Each version of a bundle has its modules in its own package, `exop_bundles.NAME_vVERSION`. Two classes are versions of
one class if bundle, module within the bundle and qualified name are equal.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection
from typing import Any, Final

from exop.errors import StoredStateError
from exop.model.items import Batch
from exop.model.types.description import is_named_tuple, type_of
from exop.model.types.instances import filled, filled_tuple

ROOT: Final = "exop_bundles"
#: Types without parts.
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def package_name(package: str, version: str) -> str:
    """Return the package of a version of a bundle: `exop_bundles.speeds_v1_2_0` for 1.2.0 of `speeds`."""
    plain = version.replace("!", "_epoch_").replace("+", "_local_").replace(".", "_")
    # A `_v` in the version would make the end of the name ambiguous.
    return f"{ROOT}.{package}_v{plain.replace('_v', '_V')}"


def package_of(module: str) -> tuple[str, str] | None:
    """Return the package of a bundle's version to which a module belongs, and the bundle's name; or `None`."""
    head = ".".join(module.split(".")[:2])
    if not head.startswith(f"{ROOT}."):
        return None
    bundle = head.removeprefix(f"{ROOT}.").rpartition("_v")[0]
    return head, bundle


def new_version(old: Any, new: Any) -> str | None:
    """Return the package of *new*, a class or function, if it and *old* are of two versions of one bundle."""
    before, after = package_of(old.__module__), package_of(new.__module__)
    return after[0] if before and after and before[1] == after[1] and before != after else None


def same_class(old: type, new: type) -> bool:
    """Whether two classes are versions of one class of a bundle."""
    names = {unversioned(f"{one.__module__}:{one.__qualname__}") for one in (old, new)}
    return len(names) == 1 and None not in (package_of(old.__module__), package_of(new.__module__))


def unversioned(name: str) -> str:
    """The name of a class, `module:Qualified.Name`, without the version of its bundle."""
    found = package_of(name.partition(":")[0])
    return name if found is None else name.replace(found[0], found[1], 1)


def find_version(name: str) -> str | None:
    """The name, in a loaded version of its bundle, of a class whose own version is not loaded."""
    module = name.partition(":")[0]
    found = package_of(module)
    if found is None or found[0] in sys.modules:
        return None
    package, bundle = found
    loaded = {head for head in (package_of(one) for one in list(sys.modules)) if head is not None}
    others = sorted(other for other, whose in loaded if whose == bundle)
    return name.replace(package, others[-1], 1) if others else None


class NoVersion(TypeError):
    """The other version of a bundle lacks the class of a value, or the class has other fields."""


@dataclasses.dataclass
class Mover:
    """Converts values of the classes of one version to those of another.

    Values without such parts are returned as they are, by reference; others are copied, and the old value is unchanged.

    Args:
        after: The package of the new version. A class of any other version of the bundle is old, unless the new version
            has adopted it unchanged.
    """

    after: str
    _made: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    _found: dict[type, Any] = dataclasses.field(default_factory=dict)

    def move(self, value: Any) -> Any:
        """Convert a value to the new version."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        known = self._made.get(id(value))
        if known is None:
            # A reference to the old value prevents the reuse of its id.
            known = self._made[id(value)] = value, self._moved(value, kind)
        return known[1]

    def fields_of(self, value: Any) -> Any:
        """Convert the fields of a dataclass that is of the new version already."""
        return self._record(value, type(value))

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
        found = self._find(kind)
        if found is None:
            raise NoVersion(f"the new version has no {kind.__module__.split('.', 2)[-1]}.{kind.__qualname__}")
        return found

    def _member(self, value: enum.Enum, kind: Any) -> Any:
        try:
            return kind[value.name] if value.name is not None else kind(value.value)
        except (KeyError, ValueError):
            raise NoVersion(f"{kind.__qualname__} has no {value.name} any more") from None

    def _record(self, value: Any, kind: Any) -> Any:
        """Convert a dataclass or named tuple; `__init__` and `__post_init__` are not called."""
        plain = dataclasses.is_dataclass(value)
        names = [one.name for one in dataclasses.fields(value)] if plain else value._fields
        fields = {name: getattr(value, name) for name in names}
        moved = {name: self.move(one) for name, one in fields.items()}
        if kind is type(value) and _same(fields.values(), moved.values()):
            return value
        try:
            return (filled if plain else filled_tuple)(kind, moved)
        except StoredStateError as problem:
            raise NoVersion(problem.problem) from None
        except (TypeError, AttributeError):  # it is no record any more
            raise NoVersion(f"{kind.__qualname__} has other fields") from None

    def _container(self, value: Any, kind: Any) -> Any:
        if not issubclass(kind, dict):
            moved = [self.move(one) for one in value]
            if _same(value, moved):
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

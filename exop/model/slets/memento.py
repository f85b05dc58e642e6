"""The state of a slet as a value, which the platform creates, captures, stores and hands over."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from exop.errors import SletError, StoredStateError
from exop.model.types.assignable import value_mismatch
from exop.model.types.description import type_of
from exop.model.values.depth import walk
from exop.safe_repr import RAISED, error_text, safe_repr

M = TypeVar("M", bound="Memento")


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Memento:
    """The base of all state classes: the annotated fields are the state.

    Every field needs a default, because the platform creates the first instance. A subclass needs no decorator:

        class Speeds(Memento):
            by_segment: dict[int, list[float]] = field(default_factory=dict)

    A stored memento contains the version of its class, `class Speeds(Memento, version=2)`, by default 1. A class of a
    newer version reads an older memento through its `upgrade`; a memento of a newer version is refused.

    Raises:
        SletError: a field has no default, no type, or a default that instances would share.
    """

    __memento_version__: ClassVar[int] = 1

    def __init_subclass__(cls, *, version: int | None = None, **options: Any) -> None:
        try:
            super().__init_subclass__(**options)
        except TypeError as error:
            if not options:  # raised by the code of a base class
                raise
            problem = f"the class has no keyword {', '.join(options)}"
            raise SletError(slet=cls.__qualname__, what="memento", problem=problem, cure="use version") from error
        if version is not None:
            if type(version) is not int or version < 1:
                problem = f"version={version!r} is no version of a memento"
                raise SletError(slet=cls.__qualname__, what="memento", problem=problem, cure="give a number from 1 on")
            cls.__memento_version__ = version
        _check_typed(cls)
        as_dataclass(cls, "memento")
        missing = [
            entry.name
            for entry in dataclasses.fields(cls)  # type: ignore[arg-type]
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        ]
        if missing:
            problem = f"the field{'s' * (len(missing) > 1)} {', '.join(missing)} must have a default"
            cure = "the platform makes the first one: give `= value` or `= field(default_factory=…)`"
            raise SletError(slet=cls.__qualname__, what="memento", problem=problem, cure=cure)

    def copied(self) -> Self:
        """Return an independent copy, for retries of atomic slets and for upgrades."""
        return copy.deepcopy(self)


def upgraded(kind: type[M], old: Any, refuse: Callable[[str], Exception]) -> M:
    """Call the `upgrade` of a class with an older memento; *refuse* creates the error."""
    try:
        made = kind.upgrade(old)  # type: ignore[attr-defined]
    except RAISED as error:
        raise refuse(f"{kind.__qualname__}.upgrade raised {error_text(error)}") from error
    if not isinstance(made, kind):
        raise refuse(f"{kind.__qualname__}.upgrade returned {safe_repr(made, 200)}, which is no {kind.__qualname__}")
    return made


def as_dataclass(cls: type, what: str, **options: bool) -> None:
    """Make a subclass of `Memento` or `Slet` a dataclass with keyword-only fields; it keeps its own docstring."""
    own = vars(cls)
    typed = own.get("__annotations__", {})
    bases = filter(dataclasses.is_dataclass, cls.__mro__[1:])
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    for name in inherited:
        if name in own and name not in typed:
            problem = f"{name} is a field of its base, and a value without a type does not change it"
            raise SletError(slet=cls.__qualname__, what=what, problem=problem, cure=f"write `{name}: T = …`")
    doc = own.get("__doc__")
    try:
        dataclasses.dataclass(kw_only=True, **options)(cls)
    except (TypeError, ValueError) as problem:
        cure = "use `name: T = field(default_factory=…)`"
        raise SletError(slet=cls.__qualname__, what=what, problem=str(problem), cure=cure) from None
    cls.__doc__ = doc


def _check_typed(cls: type) -> None:
    """Refuse values without a type: they would be lost when the memento is handed over."""
    typed = vars(cls).get("__annotations__", {})
    for name, value in vars(cls).items():
        plain = name.startswith("__") or isinstance(value, (FunctionType, type, property, classmethod, staticmethod))
        if not plain and name not in typed and not inspect.isdatadescriptor(value) and not hasattr(value, "__get__"):
            problem = f"{name} has no type, so it is no part of the state"
            raise SletError(slet=cls.__qualname__, what="memento", problem=problem, cure=f"write `{name}: T = …`")


def refused(place: str, problem: str, cure: str) -> StoredStateError:
    """The error for data that cannot be read as a memento."""
    return StoredStateError(what=place, problem=problem, cure=cure)


def check_fields(fields: Mapping[str, Any], kind: type[Memento], place: str) -> None:
    """Compare values with the annotations of a memento class."""
    known = type_of(kind).fields
    for name, value in fields.items():
        if name not in known:
            problem = f"{kind.__qualname__} has no field {name!r}; it has {', '.join(known) or 'none'}"
            cure = "give the memento a `@classmethod def upgrade(cls, old)`, or use the code that wrote it"
            raise refused(place, problem, cure)
        if (where := value_mismatch(value, known[name].type, name)) is not None:
            cure = "correct it, or give the memento a higher version and a `@classmethod def upgrade(cls, old)`"
            raise refused(place, where, cure)


def check_parts(value: Any, place: str) -> None:
    """Compare every dataclass and named tuple in *value* with the annotations of its fields."""
    for one, _, _ in walk(value):
        if dataclasses.is_dataclass(kind := type(one)) or hasattr(kind, "_fields"):
            for name, field in type_of(kind).fields.items():
                where = value_mismatch(getattr(one, name, None), field.type, f"{kind.__qualname__}.{name}")
                if where is not None:
                    raise refused(place, where, "correct it, or use the code that wrote it")

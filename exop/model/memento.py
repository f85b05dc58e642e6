"""A slet's state as a value: made, captured, stored, carried over and migrated by the platform."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from types import FunctionType
from typing import Any, ClassVar, Self, dataclass_transform

from exop.errors import SletError


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Memento:
    """The base of every state class: its annotated fields are the state.

    Every field has a default, because the platform makes the first one; a subclass needs no decorator:

        class Speeds(Memento):
            by_segment: dict[int, list[float]] = field(default_factory=dict)

    What is stored of it says its version, `class Speeds(Memento, version=2)`, 1 by default. A class of a newer version
    takes over what an older one has stored through its `upgrade`; what a newer one has stored is refused.

    Raises:
        SletError: a field has no default, no type, or a default that instances would share.
    """

    __memento_version__: ClassVar[int] = 1

    def __init_subclass__(cls, *, version: int | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if version is not None:
            cls.__memento_version__ = version
        _check_typed(cls)
        as_dataclass(cls, "memento")
        missing = [
            entry.name
            for entry in dataclasses.fields(cls)  # type: ignore[arg-type]
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise SletError(
                slet=cls.__qualname__,
                what="memento",
                problem=f"the field{'s' * (len(missing) > 1)} {', '.join(missing)} must have a default",
                cure="the platform makes the first one: give `= value` or `= field(default_factory=…)`",
            )

    def copied(self) -> Self:
        """An independent copy: what an atomic slet goes back to, and what an upgrade works on."""
        return copy.deepcopy(self)


def as_dataclass(cls: type, what: str, **options: bool) -> None:
    """Make a subclass of `Memento` or `Slet` a dataclass with keyword-only fields; its docstring stays its own.

    Raises:
        SletError: a default that instances would share, or a field whose type was left out.
    """
    own = vars(cls)
    typed = own.get("__annotations__", {})
    inherited = {
        field.name for base in cls.__mro__[1:] if dataclasses.is_dataclass(base) for field in dataclasses.fields(base)
    }
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
    """A value without a type would work until the memento is carried over, and be lost then."""
    typed = vars(cls).get("__annotations__", {})
    for name, value in vars(cls).items():
        plain = name.startswith("__") or isinstance(value, (FunctionType, type, property, classmethod, staticmethod))
        if not plain and name not in typed and not inspect.isdatadescriptor(value) and not hasattr(value, "__get__"):
            problem = f"{name} has no type, so it is no part of the state"
            raise SletError(slet=cls.__qualname__, what="memento", problem=problem, cure=f"write `{name}: T = …`")

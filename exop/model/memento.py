"""A slet's state as a value: made, captured, stored, carried over and migrated by the platform."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Self, dataclass_transform

from exop.errors import SletError


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Memento:
    """The base of every state class: its annotated fields are the state.

    Every field has a default, because the platform makes the first one; a subclass needs no decorator:

        class Speeds(Memento):
            by_segment: dict[int, list[float]] = field(default_factory=dict)

    Raises:
        SletError: a field has no default, or a default that instances would share.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        try:
            dataclasses.dataclass(kw_only=True)(cls)
        except ValueError as problem:
            raise SletError(slet=cls.__qualname__, problem=str(problem), cure="use field(default_factory=…)") from None
        missing = [
            entry.name
            for entry in dataclasses.fields(cls)  # type: ignore[arg-type]
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise SletError(
                slet=cls.__qualname__,
                problem=f"the field{'s' * (len(missing) > 1)} {', '.join(missing)} of a memento must have a default",
                cure="the platform makes the first one: give `= value` or `= field(default_factory=…)`",
            )

    def copied(self) -> Self:
        """An independent copy: what an atomic slet goes back to, and what an upgrade works on."""
        return copy.deepcopy(self)

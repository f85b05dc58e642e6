"""The conditions of a proof before a change: the number of items, the time, and the comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exop.errors import PlanError
from exop.model.spec import is_number

#: Seconds to wait for the items of a proof, by default.
WITHIN = 60.0
#: Differences of the time per call below this many seconds say nothing: the clock and the other threads make them.
TRIFLE = 50e-6


@dataclass(frozen=True)
class Shadow:
    """The successor runs beside the old one, on the same items, before it takes over: `plan.apply(shadow=Shadow(…))`.

    Args:
        items: The number of items on which both slets have to agree.
        seconds: How long both slets have to agree; with `items`, the time limit for these (60 s by default).
        compare: Returns whether an output of the successor (second argument) is as good as that of the old slet (first
            argument); called with single items, and with the rows of record batches as dictionaries. By default, the
            outputs have to be equal.
        slower: How many times as long the successor may take for an item, in the median.
        divert: Settings that replace those of the successor during the comparison, so that its effects outside the
            mesh go elsewhere: `{"path": "trial.csv"}`, or `{"node.path": …}` if several slets are replaced.
        copy: Whether the successor receives copies of mutable items. `False` declares that no slet changes items that
            it receives or has sent.
        allow_no_output: Whether the successor may take over if neither slet has sent anything to compare. A sink always
            may: its errors and times are compared.

    Raises:
        PlanError: neither `items` nor `seconds` is given, or a number is out of range.
    """

    items: int | None = None
    seconds: float | None = None
    compare: Callable[[Any, Any], bool] | None = None
    slower: float = 2.0
    divert: Mapping[str, Any] = field(default_factory=dict)
    copy: bool = True
    allow_no_output: bool = False

    def __post_init__(self) -> None:
        if self.items is None and self.seconds is None:
            raise PlanError("a shadow needs an end: say Shadow(items=1000), or Shadow(seconds=30)")
        self._check_kinds()
        if (self.items is not None and self.items < 1) or not 0 < self.limit < float("inf") or not self.slower > 0:
            given = f"items={self.items}, seconds={self.seconds}, slower={self.slower}"
            raise PlanError(f"a shadow with {given} cannot be; give numbers above 0")

    def _check_kinds(self) -> None:
        """Refuse what is of another kind than it is to be, before anything runs."""
        items, seconds, compare, divert = self.items, self.seconds, self.compare, self.divert
        named = isinstance(divert, Mapping) and all(isinstance(name, str) for name in divert)
        for name, fits, cure in (
            ("items", items is None or (is_number(items) and isinstance(items, int)), "a whole number above 0"),
            ("seconds", seconds is None or is_number(seconds), "a number of seconds above 0"),
            ("slower", is_number(self.slower), "a number above 0"),
            ("compare", compare is None or callable(compare), "a function of two items, compare(old, new) -> bool"),
            ("divert", named, "values by setting, {'path': 'trial.csv'}"),
            ("copy", isinstance(self.copy, bool), "True or False"),
            ("allow_no_output", isinstance(self.allow_no_output, bool), "True or False"),
        ):
            if not fits:
                raise PlanError(f"a shadow with {name}={getattr(self, name)!r} cannot be; give {cure}")

    @property
    def limit(self) -> float:
        """After so many seconds it is over, one way or the other."""
        return WITHIN if self.seconds is None else self.seconds

    @classmethod
    def parse(cls, text: str, **more: Any) -> Shadow:
        """A shadow as the command line has it: `30s`, `1000items`, `1000items,30s`."""
        found: dict[str, Any] = {}
        for part in text.replace(" ", "").split(","):
            match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|items?)", part)
            if match is None or (match[2] != "s" and "." in match[1]):
                raise PlanError(f"{text!r} is no shadow; write 30s, 1000items, or 1000items,30s")
            found["seconds" if match[2] == "s" else "items"] = float(match[1]) if match[2] == "s" else int(match[1])
        return cls(**found, **more)

    def __str__(self) -> str:
        if self.items is None:
            return f"{self.limit:g} s"
        return f"{self.items} items, within {self.limit:g} s"

    def diverted(self, node: str) -> dict[str, Any]:
        """The settings that a node's successor gets instead of its own."""
        own = {
            name.removeprefix(f"{node}."): value for name, value in self.divert.items() if name.startswith(f"{node}.")
        }
        return {name: value for name, value in self.divert.items() if "." not in name} | own


def as_shadow(value: object) -> Shadow:
    """Return the value given as a shadow, if it is one."""
    if isinstance(value, Shadow):
        return value
    cure = f"Shadow.parse({value!r})" if isinstance(value, str) else "Shadow(items=1000), or Shadow(seconds=30)"
    raise PlanError(f"shadow={value!r} is no shadow; say shadow={cure}")

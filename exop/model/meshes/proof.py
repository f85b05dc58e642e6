"""The conditions of a proof before a change: the number of items, the time, and the comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exop.errors import PlanError
from exop.model.slets.spec import is_number

#: Seconds to wait for the items of a proof, by default.
WITHIN = 60.0
#: Differences of the time per call below this many seconds say nothing: the clock and the other threads make them.
TRIFLE = 50e-6


@dataclass(frozen=True)
class Shadow:
    """The successor runs beside the old one, on the same items, before it takes over: `plan.apply(shadow=Shadow(…))`.

    Args:
        items: It has to agree on so many items.
        seconds: It has to agree for so long; with `items`, they have to come within this time (60 s by default).
        compare: Tells whether what the new one has put out (its second argument) is as good as what the old one has;
            called with single items, of record batches with their rows as dictionaries. By default they are equal.
        slower: It may take so many times as long for an item, in the median.
        divert: Settings that the successor gets instead of its own while it is tried, so that what it does outside of
            the mesh goes elsewhere: `{"path": "trial.csv"}`, or `{"node.path": …}` where several are replaced.
        copy: Items that could be altered are copied for it. `False` says that no slet alters the items that it gets,
            or has put out.
        allow_no_output: It may take over although neither has put out anything that could be compared. A sink always
            may: its errors and times are compared.

    Raises:
        PlanError: it says neither `items` nor `seconds`, or a number that cannot be.
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
        """A shadow as the command line has it: `30s`, `1000items`, `1000items,30s`.

        Raises:
            PlanError: it is something else.
        """
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
    """Return the value given as a shadow, if it is one.

    Raises:
        PlanError: it is something else.
    """
    if isinstance(value, Shadow):
        return value
    cure = f"Shadow.parse({value!r})" if isinstance(value, str) else "Shadow(items=1000), or Shadow(seconds=30)"
    raise PlanError(f"shadow={value!r} is no shadow; say shadow={cure}")

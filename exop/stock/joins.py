"""`stock:join` joins streams by key and time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar, Final, Self, TypedDict

from exop.errors import SettingError
from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, OutputPort, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.channels.base import ControlMerge
from exop.runtime.channels.partitioned import key_reader, time_reader

#: The minimum number of stored items before a sweep drops those that no later item can join.
_FEW: Final = 100


class Kept(Memento):
    """The items with which later items may be joined, with their times, by side and key.

    `complete` is the time up to which each side is complete, `said` the time of the last emitted punctuation, and
    `merged` the state of the merge of punctuations. `added` is the number of items since the last sweep, and `swept`
    the number of items after the sweep.
    """

    sides: dict[str, dict[Any, list[tuple[int | float, Any]]]] = field(default_factory=dict)
    complete: dict[str, int | float] = field(default_factory=dict)
    said: float = -math.inf
    merged: dict[str, Any] = field(default_factory=dict)
    added: int = 0
    swept: int = 0


class Join(Slet, name="join"):
    """Join items of two or more streams that have the same key and are close in time.

    Each stream arrives at a separate port, `sides.NAME`. A result joins one item of each side, with equal fields `by`
    and times that differ by at most `within`. The result is a dictionary with the fields `by`, the latest time under
    the name of `time`, and each item under the name of its side. It is emitted when its last item arrives.

    The join stores an item until the punctuations of the other sides exclude every item with which it could be joined.
    Therefore each side needs punctuations (`stock:watermark`); without them, the memento grows without limit. Items
    that an earlier punctuation of their own side, or an emitted punctuation, excludes are emitted at `late`.

    Args:
        by: The field, or the fields, that must be equal; with an empty list all items match.
        time: The field with the time of an item, which must be a finite number.
        within: The maximum difference between two times in a result, in the unit of `time`.
    """

    reopens: ClassVar[bool] = True
    by: str | list[str]
    time: str
    within: float
    kept: Kept
    late: OutputPort[Any]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification whose output has the fields of a result; refuse a field that a side lacks."""
        by, time, within = _fields(settings["by"]), settings["time"], settings["within"]
        if not 0 <= within < math.inf:
            problem = f"it is {within:g}, and must be finite, and 0 or more"
            raise SettingError(place="", setting="within", problem=problem)
        sides = {port.partition(".")[2]: carried for port, carried in inputs.items()}
        for side, carried in sides.items():
            if side in (*by, time):
                problem = f"the side {side!r} has the name of a field of the result; connect it under another name"
                raise SettingError(place="", setting="time" if side == time else "by", problem=problem)
            for setting, name in (*(("by", name) for name in by), ("time", time)):
                carried.check_field("", setting, name)
        spec = spec_of(cls)
        # Rows of columns are dictionaries when the slet receives them.
        items = {side: dict if carried.form == "columns" else carried.item for side, carried in sides.items()}
        result = _result((*by, time), tuple(items.items()))
        return spec.with_outputs({OUT: replace(spec.ports[OUT].type, item=result if sides else dict)})

    def __enter__(self) -> Self:
        self._key, self._time, self._names = key_reader(self.by), time_reader(self.time), _fields(self.by)
        self._sides = [port.partition(".")[2] for port in self.inputs]
        self._merged: tuple[Kept, ControlMerge] | None = None
        return self

    @input_port
    def sides(self, side: str, item: Any | Punctuation | EndOfStream) -> Iterable[Any | Punctuation]:
        """Take one item of one side."""
        if isinstance(item, (Punctuation, EndOfStream)):
            return self._complete(side, item)
        time, kept = self._time(item), self.kept
        if time <= kept.complete.get(side, kept.said):
            self.late.push(item)
            return ()
        key, mine = self._key(item), [(time, item)]
        known = {other: kept.sides.get(other, {}).get(key, []) for other in self._sides} | {side: mine}
        choices = [[one for one in items if abs(one[0] - time) <= self.within] for items in known.values()]
        kept.sides.setdefault(side, {}).setdefault(key, []).extend(mine)
        kept.added += 1
        return [self._joined(key, chosen) for chosen in product(*choices) if len(chosen) > 1 and self._near(chosen)]

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of kept items."""
        return {"kept": self.kept.swept + self.kept.added}

    def _near(self, chosen: tuple[tuple[int | float, Any], ...]) -> bool:
        times = [time for time, _ in chosen]
        return max(times) - min(times) <= self.within

    def _joined(self, key: Any, chosen: tuple[tuple[int | float, Any], ...]) -> dict[str, Any]:
        keys = (key,) if isinstance(self.by, str) else key or ()
        found = {**dict(zip(self._names, keys, strict=True)), self.time: max(time for time, _ in chosen)}
        return found | {side: item for side, (_, item) in zip(self._sides, chosen, strict=True)}

    def _complete(self, side: str, mark: Punctuation | EndOfStream) -> list[Punctuation]:
        """Note the time through which a side is complete; return the punctuations that are due."""
        kept = self.kept
        if self._merged is None or self._merged[0] is not kept:  # the memento is handed over after the opening
            merge = ControlMerge()
            merge.expect(self._sides)
            if kept.merged:
                merge.restore(kept.merged)
            self._merged = kept, merge
        due = [one for one in self._merged[1].on(side, mark) if isinstance(one, Punctuation)]
        kept.merged = self._merged[1].capture()
        kept.said = max([kept.said, *(one.time for one in due)])
        time = math.inf if isinstance(mark, EndOfStream) else mark.time
        complete = kept.complete | {side: max(time, kept.complete.get(side, time))}
        # An idle side does not hold up the others: its items through `said` are late.
        kept.complete = {name: max(complete.get(name, kept.said), kept.said) for name in self._sides}
        if kept.added > kept.swept + _FEW or time == math.inf:
            self._sweep()
        return due

    def _sweep(self) -> None:
        """Drop the items that no later item can join, and the sides that are disconnected."""
        kept, left = self.kept, dict[str, dict[Any, list[tuple[int | float, Any]]]]()
        for side in self._sides:
            others = [kept.complete.get(other, kept.said) for other in self._sides if other != side]
            oldest = min(others, default=math.inf) - self.within
            found = {key: [one for one in items if one[0] > oldest] for key, items in kept.sides.get(side, {}).items()}
            left[side] = {key: items for key, items in found.items() if items}
        kept.sides, kept.added = left, 0
        kept.swept = sum(len(items) for keys in left.values() for items in keys.values())


def _fields(by: str | list[str]) -> tuple[str, ...]:
    return (by,) if isinstance(by, str) else tuple(by)


def _result(fields: tuple[str, ...], sides: tuple[tuple[str, Any], ...]) -> Any:
    """Return the type of the results; the same one for the same sides."""
    try:
        return _made(fields, sides)
    except TypeError:  # a type that cannot be a key
        return _made.__wrapped__(fields, sides)


@lru_cache(maxsize=128)
def _made(fields: tuple[str, ...], sides: tuple[tuple[str, Any], ...]) -> Any:
    return TypedDict("Joined", dict.fromkeys(fields, Any) | dict(sides))  # type: ignore[operator]

"""`stock:asof` joins each item of one stream with the latest item of another one."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, ClassVar, Final, Optional, Self, TypeAlias

from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.ports import OUT, OutputPort, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.stock.rows import result_type
from exop.stock.sides import Merge, Progress, check_fields, fields_of, following, item_reader, wrong

#: A stored item: its time, its number by arrival, and the item.
Entry: TypeAlias = list[Any]
#: The minimum number of stored items before a sweep drops those that no later item can be joined with.
_FEW: Final = 100
_SIDES: Final = ("left", "right")
_time = itemgetter(0)


class Latest(Progress):
    """The items of the left side that wait, as a heap, and those of the right side by key, in the order of their times.

    `arrived` is the number of items so far, and `swept` the number of items of the right side after the last sweep.
    """

    waiting: list[Entry] = field(default_factory=list)
    rights: dict[Any, list[Entry]] = field(default_factory=dict)
    arrived: int = 0
    added: int = 0
    swept: int = 0


class Asof(Slet, name="asof"):
    """Join each item of the left side with the latest item of the right side that has its key and is not later.

    The result is a dictionary with the fields `by`, the time of the left item under the name of `time`, and the two
    items as `left` and `right`; `right` is `None` if there is no such item, or if it is older than `tolerance`. Of
    several items of the same time, the one that arrived last counts.

    A left item waits until the right side is complete through its time, so both sides need punctuations
    (`stock:watermark`). Items that an earlier punctuation of their own side excludes are emitted at `late`.

    Args:
        by: The field, or the fields, that must be equal; with an empty list all items match. NULL equals nothing.
        time: The field with the time of an item, which must be a finite number.
        tolerance: The maximum age of the right item, in the unit of `time`; `None` for no limit.
        on: Fields that have other names on a side: `{"right": {"time": "at"}}`.
        eager: Whether a left item does not wait, and is joined with what has arrived. The results then depend on how
            the inputs interleave.
    """

    reopens: ClassVar[bool] = True
    by: str | list[str]
    time: str
    tolerance: float | None = None
    on: dict[str, dict[str, str]] = field(default_factory=dict)
    eager: bool = False
    latest: Latest
    late: OutputPort[Any]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification whose output has the fields of a result; refuse a field that a side lacks."""
        sides = {side: inputs.get(side, PortType()) for side in _SIDES}
        if (length := settings["tolerance"]) is not None and not 0 <= length < math.inf:
            raise wrong("tolerance", f"it is {length:g}, and must be finite, and 0 or more; leave it out for no limit")
        check_fields(settings, sides)
        # Rows of columns are dictionaries when the slet receives them.
        left, right = (dict if carried.form == "columns" else carried.item for carried in sides.values())
        fields = dict.fromkeys((*fields_of(settings["by"]), settings["time"]), Any)
        sided = {"left": left, "right": Optional[right]}  # noqa: UP045 (made at run time)
        result = result_type("Joined", fields | sided)
        spec = spec_of(cls)
        return spec.with_outputs({OUT: replace(spec.ports[OUT].type, item=result)})

    def __enter__(self) -> Self:
        self._read = {side: item_reader(self.by, self.time, self.on.get(side, {})) for side in _SIDES}
        self._rights: dict[Any, list[Entry]] | None = None
        return self

    @input_port
    def left(self, item: Any | Punctuation | EndOfStream) -> Iterable[Any | Punctuation]:
        """Take one item of the left side."""
        latest = self._adopted()
        if isinstance(item, (Punctuation, EndOfStream)):
            return self._complete("left", item)
        key, time = self._read["left"](item)
        hash(key)  # fails now, and not when its time has come
        if time <= latest.complete.get("left", latest.said):
            self.late.push(item)
            return ()
        entry = [time, latest.arrived, item]
        if self.eager:
            return [self._row(entry)]
        heappush(latest.waiting, entry)
        latest.arrived += 1
        return self._due()

    @input_port
    def right(self, item: Any | Punctuation | EndOfStream) -> Iterable[Any | Punctuation]:
        """Take one item of the right side."""
        latest = self._adopted()
        if isinstance(item, (Punctuation, EndOfStream)):
            return self._complete("right", item)
        key, time = self._read["right"](item)
        if time <= latest.complete.get("right", latest.said):
            self.late.push(item)
            return ()
        entry, entries = [time, latest.arrived, item], latest.rights.setdefault(key, [])
        if not entries or entries[-1][0] <= time:
            entries.append(entry)
        else:
            insort(entries, entry)
        latest.arrived += 1
        latest.added += 1
        return ()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the numbers of items that wait, and that are kept for later ones."""
        return {"waiting": len(self.latest.waiting), "kept": self.latest.swept + self.latest.added}

    def _row(self, entry: Entry) -> dict[str, Any]:
        """Return the result of an item of the left side."""
        time, _, item = entry
        key, _ = self._read["left"](item)
        found = None
        if key is not None and (key.__class__ is not tuple or None not in key):
            entries = self.latest.rights.get(key, [])
            place = bisect_right(entries, time, key=_time)
            if place and (self.tolerance is None or time - entries[place - 1][0] <= self.tolerance):
                found = entries[place - 1][2]
        keys = (key,) if isinstance(self.by, str) else key
        return dict(zip(fields_of(self.by), keys, strict=True)) | {self.time: time, "left": item, "right": found}

    def _due(self) -> list[Any]:
        """Return the results of the items through whose times the right side is complete."""
        latest, rows = self.latest, []
        complete = latest.complete.get("right", latest.said)
        while latest.waiting and latest.waiting[0][0] <= complete:
            rows.append(self._row(latest.waiting[0]))
            heappop(latest.waiting)
        return rows

    def _complete(self, side: str, mark: Punctuation | EndOfStream) -> list[Any | Punctuation]:
        """Note the time through which a side is complete; return the results and punctuations that are due."""
        latest = self.latest
        due = self._merge.note(side, mark)
        rows = self._due()
        if latest.added > latest.swept + _FEW or isinstance(mark, EndOfStream):
            self._sweep()
        return [*rows, *self._merge.allowed(due, latest.waiting[0][0] if latest.waiting else math.inf)]

    def _sweep(self) -> None:
        """Drop the items before the latest one that an item of the left side may still be joined with."""
        latest = self.latest
        first = following(latest.complete.get("left", latest.said))
        first = min(first, latest.waiting[0][0]) if latest.waiting else first
        for key, entries in [*latest.rights.items()]:
            del entries[: max(0, bisect_right(entries, first, key=_time) - 1)]
            if first == math.inf or (self.tolerance is not None and first - entries[-1][0] > self.tolerance):
                del latest.rights[key]
        latest.swept, latest.added = sum(map(len, latest.rights.values())), 0

    def _adopted(self) -> Latest:
        """Return the memento; continue with another one, perhaps of other settings."""
        latest = self.latest
        if latest.rights is not self._rights:  # the memento is handed over after the opening
            self._merge = Merge(latest, _SIDES)
            found, self._rights = sorted(one for entries in latest.rights.values() for one in entries), {}
            for entry in found:
                with suppress(LookupError):  # other fields are to be equal now, which it lacks: it equals nothing
                    key, _ = self._read["right"](entry[2])
                    self._rights.setdefault(key, []).append(entry)
            latest.rights, latest.swept, latest.added = self._rights, len(found), 0
        return latest

"""`stock:join` joins streams by key and time."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Optional, Self, TypeAlias

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.ports import OUT, OutputPort, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.safe_repr import error_text
from exop.stock.rows import result_type
from exop.stock.sides import Merge, Progress, check_fields, fields_of, following, item_reader, wrong

if TYPE_CHECKING:
    from exop.expressions import Expression

#: A stored item: its time, its number by arrival, the item, and whether it has been joined, or needs no row of its own.
Entry: TypeAlias = list[Any]
How: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]

#: The minimum number of stored items before a sweep drops those that no later item can join.
_FEW: Final = 100
#: The number of items of one key from which the range of times is found by bisection.
_MANY: Final = 16
#: The sides (0: left, 1: right) whose items wait for what the other side excludes.
_WAITING: Final[dict[How, tuple[int, ...]]] = {"inner": (), "left": (0,), "right": (1,), "outer": (0, 1)}
_FILTERS: Final = ("semi", "anti")
_NOBODY: Final[Entry] = [-math.inf, -1, None, True]


class Kept(Progress, version=2):
    """The items with which later items may be joined, by side and key, in the order of their times.

    `arrived` is the number of items so far, `added` those since the last sweep, and `swept` the number of items after
    the sweep.
    """

    sides: dict[str, dict[Any, list[Entry]]] = field(default_factory=dict)
    arrived: int = 0
    added: int = 0
    swept: int = 0

    @classmethod
    def upgrade(cls, old: Any) -> Self:
        """Read version 1: unsorted pairs of a time and an item, of which it is not known whether they were joined."""
        made = cls(complete=old.complete, said=old.said, emitted=old.said, merged=old.merged)
        for side, keys in old.sides.items():
            made.sides[side] = {}
            for key, items in keys.items():
                numbered = enumerate(sorted(items, key=itemgetter(0)), made.arrived)
                made.sides[side][key] = [[time, number, item, True] for number, (time, item) in numbered]
                made.arrived += len(items)
        made.added, made.swept = old.added, old.swept
        return made


@dataclass(slots=True, eq=False)
class _Side:
    """One side of a join.

    `read` returns the key and the time of an item, and `rows` the rows of an entry and those that are found for it.
    `reach` and `back` are the maximum distances from the time of an item to a later and to an earlier one of the other
    side. Items up to `complete` are late; `horizon` is the earliest time that a later item of the other sides can have.
    `entries` are the kept items by key, and `waiting` is the heap of those that wait for a partner. Of two sides,
    `partner` is the other one.
    """

    name: str
    number: int
    read: Callable[[Any], tuple[Any, float]]
    rows: Callable[[Any, Entry, list[Any]], list[Any]]
    reach: float
    back: float
    waits: bool
    complete: float = -math.inf
    horizon: float = -math.inf
    entries: dict[Any, list[Entry]] = field(default_factory=dict)
    waiting: list[tuple[float, int, Any, Entry]] = field(default_factory=list)
    partner: _Side | None = None

    def excluded(self, time: float) -> bool:
        """Whether no later item of another side can be joined with an item of this time."""
        return self.horizon - time > self.reach

    def near(self, entries: list[Entry], time: float) -> list[Entry]:
        """Return those entries of the other side that are close enough to an item of this side."""
        low, high = -self.back, self.reach
        if len(entries) < _MANY:
            return [entry for entry in entries if low <= entry[0] - time <= high]

        first = bisect_left(entries, [time + low])
        last = bisect_right(entries, [time + high, math.inf], first)
        # The differences decide, as everywhere: sums of floats are rounded differently.
        while first and entries[first - 1][0] - time >= low:
            first -= 1
        while first < last and entries[first][0] - time < low:
            first += 1
        while last < len(entries) and entries[last][0] - time <= high:
            last += 1
        while first < last and entries[last - 1][0] - time > high:
            last -= 1
        return entries[first:last]


class Join(Slet, name="join"):
    """Join items of two or more streams that have the same key and are close in time.

    Each stream arrives at a separate port, `sides.NAME`. A result joins one item of each side, with equal fields `by`
    and times that differ by at most `within`. The result is a dictionary with the fields `by`, the latest time under
    the name of `time`, and each item under the name of its side. It is emitted when its last item arrives.

    The join stores an item until the punctuations of the other sides exclude every item with which it could be joined.
    Therefore each side needs punctuations (`stock:watermark`); without them, the memento grows without limit. Items
    that an earlier punctuation of their own side, or an emitted punctuation, excludes are emitted at `late`.

    Of two sides, the first one is the left one. The setting `how` decides what is emitted for items that match none of
    the other side: `left`, `right` and `outer` emit those of the left side, of the right side, or of both, with `None`
    for the other side. `semi` and `anti` filter the left side: they emit its items that match, or that do not match.

    Args:
        by: The field, or the fields, that must be equal; with an empty list all items match. NULL equals nothing.
        time: The field with the time of an item, which must be a finite number.
        within: The maximum difference between two times in a result, in the unit of `time`.
        before: The maximum time by which an item of the right side is earlier than that of the left side; by default
            `within`.
        after: The maximum time by which it is later; by default `within`.
        rows: Instead of a distance: the number of the last items of each side and key with which an item is joined.
        on: Fields that have other names on a side: `{"tolls": {"vid": "car", "time": "at"}}`. Results have the names in
            `by` and `time`.
        where: A further condition on a result, which is called `item`: `"item.cars.speed > item.tolls.limit"`.
        how: The items that are emitted: results only (`inner`), or as described above.
    """

    reopens: ClassVar[bool] = True
    by: str | list[str]
    time: str
    within: float | None = None
    before: float | None = None
    after: float | None = None
    rows: int = 0
    on: dict[str, dict[str, str]] = field(default_factory=dict)
    where: str = ""
    how: How = "inner"
    kept: Kept
    late: OutputPort[Any]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification whose output has the fields of a result; refuse a field that a side lacks."""
        sides = {port.partition(".")[2]: carried for port, carried in inputs.items()}
        _check(settings, sides)
        check_fields(settings, sides)
        spec, how, fields = spec_of(cls), settings["how"], (*fields_of(settings["by"]), settings["time"])
        # Rows of columns are dictionaries when the slet receives them.
        items = [(side, dict if carried.form == "columns" else carried.item) for side, carried in sides.items()]
        if settings["where"]:
            _condition(
                settings["where"],
                PortType(result_type("Joined", dict.fromkeys(fields, Any) | dict(items)) if sides else Any),
            )
        if not sides:
            result: Any = Any if how in _FILTERS else dict
        elif how in _FILTERS:
            result = items[0][1]
        else:
            lone = {1 - number for number in _WAITING[how]}
            optional = [(side, Optional[item] if n in lone else item) for n, (side, item) in enumerate(items)]  # noqa: UP045 (made at run time)
            result = result_type("Joined", dict.fromkeys(fields, Any) | dict(optional))
        return spec.with_outputs({OUT: replace(spec.ports[OUT].type, item=result)})

    def __enter__(self) -> Self:
        names = [port.partition(".")[2] for port in self.inputs]
        self._filters = self.how in _FILTERS
        after, before = (_whole(one) for one in _band(vars(self)))
        waiting = (0,) if self._filters else _WAITING[self.how]
        self._of: dict[str, _Side] = {}
        for number, name in enumerate(names):
            renamed = self.on.get(name, {})
            reach, back = (before, after) if number else (after, before)
            read = item_reader(self.by, self.time, renamed)
            rows = _rows_function(self.by, self.time, names, number)
            self._of[name] = _Side(name, number, read, rows, reach, back, number in waiting)
        if len(names) == 2:
            left, right = self._of.values()
            left.partner, right.partner = right, left
        self._holds = _tester(self.where) if self.where else None
        return self

    @input_port
    def sides(self, side: str, item: Any | Punctuation | EndOfStream) -> Iterable[Any | Punctuation]:
        """Take one item of one side."""
        kept, of = self.kept, self._of[side]
        if kept.sides.get(side) is not of.entries:  # the memento is handed over after the opening
            self._adopt(kept)
        if isinstance(item, CONTROL):
            return self._complete(side, item)
        key, time = of.read(item)
        if time <= of.complete:
            self.late.push(item)
            return ()
        entry, rows = [time, kept.arrived, item, False], []
        if key is not None and (key.__class__ is not tuple or None not in key):
            if (partner := of.partner) is None:
                rows = self._rows_of_many(of, key, entry)
            elif (found := partner.entries.get(key)) and (near := of.near(found, time)):
                rows = self._rows(of, key, entry, near)
        # An item that fails has done so here, and changes nothing.
        if (entries := of.entries.get(key)) is None:
            of.entries[key] = [entry]
        elif self.rows:  # in the order of arrival
            entries.append(entry)
            kept.added -= max(0, len(entries) - self.rows)
            del entries[: -self.rows]
        elif entries[-1][0] <= time:
            entries.append(entry)
        else:
            insort(entries, entry)
        kept.arrived += 1
        kept.added += 1
        if of.waits and not entry[3]:
            if of.excluded(time):
                return self._alone(of, key, entry)
            heappush(of.waiting, (time, entry[1], key, entry))
        return rows

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of kept items."""
        return {"kept": self.kept.swept + self.kept.added}

    def _rows(self, of: _Side, key: Any, entry: Entry, near: list[Entry]) -> list[Any]:
        """Return what is emitted for an item and those of the other side with which it is joined; note the latter."""
        rows = of.rows(key, entry, near)
        if (holds := self._holds) is not None:
            found = [pair for pair in zip(near, rows, strict=True) if holds(pair[1])]
            near, rows = [one for one, _ in found], [row for _, row in found]
        if self._filters:
            lefts = near if of.number else [entry] * bool(near)
            rows = [left[2] for left in lefts if not left[3]] if self.how == "semi" else []
        entry[3] = entry[3] or bool(near)
        for one in near:
            one[3] = True
        return rows

    def _rows_of_many(self, of: _Side, key: Any, entry: Entry) -> list[Any]:
        """Return the rows of an item and one of each other side, if there are not two sides."""
        known = [[entry] if one is of else one.entries.get(key, []) for one in self._of.values()]
        groups = product(*(of.near(entries, entry[0]) for entries in known))
        found = [one for one in groups if len(one) > 1 and max(one)[0] - min(one)[0] <= of.reach]
        rows = of.rows(key, entry, found)
        return rows if self._holds is None else [row for row in rows if self._holds(row)]

    def _alone(self, of: _Side, key: Any, entry: Entry) -> list[Any]:
        """Return what is emitted for an item that is joined with none."""
        entry[3] = True
        if self._filters:
            return [entry[2]] if self.how == "anti" else []
        return of.rows(key, entry, [_NOBODY])

    def _complete(self, side: str, mark: Punctuation | EndOfStream) -> list[Any | Punctuation]:
        """Note the time through which a side is complete; return the items joined with none, and the punctuations."""
        kept = self.kept
        due = self._merge.note(side, mark)
        self._look()
        found = self._expired()
        if kept.added > kept.swept + _FEW or isinstance(mark, EndOfStream):
            self._sweep()
        # Rows of items that wait are still to come.
        first = min((of.waiting[0][0] for of in self._of.values() if of.waiting), default=math.inf)
        return [*found, *self._merge.allowed(due, first)]

    def _look(self) -> None:
        """Find the latest time of late items, and the earliest time that a later item can have, for each side."""
        kept = self.kept
        for side, of in self._of.items():
            of.complete = kept.complete.get(side, kept.said)
        for of in self._of.values():
            time = min((one.complete for one in self._of.values() if one is not of), default=math.inf)
            of.horizon = following(time)

    def _expired(self) -> list[Any]:
        """Return the rows of the items whose partners are excluded now, in the order of their times."""
        found = []
        for of in self._of.values():
            while of.waiting and (of.waiting[0][3][3] or of.excluded(of.waiting[0][0])):
                time, number, key, entry = heappop(of.waiting)
                if not entry[3]:
                    found.append((time, number, self._alone(of, key, entry)))
        return [row for _, _, rows in sorted(found) for row in rows]

    def _sweep(self) -> None:
        """Drop the items that no later item can join, and the sides that are disconnected."""
        kept, left = self.kept, dict[str, dict[Any, list[Entry]]]()
        kept.swept = kept.added = 0
        for side, of in self._of.items():
            of.entries = left[side] = {}
            for key, entries in kept.sides.get(side, {}).items():
                if of.excluded(entries[0][0]):
                    entries = [one for one in entries if not of.excluded(one[0])]  # noqa: PLW2901 (what is left)
                if entries:
                    of.entries[key] = entries
                    kept.swept += len(entries)
        kept.sides = left

    def _adopt(self, kept: Kept) -> None:
        """Continue with a memento, perhaps of other settings."""
        self._merge = Merge(kept, self._of)
        self._look()
        self._sweep()
        for side, of in self._of.items():
            order = itemgetter(1) if self.rows else itemgetter(0, 1)
            found = sorted((entry for entries in of.entries.values() for entry in entries), key=order)
            of.entries, of.waiting = {}, []
            kept.sides[side] = of.entries
            for entry in found:
                with suppress(LookupError):  # other fields are to be equal now, which it lacks: it equals nothing
                    key, _ = of.read(entry[2])
                    of.entries.setdefault(key, []).append(entry)
                    # The row of an item that is older than an emitted punctuation must not follow that.
                    entry[3] = entry[3] or entry[0] <= kept.emitted
                    if of.waits and not entry[3]:
                        of.waiting.append((entry[0], entry[1], key, entry))  # sorted, and therefore a heap


def _whole(length: float) -> float:
    """Return a whole length as an integer, so that the distances of integers are exact."""
    return int(length) if not length % 1 else length


def _band(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Return how much younger, and how much older than the left item the right one may be."""
    if settings["rows"]:
        return math.inf, math.inf
    after, before = (settings["within"] if (one := settings[name]) is None else one for name in ("after", "before"))
    return after, before


def _check(settings: Mapping[str, Any], sides: Mapping[str, PortType]) -> None:
    """Refuse distances that do not fit, and settings for two sides if there is another number of sides."""
    given = [name for name in ("within", "before", "after") if settings[name] is not None]
    sided = [name for name in given if name != "within"] + ["how"] * (settings["how"] != "inner")
    for setting in given:
        if not 0 <= (length := settings[setting]) < math.inf:
            raise wrong(setting, f"it is {length:g}, and must be finite, and 0 or more")
    if (rows := settings["rows"]) < 0:
        raise wrong("rows", f"it is {rows}, and must be 1 or more; 0: leave it out")
    if rows and (given or sided):
        other = (given or sided)[0]
        raise wrong(
            "rows", f"the last items are joined at any distance, by an inner join; leave out `rows` or `{other}`"
        )
    if None in _band(settings):
        raise wrong("within", "give the distance of the times, or `before` and `after`, or a number of `rows`")
    if sides and len(sides) != 2 and sided:
        problem = f"it needs two sides, a left and a right one, and there are {len(sides)}: {', '.join(sides)}"
        raise wrong(sided[0], problem)


def _condition(text: str, result: PortType) -> Expression:
    # Imported lazily: only conditions need it.
    from exop.expressions import Names, read_condition

    return read_condition(text, Names("where", {"item": result}))


def _tester(text: str) -> Callable[[Any], bool]:
    """Return the function that tests the condition for a row."""
    function = _condition(text, PortType()).item_function()

    def holds(row: Any) -> bool:
        try:
            return bool(function(row))
        except Exception as error:
            raise ValueError(f"where = {text!r} cannot be tested: {error_text(error)}") from error

    return holds


def _rows_function(by: str | list[str], time: str, sides: list[str], number: int) -> Callable[..., list[Any]]:
    """Compile the function that returns the rows of an entry, that of the side *number*, and those found for it.

    With two sides it takes entries of the other one, otherwise tuples with an entry of each side.
    """
    entries = [f"entry{one}" for one in range(len(sides))]
    found = ", ".join(one for one in entries if len(sides) != 2 or one != entries[number])
    latest = "{0}[0] if {0}[0] > {1}[0] else {1}[0]" if len(sides) == 2 else "max({})[0]"
    fields = {by: "key"} if isinstance(by, str) else {name: f"key[{place}]" for place, name in enumerate(by)}
    fields[time] = latest.format(*(entries if len(sides) == 2 else [", ".join(entries)]))
    fields |= {side: f"{one}[2]" for side, one in zip(sides, entries, strict=True)}
    row = ", ".join(f"{name!r}: {value}" for name, value in fields.items())
    function: Callable[..., list[Any]] = eval(f"lambda key, {entries[number]}, found: [{{{row}}} for {found} in found]")
    return function

"""`stock:join` joins streams by key and time."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Optional, Self, TypeAlias, TypedDict

from exop.errors import SettingError, suggest
from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, OutputPort, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.channels.base import ControlMerge
from exop.runtime.channels.partitioned import key_reader, time_reader

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
#: Floats have gaps from here on; the time after an integer is the next integer.
_EXACT: Final = 2**53


class Kept(Memento, version=2):
    """The items with which later items may be joined, by side and key, in the order of their times.

    `complete` is the time up to which each side is complete, `said` the minimum of these, `emitted` the time of the
    last emitted punctuation, and `merged` the state of the merge of punctuations. `arrived` is the number of items so
    far, `added` those since the last sweep, and `swept` the number of items after the sweep.
    """

    sides: dict[str, dict[Any, list[Entry]]] = field(default_factory=dict)
    complete: dict[str, int | float] = field(default_factory=dict)
    said: float = -math.inf
    emitted: float = -math.inf
    merged: dict[str, Any] = field(default_factory=dict)
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
    """One side of a join; of two, `other` is the other one.

    `reach` and `back` are the maximum distances from the time of an item to a later and to an earlier one of the other
    side. `horizon` is the earliest time that a later item of the other sides can have. `waiting` is the heap of items
    that wait for a partner.
    """

    name: str
    number: int
    other: str
    key: Callable[[Any], Any]
    time: Callable[[Any], float]
    reach: float
    back: float
    waits: bool
    horizon: float = -math.inf
    waiting: list[tuple[float, int, Any, Entry]] = field(default_factory=list)

    def excluded(self, time: float) -> bool:
        """Whether no later item of another side can be joined with an item of this time."""
        return self.horizon - time > self.reach

    def near(self, entries: Sequence[Entry], time: float) -> Sequence[Entry]:
        """Return those entries of the other side that are close enough to an item of this side."""
        low, high = -self.back, self.reach
        if len(entries) < _MANY:
            return [entry for entry in entries if low <= entry[0] - time <= high]

        def distance(entry: Entry) -> float:
            return entry[0] - time  # type: ignore[no-any-return]

        first = bisect_left(entries, low, key=distance)
        return entries[first : bisect_right(entries, high, first, key=distance)]


class Join(Slet, name="join"):
    """Join items of two or more streams that have the same key and are close in time.

    Each stream arrives at a separate port, `sides.NAME`. A result joins one item of each side, with equal fields `by`
    and times that differ by at most `within`. The result is a dictionary with the fields `by`, the latest time under
    the name of `time`, and each item under the name of its side. It is emitted when its last item arrives.

    The join stores an item until the punctuations of the other sides exclude every item with which it could be joined.
    Therefore each side needs punctuations (`stock:watermark`); without them, the memento grows without limit. Items
    that an earlier punctuation of their own side, or an emitted punctuation, excludes are emitted at `late`.

    With two sides, the first one is the left one. `how` then tells what becomes of items that are joined with none:
    `left`, `right` and `outer` emit those of the left, the right and both sides with `None` for the other side; `semi`
    and `anti` emit the items of the left side that are joined, and that are not joined, unchanged.

    Args:
        by: The field, or the fields, that must be equal; with an empty list all items match. NULL equals nothing.
        time: The field with the time of an item, which must be a finite number.
        within: The maximum difference between two times in a result, in the unit of `time`.
        before: With two sides, by how much the right item may be older than the left one; by default `within`.
        after: With two sides, by how much the right item may be younger than the left one; by default `within`.
        on: The fields that have other names on a side: `{"tolls": {"vid": "car", "time": "at"}}`.
        where: A further condition for a result, which is called `item`: `"item.cars.speed > item.tolls.limit"`.
        how: What is emitted for items that are joined with none, or only once.
    """

    reopens: ClassVar[bool] = True
    by: str | list[str]
    time: str
    within: float | None = None
    before: float | None = None
    after: float | None = None
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
        spec, how, fields = spec_of(cls), settings["how"], (*_fields(settings["by"]), settings["time"])
        # Rows of columns are dictionaries when the slet receives them.
        items = [(side, dict if carried.form == "columns" else carried.item) for side, carried in sides.items()]
        if settings["where"]:
            _condition(settings["where"], PortType(_result(fields, tuple(items)) if sides else Any))
        if not sides:
            result: Any = Any if how in _FILTERS else dict
        elif how in _FILTERS:
            result = items[0][1]
        else:
            lone = {1 - number for number in _WAITING[how]}
            optional = [(side, Optional[item] if n in lone else item) for n, (side, item) in enumerate(items)]  # noqa: UP045 (made at run time)
            result = _result(fields, tuple(optional))
        return spec.with_outputs({OUT: replace(spec.ports[OUT].type, item=result)})

    def __enter__(self) -> Self:
        names, keys = [port.partition(".")[2] for port in self.inputs], _fields(self.by)
        self._single = isinstance(self.by, str)
        after, before = (_whole(one) for one in _band(vars(self)))
        waiting = (0,) if self.how in _FILTERS else _WAITING[self.how]
        self._of: dict[str, _Side] = {}
        for number, name in enumerate(names):
            renamed = self.on.get(name, {})
            key = _key_function(self.by, renamed)
            time = time_reader(renamed.get(self.time, self.time))
            reach, back = (before, after) if number else (after, before)
            other = names[1 - number] if len(names) == 2 else ""
            self._of[name] = _Side(name, number, other, key, time, reach, back, number in waiting)
        self._row = _row_function(keys, self.time, names, single=self._single)
        self._holds = _condition(self.where, PortType()).item_function() if self.where else None
        self._adopted: Kept | None = None
        return self

    @input_port
    def sides(self, side: str, item: Any | Punctuation | EndOfStream) -> Iterable[Any | Punctuation]:
        """Take one item of one side."""
        kept, of = self.kept, self._of[side]
        if self._adopted is not kept:  # the memento is handed over after the opening
            self._adopt(kept)
        if isinstance(item, (Punctuation, EndOfStream)):
            return self._complete(side, item)
        time = of.time(item)
        if time <= kept.complete.get(side, kept.said):
            self.late.push(item)
            return ()
        key, entry = of.key(item), [time, kept.arrived, item, False]
        groups = self._found(of, key, entry)
        rows: list[Any] = []
        if self._holds is not None or self.how not in _FILTERS:
            rows = [self._row(key, *group) for group in groups]
        if self._holds is not None:
            holding = [bool(self._holds(row)) for row in rows]
            groups = [group for group, holds in zip(groups, holding, strict=True) if holds]
            rows = [row for row, holds in zip(rows, holding, strict=True) if holds]
        # Nothing fails from here on: an item that fails changes nothing.
        if self.how == "semi":
            rows = [left[2] for left in {id(group[0]): group[0] for group in groups}.values() if not left[3]]
        elif self.how == "anti":
            rows = []
        for group in groups:
            for one in group:
                one[3] = True
        self._keep(of, key, entry)
        if of.waits and not entry[3]:
            if of.excluded(time):
                return [*rows, *self._alone(of, key, entry)]
            heappush(of.waiting, (time, entry[1], key, entry))
        return rows

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of kept items."""
        return {"kept": self.kept.swept + self.kept.added}

    def _found(self, of: _Side, key: Any, entry: Entry) -> list[tuple[Entry, ...]]:
        """Return all groups of *entry* and one kept entry of each other side, in the order of the sides."""
        sides = self.kept.sides
        if key is None or (not self._single and None in key):
            return []
        if of.other:
            near = of.near(sides[of.other].get(key, ()), entry[0])
            return [(one, entry) for one in near] if of.number else [(entry, one) for one in near]
        known = [[entry] if name == of.name else sides[name].get(key, ()) for name in self._of]
        groups = product(*(of.near(entries, entry[0]) for entries in known))
        return [group for group in groups if len(group) > 1 and max(group)[0] - min(group)[0] <= of.reach]

    def _keep(self, of: _Side, key: Any, entry: Entry) -> None:
        keys = self.kept.sides[of.name]
        if (entries := keys.get(key)) is None:
            keys[key] = [entry]
        elif entries[-1][0] <= entry[0]:
            entries.append(entry)
        else:
            insort(entries, entry)
        self.kept.arrived += 1
        self.kept.added += 1

    def _alone(self, of: _Side, key: Any, entry: Entry) -> list[Any]:
        """Return what is emitted for an item that is joined with none."""
        entry[3] = True
        if self.how in _FILTERS:
            return [entry[2]] if self.how == "anti" else []
        return [self._row(key, *(entry if name == of.name else _NOBODY for name in self._of))]

    def _complete(self, side: str, mark: Punctuation | EndOfStream) -> list[Any | Punctuation]:
        """Note the time through which a side is complete; return the items joined with none, and the punctuations."""
        kept = self.kept
        due = [one for one in self._merge.on(side, mark) if isinstance(one, Punctuation)]
        kept.merged = self._merge.capture()
        kept.said = max([kept.said, *(one.time for one in due)])
        time = math.inf if isinstance(mark, EndOfStream) else mark.time
        complete = kept.complete | {side: max(time, kept.complete.get(side, time))}
        # An idle side does not hold up the others: its items through `said` are late.
        kept.complete = {name: max(complete.get(name, kept.said), kept.said) for name in self._of}
        self._look()
        found = self._expired()
        if kept.added > kept.swept + _FEW or time == math.inf:
            self._sweep()
        for one in due:
            # Rows of items that wait are still to come.
            first = min((of.waiting[0][0] for of in self._of.values() if of.waiting), default=math.inf)
            possible = one if one.time < first else Punctuation.before(first, one.idle)
            if possible.time > kept.emitted:
                kept.emitted = possible.time
                found.append(possible)
        return found

    def _look(self) -> None:
        """Find the earliest time that a later item can have, for each side."""
        kept = self.kept
        for side in self._of:
            others = [kept.complete.get(other, kept.said) for other in self._of if other != side]
            time = min(others, default=math.inf)
            gaps = _EXACT <= abs(time) < math.inf
            self._of[side].horizon = int(time) + 1 if gaps else math.nextafter(time, math.inf)

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
        for side, of in self._of.items():
            found = {
                key: [one for one in entries if not of.excluded(one[0])]
                for key, entries in kept.sides.get(side, {}).items()
            }
            left[side] = {key: entries for key, entries in found.items() if entries}
        kept.sides, kept.added = left, 0
        kept.swept = sum(len(entries) for keys in left.values() for entries in keys.values())

    def _adopt(self, kept: Kept) -> None:
        """Continue with a memento, perhaps of other settings."""
        self._adopted, self._merge = kept, ControlMerge()
        self._merge.expect(self._of)
        if kept.merged:
            self._merge.restore(kept.merged)
        self._look()
        self._sweep()
        for side, of in self._of.items():
            left, kept.sides[side], of.waiting = kept.sides[side], {}, []
            for entry in sorted(entry for entries in left.values() for entry in entries):
                with suppress(LookupError):  # other fields are to be equal now, which it lacks: it equals nothing
                    kept.sides[side].setdefault(key := of.key(entry[2]), []).append(entry)
                    # The row of an item that is older than an emitted punctuation must not follow that.
                    entry[3] = entry[3] or entry[0] <= kept.emitted
                    if of.waits and not entry[3]:
                        of.waiting.append((entry[0], entry[1], key, entry))  # sorted, and therefore a heap


def _fields(by: str | list[str]) -> tuple[str, ...]:
    return (by,) if isinstance(by, str) else tuple(by)


def _key_function(by: str | list[str], renamed: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return the function that reads the key of an item, in which NaN equals itself; without fields, all are equal."""
    if isinstance(by, str):
        read_one = key_reader(renamed.get(by, by))
        return lambda item: key if (key := read_one(item)) == key else math.nan
    read = key_reader([renamed.get(one, one) for one in by])
    return lambda item: tuple([one if one == one else math.nan for one in read(item) or ()])


def _whole(length: float) -> float:
    """Return a whole length as an integer, so that the distances of integers are exact."""
    return int(length) if not length % 1 else length


def _band(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Return how much younger, and how much older than the left item the right one may be."""
    after, before = (settings["within"] if (one := settings[name]) is None else one for name in ("after", "before"))
    return after, before


def _check(settings: Mapping[str, Any], sides: Mapping[str, PortType]) -> None:
    """Refuse distances, names and fields that do not fit."""
    by, time, on = _fields(settings["by"]), settings["time"], settings["on"]
    for setting in ("within", "before", "after"):
        if (length := settings[setting]) is not None and not 0 <= length < math.inf:
            problem = f"it is {length:g}, and must be finite, and 0 or more"
            raise SettingError(place="", setting=setting, problem=problem)
    if None in _band(settings):
        raise SettingError(
            place="", setting="within", problem="give the distance of the times, or `before` and `after`"
        )
    if sides and len(sides) != 2 and (settings["how"] != "inner" or settings["before"] or settings["after"]):
        wrong = "how" if settings["how"] != "inner" else "before" if settings["before"] else "after"
        problem = f"it needs two sides, a left and a right one, and there are {len(sides)}: {', '.join(sides)}"
        raise SettingError(place="", setting=wrong, problem=problem)
    for side, others in on.items():
        if sides and side not in sides:
            raise SettingError(place="", setting="on", problem=f"there is no side {side!r}; {suggest(side, sides)}")
        for name in others:
            if name not in (*by, time):
                problem = f"{name!r} is no field of `by` or `time`; {suggest(name, (*by, time))}"
                raise SettingError(place="", setting="on", problem=problem)
    for side, carried in sides.items():
        if side in (*by, time):
            problem = f"the side {side!r} has the name of a field of the result; connect it under another name"
            raise SettingError(place="", setting="time" if side == time else "by", problem=problem)
        others = on.get(side, {})
        for setting, name in (*(("by", name) for name in by), ("time", time)):
            carried.check_field("", setting, others.get(name, name))


def _condition(text: str, result: PortType) -> Expression:
    # Imported lazily: only conditions need it.
    from exop.expressions import Names, read_condition

    return read_condition(text, Names("where", {"item": result}))


def _row_function(keys: tuple[str, ...], time: str, sides: list[str], *, single: bool) -> Callable[..., dict[str, Any]]:
    """Compile the function of a key and an entry of each side that returns their row."""
    entries = [f"entry{number}" for number in range(len(sides))]
    fields = {name: "key" if single else f"key[{number}]" for number, name in enumerate(keys)}
    fields[time] = f"max({', '.join(f'{one}[0]' for one in entries)})"
    fields |= {side: f"{one}[2]" for side, one in zip(sides, entries, strict=True)}
    row = ", ".join(f"{name!r}: {value}" for name, value in fields.items())
    function: Callable[..., dict[str, Any]] = eval(f"lambda key, {', '.join(entries)}: {{{row}}}")
    return function


def _result(fields: tuple[str, ...], sides: tuple[tuple[str, Any], ...]) -> Any:
    """Return the type of the results; the same one for the same sides."""
    try:
        return _made(fields, sides)
    except TypeError:  # a type that cannot be a key
        return _made.__wrapped__(fields, sides)


@lru_cache(maxsize=128)
def _made(fields: tuple[str, ...], sides: tuple[tuple[str, Any], ...]) -> Any:
    return TypedDict("Joined", dict.fromkeys(fields, Any) | dict(sides))  # type: ignore[operator]

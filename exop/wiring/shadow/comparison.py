"""The comparison of an old and a new slet: their outputs as sequences, port by port, their errors and their times."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from exop.model.items import CONTROL
from exop.model.shadow import TRIFLE
from exop.runtime.convert import as_row
from exop.runtime.metrics import quantiles
from exop.shown import RAISED, class_of, described, shown
from exop.wiring.shadow.taps import Leaving
from exop.wiring.sharing import PLAIN, is_columns

#: Differences that are reported at most.
MOST = 5
#: Outputs that one slet may be ahead of the other.
FARTHEST = 200_000
#: Calls that have to be timed before the times are compared.
ENOUGH = 50

Kind = Literal["different", "missing", "extra", "reordered", "error", "memento"]
Side = Literal["old", "new"]
SIDES: tuple[tuple[Side, Side], ...] = (("old", "new"), ("new", "old"))


@dataclass(frozen=True)
class Difference:
    """One difference: the number of the item in the trial, the port, and both outputs as texts."""

    kind: Kind
    item: int
    port: str
    old: str
    new: str

    def __str__(self) -> str:
        old, new = "nothing" if self.kind == "extra" else self.old, "nothing" if self.kind == "missing" else self.new
        return f"item {self.item}, {self.port}: old {old}, new {new}"


@dataclass
class Unit:
    """The output of a port after an item: a single item, a control item, or columns from a row on."""

    item: int
    payload: Any
    row: int = 0

    @property
    def columns(self) -> bool:
        """Whether it holds rows."""
        return is_columns(self.payload)

    @property
    def rows(self) -> int:
        """Its number of items."""
        return int(self.payload.num_rows) - self.row if self.columns else 1

    def first(self) -> Any:
        """Return its first item; of columns a row."""
        return self.payload.slice(self.row, 1).to_pylist()[0] if self.columns else self.payload


class PortStreams:
    """The outputs of both slets by one port. Either side may run ahead; record batches may be cut differently.

    With *in_step* both are called item by item, so that control items have their place among the others, and a missing
    item has a number.
    """

    def __init__(self, port: str, compare: Callable[[Any, Any], bool] | None, *, in_step: bool) -> None:
        self.port = port
        self.sides: dict[Side, deque[Unit]] = {"old": deque(), "new": deque()}
        self.matched = 0
        self.compared = 0
        self.ahead: dict[Side, int] = {"old": 0, "new": 0}
        self.last: dict[Side, Any] = {}
        self.broken: str | None = None
        self._given = compare
        self._in_step = in_step

    def add(self, side: Side, item: int, payload: Any, *, whole: bool) -> None:
        """Note an output for item number *item*; *whole*: a list is a batch of items, and not one item."""
        if isinstance(payload, CONTROL):
            self.last[side] = payload
            if not self._in_step:
                return
        units = [Unit(item, one) for one in payload] if whole and isinstance(payload, list) else [Unit(item, payload)]
        self.sides[side].extend(unit for unit in units if unit.rows)
        self.ahead[side] += sum(unit.rows for unit in units)

    def match(self) -> Iterator[Difference]:
        """Compare the outputs of both; yields the differences."""
        old, new = self.sides["old"], self.sides["new"]
        while old and new:
            mine, other = old[0], new[0]
            rows = min(mine.rows, other.rows) if mine.columns and other.columns else 1
            if self._equal(mine, other, rows):
                self.compared += 0 if isinstance(mine.payload, CONTROL) else rows
                self._take(rows)
            elif rows > 1:
                rows = next(n for n in range(rows) if not self._equal_at(mine, other, n))
                self._take(rows)
                yield from self._differ(old[0], new[0])
            else:
                yield from self._differ(mine, other)

    def rest(self) -> Iterator[Difference]:
        """Yield the outputs of only one of them as differences, since nothing more comes."""
        for unit in self.sides["old"]:
            yield Difference("missing", unit.item, self.port, shown(unit.first(), 200), "")
        for unit in self.sides["new"]:
            yield Difference("extra", unit.item, self.port, "", shown(unit.first(), 200))

    def _equal(self, mine: Unit, other: Unit, rows: int) -> bool:
        if isinstance(mine.payload, CONTROL) or isinstance(other.payload, CONTROL):
            return bool(mine.payload == other.payload)
        if self._given is None and mine.columns and other.columns:
            return same(mine.payload.slice(mine.row, rows), other.payload.slice(other.row, rows))
        return all(self._equal_at(mine, other, n) for n in range(rows))

    def _equal_at(self, mine: Unit, other: Unit, row: int) -> bool:
        """Compare one item of each, *row* rows further on."""
        old, new = Unit(0, mine.payload, mine.row + row).first(), Unit(0, other.payload, other.row + row).first()
        if self._given is not None:
            return self._alike(self._given, mine.item or other.item or self.matched + row + 1, old, new)
        if mine.columns and other.columns:
            return same_kind(mine.payload, other.payload) and same(old, new)
        if mine.columns or other.columns:  # rows here, items there
            return same(as_row(old), as_row(new))
        return same(old, new)

    def _alike(self, compare: Callable[[Any, Any], bool], item: int, old: Any, new: Any) -> bool:
        """Ask the comparison that was given; once it has raised, nothing more is known."""
        if self.broken is None:
            try:
                return bool(compare(old, new))
            except RAISED as error:  # whatever it raises: it is not the stream's
                self.broken = (
                    f"`compare` raised for item {item}, {self.port} (old {shown(old, 200)}, new {shown(new, 200)}): "
                    f"{described(error)}; it is called as compare(old, new), with single items, and returns a bool"
                )
        return True

    def _differ(self, mine: Unit, other: Unit) -> Iterator[Difference]:
        """Yield the difference of one pair of items, and go on where the two agree again, if that is near."""
        old, new = shown(mine.first(), 200), shown(other.first(), 200)
        kind, item = self._kind(mine, other), mine.item or other.item or self.matched + 1
        if kind == "missing":
            self._drop("old")
            yield Difference(kind, item, self.port, old, "")
        elif kind == "extra":
            self._drop("new")
            yield Difference(kind, other.item or item, self.port, "", new)
        else:
            for _ in range(2 if kind == "reordered" else 1):
                self._take(1)
            yield Difference(kind, item, self.port, old, new)

    def _kind(self, mine: Unit, other: Unit) -> Kind:
        """Classify the difference at the heads of the two, as far as the following items show."""
        if self._in_step and mine.item != other.item:
            return "missing" if mine.item < other.item else "extra"
        behind_mine, behind_other = self._second("old"), self._second("new")
        skipped = behind_mine is not None and self._equal(behind_mine, other, 1)
        added = behind_other is not None and self._equal(mine, behind_other, 1)
        if skipped and added:
            return "reordered"
        return "missing" if skipped else "extra" if added else "different"

    def _second(self, side: Side) -> Unit | None:
        """Return the unit behind the head of one side, if it is there already."""
        units = self.sides[side]
        if units[0].rows > 1:
            return Unit(units[0].item, units[0].payload, units[0].row + 1)
        return units[1] if len(units) > 1 else None

    def _take(self, rows: int) -> None:
        self.matched += rows
        for side in self.sides:
            self._drop(side, rows)

    def _drop(self, side: Side, rows: int = 1) -> None:
        unit = self.sides[side][0]
        self.ahead[side] -= rows
        unit.row += rows if unit.columns else 0
        if not unit.columns or not unit.rows:
            self.sides[side].popleft()


class Comparison:
    """The findings so far. The drivers of the old and the new slet add to it; one thread at a time matches.

    Attributes:
        differences, found: The first differences, and how many there are.
        waiting: One slet has put out something that the other has not, so far.
    """

    def __init__(self, ports: Iterable[str], compare: Callable[[Any, Any], bool] | None, *, in_step: bool) -> None:
        self.ports = {port: PortStreams(port, compare, in_step=in_step) for port in ports}
        self.differences: list[Difference] = []
        self.found = 0
        self.errors: dict[Side, int] = {"old": 0, "new": 0}
        self.times: dict[Side, deque[float]] = {"old": deque(maxlen=4096), "new": deque(maxlen=4096)}
        self.waiting = False
        self._given = compare
        self._turn = threading.Lock()

    def put_out(self, side: Side, item: int, leaving: Leaving) -> None:
        """Note an output for item number *item*."""
        if leaving.port in self.ports:
            self.ports[leaving.port].add(side, item, leaving.payload, whole=leaving.whole)

    def at_once(self, old: Sequence[Leaving], new: Sequence[Leaving]) -> bool:
        """Compare the outputs for one item without keeping them: nothing waits, and they are equal.

        If it returns `False`, they have to be noted and matched.
        """
        if self.waiting or self._given is not None or len(old) != len(new):
            return False
        for mine, other in zip(old, new, strict=True):
            value = mine.payload
            alike = type(value) in PLAIN and type(value) is type(other.payload) and mine.port == other.port
            if not alike or value != other.payload:
                return False
        for mine in old:
            if mine.port in self.ports:
                self.ports[mine.port].matched += 1
                self.ports[mine.port].compared += not isinstance(mine.payload, CONTROL)
        return True

    @property
    def compared(self) -> int:
        """The number of outputs that were compared and equal; control items do not count."""
        return sum(streams.compared for streams in self.ports.values())

    def raised(self, item: int, port: str, old: BaseException | None, new: BaseException | None) -> None:
        """Compare the errors of both for an item."""
        self.errors["old"] += old is not None
        self.errors["new"] += new is not None
        kinds = {None if error is None else class_of(error) for error in (old, new)}
        if len(kinds) > 1:
            texts = ("no error" if error is None else described(error)[:200] for error in (old, new))
            self.note(Difference("error", item, port, *texts))

    def match(self, *, last: bool = False) -> None:
        """Compare the outputs so far; at the *last* time none may be left over on either side."""
        with self._turn:
            for streams in self.ports.values():
                for one in streams.match():
                    self.note(one)
                for one in streams.rest() if last else ():
                    self.note(one)
            self.waiting = any(any(streams.sides.values()) for streams in self.ports.values())

    def note(self, difference: Difference) -> None:
        """Take a difference into the report."""
        self.found += 1
        if len(self.differences) < MOST:
            self.differences.append(difference)

    def problem(self) -> str | None:
        """Return the reason, as far as is known, why the two are not equal."""
        for streams in self.ports.values():
            if streams.broken is not None:
                return streams.broken
        return None if not self.found else "a difference" if self.found == 1 else f"{self.found} differences"

    def too_far(self) -> str | None:
        """Tell whether one of them is so far behind the other that no more outputs can be kept."""
        for port, streams in self.ports.items():
            for side, other in SIDES:
                if streams.ahead[side] > FARTHEST:
                    return f"too slow: at {port} the {other} one is {FARTHEST} items behind"
        return None

    def slow(self, slower: float) -> str | None:
        """Tell whether the new one takes too long for an item, in the median."""
        old, new = sorted(self.times["old"]), sorted(self.times["new"])
        if min(len(old), len(new)) < ENOUGH:
            return None
        before, now = old[len(old) // 2], new[len(new) // 2]
        if now <= before * slower + TRIFLE:
            return None
        return (
            f"too slow: {now * 1000:.3g} ms an item in the median, the old one {before * 1000:.3g} ms "
            f"(allowed: {slower:g} times as long)"
        )

    def plain(self) -> dict[str, Any]:
        """Return the findings as plain data."""
        return {
            "compared": self.compared,
            "matched": {port: streams.matched for port, streams in self.ports.items()},
            "found": self.found,
            "differences": [asdict(one) for one in self.differences],
            "errors": dict(self.errors),
            "busy_ms": {side: quantiles(list(times)) for side, times in self.times.items()},
        }


def same(old: Any, new: Any) -> bool:
    """Tell whether two values are equal: NaN equals NaN, and classes of the same name count as one.

    The two versions of a bundle have classes of their own; their values are compared by their fields.
    """
    if old is new:
        return True
    if isinstance(old, float) and isinstance(new, float) and old != old and new != new:
        return True
    if is_columns(old) and is_columns(new):
        return same_columns(old, new)
    if hasattr(old, "dtype") and hasattr(new, "dtype"):
        return _same_arrays(old, new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(same(value, new[key]) for key, value in old.items())
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        alike = isinstance(old, list) is isinstance(new, list) and type(old).__qualname__ == type(new).__qualname__
        return alike and len(old) == len(new) and all(map(same, old, new))
    if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new) and not isinstance(old, type):
        return _same_fields(old, new)
    try:
        return bool(old == new)
    except RAISED:  # values that cannot even be compared are not equal
        return False


def same_columns(old: Any, new: Any) -> bool:
    """Tell whether two record batches hold the same rows in columns of the same names and types."""
    if old.num_rows != new.num_rows or not same_kind(old, new):
        return False
    pairs = [(old.column(name), new.column(name)) for name in old.schema.names]
    # Arrow's NaN is not equal to NaN.
    return all(mine.equals(other) or same(mine.to_pylist(), other.to_pylist()) for mine, other in pairs)


def same_kind(old: Any, new: Any) -> bool:
    """Tell whether columns have the same names and types, in any order."""
    return {one.name: one.type for one in old.schema} == {one.name: one.type for one in new.schema}


def _same_arrays(old: Any, new: Any) -> bool:
    if old.dtype != new.dtype or getattr(old, "shape", ()) != getattr(new, "shape", ()):
        return False
    equal = (old == new) | ((old != old) & (new != new))
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def _same_fields(old: Any, new: Any) -> bool:
    if type(old).__qualname__ != type(new).__qualname__:
        return False
    names = [entry.name for entry in dataclasses.fields(old) if entry.compare]
    return names == [entry.name for entry in dataclasses.fields(new) if entry.compare] and all(
        same(getattr(old, name), getattr(new, name)) for name in names
    )

"""The comparison of an old and a new slet: the outputs of each port as sequences, the errors, and the times."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

from exop.model.items import CONTROL
from exop.model.meshes.shadow import NOISE
from exop.model.values.columns import is_columns
from exop.runtime.dataflow.batches import as_row
from exop.runtime.dataflow.metrics import quantiles
from exop.safe_repr import RAISED, error_text, safe_repr
from exop.wiring.shadow.taps import Fault
from exop.wiring.sharing import PLAIN

#: The maximum number of outputs by which one slet may be ahead of the other.
FARTHEST = 200_000

Kind = Literal["different", "missing", "extra", "error", "memento"]
Side = Literal["old", "new"]
SIDES: Final[tuple[Side, Side]] = ("old", "new")


@dataclass(frozen=True)
class Deviation:
    """A difference: the number of the item in the trial, the port, and both outputs as texts, empty for none."""

    kind: Kind
    item: int
    port: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"item {self.item}, {self.port}: old {self.old or 'nothing'}, new {self.new or 'nothing'}"


class Unit(NamedTuple):
    """An output after item number *item*: a single item, a control item, or columns with a number of *rows*."""

    item: int
    payload: Any
    rows: int = 1
    columns: bool = False

    def behind(self, rows: int) -> Unit:
        """Return the unit without its first rows."""
        return self._replace(payload=self.payload.slice(rows), rows=self.rows - rows) if rows else self

    def first(self) -> Any:
        """Return its first item; the first row of columns."""
        return self.payload.slice(0, 1).to_pylist()[0] if self.columns else self.payload


class PortStreams:
    """The outputs of both slets at one port. Either side may run ahead; record batches may be cut differently.

    With *in_step* both are called item by item: control items are compared in order, a missing output by its item.
    """

    def __init__(self, port: str, compare: Callable[[Any, Any], bool] | None, *, in_step: bool) -> None:
        self.port = port
        self.sides: dict[Side, deque[Unit]] = {"old": deque(), "new": deque()}
        self.last: dict[Side, Any] = {}
        self.matched = self.compared = 0
        self.broken: str | None = None
        self._given = compare
        self._in_step = in_step

    def add(self, side: Side, item: int, payload: Any, *, whole: bool) -> None:
        """Add an output for item number *item*; with *whole* a list is a batch of items."""
        if isinstance(payload, CONTROL):
            self.last[side] = payload
            if not self._in_step:
                return
        item, units = (item if self._in_step else 0), self.sides[side]
        if type(payload) not in PLAIN and is_columns(payload):
            units.extend([Unit(item, payload, payload.num_rows, columns=True)] if payload.num_rows else [])
        elif whole and isinstance(payload, list):
            units.extend([Unit(item, one) for one in payload])
        else:
            units.append(Unit(item, payload))

    def ahead(self, side: Side) -> int:
        """Return the number of items of one side without a counterpart so far."""
        return sum(unit.rows for unit in list(self.sides[side]))

    def match(self, *, last: bool = False) -> Iterator[Deviation]:
        """Compare the outputs, and yield the differences; the *last* time also the outputs without a counterpart."""
        old, new = self.sides["old"], self.sides["new"]
        while old and new:
            mine, other = old[0].payload, new[0].payload
            plain = self._given is None and type(mine) in PLAIN and type(mine) is type(other)
            # The common case is compared quickly.
            if rows := 1 if plain and mine == other else self._agreeing(old[0], new[0]):
                self.compared += 0 if isinstance(mine, CONTROL) else rows
                self._take(rows)
            else:
                yield self._differ(old[0], new[0])
        if last:
            yield from (Deviation("missing", one.item, self.port, safe_repr(one.first(), 200), "") for one in old)
            yield from (Deviation("extra", one.item, self.port, "", safe_repr(one.first(), 200)) for one in new)

    def _agreeing(self, mine: Unit, other: Unit) -> int:
        """Return how many items at the beginning of both are equal."""
        if not (mine.columns and other.columns):
            return int(self._equal(mine, other))
        rows = min(mine.rows, other.rows)
        if self._given is None and same(mine.payload.slice(0, rows), other.payload.slice(0, rows)):
            return rows
        return next((n for n in range(rows) if not self._equal(mine.behind(n), other.behind(n))), rows)

    def _equal(self, mine: Unit, other: Unit) -> bool:
        """Compare the first item of each."""
        old, new = mine.first(), other.first()
        if isinstance(old, CONTROL) or isinstance(new, CONTROL):
            return bool(old == new)
        if self._given is not None:
            try:
                return self.broken is not None or bool(self._given(old, new))
            except RAISED as error:  # the stream goes on, and all outputs count as equal from now on
                self.broken = (
                    f"`compare` raised for item {mine.item or other.item or self.matched + 1}, {self.port} "
                    f"(old {safe_repr(old, 200)}, new {safe_repr(new, 200)}): {error_text(error)}; "
                    f"it is called as compare(old, new), with single items, and returns a bool"
                )
                return True
        if mine.columns is not other.columns:  # rows here, items there
            return same(as_row(old), as_row(new))
        return (not mine.columns or same_kind(mine.payload, other.payload)) and same(old, new)

    def _differ(self, mine: Unit, other: Unit) -> Deviation:
        """Return the difference of two items, and continue where the outputs agree again, if that is near."""
        if self._in_step and mine.item != other.item:
            kind: Kind = "missing" if mine.item < other.item else "extra"
        else:
            after_mine, after_other = self._second("old"), self._second("new")
            skipped = after_mine is not None and self._equal(after_mine, other)
            added = after_other is not None and self._equal(mine, after_other)
            kind = "missing" if skipped else "extra" if added else "different"
        item = (other if kind == "extra" else mine).item or self.matched + 1
        sides: tuple[Side, ...] = ("old",) if kind == "missing" else ("new",) if kind == "extra" else SIDES
        texts = (safe_repr(self.sides[side][0].first(), 200) if side in sides else "" for side in SIDES)
        difference = Deviation(kind, item, self.port, *texts)
        self._take(1, sides)
        return difference

    def _second(self, side: Side) -> Unit | None:
        """Return the output after the first one of one side, in step for the same item, if it is there already."""
        units = self.sides[side]
        after = units[0].behind(1) if units[0].rows > 1 else units[1] if len(units) > 1 else None
        return after if after is not None and (after.item == units[0].item or not self._in_step) else None

    def _take(self, rows: int, sides: tuple[Side, ...] = SIDES) -> None:
        self.matched += rows if sides == SIDES else 0
        for units in map(self.sides.__getitem__, sides):
            if (unit := units.popleft()).rows > rows:
                units.appendleft(unit.behind(rows))


class Comparison:
    """The result so far: the first `differences`, and the number `found`.

    The drivers of both slets add outputs; one thread at a time matches them.
    """

    def __init__(self, ports: Iterable[str], compare: Callable[[Any, Any], bool] | None, *, in_step: bool) -> None:
        self.ports = {port: PortStreams(port, compare, in_step=in_step) for port in ports}
        self.differences: list[Deviation] = []
        self.found = 0
        self.errors: dict[Side, int] = {"old": 0, "new": 0}
        self.times: dict[Side, deque[float]] = {"old": deque(maxlen=4096), "new": deque(maxlen=4096)}
        self._turn = threading.Lock()

    def add_output(self, side: Side, item: int, port: str, payload: Any, whole: bool) -> None:
        """Add an output for item number *item*; with *whole* a list is a batch of items."""
        if port in self.ports:
            self.ports[port].add(side, item, payload, whole=whole)

    @property
    def compared(self) -> int:
        """The number of outputs that were compared and equal, without control items."""
        return sum(streams.compared for streams in self.ports.values())

    def compare_errors(self, item: int, port: str, old: Fault | None, new: Fault | None) -> None:
        """Compare the errors of both for an item."""
        self.errors["old"] += old is not None
        self.errors["new"] += new is not None
        if (old and old.kind) != (new and new.kind):
            texts = ("no error" if error is None else error.text[:200] for error in (old, new))
            self.note(Deviation("error", item, port, *texts))

    def match(self, *, last: bool = False) -> None:
        """Compare the outputs so far; the *last* time none may be left on either side."""
        with self._turn:
            for streams in self.ports.values():
                for one in streams.match(last=last):
                    self.note(one)

    def note(self, difference: Deviation) -> None:
        """Count a difference, and report the first ones."""
        self.found += 1
        if len(self.differences) < 5:
            self.differences.append(difference)

    def problem(self) -> str | None:
        """Return the reason, if one is known, why the new slet cannot take over."""
        for streams in self.ports.values():
            if streams.broken is not None:
                return streams.broken
        if self.found:
            return "a difference" if self.found == 1 else f"{self.found} differences"
        for port, streams in self.ports.items():
            old, new = streams.ahead("old"), streams.ahead("new")
            if max(old, new) > FARTHEST:
                return f"too slow: at {port} the {'new' if old > new else 'old'} one is {FARTHEST} items behind"
        return None

    def slow(self, slower: float) -> str | None:
        """Return the reason if the new slet is too slow, by the median of the times per item."""
        old, new = sorted(self.times["old"]), sorted(self.times["new"])
        if min(len(old), len(new)) < 50:  # too few to tell
            return None
        before, now = old[len(old) // 2], new[len(new) // 2]
        if now <= before * slower + NOISE:
            return None
        times = f"{now * 1000:.3g} ms an item in the median, the old one {before * 1000:.3g} ms"
        return f"too slow: {times} (allowed: {slower:g} times as long)"

    def plain(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "compared": self.compared,
            "matched": {port: streams.matched for port, streams in self.ports.items()},
            "found": self.found,
            "differences": [asdict(one) for one in self.differences],
            "errors": dict(self.errors),
            "busy_ms": {side: quantiles(list(times)) for side, times in self.times.items()},
        }


def same(old: Any, new: Any) -> bool:
    """Return whether two values are equal; NaN equals NaN.

    Classes of the same name count as one, since two versions of a bundle have their own; fields are compared.
    """
    if old is new or (isinstance(old, float) and isinstance(new, float) and old != old and new != new):
        return True
    if is_columns(old) and is_columns(new):
        if old.num_rows != new.num_rows or not same_kind(old, new):
            return False
        pairs = [(old.column(name), new.column(name)) for name in old.schema.names]
        # Arrow's NaN is not equal to NaN.
        return all(mine.equals(other) or same(mine.to_pylist(), other.to_pylist()) for mine, other in pairs)
    if hasattr(old, "dtype") and hasattr(new, "dtype"):
        if old.dtype != new.dtype or getattr(old, "shape", ()) != getattr(new, "shape", ()):
            return False
        equal = (old == new) | ((old != old) & (new != new))
        return bool(equal.all()) if hasattr(equal, "all") else bool(equal)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(same(value, new[key]) for key, value in old.items())
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        alike = isinstance(old, list) is isinstance(new, list) and type(old).__qualname__ == type(new).__qualname__
        return alike and len(old) == len(new) and all(map(same, old, new))
    if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new) and not isinstance(old, type):
        mine, others = (
            {entry.name: getattr(one, entry.name) for entry in dataclasses.fields(one) if entry.compare}
            for one in (old, new)
        )
        return type(old).__qualname__ == type(new).__qualname__ and same(mine, others)
    try:
        return bool(old == new)
    except RAISED:  # values that cannot even be compared are not equal
        return False


def same_kind(old: Any, new: Any) -> bool:
    """Return whether columns have the same names and types, in any order."""
    return {one.name: one.type for one in old.schema} == {one.name: one.type for one in new.schema}

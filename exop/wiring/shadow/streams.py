"""The outputs of the old and of the new one, port by port, compared as sequences."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from exop.model.items import CONTROL
from exop.runtime.convert import as_row
from exop.shown import RAISED, described, shown
from exop.wiring.shadow.equality import is_columns, same, same_kind

#: So many differences are reported at most.
MOST = 5

Kind = Literal["different", "missing", "extra", "reordered", "error", "memento"]
Side = Literal["old", "new"]


@dataclass(frozen=True)
class Difference:
    """One difference: for which item (as the how-manieth of the proof), at which port, and what either side has."""

    kind: Kind
    item: int
    port: str
    old: str
    new: str

    def __str__(self) -> str:
        old, new = ("nothing" if self.kind == without else side for without, side in self._sides())
        return f"item {self.item}, {self.port}: old {old}, new {new}"

    def _sides(self) -> tuple[tuple[Kind, str], tuple[Kind, str]]:
        return ("extra", self.old), ("missing", self.new)

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


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
        """The number of items that are left in it."""
        return int(self.payload.num_rows) - self.row if self.columns else 1

    def first(self) -> Any:
        """Its next item; of columns a row."""
        return self.payload.slice(self.row, 1).to_pylist()[0] if self.columns else self.payload


class PortStreams:
    """The outputs of both slets by one port. Either side may run ahead; record batches may be cut differently.

    Args:
        port: Its name.
        compare: Returns whether two items are the same.
        in_step: Both are called item by item, so that control items have their place among the others, and an item
            that is missing can be told by the number of the item behind which it should have left.
    """

    def __init__(self, port: str, compare: Callable[[Any, Any], bool] | None, *, in_step: bool) -> None:
        self.port = port
        self.sides: dict[Side, deque[Unit]] = {"old": deque(), "new": deque()}
        self.matched = 0
        self.compared = 0
        self.came: dict[Side, int] = {"old": 0, "new": 0}
        self.went: dict[Side, int] = {"old": 0, "new": 0}
        self.last: dict[Side, Any] = {}
        self.broken: str | None = None
        self._given = compare
        self._in_step = in_step

    def add(self, side: Side, item: int, payload: Any, *, whole: bool) -> None:
        """Note what has left, behind item number *item*; *whole*: a list is a batch of items, and not one item."""
        if isinstance(payload, CONTROL):
            self.last[side] = payload
            if not self._in_step:
                return
        units = [Unit(item, one) for one in payload] if whole and isinstance(payload, list) else [Unit(item, payload)]
        self.sides[side].extend(unit for unit in units if unit.rows)
        self.came[side] += sum(unit.rows for unit in units)

    def match(self) -> Iterator[Difference]:
        """Compare what both have put out; yields the differences."""
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
        """Nothing more comes: what only one of them has put out is a difference."""
        for unit in self.sides["old"]:
            yield Difference("missing", unit.item, self.port, shown(unit.first(), 200), "")
        for unit in self.sides["new"]:
            yield Difference("extra", unit.item, self.port, "", shown(unit.first(), 200))

    def ahead(self, side: Side) -> int:
        """The number of items of one side that wait for the other."""
        return self.came[side] - self.went[side]

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
        """Report the difference of one pair of items, and go on where the two agree again, if that is near."""
        old, new = shown(mine.first(), 200), shown(other.first(), 200)
        kind = self._kind(mine, other)
        item = mine.item or other.item or self.matched + 1
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
        self.went[side] += rows
        unit.row += rows if unit.columns else 0
        if not unit.columns or not unit.rows:
            self.sides[side].popleft()

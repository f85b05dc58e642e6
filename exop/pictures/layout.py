"""The layout of a picture: boxes in columns, in the direction of the items, with few crossings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Spot:
    """A place in the layout: a box, or (without a name) the passage of an arrow between two boxes."""

    name: str
    column: int
    between: tuple[str, str] = ("", "")


@dataclass
class Layout:
    """Columns from left to right, in the direction of the items, with rows from top to bottom.

    Attributes:
        columns: The spots of each column, in order.
        routes: The spots on each arrow to the right, including both ends.
        back: The arrows to the left or to their own box: at least one of every cycle.
    """

    columns: list[list[Spot]] = field(default_factory=list)
    routes: dict[tuple[str, str], list[Spot]] = field(default_factory=dict)
    back: list[tuple[str, str]] = field(default_factory=list)


def lay_out(names: Sequence[str], arrows: Collection[tuple[str, str]]) -> Layout:
    """Position boxes with these *names* so that arrows lead to the right, with few crossings."""
    column = _columns(names, arrows)
    layout = Layout([[] for _ in range(max(column.values(), default=-1) + 1)])
    spots = {name: Spot(name, column[name]) for name in names}
    for name in names:
        layout.columns[column[name]].append(spots[name])
    for source, target in dict.fromkeys(arrows):
        if column[target] <= column[source]:
            layout.back.append((source, target))
            continue
        passed = [Spot("", at, (source, target)) for at in range(column[source] + 1, column[target])]
        for spot in passed:
            layout.columns[spot.column].append(spot)
        layout.routes[source, target] = [spots[source], *passed, spots[target]]
    _untangle(layout)
    return layout


def _columns(names: Sequence[str], arrows: Collection[tuple[str, str]]) -> dict[str, int]:
    """The column of each name, right of all predecessors; a cycle begins with its first name."""
    before: dict[str, set[str]] = {name: set() for name in names}
    for source, target in arrows:
        before[target] |= {source} - {target}
    left, column = list(names), dict[str, int]()
    while left:
        name = next((name for name in left if before[name] <= column.keys()), left[0])
        left.remove(name)
        column[name] = max((column[other] + 1 for other in before[name] if other in column), default=0)
    return column


def _untangle(layout: Layout) -> None:
    """Sort each column by the mean position of connected spots, forwards and backwards, twice."""
    before: dict[Spot, list[Spot]] = {}
    after: dict[Spot, list[Spot]] = {}
    for route in layout.routes.values():
        for left, right in pairwise(route):
            before.setdefault(right, []).append(left)
            after.setdefault(left, []).append(right)
    for joined, columns in ((before, layout.columns), (after, layout.columns[::-1])) * 2:
        for column in columns:
            row = {spot: number / len(one) for one in layout.columns for number, spot in enumerate(one)}
            column.sort(
                key=lambda spot, row=row: (  # type: ignore[misc]
                    sum(row[one] for one in joined[spot]) / len(joined[spot]) if spot in joined else row[spot]
                )
            )

"""`Panes`: the groups of windows that overlap, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop.stock.panes import Group, Panes


class Counted:
    """Panes with lists of values by key; counts the calls."""

    def __init__(self, panes: dict[int, dict[str, Group]], count: int) -> None:
        self.calls = 0
        self.panes = Panes(panes, count, self.copied, self.merge)

    def copied(self, group: Group) -> Group:
        """Return a copy."""
        self.calls += 1
        return [*group]

    def merge(self, group: Group, other: Group) -> None:
        """Append the values."""
        self.calls += 1
        group += other


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    values=st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab")), max_size=40),
    count=st.integers(2, 12),
    numbers=st.lists(st.integers(0, 45), max_size=20),
    alone=st.sets(st.integers(0, 45)),
)
def test_a_window_has_all_values_of_its_panes(
    values: list[tuple[int, str]], count: int, numbers: list[int], alone: set[int]
):
    """In the order of the panes, also when windows are left out or come again."""
    panes: dict[int, dict[str, Group]] = {}
    for place, (first, key) in enumerate(values):
        panes.setdefault(first, {}).setdefault(key, []).append((first, place))
    counted = Counted(panes, count)
    for number in numbers:
        wanted: dict[str, Group] = {}
        for first in sorted(panes):
            for key, group in panes[first].items() if number - count < first <= number else ():
                wanted.setdefault(key, []).extend(group)
        found = counted.panes.window(number, sorted(panes), alone=number in alone)
        assert found == wanted
        for group in found.values():
            group.clear()  # they belong to the caller


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_the_cost_of_a_window_does_not_depend_on_the_number_of_its_panes(count: int):
    """A few calls for each window, however many panes each has."""
    panes: dict[int, dict[str, Any]] = {first: {"a": [first]} for first in range(3000)}
    counted, firsts = Counted(panes, count), sorted(panes)
    for number in range(2000):
        counted.panes.window(number, firsts, alone=False)
    assert counted.calls <= 6 * 2000

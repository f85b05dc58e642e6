"""A set of numbers that stays in order."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from exop.registry.index import OrderedSet


class Small(OrderedSet):
    """The same with short lists, so that a few numbers already split."""

    LONGEST = 8  # type: ignore[misc]


@given(st.lists(st.tuples(st.booleans(), st.integers(-30, 30)), max_size=200))
@settings(deadline=None)
def test_is_a_sorted_set(steps):
    """Whatever is added and removed in whatever order, the numbers there are come out once and in order."""
    ours, model = Small(), set()
    for add, number in steps:
        if add and number not in model:
            ours.add(number)
            model.add(number)
        elif not add and number in model:
            ours.remove(number)
            model.remove(number)
        assert list(ours) == sorted(model)
        assert len(ours) == len(model)


def test_no_list_gets_long():
    """However many numbers there are, adding or removing one touches a short list only."""
    numbers = list(range(20_000))
    random.Random(7).shuffle(numbers)
    ours = OrderedSet()
    for number in numbers:
        ours.add(number)
    assert max(map(len, ours._chunks)) <= OrderedSet.LONGEST
    for number in numbers[:19_990]:
        ours.remove(number)
    assert list(ours) == sorted(numbers[19_990:])
    assert len(ours._chunks) <= 10


def test_numbers_that_arrive_in_order_fill_their_lists():
    """Numbers that come in ascending order, the usual case, leave lists nearly full."""
    ours = OrderedSet()
    for number in range(100 * OrderedSet.LONGEST):
        ours.add(number)
    assert len(ours._chunks) < 120

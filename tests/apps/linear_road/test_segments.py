"""Minutes and segment numbers."""

import numpy as np
import pytest

from apps.linear_road.segments import complete_minute, looked_up, minute_of, segment_numbers, segment_places
from tests.apps.linear_road.batches import reports


@pytest.mark.parametrize(("second", "minute"), [(0, 1), (59, 1), (60, 2), (2699, 45)])
def test_minutes_count_from_one(second, minute):
    """M(t) = floor(t / 60) + 1."""
    assert minute_of(second) == minute


@pytest.mark.parametrize(("second", "minute"), [(0, 0), (58, 0), (59, 1), (60, 1), (119, 2)])
def test_a_minute_is_complete_with_its_last_second(second, minute):
    """Complete through second 59 means that minute 1 is over."""
    assert complete_minute(second) == minute


def test_segment_numbers_and_places_are_inverse():
    """Each segment of each direction of each expressway has its own number, and back."""
    places = [(0, 0, 0), (0, 1, 99), (3, 0, 42), (3, 1, 42)]
    numbers = segment_numbers(reports(*({"xway": x, "dir": d, "seg": s} for x, d, s in places)))
    assert len(set(numbers.tolist())) == len(places)
    assert list(zip(*(part.tolist() for part in segment_places(numbers)), strict=True)) == places


def test_a_look_up_beyond_the_table_gives_the_default():
    """Segments that a table does not reach have the default, also when the table is empty."""
    table = np.array([5, 6], np.int32)
    assert looked_up(table, np.array([1, 9, 0], np.int32), -1).tolist() == [6, -1, 5]
    assert looked_up(table[:0], np.array([1], np.int32), -1).tolist() == [-1]

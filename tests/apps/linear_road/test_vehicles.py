"""Vehicle numbers, and runs without a repetition."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apps.linear_road.vehicles import DENSE, runs, vehicle_numbers


def test_small_numbers_are_their_own_index():
    """The usual case costs nothing: the same array comes back."""
    vids = np.array([0, 7, 7], np.int32)
    assert vehicle_numbers(vids, {}) is vids


def test_far_out_numbers_get_a_small_index_that_stays():
    """One odd vehicle number does not size an array by itself, and has the same index ever after."""
    sparse: dict[int, int] = {}
    first = vehicle_numbers(np.array([3, 2_000_000_000], np.int32), sparse)
    again = vehicle_numbers(np.array([2_000_000_000, 1_999_999_999], np.int32), sparse)
    assert first.tolist() == [3, DENSE]
    assert again.tolist() == [DENSE, DENSE + 1]


@given(st.lists(st.integers(0, 6), max_size=40))
def test_runs_cover_all_rows_in_order_and_name_nobody_twice(numbers):
    """Runs are disjoint, complete, in order, without a repetition inside, and no longer than they must be short."""
    array = np.array(numbers, np.int32)
    found = list(runs(array))
    assert [row for run in found for row in range(run.start, run.stop)] == list(range(len(numbers)))
    assert all(len(set(numbers[run])) == run.stop - run.start for run in found)
    assert all(numbers[after.start] in numbers[run] for run, after in pairwise(found))

"""Cars and LAV per segment and minute."""

import pytest

from apps.linear_road.statistics import Minutes, statistics
from exop import Punctuation
from tests.apps.linear_road.batches import marks, reports, rows


def run(*items):
    """Everything that comes out for these batches and punctuations."""
    minutes = Minutes()
    return [out for item in items for out in statistics(item, minutes)]


def test_the_figures_of_a_minute_leave_when_the_one_before_is_complete():
    """Rows of minute M carry Cars of M-1, and Punctuation(M) follows them."""
    out = run(reports({"vid": 1, "spd": 40}, {"vid": 2, "spd": 50}), Punctuation(58), Punctuation(59))
    assert rows(out) == [(2, 0, 0, 10, 2, 45.0)]
    assert marks(out) == [1, 2]
    assert isinstance(out[-1], Punctuation)


def test_a_car_counts_once_and_speaks_with_its_mean():
    """Several reports of a vehicle are one car, and one voice in the minute's mean."""
    out = run(reports({"vid": 1, "spd": 10}, {"vid": 2, "spd": 60}, {"vid": 1, "spd": 30, "time": 30}), Punctuation(59))
    assert rows(out) == [(2, 0, 0, 10, 2, 40.0)]


@pytest.mark.parametrize("lane", [0, 4])
def test_entry_and_exit_lanes_count(lane):
    """All lanes are counted in Cars and in LAV."""
    assert rows(run(reports({"lane": lane, "spd": 30}), Punctuation(59))) == [(2, 0, 0, 10, 1, 30.0)]


def test_lav_is_the_mean_of_minute_means_and_skips_silent_minutes():
    """LAV looks back five minutes, gives each minute with reports the same weight, and leaves the others out."""
    many = [{"vid": vid, "spd": 20} for vid in range(9)]
    out = run(reports(*many), Punctuation(59), Punctuation(119), reports({"time": 120, "spd": 60}), Punctuation(179))
    assert rows(out) == [(2, 0, 0, 10, 9, 20.0), (3, 0, 0, 10, 0, 20.0), (4, 0, 0, 10, 1, 40.0)]


def test_a_segment_is_forgotten_after_five_minutes():
    """A segment has a row for the five minutes after its last report, and then none."""
    out = run(reports({}), *(Punctuation(second) for second in range(59, 600, 60)))
    assert [row[0] for row in rows(out)] == [2, 3, 4, 5, 6]
    assert marks(out) == [*range(2, 12)]


def test_segments_roads_and_directions_are_kept_apart():
    """The same segment number in another direction or on another road is another segment."""
    out = run(reports({"dir": 1}, {"xway": 2}, {"seg": 11}, {"vid": 2}), Punctuation(59))
    assert [row[1:5] for row in rows(out)] == [(0, 0, 10, 1), (0, 0, 11, 1), (0, 1, 10, 1), (2, 0, 10, 1)]


def test_a_batch_over_several_minutes_is_divided():
    """However the reports are batched, each counts in its own minute."""
    batch = reports({"time": 0, "spd": 10}, {"time": 65, "spd": 20}, {"time": 70, "vid": 2, "spd": 40})
    out = run(batch, Punctuation(125))
    assert rows(out) == [(2, 0, 0, 10, 1, 10.0), (3, 0, 0, 10, 2, 20.0)]


def test_a_run_that_starts_late_does_not_work_through_the_silence():
    """The first minute that counts is that of the first report."""
    out = run(reports({"time": 600_000_000}), Punctuation(600_000_059))
    assert rows(out) == [(10_000_002, 0, 0, 10, 1, 50.0)]
    assert marks(out) == [10_000_002]


def test_a_mementos_copy_goes_on_where_it_was():
    """The reports of an open minute are part of the state."""
    minutes = Minutes()
    assert list(statistics(reports({"spd": 30}), minutes)) == []
    copied = minutes.copied()
    assert rows(statistics(Punctuation(59), copied)) == [(2, 0, 0, 10, 1, 30.0)]
    assert minutes.complete == 0

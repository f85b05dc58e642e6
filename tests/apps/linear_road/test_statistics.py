"""Cars and LAV per segment and minute."""

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


def test_a_segment_is_forgotten_after_five_minutes():
    """A segment has a row for the five minutes after its last report, and then none."""
    out = run(reports({}), *(Punctuation(second) for second in range(59, 600, 60)))
    assert [row[0] for row in rows(out)] == [2, 3, 4, 5, 6]
    assert marks(out) == [*range(2, 12)]


def test_a_run_that_starts_late_does_not_work_through_the_silence():
    """The first minute that counts is that of the first report."""
    out = run(reports({"time": 600_000_000}), Punctuation(600_000_059))
    assert rows(out) == [(10_000_002, 0, 0, 10, 1, 50.0)]
    assert marks(out) == [10_000_002]

"""Adding up what Spark reports."""

from dataclasses import dataclass, field
from typing import Any

from exop_spark.execution.progress import Progress


def report(batch: int, rows: int = 0, **durations: int) -> dict[str, Any]:
    """A report as Spark makes it."""
    state = [{"numRowsTotal": 7, "numRowsDroppedByWatermark": 1, "memoryUsedBytes": 900}]
    return {"batchId": batch, "numInputRows": rows, "durationMs": durations, "stateOperators": state}


@dataclass
class Query:
    """A streaming query with its reports."""

    recentProgress: list[dict[str, Any]] = field(default_factory=list)  # noqa: N815 - Spark's name

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        """The latest report."""
        return self.recentProgress[-1] if self.recentProgress else None


def test_batches_are_added_up_once():
    """Seen again, a report counts no more; the wait for rows is no work."""
    progress, query = Progress(), Query([report(0, 10, addBatch=40, latestOffset=900, walCommit=2)])
    progress.delivered(0, 4, 0)
    progress.learn(query)
    progress.learn(query)
    assert progress.figures() == {
        "input_rows": 10, "output_rows": 4, "batches": 1, "batch_ms": 42, "busy_ms": 42, "state_rows": 7,
        "state_bytes": 900, "late_rows": 1,
    }  # fmt: skip


def test_markers_are_no_input():
    """Rows that only moved the watermark do not count, as of the batch that the report is about."""
    progress = Progress()
    progress.delivered(0, 0, 1)
    progress.delivered(1, 0, 2)
    progress.learn(Query([report(0, 6, addBatch=1)]))
    assert progress.figures()["input_rows"] == 5


def test_reports_behind_an_idle_one_are_found():
    """A poll without rows reports as well, under the number to come, and hides the batch before it."""
    progress = Progress()
    progress.learn(Query([report(0, 5, addBatch=1), report(1, 6, addBatch=1), report(2, latestOffset=10_000)]))
    assert progress.figures()["input_rows"] == 11


def test_nothing_reported_yet_is_nothing():
    """Figures can be asked for before the first batch."""
    progress = Progress()
    progress.learn(Query())
    assert progress.figures()["input_rows"] == 0


def test_the_sum_of_the_inputs_may_be_missing():
    """Reports that come from a Connect server do not have it."""
    sources = [{"numInputRows": 3}, {"numInputRows": 4}]
    progress = Progress()
    progress.learn(Query([report(0, addBatch=1) | {"numInputRows": None, "sources": sources}]))
    assert progress.figures()["input_rows"] == 7

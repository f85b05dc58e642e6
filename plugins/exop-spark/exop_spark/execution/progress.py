"""`Progress`: the sums of the metrics that Spark reports for the micro-batches of a query."""

from __future__ import annotations

import threading
from typing import Any

#: The phases of a micro-batch in which Spark works; in the others, it waits for rows.
_WORK = ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "getBatch")


class Progress:
    """The metrics of one query."""

    def __init__(self) -> None:
        self.watermark: float | None = None
        self._lock = threading.Lock()
        self._seen = -1
        self._input = self._output = self._batches = self._markers = 0
        self._busy_ms = self._last_ms = 0
        self._state_rows = self._state_bytes = self._late = 0
        self._markers_by_batch: dict[int, int] = {}

    def delivered(self, batch: int, rows: int, markers: int) -> None:
        """Count a micro-batch whose results are sent; *markers* is the number of markers read until now."""
        with self._lock:
            self._output += rows
            self._batches += 1
            self._markers_by_batch[batch] = markers

    def learn(self, query: Any) -> None:
        """Add the reports of a streaming query; called for every micro-batch, so that none is missed."""
        with self._lock:
            latest = query.lastProgress
            if latest is None or latest["batchId"] <= self._seen:
                return
            # Each report costs a call into Java: earlier ones are read only if a batch was missed.
            follows = latest["batchId"] == self._seen + 1 and _is_batch(latest)
            for report in [latest] if follows else query.recentProgress:
                if report["batchId"] > self._seen and _is_batch(report):
                    self._take(report)

    def figures(self) -> dict[str, int | float | str]:
        """Return the totals; markers do not count as rows."""
        with self._lock:
            found: dict[str, int | float | str] = {
                "input_rows": self._input - self._markers,
                "output_rows": self._output,
                "batches": self._batches,
                "batch_ms": self._last_ms,
                "busy_ms": self._busy_ms,
                "state_rows": self._state_rows,
                "state_bytes": self._state_bytes,
                "late_rows": self._late,
            }
            return found if self.watermark is None else found | {"watermark": self.watermark}

    def _take(self, report: Any) -> None:
        self._seen = report["batchId"]
        self._input += _rows(report)
        self._last_ms = sum(report["durationMs"].get(phase, 0) for phase in _WORK)
        self._busy_ms += self._last_ms
        self._late += sum(operator["numRowsDroppedByWatermark"] for operator in report["stateOperators"])
        self._state_rows = sum(operator["numRowsTotal"] for operator in report["stateOperators"])
        self._state_bytes = sum(operator["memoryUsedBytes"] for operator in report["stateOperators"])
        self._markers = self._markers_by_batch.get(self._seen, self._markers)
        for batch in [batch for batch in self._markers_by_batch if batch <= self._seen]:
            del self._markers_by_batch[batch]


def _rows(report: Any) -> int:
    """Return the number of rows of all inputs; reports of a Connect server lack the sum."""
    found = report["numInputRows"]
    return sum(source["numInputRows"] for source in report["sources"]) if found is None else int(found)


def _is_batch(report: Any) -> bool:
    """Return whether a report is about a batch: a poll without rows is reported under the number of the next batch."""
    return "addBatch" in report["durationMs"]

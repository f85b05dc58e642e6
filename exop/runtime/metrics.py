"""Figures of one component: exact where work is counted anyway, sampled on the direct path."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from exop.runtime.own import OwnFigures
from exop.shown import described


class ComponentMetrics:
    """The metrics of one slet. One driver at a time writes here, so plain attributes are exact.

    Attributes:
        rows: Items that came in batches, exact.
        rows_out: Items that left in batches of a slet that takes batches or columns, exact.
        batches: Calls with a batch, exact.
        seen: Single items among those that the driver measured.
        rows_timed, exact: Of the rows, those that came to ports for batches or columns; the seconds spent on them.
        calls, results, spent: Of the measured calls: how many, how many results, and their seconds.
        errors, skipped: Exact.
        last_error: The class and text of the last exception.
        own: What the slet says of itself.
    """

    def __init__(self) -> None:
        self.own = OwnFigures()
        self.rows = 0
        self.rows_out = 0
        self.batches = 0
        self.seen = 0
        self.calls = 0
        self.results = 0
        self.spent = 0.0
        self.errors = 0
        self.last_error = ""
        self.skipped = 0
        self.rows_timed = 0
        self.exact = 0.0
        self.times: deque[float] = deque(maxlen=512)
        self.singles: deque[float] = deque(maxlen=512)
        self.latencies: deque[float] = deque(maxlen=512)

    def failed(self, error: BaseException) -> None:
        """Count an exception of the slet."""
        self.errors += 1
        self.last_error = described(error)

    def timed(self, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """The instrumented twin of a slet's call. *lazy* calls return an iterator, which is run to its end inside."""
        clock = time.perf_counter

        def call_timed(item: Any) -> Any:
            begin = clock()
            self.calls += 1
            result = [*call(item)] if lazy else call(item)
            took = clock() - begin
            self.results += len(result) if lazy else result is not None
            self.spent += took
            self.singles.append(took)
            return result

        return call_timed

    def figures(self, singles: int, probes: int, *, whole: bool) -> dict[str, Any]:
        """The figures as they are shown; what rests on samples is named in `sampled`.

        Args:
            singles: Single items that the component's driver has pushed, exact.
            probes: How many of those were measured.
            whole: The slet takes batches or columns, so that every call was timed.
        """
        estimated = round(self.seen / probes * singles) if probes else 0
        items = self.rows + estimated
        times = sorted(self.singles)  # a copy: its driver adds to it meanwhile
        typical = times[len(times) // 2] if times else 0.0
        share = self.results / self.calls if self.calls else 0.0
        return {
            "items_in": items,
            "items_out": self.rows_out if whole else round(items * share),
            "batches": self.batches,
            "errors": self.errors,
            "skipped": self.skipped,
            "busy_s": round(self.exact + (0.0 if whole else typical * (items - self.rows_timed)), 6),
            "service_ms": quantiles(self.times or self.singles),
            "latency_ms": quantiles(self.latencies),
            "sampled": [] if whole else ["items_out", "busy_s", *(["items_in"] if estimated else [])],
        }


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """The median, the 95 % and the 99 % quantile in milliseconds; empty without values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {
        name: round(ordered[round(last * part)] * 1000, 4)
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }

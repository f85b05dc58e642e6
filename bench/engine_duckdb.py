"""DuckDB for the bench `engine`: 10 000 rows a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import duckdb
import exop_duckdb  # noqa: F401 (named when it is missing)
import pyarrow as pa

from bench.engine import latencies
from bench.harness import Result, Side, compare
from exop import Application, Memento, Platform, slet

COLUMNS = "time bigint, sensor int, value double"
OUT = "sensor int, mean double"
QUERY = "SELECT sensor, avg(value) AS mean FROM rows WHERE value > 10 GROUP BY sensor"
FLOOR = "register, sql, to_arrow_table in a loop"
SENSORS = 100


class Counted(Memento):
    """The number of results."""

    rows: int = 0


@slet
def count(rows: pa.RecordBatch, counted: Counted) -> None:
    """Count results."""
    counted.rows += rows.num_rows


def measured(rounds: int, batches: int = 100, rows: int = 10_000) -> Iterator[Result]:
    """Aggregate batches by DuckDB with one thread, both ways; wall-clock microseconds per batch."""
    batch, took, floor_took = rows_of(rows), list[float](), list[float]()
    with Platform() as platform:
        candidate = through_exop(platform, batch, batches, took)
        floor = bare_loop(batch, batches, floor_took)
        yield compare("engine/duckdb/throughput", "us", floor=floor, candidate=candidate, against=FLOOR, rounds=rounds)
        yield from latencies("engine/duckdb/latency", took, floor_took, FLOOR)


def rows_of(rows: int) -> Any:
    """A batch."""
    return pa.record_batch(
        {
            "time": pa.array(range(rows), pa.int64()),
            "sensor": pa.array([number % SENSORS for number in range(rows)], pa.int32()),
            "value": pa.array([float(number % 977) for number in range(rows)]),
        }
    )


def bare_loop(batch: Any, batches: int, latency: list[float]) -> Side:
    """The floor: a program of the user's own."""

    def run() -> float:
        base = duckdb.connect(":memory:", config={"threads": "1"})
        counted, times = 0, [time.perf_counter()]
        for _ in range(batches):
            base.register("rows", pa.table(batch))
            counted += base.sql(QUERY).to_arrow_table().num_rows
            base.unregister("rows")
            times.append(time.perf_counter())
        base.close()
        _check(counted, batches)
        return _figure(times, latency)

    return run


def through_exop(platform: Platform, batch: Any, batches: int, latency: list[float]) -> Side:
    """The same query as `duckdb:sql`, between a source and a sink."""
    times: list[float] = []

    @slet
    def source() -> Iterator[pa.RecordBatch]:
        for _ in range(batches):
            times.append(time.perf_counter())
            yield batch
        times.append(time.perf_counter())  # the results have arrived: no queue is between

    def run() -> float:
        app = Application("engine")
        rows = app.add("source", source)
        found = app.add("query", "duckdb:sql", rows=rows, query=QUERY, columns=COLUMNS, out_columns=OUT)
        app.add("count", count, rows=found)
        platform.apply(app.build())
        platform.wait("engine")
        state = platform.deployment("engine").components["count"].state
        assert isinstance(state, Counted)
        _check(state.rows, batches)
        platform.remove("engine")
        figure = _figure(times, latency)
        times.clear()
        return figure

    return run


def _figure(times: list[float], latency: list[float]) -> float:
    """Return the microseconds of a batch; add the milliseconds of each to a list."""
    latency += [1e3 * (after - before) for before, after in pairwise(times)]
    return (times[-1] - times[0]) / (len(times) - 1) * 1e6


def _check(counted: int, batches: int) -> None:
    if counted != batches * SENSORS:
        raise RuntimeError(f"there are {counted} results of {batches} batches")

"""DuckDB for the bench `engine`: 10 000 rows a batch.

Both sides run in one thread, the source, the engine and the sink one after the other. The throughput is therefore taken
from the CPU time of the process, on which other work of the machine has less influence. Latencies are wall-clock times.
"""

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
#: The short runs of a round.
SHORT = 4


class Counted(Memento):
    """The number of results."""

    rows: int = 0


@slet
def count(rows: pa.RecordBatch, counted: Counted) -> None:
    """Count results."""
    counted.rows += rows.num_rows


def measured(rounds: int, batches: int = 50, rows: int = 10_000) -> Iterator[Result]:
    """Aggregate batches by DuckDB with one thread, both ways; CPU microseconds per batch, and the latencies."""
    batch, took, floor_took = rows_of(rows), list[float](), list[float]()
    with Platform() as platform:
        candidate = through_exop(platform, batch, batches, took)
        floor = bare_loop(batch, batches, floor_took)
        yield compare(
            "engine/duckdb/throughput", "us", floor=floor, candidate=candidate, against=FLOOR, rounds=SHORT * rounds
        )
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
        counted, began, times = 0, time.process_time(), [time.perf_counter()]
        for _ in range(batches):
            base.register("rows", pa.table(batch))
            counted += base.sql(QUERY).to_arrow_table().num_rows
            times.append(time.perf_counter())
        took = time.process_time() - began
        base.close()
        _check(counted, batches)
        _note(times, latency)
        return took / batches * 1e6

    return run


def through_exop(platform: Platform, batch: Any, batches: int, latency: list[float]) -> Side:
    """The same query as `duckdb:sql`, between a source and a sink."""
    times, took = list[float](), list[float]()

    @slet
    def source() -> Iterator[pa.RecordBatch]:
        began = time.process_time()
        for _ in range(batches):
            times.append(time.perf_counter())
            yield batch
        times.append(time.perf_counter())  # the results have arrived: no queue is between
        took.append(time.process_time() - began)

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
        _note(times, latency)
        times.clear()
        return took.pop() / batches * 1e6

    return run


def _note(times: list[float], latency: list[float]) -> None:
    """Add the milliseconds of each batch to a list."""
    latency += [1e3 * (after - before) for before, after in pairwise(times)]


def _check(counted: int, batches: int) -> None:
    if counted != batches * SENSORS:
        raise RuntimeError(f"there are {counted} results of {batches} batches")

"""Spark for the bench `engine`: 100 000 rows a micro-batch, on this machine.

The floor is what a user without ExoP writes for the same rows: they are made in the Python process of the driver, a
data source of Structured Streaming in Python passes them to Spark as Arrow batches, and `foreachBatch` collects the
results as an Arrow table in the process of the driver. A Python source cannot reach into that process, so the program
writes each batch as a file in the memory of the machine, from which the tasks read it. Session, options, query and
checkpoint folder are those of ExoP. On both sides two batches are under way at a time: one is computed, one waits.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from exop_spark.session.engine import Spark, lease
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from bench.engine import latencies
from bench.engine_duckdb import COLUMNS, OUT, QUERY, SENSORS, rows_of
from bench.harness import Result, Side, compare
from exop import Application, Platform, slet

FLOOR = "a Python source and foreachBatch in Structured Streaming"
#: Spark in this process, with a thread for each of two cores.
MASTER = "local[2]"
#: The batches under way at a time, and those of each run that are not measured.
UNDER_WAY, FIRST = 2, 3
#: Seconds within which a batch is computed.
PATIENCE = 120.0


class Slice(InputPartition):
    """The batches from *start* up to *end*."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class Files(DataSourceStreamReader):
    """Reads the files `0`, `1`, … of a folder, one in each micro-batch."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Begin with the first file."""
        return {"file": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        """Return the number of the file after the next one, if that is there."""
        return {"file": start["file"] + (self.folder / str(start["file"])).exists()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Slice]:
        """Return one partition."""
        return [Slice(start["file"], end["file"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files, in a task."""
        one = cast("Slice", partition)
        for number in range(one.start, one.end):
            with pa.memory_map(str(self.folder / str(number))) as file:
                yield from pa.ipc.open_stream(file)

    def commit(self, end: dict[str, int]) -> None:
        """Remove the file that is not needed any more."""
        (self.folder / str(end["file"] - 1)).unlink(missing_ok=True)


class Source(DataSource):
    """`spark.readStream.format("files")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "files"

    def streamReader(self, schema: Any) -> Files:  # noqa: N802
        """Return the reader."""
        return Files(self.options["folder"])


class Loop:
    """What both sides do: offer a batch when there is room, and note when its results are there."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.offered: list[float] = []
        self.seen: list[float] = []
        self.results = 0
        self._room = threading.Semaphore(UNDER_WAY)

    def turns(self) -> Iterator[int]:
        """Yield the number of each batch, when there is room for it."""
        for number in range(self.batches):
            if not self._room.acquire(timeout=PATIENCE):
                raise RuntimeError(f"the results of the batch {number - UNDER_WAY} do not come")
            self.offered.append(time.perf_counter())
            yield number

    def note(self, results: int) -> None:
        """Note the results of a batch."""
        self.seen.append(time.perf_counter())
        self.results += results
        self._room.release()

    def figure(self, into: list[float]) -> float:
        """Return the milliseconds of a batch; add the latencies to a list."""
        if self.results != self.batches * SENSORS:
            raise RuntimeError(f"there are {self.results} results of {self.batches} batches")
        into += [1e3 * (seen - offered) for seen, offered in zip(self.seen, self.offered, strict=True)][FIRST:]
        return 1e3 * (self.seen[-1] - self.seen[FIRST - 1]) / (self.batches - FIRST)


def measured(rounds: int, batches: int = 25, rows: int = 100_000) -> Iterator[Result]:
    """Aggregate batches by a streaming query, both ways; wall-clock milliseconds per batch, and of each batch."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    batch, took, floor_took = rows_of(rows), list[float](), list[float]()
    share = lease(MASTER)
    try:
        with Platform() as platform:
            candidate = through_exop(platform, batch, batches, took)
            floor = bare_loop(share.engine, batch, batches, floor_took)
            yield compare(
                "engine/spark/throughput", "ms", floor=floor, candidate=candidate, against=FLOOR, rounds=rounds
            )
            yield from latencies("engine/spark/latency", took, floor_took, FLOOR)
    finally:
        share.release()


def bare_loop(spark: Spark, batch: Any, batches: int, took: list[float]) -> Side:
    """The floor: a program of the user's own."""

    def run() -> float:
        loop, session = Loop(batches), spark.session()
        session.dataSource.register(Source)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
            folder = Path(place)
            frame = session.readStream.format("files").schema(COLUMNS).option("folder", place).load()
            frame.createOrReplaceTempView("rows")
            written = session.sql(QUERY).writeStream.outputMode("update").option("checkpointLocation", f"{place}/state")
            query = written.foreachBatch(lambda found, _: loop.note(found.toArrow().num_rows)).start()
            try:
                for number in loop.turns():
                    with pa.ipc.new_stream(folder / "next", batch.schema) as stream:
                        stream.write(batch)
                    (folder / "next").rename(folder / str(number))
                query.processAllAvailable()
            finally:
                query.stop()
        return loop.figure(took)

    return run


def through_exop(platform: Platform, batch: Any, batches: int, took: list[float]) -> Side:
    """The same query as `spark:sql`, between a source and a sink."""

    def run() -> float:
        loop = Loop(batches)

        @slet
        def source() -> Iterator[pa.RecordBatch]:
            for _ in loop.turns():
                yield batch

        @slet
        def note(rows: pa.RecordBatch) -> None:
            loop.note(rows.num_rows)

        app = Application("engine")
        found = app.add(
            "query",
            "spark:sql",
            rows=app.add("source", source),
            query=QUERY,
            columns=COLUMNS,
            out_columns=OUT,
            mode="update",
            master=MASTER,
            max_rows=batch.num_rows,
        )
        app.add("note", note, rows=found)
        platform.apply(app.build(), timeout=PATIENCE)
        platform.wait("engine")
        platform.remove("engine")
        return loop.figure(took)

    return run

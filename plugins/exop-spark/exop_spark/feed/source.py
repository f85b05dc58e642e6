"""The Python data source by which Spark reads a feed.

Pickled by value together with `wire`: it runs in Spark's worker processes, which need pyspark and pyarrow, not ExoP.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from . import wire

#: The minimum number of rows of a batch that a task passes to Spark, except for its last batch; up to this number, one
#: task reads several small files.
BATCH_ROWS = 20_000
#: The maximum number of seconds for which a poll waits for rows; it returns at once when the query is closed.
POLL_SECONDS = 10.0
#: The maximum number of seconds for which a task waits until its report has arrived.
REPORT_SECONDS = 2.0


class FeedPartition(InputPartition):
    """A range of a feed, the URIs of the files with its rows, if they are in files, and the ticket of the task.

    The rows of a feed have one sequence of numbers, those of a native channel one for each `partition`.
    """

    partition = ""

    def __init__(self, start: int, end: int, path: str = "") -> None:
        super().__init__(None)
        self.start = start
        self.end = end
        self.paths = [path] if path else []
        self.ticket = ""


class FeedReader(DataSourceStreamReader):
    """Reads one feed by offset; a long poll takes the place of a polling interval.

    Spark has one instance in a planning process (offsets, ranges, commits), and sends copies to the tasks (`read`). The
    copies do not contain the token: a task can read the range of its ticket, and nothing else.
    """

    def __init__(self, options: dict[str, str], schema: StructType | None = None) -> None:
        self._options = options
        self._schema = schema
        self._connection: socket.socket | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset of the first row."""
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of rows of a micro-batch."""
        return ReadMaxRows(int(self._options["max_rows"]))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next micro-batch, after a wait for rows."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        answer, _ = self._ask({"ask": "latest", "start": start["row"], "limit": most, "timeout": POLL_SECONDS})
        return {"row": answer["end"]}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the end of the feed, for Spark's own progress report."""
        answer, _ = self._ask({"ask": "end"})
        return {"row": answer["end"]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
        """Return one partition for the rows of the feed, which keeps their order, and one for each large file."""
        if start["row"] >= end["row"]:
            return []
        _, parts = self._ask({"ask": "parts", "start": start["row"], "end": end["row"]})
        found: list[FeedPartition] = []
        for first, after, path in json.loads(parts):
            if path and found and found[-1].paths and after - found[-1].start <= BATCH_ROWS:
                found[-1].end = after
                found[-1].paths.append(path)
            else:
                found.append(FeedPartition(first, after, path))
        return self._signed(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, or its files; called in a task."""
        part = cast("FeedPartition", partition)
        if part.paths:
            assert self._schema is not None
            yield from read_files(part.paths, self._schema)
            self._report(part)
            return
        with self._connected() as connection:
            _, rows = wire.ask(connection, self._request("read", part))
        yield from pa.ipc.open_stream(rows)

    def commit(self, end: dict[str, int]) -> None:
        """Let the feed drop the rows before an offset that Spark has committed."""
        self._ask({"ask": "commit", "end": end["row"]})

    def stop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _signed(self, parts: list[FeedPartition]) -> list[Any]:
        """Give each task its ticket."""
        for one in parts:
            one.ticket = wire.ticket(self._options["token"], self._options["feed"], one.partition, one.start, one.end)
        return parts

    def _request(self, ask: str, part: FeedPartition) -> dict[str, Any]:
        """Return the request of a task for the range of its ticket."""
        bounds = {"partition": part.partition, "start": part.start, "end": part.end, "ticket": part.ticket}
        return {"ask": ask, "feed": self._options["feed"], **bounds, "by": wire.executor()}

    def _report(self, part: FeedPartition) -> None:
        """Tell the platform that this executor has read the range by itself."""
        with suppress(OSError), self._connected(REPORT_SECONDS) as connection:  # no task fails for a metric
            wire.ask(connection, self._request("count", part))

    def _ask(self, request: dict[str, Any]) -> tuple[wire.Header, bytearray]:
        if self._connection is None:
            connection = self._connected()
            wire.ask(connection, {"token": self._options["token"]})
            self._connection = connection
        return wire.ask(self._connection, {**request, "feed": self._options["feed"]})

    def _connected(self, timeout: float | None = None) -> socket.socket:
        return wire.connect(self._options["address"], self._options.get("certificate", ""), timeout)

    def __getstate__(self) -> dict[str, Any]:
        """Return the values that are sent to the tasks."""
        options = {name: value for name, value in self._options.items() if name != "token"}
        return {"_options": options, "_schema": self._schema, "_connection": None}


class FeedSource(DataSource):
    """`spark.readStream.format("exop")`: one feed of this platform."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "exop"

    def streamReader(self, schema: StructType) -> FeedReader:  # noqa: N802
        """Return the reader for these options."""
        return FeedReader(dict(self.options), schema)


def read_files(paths: Iterable[str], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read Parquet files, as the columns of *schema*.

    Raises:
        OSError: a file is missing, or cannot be read.
        KeyError: a file lacks a column.
    """
    from pyarrow import fs, parquet
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = to_arrow_schema(schema, timezone="UTC")
    for path in paths:
        system, place = fs.FileSystem.from_uri(path)
        with parquet.ParquetFile(place, filesystem=system) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                named = [batch.column(one.name).cast(one.type) for one in plain(columns)]
                yield numbered(pa.RecordBatch.from_arrays(named, schema=plain(columns)), columns, 0)


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a port, without the number of the row."""
    return schema.remove(len(schema) - 1)


def numbered(batch: pa.RecordBatch, schema: pa.Schema, number: int) -> pa.RecordBatch:
    """Return a batch with the same number in each row."""
    numbers = pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema)

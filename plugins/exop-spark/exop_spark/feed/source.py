"""The Python data source by which Spark reads a feed.

Pickled by value together with `wire`: it runs in Spark's worker processes, which need pyspark and pyarrow, not ExoP.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from . import wire

#: The maximum number of seconds for which a poll waits for rows; it returns at once when the query is closed.
POLL_SECONDS = 10.0


class FeedPartition(InputPartition):
    """A range of a feed, and the ticket with which a task may read it."""

    def __init__(self, start: int, end: int, ticket: str) -> None:
        super().__init__(None)
        self.start = start
        self.end = end
        self.ticket = ticket


class FeedReader(DataSourceStreamReader):
    """Reads one feed by offset; a long poll takes the place of a polling interval.

    Spark has one instance in a planning process (offsets, ranges, commits), and sends copies to the tasks (`read`). The
    copies do not contain the token: a task can read the range of its ticket, and nothing else.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
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

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[FeedPartition]:
        """Return one partition, which keeps the order of the rows; none for an empty range."""
        if start["row"] >= end["row"]:
            return []
        ticket = wire.ticket(self._options["token"], self._options["feed"], start["row"], end["row"])
        return [FeedPartition(start["row"], end["row"], ticket)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range; called in a task."""
        part = cast("FeedPartition", partition)
        request = {"feed": self._options["feed"], "start": part.start, "end": part.end, "ticket": part.ticket}
        request["by"] = wire.executor()
        with self._connected() as connection:
            _, rows = wire.ask(connection, request)
        yield from pa.ipc.open_stream(rows)

    def commit(self, end: dict[str, int]) -> None:
        """Let the feed drop the rows before an offset that Spark has committed."""
        self._ask({"ask": "commit", "end": end["row"]})

    def stop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, request: dict[str, Any]) -> tuple[wire.Header, bytearray]:
        if self._connection is None:
            connection = self._connected()
            wire.ask(connection, {"token": self._options["token"]})
            self._connection = connection
        return wire.ask(self._connection, {**request, "feed": self._options["feed"]})

    def _connected(self) -> socket.socket:
        return wire.connect(self._options["address"], self._options.get("certificate", ""))

    def __getstate__(self) -> dict[str, Any]:
        """Return the values that are sent to the tasks."""
        options = {name: value for name, value in self._options.items() if name != "token"}
        return {"_options": options, "_connection": None}


class FeedSource(DataSource):
    """`spark.readStream.format("exop")`: one feed of this platform."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "exop"

    def streamReader(self, schema: StructType) -> FeedReader:  # noqa: N802
        """Return the reader for these options."""
        return FeedReader(dict(self.options))

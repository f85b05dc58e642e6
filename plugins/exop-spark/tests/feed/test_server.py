"""The server of the feeds, with the requests of Spark's workers."""

import pickle
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow as pa
import pytest
from exop_spark.feed import wire
from exop_spark.feed.server import FeedServer
from exop_spark.feed.source import BATCH_ROWS, FeedReader
from exop_spark.session.sending import sender
from pyarrow import parquet
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from exop.engine import Reference
from exop.engine.feed import Feed
from exop.engine.trigger import BatchTrigger
from tests.rig import eventually

COLUMNS = pa.schema([pa.field("time", pa.int32())])


@pytest.fixture
def server(tmp_path) -> Iterator[FeedServer]:
    """A server that is listening."""
    server = FeedServer(tmp_path)
    yield server
    server.close()


@pytest.fixture
def feed() -> Feed:
    """A feed that holds three rows, whose polls do not wait."""
    trigger = BatchTrigger()
    trigger.release()
    feed = Feed("rows", COLUMNS, trigger)
    feed.push(pa.RecordBatch.from_pydict({"time": [1, 2, 3]}, schema=COLUMNS))
    return feed


def reader_of(server: FeedServer, feed: Feed, **options: str) -> FeedReader:
    """A reader as Spark makes it."""
    return FeedReader({**server.options(server.add(feed)), "max_rows": "2", **options})


def read(reader: FeedReader, start: int, end: int) -> list[int]:
    """Read a range as Spark does: planned by one reader, read by a copy of it in a task."""
    (partition,) = reader.partitions({"row": start}, {"row": end})
    task = pickle.loads(pickle.dumps(reader))
    (batch,) = task.read(pickle.loads(pickle.dumps(partition)))
    return list(batch.column("time").to_pylist())


def test_a_task_reads_the_range_of_its_ticket(server, feed):
    """The rows are in order."""
    assert read(reader_of(server, feed), 1, 3) == [2, 3]


def test_a_ticket_is_for_one_range_alone(server, feed):
    """The data for the tasks contains no token, and opens no other range."""
    reader = reader_of(server, feed)
    (partition,) = reader.partitions({"row": 1}, {"row": 2})
    task = pickle.loads(pickle.dumps(reader))
    assert server.token not in str(vars(task))
    partition.end = 3
    with pytest.raises(wire.WireError, match="the ticket is for another range"):
        list(task.read(partition))
    partition.end = "3"
    with pytest.raises(wire.WireError, match="the ticket is for another range"):
        list(task.read(partition))


def test_tasks_read_files_by_themselves(server, feed, tmp_path):
    """Small ones together, large ones alone, rows of the feed between them by ticket; the server counts them."""
    files = []
    for number, size in enumerate((4, 5, BATCH_ROWS, 6)):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pa.table({"time": pa.array([number] * size, pa.int64())}), path)
        files.append(Reference(f"file://{path}", size))
    feed.push(files)
    feed.push(pa.RecordBatch.from_pydict({"time": [7]}, schema=COLUMNS))
    key = server.add(feed)
    options = {**server.options(key), "max_rows": "2"}
    reader = FeedReader(options, from_arrow_schema(feed.schema))
    partitions = reader.partitions({"row": 0}, {"row": feed.offset})
    task, read = pickle.loads(pickle.dumps(reader)), list[list[int]]()
    for one in partitions:
        found = pa.Table.from_batches(task.read(pickle.loads(pickle.dumps(one))))
        assert found.schema.equals(feed.schema)
        read.append(found.column("time").to_pylist())
    assert [len(one) for one in read] == [3, 9, BATCH_ROWS, 6, 1]
    assert read[1] == [0] * 4 + [1] * 5
    assert server.read_by(key) == {wire.executor(): feed.offset}
    server.close()
    assert [len(one) for one in task.read(partitions[1])] == [4, 5]  # the count is lost, not the task


def test_a_thread_that_cannot_start_costs_one_connection(server, feed, monkeypatch):
    """The server goes on to accept others."""
    admit, failed = server._admit, threading.Event()

    def fail_once(connection):
        if failed.is_set():
            return admit(connection)
        failed.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("exop_spark.feed.server._RETRY", 0)
    monkeypatch.setattr(server, "_admit", fail_once)
    with pytest.raises((ConnectionError, wire.WireError)):
        read(reader_of(server, feed), 0, 2)
    assert read(reader_of(server, feed), 0, 2) == [1, 2]


def test_every_error_of_a_feed_reaches_spark(server, feed, monkeypatch):
    """Spark ends the query with the reason, not with a broken connection."""
    monkeypatch.setattr(feed, "parts", Mock(side_effect=IndexError("no such event")))
    with pytest.raises(wire.WireError, match="no such event"):
        reader_of(server, feed).partitions({"row": 0}, {"row": 2})


def test_workers_of_this_machine_read_by_tcp(feed, tmp_path):
    """A cluster on the loopback may belong to another user, who cannot open the socket of a directory."""
    server = FeedServer(tmp_path, "127.0.0.1")
    assert server.address.startswith("tcp:127.0.0.1:")
    assert read(reader_of(server, feed), 0, 2) == [1, 2]
    server.close()


def test_workers_of_other_hosts_read_by_tls(feed, tmp_path, monkeypatch):
    """They recognize the platform by its certificate; a client without TLS, or with another authority, gets nothing."""
    monkeypatch.setattr("exop_spark.feed.server.is_loopback", lambda host: False)
    server = FeedServer(tmp_path / "one", "127.0.0.1")
    other = FeedServer(tmp_path / "other", "127.0.0.1")
    reader = reader_of(server, feed)
    assert server.address.startswith("tls:127.0.0.1:")
    assert read(reader, 0, 2) == [1, 2]
    with pytest.raises(ssl.SSLCertVerificationError):
        read(reader_of(server, feed, certificate=other.options("")["certificate"]), 0, 2)
    with pytest.raises(ConnectionError):
        read(reader_of(server, feed, address=server.address.replace("tls", "tcp")), 0, 2)
    server.close()
    other.close()


def test_rows_are_counted_for_the_executor_that_reads_them(server, feed):
    """Those of all its tasks, once; planning alone does not count."""
    reader = reader_of(server, feed)
    parts = [reader.partitions({"row": start}, {"row": end})[0] for start, end in ((0, 1), (1, 3))]
    for one in parts * 2:
        assert len([*reader.read(one)]) == 1
    assert server.read_by("1-rows") == {wire.executor(): 3}
    reader.commit({"row": 1})
    for one in parts:
        reader._report(one)
    assert server.read_by("1-rows") == {wire.executor(): 3}
    reader.stop()
    server.remove("1-rows")
    assert server.read_by("1-rows") == {}


def test_an_empty_range_has_no_partition(server, feed):
    """Spark plans ranges without rows, too."""
    assert reader_of(server, feed).partitions({"row": 1}, {"row": 1}) == []


def test_offsets_respect_the_limit(server, feed):
    """The default limit is that of the slet; Spark may ask for everything."""
    reader = reader_of(server, feed)
    assert reader.initialOffset() == {"row": 0}
    assert reader.getDefaultReadLimit() == ReadMaxRows(2)
    assert reader.latestOffset({"row": 0}, ReadMaxRows(2)) == {"row": 2}
    assert reader.latestOffset({"row": 2}, ReadAllAvailable()) == {"row": 3}
    assert reader.reportLatestOffset() == {"row": 3}


def test_a_commit_reaches_the_feed(server, feed):
    """The feed drops the rows before the offset that Spark has committed."""
    reader_of(server, feed).commit({"row": 3})
    with pytest.raises(Exception, match="holds rows 3 to 3"):
        feed.read(0, 1)


def test_without_the_token_nothing_is_answered(server, feed):
    """A wrong token is refused before the first request."""
    reader = reader_of(server, feed, token="guessed")
    with pytest.raises(wire.WireError, match="token"):
        reader.reportLatestOffset()


def test_a_feed_that_was_removed_is_named(server, feed):
    """The request fails at once, and does not wait."""
    reader = reader_of(server, feed)
    server.remove(reader._options["feed"])
    with pytest.raises(wire.WireError, match="no feed '1-rows'"):
        reader.reportLatestOffset()


@dataclass
class Frame:
    """The rows of a micro-batch, as a Connect server gives them to a function."""

    rows: pa.Table

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """Return them."""
        return self.rows


def test_a_connect_server_sends_its_batches_under_their_numbers(server, tmp_path):
    """Rows, number and watermark arrive; the answer follows when they are sent."""
    arrived = []
    key = server.add_output(lambda *batch: arrived.append(batch))
    rows = pa.table({"time": [1, 2]})
    (tmp_path / "7").write_text('v1\n{"batchWatermarkMs":5000,"conf":{}}\n{"row":3}')
    sender(server.options(key), tmp_path.as_uri())(Frame(rows), 7)
    sender(server.options(key), "")(Frame(rows.slice(0, 0)), 8)
    assert arrived == [(7, rows, 5000), (8, rows.slice(0, 0), None)]


def test_a_batch_that_cannot_be_sent_ends_its_query(server):
    """Spark gets the error, and does not commit the batch; a query that has ended takes none."""

    def full(*_: object) -> None:
        raise ValueError("the disk is full")

    key = server.add_output(full)
    with pytest.raises(wire.WireError, match="ValueError: the disk is full"):
        sender(server.options(key), "")(Frame(pa.table({})), 0)
    server.remove(key)
    with pytest.raises(wire.WireError, match="has ended"):
        sender(server.options(key), "")(Frame(pa.table({})), 0)


def test_a_connection_that_cannot_be_accepted_ends_nothing(server, feed):
    """The next one is accepted, for example when the process has free file descriptors again."""
    real, failures = server._listener, [OSError(24, "Too many open files")]

    def accept():
        if failures:
            raise failures.pop()
        return real.accept()

    server._listener = SimpleNamespace(accept=accept, shutdown=real.shutdown, close=real.close)
    for _ in range(2):  # the first one is accepted by the call that was in progress
        assert reader_of(server, feed).reportLatestOffset() == {"row": 3}
    assert not failures


GARBAGE = [
    b"[]",
    b"7",
    b"null",
    b"\xff",
    b"[" * 60_000,
    b'{"token": "\\u00e9"}',
    b'{"ticket": "\\u00e9", "start": 0, "end": 1}',
]


@pytest.mark.parametrize("header", GARBAGE)
def test_garbage_ends_its_connection_and_nothing_else(server, feed, header):
    """No exception leaves the thread of the connection (pytest would report it)."""
    with wire.connect(server.address, timeout=10) as connection:
        connection.sendall(struct.pack(wire._LENGTHS, len(header), 0) + header)
        while connection.recv(4096):
            pass  # a refusal
    assert read(reader_of(server, feed), 0, 1) == [1]


def test_many_silent_connections_do_not_use_up_the_file_descriptors(tmp_path, feed, monkeypatch):
    """The oldest are closed; a client that authenticates at once is served, and stays."""
    monkeypatch.setattr("exop_spark.feed.server._UNKNOWN", 3)
    server = FeedServer(tmp_path, "127.0.0.1")
    reader = reader_of(server, feed)
    assert reader.reportLatestOffset() == {"row": 3}
    silent = [wire.connect(server.address, timeout=10) for _ in range(10)]
    assert [one.recv(1) for one in silent[:7]] == [b""] * 7  # the end of the connection
    assert reader.reportLatestOffset() == {"row": 3}
    eventually(lambda: len(server._unknown) == 3)
    for one in silent:
        one.close()
    eventually(lambda: not server._unknown)
    server.close()


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_closed_server_accepts_nothing_and_leaves_no_thread(tmp_path, host):
    """A thread in `accept` would keep the port open."""
    server = FeedServer(tmp_path, host)
    server.close()
    eventually(lambda: not server._thread.is_alive())
    with pytest.raises(ConnectionRefusedError):
        wire.connect(server.address)


def test_an_unknown_request_is_refused(server, feed):
    """The error names it."""
    reader = reader_of(server, feed)
    with pytest.raises(wire.WireError, match="cannot answer 'delete'"):
        reader._ask({"ask": "delete"})

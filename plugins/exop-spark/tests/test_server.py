"""The door of the feeds, asked as Spark's workers ask."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from exop_spark import wire
from exop_spark.server import FeedServer
from exop_spark.source import FeedReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from exop.engine.feed import Feed
from exop.engine.pace import Gate, Pace

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
    gate = Gate(Pace())
    gate.release()
    feed = Feed("rows", COLUMNS, gate)
    feed.push(pa.RecordBatch.from_pydict({"time": [1, 2, 3]}, schema=COLUMNS))
    return feed


def reader_of(server: FeedServer, feed: Feed, **options: str) -> FeedReader:
    """A reader as Spark makes it."""
    known = {"address": server.address, "token": server.token, "feed": server.add(feed)}
    return FeedReader({**known, "max_rows": "2", "inline": "false", **options})


@pytest.mark.parametrize("inline", ["true", "false"])
def test_a_reader_gets_the_rows_of_a_range(server, feed, inline):
    """Rows arrive in order, read by the task or sent along with the plan."""
    reader = reader_of(server, feed, inline=inline)
    (partition,) = reader.partitions({"row": 1}, {"row": 3})
    (batch,) = reader.read(partition)
    assert batch.column("time").to_pylist() == [2, 3]
    assert (partition.payload is not None) == (inline == "true")


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
    """What Spark commits is trimmed."""
    reader_of(server, feed).commit({"row": 3})
    with pytest.raises(Exception, match="holds rows 3 to 3"):
        feed.read(0, 1)


def test_without_the_token_nothing_is_answered(server, feed):
    """A wrong token ends the conversation before any question."""
    reader = reader_of(server, feed, token="guessed")
    with pytest.raises(wire.WireError, match="token"):
        reader.reportLatestOffset()


def test_a_feed_that_is_gone_is_named(server, feed):
    """Asking for a feed that was removed is told, not waited for."""
    reader = reader_of(server, feed)
    server.remove(reader._options["feed"])
    with pytest.raises(wire.WireError, match="no feed '1-rows'"):
        reader.reportLatestOffset()


def test_an_unknown_question_is_refused(server, feed):
    """The conversation knows four questions."""
    reader = reader_of(server, feed)
    with pytest.raises(wire.WireError, match="cannot answer 'delete'"):
        reader._ask({"ask": "delete"})

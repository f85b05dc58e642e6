"""A task reads exactly its range of a log or a topic, as columns."""

from itertools import count

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from exop_kafka import MockCluster
from exop_spark.feed import wire
from exop_spark.feed.native_source import Marker, NativeReader, Slice, read_log, read_topic
from exop_spark.feed.server import FeedServer
from pyspark.sql.pandas.types import from_arrow_schema

from exop import Punctuation
from exop.engine.feed import Feed
from exop.engine.trigger import BatchTrigger
from exop.errors import WiringError
from exop.runtime.log.disk import DiskLog

PLAIN = pa.schema([("key", pa.int64()), ("text", pa.string())])
SCHEMA = PLAIN.append(pa.field("_row", pa.int64()))


@pytest.fixture
def log(tmp_path):
    """Rows in lists and in columns, with control items between them, in several files."""
    log = DiskLog(tmp_path)
    log.append([{"key": 0, "text": "a"}, {"key": 1, "text": "b"}])
    log.append(Punctuation(3))
    log.append(pa.record_batch({"text": ["c", "d", "e"], "key": pa.array([2, 3, 4], pa.int32())}))
    log.append([{"key": 5, "text": "f", "more": 1}])
    log.close()
    return tmp_path


def ticket(folder, first, after):
    """The ticket of a task."""
    return Slice({"format": "log", "place": str(folder)}, "0", first, after)


@pytest.mark.parametrize(("first", "after"), [(0, 6), (1, 2), (1, 4), (3, 4), (3, 6), (5, 6)])
def test_exactly_the_range_is_read(log, first, after):
    """It may begin and end inside of a batch that was appended."""
    found = [row for batch in read_log(ticket(log, first, after), PLAIN) for row in batch.to_pylist()]
    assert found == [{"key": number, "text": "abcdef"[number]} for number in range(first, after)]


@pytest.mark.parametrize("item", [[{"key": 1.5}], pa.record_batch({"key": [1.5], "text": ["a"]})])
def test_a_value_that_does_not_fit_is_refused_as_by_the_platform(tmp_path, item):
    """It is not cut."""
    log = DiskLog(tmp_path)
    log.append(item)
    log.close()
    with pytest.raises(WiringError, match=r"do not match the columns of the port: .*1\.5"):
        [*read_log(ticket(tmp_path, 0, 1), PLAIN)]


def test_a_log_that_is_too_short_is_an_error(log):
    """Otherwise rows would be missing without a trace."""
    with pytest.raises(ValueError, match="ends at row 6, not 9"):
        [*read_log(ticket(log, 4, 9), PLAIN)]


def test_the_reader_makes_ranges_of_offsets(monkeypatch, log, tmp_path_factory):
    """One for each partition with new rows, which is counted, and a marker, which moves the watermark."""
    server = FeedServer(tmp_path_factory.mktemp("server"))
    key = server.add(Feed("rows", PLAIN, BatchTrigger()))
    reader = NativeReader({**server.options(key), "time": "key"}, from_arrow_schema(SCHEMA))

    def answer(request):
        return {"reference": {"format": "log", "partitions": {"0": str(log), "1": "/elsewhere"}}}, b""

    monkeypatch.setattr(reader, "_ask", answer)
    end = {"at": {"0": 6, "1": 0}, "mark": 2, "moment": 9}
    assert reader.partitions({}, end) == []
    rows, mark = reader.partitions({"at": {"0": 4, "1": 0}, "mark": 1, "moment": 5}, end)
    assert (rows.partition, rows.start, rows.end, rows.reference["place"]) == ("0", 4, 6, str(log))
    assert isinstance(mark, Marker)
    (found,) = reader.read(rows)
    assert found.to_pylist() == [{"key": 4, "text": "e", "_row": 0}, {"key": 5, "text": "f", "_row": 0}]
    (found,) = reader.read(mark)
    assert found.to_pylist() == [{"key": 9, "text": None, "_row": -1}]
    assert server.read_by(key) == {wire.executor(): 2}
    same, *_ = reader.partitions({"at": {"0": 6, "1": 4}, "mark": 2}, {"at": {"0": 6, "1": 6}, "mark": 2})
    for one in (rows, same, same):  # a range counts once in each partition
        reader._report(one)
    assert server.read_by(key) == {wire.executor(): 4}
    server.close()


def test_a_task_reads_its_range_of_a_topic():
    """The values are JSON objects; fields that the query does not have are left out, and null is empty."""
    values = [b'{"key":%d,"text":"t%d","more":[1]}' % (n, n) for n in range(9)] + [b'{"key":9,"text":null}']
    with MockCluster({"rows": 2}) as cluster:
        producer = Producer({"bootstrap.servers": cluster.brokers, "linger.ms": 1})
        for value in values:
            producer.produce("rows", value, partition=1)
        assert producer.flush(60) == 0
        reference = {"format": "kafka", "brokers": cluster.brokers, "topic": "rows", "client": {}}
        found = [*read_topic(Slice(reference, "1", 7, 10), PLAIN)]
    assert [row for batch in found for row in batch.to_pylist()] == [
        {"key": 7, "text": "t7"},
        {"key": 8, "text": "t8"},
        {"key": 9, "text": None},
    ]


@pytest.fixture(scope="module")
def topic():
    """Make a reference to a new topic with these values in its one partition."""
    numbers = count()

    def make(values):
        reference = {"format": "kafka", "brokers": cluster.brokers, "topic": f"t{next(numbers)}", "client": {}}
        cluster.create(reference["topic"], 1)
        producer = Producer({"bootstrap.servers": cluster.brokers, "linger.ms": 1})
        for value in values:
            producer.produce(reference["topic"], value, partition=0)
        assert producer.flush(60) == 0
        return Slice(reference, "0", 0, len(values))

    with MockCluster() as cluster:
        yield make


def test_a_record_is_one_row_however_it_is_written(topic):
    """Over several lines, too; a record without a value, which deletes a key, is none."""
    whole = b'{\n "key": 2,\n "text": "a\\nb"\n}\n'
    ticket = topic([b'{"key":1,"text":null}', None, whole, b' {"text":null,"key":3}'])
    found = [row for batch in read_topic(ticket, PLAIN) for row in batch.to_pylist()]
    assert found == [{"key": 1, "text": None}, {"key": 2, "text": "a\nb"}, {"key": 3, "text": None}]


@pytest.mark.parametrize(
    "value",
    [b"", b" ", b"[]", b"7", b"{", b'{"key":1}{"key":2}', b'{"key":"a"}', b'{"key":1.5}', b"\xff", b"null", b"{}"],
)
def test_a_value_that_is_not_one_object_is_found(topic, value):
    """The error has topic, partition and offset: no row is lost, or doubled; nor if the policy leaves it out."""
    ticket, omitted = topic([b'{"key":1,"text":""}', value, b'{"key":2,"text":""}']), []
    with pytest.raises(ValueError, match=r"the topic 't\d+', partition 0, offset 1: the value is not one JSON object"):
        [*read_topic(ticket, PLAIN)]
    found = read_topic(ticket, PLAIN, lambda refused: omitted.extend(refused) or True)
    assert [row["key"] for batch in found for row in batch.to_pylist()] == [1, 2]
    assert [(offset, value) for offset, _, value in omitted] == [(1, value)]

"""Ranges of a topic, read by a consumer that reports errors between the records."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from exop_kafka.errors import KafkaError as Refused
from exop_kafka.errors import TopicMissing
from exop_kafka.link import Link
from exop_kafka.range import TopicRange


def record(offset, *value):
    """A record whose value is its offset, or the given one."""
    (shown,) = value or (b"%d" % offset,)
    return SimpleNamespace(error=lambda: None, offset=lambda: offset, value=lambda: shown)


def failure(code, offset=None):
    """Return a stand-in for an event of the client that is no record."""
    return SimpleNamespace(error=lambda: KafkaError(code), offset=lambda: offset, value=lambda: b"an error in words")


@pytest.fixture
def range_of():
    """Make a range whose consumer returns these lists of messages, one after the other."""

    def make(*lists):
        left = [*lists]
        consumer = SimpleNamespace(
            assign=lambda _: None, unassign=lambda: None, consume=lambda *_: left.pop(0), close=lambda: None
        )
        link = Link("the channel 'rows'", "rows", "localhost:9092")
        link.opened = lambda *_: consumer
        return TopicRange(link, {})

    return make


def test_an_error_that_passes_is_no_record(range_of):
    """The records before and after it are returned, each once."""
    lost = failure(KafkaError._TRANSPORT)
    found = range_of([record(0), lost], [lost], [lost, record(1), record(2)]).values({"0": 0}, {"0": 2})
    assert [value for values in found for value in values] == [0, 1]


def test_an_error_that_does_not_pass_is_raised(range_of):
    """It names the partition."""
    with pytest.raises(TopicMissing, match="partition 0"):
        [*range_of([failure(KafkaError.UNKNOWN_TOPIC_OR_PART)]).values({"0": 0}, {"0": 2})]


def test_a_range_ends_where_the_partition_does(range_of):
    """Offsets of transaction marks, and of records that a compacted topic has dropped, have no record."""
    end = failure(KafkaError._PARTITION_EOF, 5)
    assert [*range_of([record(0), record(3)], [], [end]).values({"0": 0}, {"0": 5})] == [[0, 3], [], []]


def test_a_record_without_a_value_is_no_item(range_of):
    """It says that the key is deleted."""
    assert [*range_of([record(0), record(1, None), record(2)]).values({"0": 0}, {"0": 3})] == [[0, 2]]


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b'{"a": nan}'])
def test_a_value_that_is_not_json_is_found(range_of, value):
    """The error has its partition and offset."""
    with pytest.raises(Refused, match=r"partition 0, offset 1: the value is not JSON: .* \(topic 'rows'"):
        [*range_of([record(0), record(1, value)]).values({"0": 0}, {"0": 2})]


@pytest.mark.parametrize(
    ("topics", "problem"),
    [
        (KafkaException(KafkaError(KafkaError._TRANSPORT)), None),
        (SimpleNamespace(error=None, partitions={0: None, 1: None}), None),
        (SimpleNamespace(error=None, partitions={0: None}), TopicMissing),
        (SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={}), TopicMissing),
    ],
)
def test_a_partition_whose_broker_is_lost_is_not_missing(topics, problem):
    """The client says of both that it is unknown; the topic is missing only if the brokers say so."""

    class Client:
        def get_watermark_offsets(self, *_, **__):
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

        def list_topics(self, name, timeout):
            if isinstance(topics, Exception):
                raise topics
            return SimpleNamespace(topics={name: topics})

        def poll(self, _):
            return None

    link = Link("the channel 'rows'", "rows", "localhost:9092")
    if problem is None:
        assert link.ends(Client(), 1, 1.0) is None
    else:
        with pytest.raises(problem):
            link.ends(Client(), 1, 1.0)

"""The sink writes every item at least once; a checkpoint counts a record only when it is acknowledged."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, Producer
from exop_kafka import ReadKafka, Record, WriteKafka
from exop_kafka.errors import BrokersAway, RecordRefused, TopicMissing
from exop_kafka.link import ANSWER, Link
from exop_kafka.writer import Writer

from exop.testing import feed
from exop.testing import open as opened
from tests.rig import eventually


@dataclass
class Reading:
    """An item with fields."""

    sensor: str
    value: int


def test_items_with_fields_are_json_and_their_key_decides_the_partition(cluster):
    """The records of one key are in one partition, in order."""
    items = [Reading(f"s{n % 7}", n) for n in range(700)]
    feed(WriteKafka, items, topic="numbers", brokers=cluster.brokers, key="sensor")
    found = cluster.records("numbers", 4)
    places = {}
    for partition, records in enumerate(found):
        for key, value in records:
            places.setdefault(key, set()).add(partition)
            assert value.startswith(b'{"sensor":"%s","value":' % key)
    assert sorted(places) == [b"s%d" % n for n in range(7)]
    assert all(len(where) == 1 for where in places.values())
    for key in places:
        mine = [value for records in found for one, value in records if one == key]
        assert mine == [b'{"sensor":"%s","value":%d}' % (key, n) for n in range(int(key[1:]), 700, 7)]


@pytest.mark.parametrize(
    ("item", "value"), [(b"\x00", b"\x00"), ("ä", "ä".encode()), (7, b"7"), ({"a": [1]}, b'{"a":[1]}')]
)
def test_the_value_of_a_record(cluster, item, value):
    """Bytes are unchanged, a text is UTF-8, and others are JSON."""
    feed(WriteKafka, [item], topic="single", brokers=cluster.brokers)
    assert cluster.records("single", 1) == [[(None, value)]]


def test_a_record_is_written_as_it_was_read(cluster):
    """With key, time and headers."""
    record = Record(b"\x00k", b"\xff", 1_700_000_000_000, headers=(("h", b"\x01"),))
    feed(WriteKafka, [record], topic="single", brokers=cluster.brokers)
    (found,) = feed(ReadKafka, topic="single", brokers=cluster.brokers, follow=False)
    assert found == record._replace(partition=0, offset=0)


def test_a_record_that_is_too_large_is_refused_at_its_item(cluster):
    """The error names topic, size and cure; the items before and behind it are written."""
    with opened(WriteKafka, topic="single", brokers=cluster.brokers) as sink:
        sink.item(b"before")
        with pytest.raises(RecordRefused, match=r"1100000 bytes.*'single'.*message\.max\.bytes"):
            sink.item(b"x" * 1_100_000)
        sink.item(b"behind")
        sink.flush()
    assert cluster.records("single", 1) == [[(None, b"before"), (None, b"behind")]]


@pytest.mark.parametrize("item", [object(), "\ud800"])
def test_an_item_that_no_record_can_hold_is_refused(cluster, item):
    """The error says what can be sent."""
    with (
        opened(WriteKafka, topic="single", brokers=cluster.brokers) as sink,
        pytest.raises(RecordRefused, match="send bytes, a text"),
    ):
        sink.item(item)


def test_a_checkpoint_fails_while_the_brokers_are_away(cluster):
    """No record counts as written without an acknowledgement; when the brokers are back, all are written once."""
    with opened(WriteKafka, topic="single", brokers=cluster.brokers, patience=60) as sink:
        sink.item(b"0")
        sink.flush()
        cluster.down()
        eventually(lambda: len(sink._writer._producer))  # it has to report that no broker answers
        eventually(lambda: sink.metrics()["unacknowledged"] == 0)
        sink.patience = 0.5
        for n in range(1, 100):
            sink.item(b"%d" % n)
        with pytest.raises(BrokersAway, match=r"kafka:write: 99 records not acknowledged.*start the brokers"):
            sink.flush()
        assert sink.metrics()["unacknowledged"] == 99
        cluster.up()
        eventually(lambda: sink._writer.serve() or not sink.metrics()["unacknowledged"])
        assert sink.metrics()["unacknowledged"] == 0
    assert cluster.records("single", 1) == [[(None, b"%d" % n) for n in range(100)]]


def test_the_platform_waits_for_room_in_the_client(cluster):
    """More records than the client holds: the sink waits, and nothing is lost or reordered."""
    few = {"queue.buffering.max.messages": "10"}
    feed(WriteKafka, range(2000), topic="single", brokers=cluster.brokers, client=few)
    assert cluster.records("single", 1) == [[(None, b"%d" % n) for n in range(2000)]]


def test_a_record_that_the_broker_refuses_is_kept(cluster):
    """The checkpoint fails with the broker's reason; after a resume the record is written, once and before others."""
    with opened(WriteKafka, topic="single", brokers=cluster.brokers, patience=60) as sink:
        sink.item(b"0")
        sink.flush()
        cluster.refuse_writes(KafkaError.MSG_SIZE_TOO_LARGE)
        sink.item(b"1")
        with pytest.raises(RecordRefused, match=r"too large: 1 record, the first of 1 bytes.*message\.max\.bytes"):
            sink.flush()
        assert sink.metrics()["unacknowledged"] == 1
        sink.item(b"2")
        sink.flush()
    assert cluster.records("single", 1) == [[(None, b"0"), (None, b"1"), (None, b"2")]]


def test_no_item_is_taken_while_the_broker_refuses_an_earlier_one(cluster):
    """The error comes at the next item, which is not written; the earlier one is written as it was."""
    record = Record(b"k", b"0", 1_700_000_000_000, headers=(("h", b"1"),))
    with opened(WriteKafka, topic="numbers", brokers=cluster.brokers, patience=60) as sink:
        cluster.refuse_writes(KafkaError.MSG_SIZE_TOO_LARGE, 2)
        sink.item(record)
        for again in (sink.flush, lambda: sink.item(b"not taken")):
            with pytest.raises(RecordRefused, match=r"1 record.*'numbers'"):
                again()
        sink.item(record)
        sink.flush()
    first, second = feed(ReadKafka, topic="numbers", brokers=cluster.brokers, follow=False)
    assert first._replace(partition=-1, offset=-1) == second._replace(partition=-1, offset=-1) == record
    assert first.partition == second.partition


@pytest.mark.parametrize("refuses", [None, "full", "broken"])
def test_a_record_without_a_partition_is_written_again(cluster, monkeypatch, refuses):
    """The client did not find the topic for a moment: no checkpoint counts the record until it is written."""
    lost = []
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    for number in range(3):
        producer.produce("single", b"%d" % number, b"k", on_delivery=lambda _, message: lost.append(message))
    producer.purge()
    producer.flush(1)
    with opened(WriteKafka, topic="single", brokers=cluster.brokers, patience=60) as sink:
        writer = sink._writer
        for message in lost:
            assert message.partition() is None
            writer._delivered(KafkaError(KafkaError._UNKNOWN_TOPIC), message)
        if refuses:
            problem, produce, given = {"full": BufferError, "broken": TypeError}[refuses], writer._produce, []

            def produce_two(*record, **more):
                given.append(record)
                if len(given) == 2:
                    raise problem
                produce(*record, **more)

            monkeypatch.setattr(writer, "_produce", produce_two)
            with pytest.raises(TypeError if refuses == "broken" else TopicMissing):
                sink.flush()
            assert [message.value() for _, message, _ in writer._failed] == [b"1", b"2"]
        sink.flush()
    assert cluster.records("single", 1) == [[(b"k", b"%d" % number) for number in range(3)]]


def test_an_idle_sink_notes_that_the_brokers_answer_again(cluster):
    """Without a record, and without statistics of the client."""
    with opened(WriteKafka, topic="single", brokers=cluster.brokers) as sink:
        sink.item(b"0")
        sink.flush()
        cluster.down()
        eventually(lambda: sink.make_visible() or "waiting" in sink.metrics())
        for _ in range(10):
            sink.make_visible()
        assert "no broker of 127" in sink.metrics()["waiting"]
        cluster.up()
        eventually(lambda: sink.make_visible() or "waiting" not in sink.metrics())


def test_a_look_for_brokers_creates_no_topic(cluster):
    """They may create one at the request of a producer."""
    writer = Writer(link := Link("x", "absent", cluster.brokers), {})
    try:
        link.waiting = "no broker answers"
        eventually(lambda: writer.serve() or not link.waiting)
        with pytest.raises(TopicMissing):
            writer.partitions(ANSWER)
    finally:
        writer.close(0)

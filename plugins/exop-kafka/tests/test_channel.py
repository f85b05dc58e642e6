"""The channel kind `kafka` passes items on, and writes each to its topic; the partitions of both are the same."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

import pytest
from exop_kafka import KafkaChannel
from exop_kafka.errors import RecordRefused

from exop import Application, EndOfStream, Platform, Punctuation
from exop.errors import ExopError, MeshError, StateError
from exop.model.meshes.mesh import ChannelSpec
from exop.model.meshes.partitions import partition_of
from exop.plugin import Entry, Outlet
from exop.runtime.channels.reader import changes_content, interface
from tests.rig import PATIENCE, collector, eventually


@dataclass
class Car:
    """An item with a key."""

    xway: int
    speed: int


@pytest.fixture
def opened(cluster):
    """Make a channel to the topic `numbers`, and the list of what it passes on."""
    made = []

    def make(**given):
        channel = KafkaChannel("cars", **{"topic": "numbers", "brokers": cluster.brokers, **given})
        channel.open()
        made.append(channel)
        passed: list = []
        entry = Entry(passed.append, passed.extend, passed.append)
        return channel, channel.entry([Outlet("test", entry)]), passed

    yield make
    for channel in made:
        channel.close()


def test_the_partition_of_a_key_is_the_same_in_the_topic(cluster, opened):
    """As `partition_of` says, for single items and batches; in order."""
    channel, entry, passed = opened(by="xway", partitions=4)
    spec = ChannelSpec("cars", "kafka", {"topic": "numbers", "brokers": "b", "by": "xway", "partitions": 4})
    assert KafkaChannel.partitions_of(spec) == (channel.partitioning.by, channel.partitioning.partitions)
    cars = [Car(n % 13, n) for n in range(200)]
    for car in cars[:50]:
        entry.push(car)
    entry.push_batch(cars[50:])
    entry.control(Punctuation(1))
    entry.control(EndOfStream())
    channel.sync()
    assert passed == [*cars, Punctuation(1), EndOfStream()]
    for partition, records in enumerate(cluster.records("numbers", 4)):
        wanted = [car for car in cars if partition_of(car.xway, 4) == partition]
        assert [json.loads(value) for _, value in records] == [vars(car) for car in wanted]
        assert [key for key, _ in records] == [b"%d" % car.xway for car in wanted]


def test_another_number_of_partitions_is_refused(cluster):
    """The error says which one to give."""
    channel = KafkaChannel("cars", topic="numbers", brokers=cluster.brokers, by="xway", partitions=8)
    with pytest.raises(MeshError, match="'numbers' has 4; give partitions=4"):
        channel.open()


@pytest.mark.parametrize("given", [{"by": "xway"}, {"partitions": 4}])
def test_a_field_needs_a_number_of_partitions(given):
    """And the other way round."""
    with pytest.raises(MeshError, match="give both, or neither"):
        KafkaChannel("cars", topic="numbers", brokers="x", **given)


def test_spark_reads_the_topic_itself(opened):
    """It gets the address, and how far the partitions reach; other engines get none."""
    channel, entry, _ = opened(by="xway", partitions=4, client={"fetch.wait.max.ms": "10"})
    reference = {"format": "kafka", "brokers": channel._brokers, "topic": "numbers"}
    assert channel.native("spark") == {**reference, "client": {"fetch.wait.max.ms": "10"}}
    assert channel.native("duckdb") is None
    entry.push_batch([Car(n % 13, n) for n in range(50)])
    since = channel.written()
    assert sum(since.values()) == 50
    assert channel.readable() == channel.oldest() == since
    entry.push(Car(1, 50))
    assert channel.rows(since) == [[{"xway": 1, "speed": 50}]]


def test_an_engine_may_begin_at_the_oldest_record(cluster, opened):
    """Records that were written before the application read the topic."""
    cluster.fill("numbers", 2, [b"{}", b"{}"])
    channel, _, _ = opened(start="oldest")
    assert channel.oldest() == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert channel.readable() == {"0": 0, "1": 0, "2": 2, "3": 0}


def test_a_full_client_takes_nothing_twice(cluster, opened):
    """A batch that does not fit is continued behind what the client has taken."""
    channel, entry, passed = opened(topic="single", client={"queue.buffering.max.messages": "10"})
    entry.push("first")
    channel.sync()
    cluster.down()
    batch = [f"{n}" for n in range(25)]
    with pytest.raises(StateError, match="cars: "):
        entry.push_batch(batch)
    assert passed == ["first"]
    cluster.up()

    def again():
        try:
            entry.push_batch(batch)
        except StateError:
            return False
        return True

    eventually(again)
    eventually(lambda: not channel.metrics()["unacknowledged"])
    assert passed == ["first", *batch]
    assert cluster.records("single", 1) == [[(None, one.encode()) for one in ("first", *batch)]]


def test_a_batch_with_an_item_that_is_no_record_is_not_written(cluster, opened):
    """Its items come again one by one."""
    channel, entry, _ = opened(topic="single")
    with pytest.raises(ExopError, match="cannot be written"):
        entry.push_batch(["1", "2", object()])
    entry.push("1")
    channel.sync()
    assert cluster.records("single", 1) == [[(None, b"1")]]


def test_a_batch_continues_behind_what_was_written(cluster, opened, monkeypatch):
    """After a refusal in its midst, too: nothing is written twice when the failed slet continues."""
    channel, entry, passed = opened(topic="single")
    batch, send, sent = ["first", "second", "third"], channel._writer.send, []

    def refusing(*record):
        sent.append(record)
        if len(sent) == 2:
            raise channel._writer.link.error(RecordRefused, "too large", "send less")
        send(*record)

    monkeypatch.setattr(channel._writer, "send", refusing)
    with pytest.raises(RecordRefused, match="too large"):
        entry.push_batch(batch)
    entry.push_batch(batch)
    channel.sync()
    assert passed == batch
    assert cluster.records("single", 1) == [[(None, one.encode()) for one in batch]]


def test_the_items_before_one_that_is_too_large_are_written_once(cluster, opened):
    """The platform passes the items of a refused batch one by one."""
    channel, entry, passed = opened(topic="single")
    items = ["0", "1", "x" * 1_100_000, "3", "0"]
    with pytest.raises(RecordRefused, match="too large"):
        entry.push_batch(items)
    for item in items:
        with suppress(RecordRefused):
            entry.push(item)
    channel.sync()
    del items[2]
    assert passed == items
    assert cluster.records("single", 1) == [[(None, one.encode()) for one in items]]


@pytest.mark.parametrize("ask", ["sync", "written"])
def test_pushers_let_a_checkpoint_collect_its_acknowledgements(cluster, opened, monkeypatch, ask):
    """Under steady load there would always be a record without one; what is pushed meanwhile is written afterwards."""
    monkeypatch.setattr("exop_kafka.channel.HELD", PATIENCE)
    channel, entry, passed = opened(topic="single")
    pusher, deliver, records = Thread(target=entry.push, args=["later"]), channel._writer.deliver, []

    def delivered(patience):
        pusher.start()
        pusher.join(0.05)
        records.append(channel._writer.records)
        deliver(patience)

    entry.push("first")
    monkeypatch.setattr(channel._writer, "deliver", delivered)
    getattr(channel, ask)()
    pusher.join()
    deliver(PATIENCE)
    assert records == [1]
    assert passed == ["first", "later"]
    assert cluster.records("single", 1) == [[(None, b"first"), (None, b"later")]]


def test_a_peer_with_the_right_to_read_may_read():
    """All that the channel adds; as for a partitioned log."""
    assert not [method for method in interface(KafkaChannel) if changes_content(KafkaChannel, method)]


def test_an_application_waits_for_the_brokers(cluster):
    """Its source waits at the channel, the status says why, and then everything goes on."""
    seen: list[int] = []
    app = Application("written")
    few = {"queue.buffering.max.messages": "10"}
    numbers = app.channel("numbers", "kafka", topic="single", brokers=cluster.brokers, client=few)
    app.add("count", "stock:count_up", to=100, out=numbers)
    app.add("collect", collector(seen), item=numbers)
    cluster.down()
    with Platform() as platform:
        platform.apply(app.build())
        channel = platform.deployment("written").channels["numbers"]
        eventually(lambda: channel.trouble)
        with pytest.raises(ExopError, match="no broker of"):
            platform.wait("written", 0)
        cluster.up()
        eventually(lambda: seen == [*range(100)])
        eventually(lambda: not channel.metrics()["unacknowledged"])
    assert cluster.records("single", 1) == [[(None, b"%d" % n) for n in range(100)]]

"""The source reads every record once, in order per partition, from the offsets in its memento."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from exop_kafka import Offsets, ReadKafka, Record, reader
from exop_kafka import range as range_
from exop_kafka.errors import TopicMissing
from exop_kafka.link import Link

from exop import Application, Platform, slet
from exop.testing import check_source, feed
from exop.testing import open as opened
from tests.rig import eventually

#: The broker tells at once that there are no more records, not after half a second.
SOON = {"fetch.wait.max.ms": "10"}


def values(records):
    """The numbers of the records by partition, as they arrived."""
    found = {}
    for one in records:
        partition, number = one.value.split()
        assert int(partition) == one.partition
        found.setdefault(one.partition, []).append(int(number))
    return found


def test_every_record_once_and_in_order_per_partition(cluster, numbered):
    """All partitions, to the end that they had."""
    numbered(2500)
    found = feed(ReadKafka, topic="numbers", brokers=cluster.brokers, client=SOON, follow=False)
    assert values(found) == {partition: list(range(2500)) for partition in range(4)}
    assert [one.offset for one in found if one.partition == 1] == list(range(2500))


def test_two_sources_share_the_partitions(cluster, numbered):
    """Each reads its own; together they read all of them once."""
    numbered(300)
    given = {"topic": "numbers", "brokers": cluster.brokers, "client": SOON, "follow": False}
    one, other = feed(ReadKafka, partitions=[0, 2], **given), feed(ReadKafka, partitions=[1, 3], **given)
    assert values(one) == {0: list(range(300)), 2: list(range(300))}
    assert values(other) == {1: list(range(300)), 3: list(range(300))}


def test_it_continues_at_every_cut(cluster):
    """A source that begins with the memento after any batch gives the rest, and nothing else."""
    cluster.fill("single", 0, [b"%d" % n for n in range(60)])
    taken, given = [], {"topic": "single", "brokers": cluster.brokers, "client": SOON, "follow": False}
    with opened(ReadKafka, **given, lot=7) as source:
        for batch in source:
            taken += batch or []
            given["offsets"] = Offsets(next=dict(source.offsets.next))
            rest = feed(ReadKafka, **given)
            assert [int(one.value) for one in (*taken, *rest)] == list(range(60))


def test_the_check_of_sources_finds_no_wrong_cut(cluster):
    """The position is updated before a batch is yielded."""
    cluster.fill("single", 0, [b"%d" % n for n in range(5)])
    given = {"topic": "single", "brokers": cluster.brokers, "client": SOON, "lot": 1, "follow": False}
    found = [one for batch in check_source(ReadKafka, **given) if batch for one in batch]
    assert [int(one.value) for one in found] == list(range(5))


def test_binary_keys_headers_and_times(cluster):
    """They arrive as bytes, as they were written."""
    key, headers = b"\x00\xff", [("a", b"\x01\x00"), ("a", None)]
    cluster.fill("single", 0, [b"\xfe"], key=key, headers=headers, timestamp=1_700_000_000_123)
    cluster.fill("single", 0, [None])
    first, second = feed(ReadKafka, topic="single", brokers=cluster.brokers, client=SOON, follow=False)
    assert first == Record(key, b"\xfe", 1_700_000_000_123, 0, 0, tuple(headers))
    assert (second.key, second.value, second.headers) == (None, None, ())


def test_the_newest_records_alone(cluster):
    """Those that are there when it first begins are not read; the memento says so from then on."""
    cluster.fill("single", 0, [b"old"])
    with opened(ReadKafka, topic="single", brokers=cluster.brokers, start="newest") as source:
        records = iter(source)
        assert next(records) is None
        assert source.offsets.next == {0: 1}
        cluster.fill("single", 0, [b"new"])
        assert [one.value for one in next(batch for batch in records if batch)] == [b"new"]


@pytest.fixture
def growing(monkeypatch):
    """Let the brokers tell so many partitions of a topic, and the clients look for new ones all the time."""
    shown, found = [2], Link.partitions
    monkeypatch.setattr(Link, "partitions", lambda *one: found(*one)[: shown[0]])
    for module in (reader, range_):
        monkeypatch.setattr(module, "REFRESH", 0.0)
    return shown


@pytest.mark.parametrize("while_open", [True, False])
def test_partitions_that_are_added_are_read_from_their_beginning(cluster, growing, while_open):
    """Also with `newest`: what is written before the source knows the partition is not lost."""
    given = {"topic": "numbers", "brokers": cluster.brokers, "start": "newest", "client": SOON}

    def grow():
        growing[0] = 4
        cluster.fill("numbers", 3, [b"early"])

    with opened(ReadKafka, **given) as source:
        records, seen = iter(source), []
        assert next(records) is None
        assert source.offsets.next == {0: 0, 1: 0}
        if while_open:
            grow()
            cluster.fill("numbers", 0, [b"first"])
            eventually(lambda: seen.extend(next(records) or ()) or len(seen) == 2)
            assert {(one.partition, one.value) for one in seen} == {(0, b"first"), (3, b"early")}
            assert source.metrics() == {"lag": 0} | {f"lag.{number}": 0 for number in range(4)}
        known = dict(source.offsets.next)
    if not while_open:
        grow()
        with opened(ReadKafka, **given, offsets=Offsets(next=known)) as source:
            assert [one.value for one in next(batch for batch in source if batch)] == [b"early"]


def test_a_partition_without_a_leader_does_not_hold_the_others(cluster, growing, monkeypatch):
    """It is asked for once; the others are read, and it is read from its beginning after the next look."""
    asked = []
    with opened(ReadKafka, topic="numbers", brokers=cluster.brokers, client=SOON) as source:
        records, seen = iter(source), []
        assert next(records) is None
        growing[0] = 4
        cluster.fill("numbers", 3, [b"early"])
        with monkeypatch.context() as patch:
            patch.setattr(reader, "REFRESH", 60.0)
            patch.setattr(Link, "ends", lambda _, client, partition, timeout: asked.append(partition))
            for _ in range(2):
                cluster.fill("numbers", 0, [b"first"])
                eventually(lambda: seen.extend(next(records) or ()) or seen)
                assert (asked, seen.pop().partition) == ([2], 0)
        source._reader._refresh_at = 0.0
        eventually(lambda: seen.extend(next(records) or ()) or seen)
        assert [(one.partition, one.value) for one in seen] == [(3, b"early")]


def test_a_look_for_partitions_that_fails_takes_no_record(cluster):
    """Otherwise the record would be lost: it is neither emitted nor read again."""
    cluster.fill("single", 0, [b"%d" % n for n in range(20)])
    with opened(ReadKafka, topic="single", brokers=cluster.brokers, lot=1) as source:
        records, seen = iter(source), []
        eventually(lambda: seen.extend(next(records) or ()) or seen)  # the others are in the client
        client = source._reader._consumer
        asked = SimpleNamespace(assignment=client.assignment, poll=client.poll, list_topics=refused)
        assert source._reader.link.partitions(asked, 0) is None
        eventually(lambda: seen.extend(next(records) or ()) or len(seen) == 20)
    assert [int(one.value) for one in seen] == [*range(20)]


def refused(*_, **__):
    """Answer as a client that has lost its brokers."""
    raise KafkaException(KafkaError(KafkaError._TRANSPORT))


@pytest.mark.parametrize("partitions", [[], [0]])
def test_a_topic_that_is_deleted_is_told(cluster, growing, monkeypatch, partitions):
    """At the second look: a broker that has just started may not know the topic yet."""

    def missing(link, *_):
        raise link.error(TopicMissing, "the topic does not exist", "create it")

    with opened(ReadKafka, topic="numbers", brokers=cluster.brokers, client=SOON, partitions=partitions) as source:
        records = iter(source)
        assert next(records) is None
        with monkeypatch.context() as patch:
            patch.setattr(Link, "partitions", missing)
            assert next(records) is None
        assert next(records) is None
        monkeypatch.setattr(Link, "partitions", missing)
        assert next(records) is None
        with pytest.raises(TopicMissing):
            next(records)


def test_an_engine_that_reads_the_topic_gets_the_partitions_that_are_added(cluster, growing):
    """The link reports ends when the brokers answer; a topic that is missing for a moment keeps its partitions."""
    range_of = range_.TopicRange(Link("x", "numbers", cluster.brokers), {})
    assert range_of.ends() == {"0": 0, "1": 0}
    growing[0] = 4
    cluster.fill("numbers", 3, [b"{}"])
    assert range_of.ends() == {"0": 0, "1": 0, "2": 0, "3": 1}
    growing[0] = 1
    assert range_of.ends() == {"0": 0, "1": 0, "2": 0, "3": 1}
    range_of.close()


def test_the_lag_counts_what_is_not_read(cluster):
    """In all, and by partition."""
    cluster.fill("single", 0, [b"%d" % n for n in range(50)])
    with opened(ReadKafka, topic="single", brokers=cluster.brokers, lot=20) as source:
        batch = next(batch for batch in source if batch)
        assert source.metrics() == {"lag": 50 - len(batch), "lag.0": 50 - len(batch)}


def test_figures_ask_nothing_of_the_client(cluster, monkeypatch):
    """It makes other threads wait while one polls, without end on an idle topic: the polling thread notes the lag."""
    cluster.fill("single", 0, [b"1"])
    with opened(ReadKafka, topic="single", brokers=cluster.brokers) as source:
        assert next(batch for batch in source if batch)
        with monkeypatch.context() as patch:
            patch.setattr(source._reader, "_consumer", None)
            assert source.metrics() == {"lag": 0, "lag.0": 0}


def test_times_of_records_are_event_time(cluster):
    """One source and one watermark for each partition; behind the point where they meet nothing is late."""
    for partition in range(4):
        for n in range(20):
            cluster.fill("numbers", partition, [b"x"], timestamp=1_000 + n * 10 + partition)
    late, seen = [], []

    @slet
    def collect(record: Record) -> None:
        seen.append(record.time)

    @slet
    def too_late(record: Record) -> None:
        late.append(record)

    app = Application("timed")
    merged = app.channel("merged")
    for partition in range(4):
        given = {"topic": "numbers", "brokers": cluster.brokers, "partitions": [partition], "follow": False}
        given["client"] = SOON
        read = app.add(f"read{partition}", ReadKafka, **given)
        app.add(f"timed{partition}", "stock:watermark", item=read, time="time", out=merged)
        app.add(f"late{partition}", too_late, record=app.output(f"timed{partition}", "late"))
    app.add("collect", collect, record=merged)
    with Platform() as platform:
        app.run(platform)
    assert sorted(seen) == sorted(1_000 + n * 10 + p for p in range(4) for n in range(20))
    assert late == []


def test_the_client_reads_ahead_within_bounds(cluster, monkeypatch):
    """While the application takes little, the client keeps `prefetch`, and at most one more fetch (1 MiB)."""
    kept, options = [], Link.options

    def noted(text):
        partitions = json.loads(text)["topics"]["single"]["partitions"]
        kept.extend(one["fetchq_size"] for name, one in partitions.items() if name == "0")  # none while it is closed

    more = {"stats_cb": noted, "statistics.interval.ms": 20}
    monkeypatch.setattr(Link, "options", lambda *given: options(*given) | more)
    cluster.fill("single", 0, [b"x" * 10_000] * 450)
    given = {"topic": "single", "brokers": cluster.brokers, "lot": 1, "prefetch": 256}
    with opened(ReadKafka, **given) as source:
        records = iter(source)
        eventually(lambda: next(records) and any(kept))
        assert max(kept) < 256 * 1024 + 2**20 < 450 * 10_000


def test_no_records_end_at_once(cluster):
    """Also when some partitions are empty."""
    assert feed(ReadKafka, topic="numbers", brokers=cluster.brokers, client=SOON, follow=False) == []
    cluster.fill("numbers", 2, [b"2 0"])
    assert len(feed(ReadKafka, topic="numbers", brokers=cluster.brokers, client=SOON, follow=False)) == 1


def test_a_topic_that_is_only_looked_at_notes_that_brokers_answer_again(cluster, growing):
    """Its ends are known again, and the partitions that were added, although nothing polls its client."""
    range_of = range_.TopicRange(link := Link("x", "numbers", cluster.brokers), {})
    assert range_of.ends() == {"0": 0, "1": 0}
    link.waiting, growing[0] = "no broker answers", 4
    assert range_of.ends() == {"0": 0, "1": 0}
    assert not link.waiting
    assert range_of.ends() == dict.fromkeys("0123", 0)
    range_of.close()


@pytest.mark.parametrize("given", [{}, {"statistics.interval.ms": "5"}])
def test_a_client_makes_no_statistics(given):
    """One that is not polled, behind a slow slet or in an idle channel, would keep all of them."""
    options = Link("x", "numbers", "localhost:9092").options({}, given)
    assert "stats_cb" not in options
    assert options["statistics.interval.ms"] == 0

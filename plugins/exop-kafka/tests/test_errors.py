"""Errors name slet, topic, brokers, cause and cure; a broker that is away is no error but is visible."""

from __future__ import annotations

import re
from collections import deque

import pytest
from exop_kafka import ReadKafka, Record, WriteKafka
from exop_kafka.errors import ClientRefused, RecordsGone, TopicMissing, TopicRefused
from exop_kafka.source import Offsets

from exop import Application, Platform, slet
from exop.errors import ExopError, SettingError
from exop.testing import open as opened


@pytest.mark.parametrize("kind", [ReadKafka, WriteKafka])
def test_a_topic_that_does_not_exist(cluster, kind):
    """The slet does not open."""
    name = "kafka:read" if kind is ReadKafka else "kafka:write"
    with (
        pytest.raises(TopicMissing, match=rf"{name}: the topic does not exist.*'missing' at 127.*create the topic"),
        opened(kind, topic="missing", brokers=cluster.brokers),
    ):
        pass


def test_a_partition_that_does_not_exist(cluster):
    """The error names those that there are."""
    with (
        pytest.raises(TopicMissing, match="no partition 4; it has 4, from 0 on"),
        opened(ReadKafka, topic="numbers", brokers=cluster.brokers, partitions=[0, 4]),
    ):
        pass


@pytest.mark.parametrize("kind", [ReadKafka, WriteKafka])
@pytest.mark.parametrize(
    ("client", "why"),
    [
        ({"no.such": "1"}, r"refuses a setting: No such configuration property"),
        ({"group.id": "mine"}, r"the setting group.id of the client belongs to exop-kafka"),
        ({"security.protocol": "nonsense"}, r"refuses a setting: Invalid value \"nonsense\""),
    ],
)
def test_a_setting_that_the_client_refuses(cluster, kind, client, why):
    """With the client's own reason."""
    with pytest.raises(ClientRefused, match=why), opened(kind, topic="single", brokers=cluster.brokers, client=client):
        pass


@pytest.mark.parametrize(("setting", "value"), [("lot", 0), ("lot", 1_000_001), ("partitions", [0, 0])])
def test_a_setting_that_cannot_be_is_refused(setting, value):
    """When the node is added, not while records arrive."""
    with pytest.raises(SettingError) as caught:
        Application("wrong").add("orders", ReadKafka, topic="single", brokers="localhost:9092", **{setting: value})
    assert caught.value.setting == setting


def test_no_brokers_are_an_error_and_not_waited_for():
    """Otherwise the slet would wait without end."""
    with pytest.raises(ClientRefused, match="`brokers` is empty"):
        opened(WriteKafka, topic="single", brokers=" ").__enter__()


def test_a_deployment_names_the_node(cluster):
    """The platform adds the node to the error."""
    app = Application("wrong")
    app.add("sink", "stock:show", item=app.add("orders", ReadKafka, topic="missing", brokers=cluster.brokers))
    with Platform() as platform, pytest.raises(ExopError, match="orders") as found:
        platform.apply(app.build())
    assert "the topic does not exist" in str(found.value)


def test_a_client_that_the_brokers_refuse_does_not_wait_for_them(cluster):
    """The slet does not open, and the error has the reason; this cluster accepts no passwords."""
    client = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    client |= {"sasl.username": "someone", "sasl.password": "wrong"}
    wrong = r"the brokers refuse the client: .*SASL.* \(topic 'single' at 127\S+\); correct `client` or the rights"
    with pytest.raises(TopicRefused, match=wrong):
        opened(ReadKafka, topic="single", brokers=cluster.brokers, client=client).__enter__()


def test_records_that_are_gone_are_not_skipped(cluster):
    """A position that the broker no longer keeps is an error, not a silent jump to another one."""
    cluster.fill("single", 0, [b"x"])
    later = Offsets(next={0: 1000})
    with (
        opened(ReadKafka, topic="single", brokers=cluster.brokers, offsets=later) as source,
        pytest.raises(RecordsGone, match=r"no longer kept: partition 0.*set its offsets"),
    ):
        deque(source, maxlen=0)


def test_a_source_waits_for_its_brokers_and_goes_on(cluster):
    """While they are away, its metrics say so; then every record arrives once."""
    cluster.fill("single", 0, [b"0"])
    with opened(ReadKafka, topic="single", brokers=cluster.brokers) as source:
        records = iter(source)
        assert next(batch for batch in records if batch)[0].value == b"0"
        cluster.down()
        while "waiting" not in source.metrics():
            assert next(records) is None
        assert re.match(r"no broker of 127\S+ answers: ", source.metrics()["waiting"])
        cluster.up()
        cluster.fill("single", 0, [b"1"])
        assert [one.value for one in next(batch for batch in records if batch)] == [b"1"]
        while "waiting" in source.metrics():
            next(records)


def test_a_source_that_opens_before_its_brokers_waits_for_them(cluster):
    """As after a power failure, when the application restarts first."""
    cluster.fill("single", 0, [b"0"])
    cluster.down()
    seen = []

    @slet
    def collect(record: Record) -> None:
        seen.append(record.value)

    app = Application("early")
    app.add(
        "collect", collect, record=app.add("read", ReadKafka, topic="single", brokers=cluster.brokers, follow=False)
    )
    with Platform() as platform:
        platform.apply(app.build())
        assert not platform.wait("early", 0.5)
        assert "no broker of" in platform.deployment("early").components["read"].instance.metrics()["waiting"]
        cluster.up()
        assert platform.wait("early", 60)
    assert seen == [b"0"]

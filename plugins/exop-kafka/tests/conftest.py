"""Shared fixtures of exop-kafka's tests: a mock cluster, and what a topic holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from exop_kafka import MockCluster

#: The end of a partition is told at once, not after half a second without further records.
SOON = {"fetch.wait.max.ms": 10}


class Cluster(MockCluster):
    """A mock cluster whose topics can be filled and read without ExoP."""

    def fill(self, topic: str, partition: int, values: Sequence[bytes], **more: Any) -> None:
        """Write records into a partition."""
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 1})
        for value in values:
            producer.produce(topic, value, partition=partition, **more)
        assert producer.flush(60) == 0

    def records(self, topic: str, partitions: int) -> list[list[tuple[bytes | None, bytes | None]]]:
        """Return key and value of all records, by partition."""
        settings = {"bootstrap.servers": self.brokers, "group.id": "test", "enable.partition.eof": True}
        consumer = Consumer({**settings, **SOON, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[list[Any]] = [[] for _ in range(partitions)]
        open_ = set(range(partitions))
        while open_:
            for one in consumer.consume(1000, 0.02):
                if one.error() is not None:
                    open_.discard(one.partition())
                else:
                    found[one.partition()].append((one.key(), one.value()))
        consumer.close()
        return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A mock cluster with the topics `numbers` (4 partitions), `single` and `lines` (1)."""
    with Cluster({"numbers": 4, "single": 1, "lines": 1}) as running:
        yield running


@pytest.fixture
def numbered(cluster: Cluster) -> Callable[[int], None]:
    """Fill `numbers` with values `PARTITION NUMBER`."""

    def fill(number: int, start: int = 0) -> None:
        for partition in range(4):
            cluster.fill("numbers", partition, [b"%d %d" % (partition, n) for n in range(start, start + number)])

    return fill

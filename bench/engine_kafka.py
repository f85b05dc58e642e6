"""Kafka for the bench `engine`: 1000 records a batch are read, written, or both, beside confluent-kafka alone.

The cluster is librdkafka's mock in another process. It keeps 5 MiB of a partition, so that rows are small.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from exop_kafka import ReadKafka, Record, WriteKafka

from bench.harness import Result, Side, compare
from exop import Application, Batch, Platform, slet
from exop.app import ChannelRef

PARTITIONS = 4
#: The records of a batch, and of a call of the bare loop.
LOT = 1000
#: The settings of both sides; a short wait at the end of a partition, where a run ends.
READING = {"fetch.wait.max.ms": "10"}
WRITING = {"enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4", "queue.buffering.max.kbytes": 65_536}


def measured(rounds: int, rows: int = 400_000) -> Iterator[Result]:
    """Compare reading, writing, and both in one application."""
    with cluster() as brokers, Platform() as platform:
        write(brokers, rows)
        sides: dict[str, tuple[str, Side, Callable[[Application], None]]] = {
            "read": ("consume()", lambda: read(brokers, rows), lambda app: from_topic(app, brokers)),
            "write": ("produce()", lambda: write(brokers, rows, "out"), lambda app: to_topic(app, brokers, rows)),
            "throughput": ("both", lambda: read(brokers, rows, "out"), lambda app: through(app, brokers)),
        }
        for name, (against, floor, build) in sides.items():

            def candidate(build: Callable[[Application], None] = build) -> float:
                app = Application("kafka")
                build(app)
                begin = time.perf_counter()
                platform.apply(app.build())
                platform.wait("kafka")
                taken = time.perf_counter() - begin
                platform.remove("kafka")
                return taken / rows * LOT * 1e6

            yield compare(
                f"engine/kafka/{name}", "us", floor=floor, candidate=candidate, against=against, rounds=rounds
            )


@contextmanager
def cluster() -> Iterator[str]:
    """Run the mock cluster in another process; yield its address."""
    command = [sys.executable, "-m", "exop_kafka.mock", f"in:{PARTITIONS}", f"out:{PARTITIONS}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def write(brokers: str, rows: int, topic: str = "in") -> float:
    """Write rows by the client alone; return microseconds per batch."""
    begin = time.perf_counter()
    producer = Producer({"bootstrap.servers": brokers, **WRITING})
    for number in range(rows):
        while True:
            try:
                producer.produce(topic, b"%d" % number, b"%d" % (number % 1000))
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    return (time.perf_counter() - begin) / rows * LOT * 1e6


def read(brokers: str, rows: int, into: str = "") -> float:
    """Read rows by the client alone, and write them into a topic if one is given; return microseconds per batch."""
    begin = time.perf_counter()
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "bench", "enable.auto.commit": False, **READING})
    producer = Producer({"bootstrap.servers": brokers, **WRITING})
    consumer.assign([TopicPartition("in", partition, 0) for partition in range(PARTITIONS)])
    taken = 0
    while taken < rows:
        for one in consumer.consume(LOT, 0.1):
            found = one.key(), one.value(), one.timestamp()[1], one.partition(), one.offset(), one.headers()
            taken += 1
            while into:
                try:
                    producer.produce(into, found[1], found[0], timestamp=found[2])
                    break
                except BufferError:
                    producer.poll(0.01)
    producer.flush()
    consumer.close()
    return (time.perf_counter() - begin) / rows * LOT * 1e6


@slet
def drop(records: Batch[Record]) -> None:
    """Take a batch."""


def from_topic(app: Application, brokers: str) -> None:
    """Read the topic."""
    app.add("drop", drop, records=reader(app, brokers))


def reader(app: Application, brokers: str) -> ChannelRef:
    """Add the source."""
    return app.add("read", ReadKafka, topic="in", brokers=brokers, follow=False, lot=LOT, client=READING)


def to_topic(app: Application, brokers: str, rows: int) -> None:
    """Write a topic."""

    @slet
    def numbers() -> Iterator[Batch[Record]]:
        for low in range(0, rows, LOT):
            yield Batch(Record(b"%d" % (number % 1000), b"%d" % number) for number in range(low, low + LOT))

    app.add("write", WriteKafka, item=app.add("numbers", numbers), topic="out", brokers=brokers)


def through(app: Application, brokers: str) -> None:
    """Read one topic, and write another."""
    app.add("write", WriteKafka, item=reader(app, brokers), topic="out", brokers=brokers)

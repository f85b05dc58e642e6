"""Processes that are killed, slets that are replaced and sources that move: every record goes through once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from exop_kafka import ReadKafka, Record

from exop import Application, Platform, slet
from tests.hosts.moving import APP, hosts
from tests.rig import PATIENCE, eventually

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def life(folder: Path, brokers: str) -> subprocess.Popen:
    """Start the application, or let it continue."""
    command = [sys.executable, str(HERE / "kafka_app.py"), str(folder), brokers]
    paths = os.pathsep.join([str(ROOT), str(HERE.parent)])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def lines(folder: Path) -> list[str]:
    """The lines that are written so far."""
    file = folder / "lines"
    return file.read_text().splitlines() if file.exists() else []


def test_a_killed_application_continues_exactly_from_its_offsets(cluster, numbered, tmp_path):
    """`kill -9` in mid-stream, twice: the file has each record once, in order per partition; the topic has all."""
    wanted = [f"{partition} {n}" for partition in range(4) for n in range(3000)]
    for number in range(3):
        process = life(tmp_path, cluster.brokers)
        try:
            before = len(lines(tmp_path))
            numbered(1000, start=1000 * number)
            reached = before + 500 if number < 2 else len(wanted)
            eventually(lambda reached=reached: len(lines(tmp_path)) >= reached)
            if number == 2:
                eventually(lambda: {value.decode() for _, value in cluster.records("single", 1)[0]} == {*wanted})
        finally:
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()
    found = lines(tmp_path)
    assert sorted(found) == sorted(wanted)
    for partition in range(4):
        assert [line for line in found if line.startswith(f"{partition} ")] == wanted[3000 * partition :][:3000]
    for topic in ("single", "lines"):
        assert {value.decode() for _, value in cluster.records(topic, 1)[0]} == {*wanted}


@slet
def value(record: Record) -> str:
    """Give the value of a record."""
    return (record.value or b"").decode()


@slet
def value_again(record: Record) -> str:
    """The same in other words."""
    return str(record.value, "ascii")


def test_the_slet_behind_is_replaced_while_records_arrive(cluster, numbered):
    """And the source itself, whose offsets its successor takes over."""
    seen: list[str] = []

    @slet
    def collect(item: str) -> None:
        seen.append(item)

    app = Application("replaced")
    read = app.add("read", ReadKafka, topic="numbers", brokers=cluster.brokers, lot=10)
    app.add("collect", collect, item=app.add("value", value, record=read))
    with Platform() as platform:
        platform.apply(app.build())
        feeder = threading.Thread(target=lambda: [numbered(200, start=200 * number) for number in range(5)])
        feeder.start()
        for number, successor in enumerate((value_again, value, value_again, value)):
            eventually(lambda number=number: len(seen) > 300 * number)
            platform.apply(platform.mesh("replaced").replace("value", successor))
            platform.apply(platform.mesh("replaced").configure("read", lot=20 + number))
        feeder.join(PATIENCE)
        eventually(lambda: len(seen) >= 4000)
    for partition in range(4):
        mine = [item for item in seen if item.startswith(f"{partition} ")]
        assert mine == [f"{partition} {n}" for n in range(1000)]


def test_a_slow_slet_holds_the_source(cluster, numbered):
    """Behind a queue of 10 records; the records that it has not taken stay in the topic, and arrive later."""
    numbered(2000)
    seen: list[bytes] = []
    gate = threading.Event()

    @slet
    def slow(record: Record) -> None:
        gate.wait(PATIENCE)
        seen.append(record.value)

    app = Application("slow")
    records = app.channel("records", "queue", capacity=10)
    app.add("read", ReadKafka, topic="numbers", brokers=cluster.brokers, lot=10, follow=False, out=records)
    app.add("slow", slow, record=records)
    with Platform() as platform:
        platform.apply(app.build())
        source = platform.deployment("slow").components["read"].instance
        eventually(lambda: source.offsets.next and sum(source.offsets.next.values()) >= 10)
        assert not platform.wait("slow", 0.5)
        assert sum(source.offsets.next.values()) <= 40
        gate.set()
        assert platform.wait("slow", PATIENCE)
    assert Counter(seen) == Counter(b"%d %d" % (partition, n) for partition in range(4) for n in range(2000))


def test_a_source_moves_with_its_offsets(cluster, numbered):
    """To another platform and back, while records arrive."""
    with hosts("h1", "h2", slets=(ReadKafka, value)) as there:
        app = Application(APP)
        read = app.add("a", ReadKafka, topic="numbers", brokers=cluster.brokers, lot=10)
        app.add("sink", there.sink, x=app.add("b", value, record=read))
        there.home.apply(app.build())
        for number, host in enumerate(("h2", "h1", "h2")):
            numbered(200, start=200 * number)
            eventually(lambda number=number: len(there.seen) > 800 * number)
            there.move(host, "a")
        eventually(lambda: len(there.seen) >= 2400)
        seen = [*there.seen]
    for partition in range(4):
        mine = [item for item in seen if item.startswith(f"{partition} ")]
        assert mine == [f"{partition} {n}" for n in range(600)]

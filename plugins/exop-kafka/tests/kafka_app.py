"""A durable application from Kafka to Kafka; `python kafka_app.py FOLDER BROKERS` may be killed."""

from __future__ import annotations

import sys
from dataclasses import field
from pathlib import Path

from exop_kafka import Record

from exop import Application, Memento, Platform, hookimpl, slet
from exop.hooks import Plugins

NAME = "kafka"


class Next(Memento):
    """The next number of each partition."""

    next: dict[int, int] = field(default_factory=dict)


@slet
def in_order(record: Record, numbers: Next) -> str:
    """Refuse a record that is not the next one of its partition."""
    partition, number = map(int, (record.value or b"").split())
    if number != numbers.next.get(partition, 0):
        raise ValueError(f"partition {partition}: {number} after {numbers.next.get(partition, 0) - 1}")
    numbers.next[partition] = number + 1
    return f"{partition} {number}"


class Slets:
    """The plugin of this application."""

    @hookimpl
    def register_slets(self) -> list:
        """The slet, by name, so that a restarted platform finds it."""
        return [in_order]


def plugins() -> Plugins:
    """The installed plugins, and this one."""
    found = Plugins()
    found.discover()
    found.register("kafka-app", Slets())
    return found


def application(folder: Path, brokers: str, known: Plugins) -> Application:
    """Two sources that share the partitions, a channel with a topic, a file, and a third topic."""
    app = Application(NAME, plugins=known)
    app.durable(every=0.05)
    lines = app.channel("lines", "kafka", topic="lines", brokers=brokers)
    for name, partitions in (("one", [0, 2]), ("other", [1, 3])):
        given = {"topic": "numbers", "brokers": brokers, "partitions": partitions, "lot": 50}
        read = app.add(name, "kafka:read", **given)
        app.add(f"check-{name}", "kafka-app:in_order", record=read, out=lines)
    app.add("file", "stock:write_lines", item=lines, path=folder / "lines")
    app.add("topic", "kafka:write", item=lines, topic="single", brokers=brokers)
    return app


def main() -> int:
    """Live until all records are read."""
    folder, brokers = Path(sys.argv[1]), sys.argv[2]
    known = plugins()
    with Platform(state=folder / "state", control=False, plugins=known) as platform:
        assert not platform.failed_to_restart, platform.failed_to_restart
        if NAME not in platform.applications() and not (folder / "begun").exists():
            platform.apply(application(folder, brokers, known).build())
            (folder / "begun").touch()
        sys.stdout.write("started\n")
        sys.stdout.flush()
        platform.wait(NAME)
    return 0


if __name__ == "__main__":
    sys.exit(main())

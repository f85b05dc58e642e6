"""`kafka`: a channel kind that writes what it passes on to a topic, which engines can read without the platform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from exop.errors import MeshError, StateError
from exop.model.meshes.partitions import partition_of
from exop.plugin import to_items
from exop.runtime.channels.base import KeepingChannel
from exop.runtime.channels.log import wait_for_disk
from exop.runtime.channels.partitioned import Partitioning, key_reader
from exop.runtime.dataflow.entry import InFlight

#: The number of attempts to pass a record to a client without room, before the pusher waits at its safe point.
TRIES: Final = 100


class KafkaChannel(KeepingChannel):
    """Passes items on, and writes each as a record of a topic, at least once.

    With `by`, the partitions of the topic are those of the channel: `partitions` must be their number, and the members
    of a group and the readers of the topic see the same split. Consumers in the mesh receive the items themselves;
    other applications read the topic, and engines by `native`.
    """

    kind: ClassVar[str] = "kafka"

    def __init__(
        self,
        name: str,
        *,
        topic: str,
        brokers: str,
        by: str | None = None,
        partitions: int | None = None,
        patience: float = 10.0,
        client: dict[str, str] | None = None,
    ) -> None:
        super().__init__(name)
        if (by is None) != (partitions is None):
            problem = "has a field `by` and no number of `partitions`" if by else "has `partitions`, and no field `by`"
            raise MeshError(f"the channel {name!r} {problem}; give both, or neither")
        if by is not None and partitions is not None:
            self.partitioning = Partitioning(name, by, partitions)
        self._topic, self._brokers, self._client, self._patience = topic, brokers, client or {}, patience
        self._key, self._number = key_reader(by), partitions
        self._begun: tuple[Any, int] = (None, 0)

    def open(self) -> None:
        """Open the client, and compare the partitions of the topic with those of the channel."""
        # Imported lazily: an application without Kafka does not load its client.
        from .writer import opened

        self._writer, there = opened(f"the channel {self.name!r}", self._topic, self._brokers, self._client)
        if self._number is not None and there is not None and len(there) != self._number:
            self._writer.close(0)
            raise MeshError(
                f"the channel {self.name!r} has {self._number} partitions, and the topic {self._topic!r} has "
                f"{len(there)}; give partitions={len(there)}"
            )

    def close(self) -> None:
        """Wait for acknowledgements, and close the client."""
        self._writer.close(self._patience)

    def native(self, engine: str) -> Mapping[str, Any] | None:
        """Return the options of Spark's Kafka source (`format("kafka")`)."""
        if engine != "spark":
            return None
        return {"format": "kafka", "kafka.bootstrap.servers": self._brokers, "subscribe": self._topic}

    def sync(self) -> None:
        """Wait until the records that the checkpoint counts are acknowledged, while the stream runs."""
        self._writer.deliver(self._patience)

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of records, and of those without an acknowledgement."""
        self._writer.serve()
        found: dict[str, int | float | str] = {"topic": self._topic, "records": self._writer.records}
        found["unacknowledged"] = self._writer.unacknowledged
        waiting = self._writer.link.waiting
        return {**found, "waiting": waiting} if waiting else found

    def _keep(self, batch: Any) -> None:
        """Write a batch; if the client has no room, the next call with the same batch continues behind what it took."""
        items = to_items(batch)
        before, number = self._begun
        number = number if before is batch else 0
        tries = 0
        while number < len(items):
            try:
                self._write(items[number])
            except BufferError as problem:
                tries += 1
                self._writer.serve()
                waiting = self._writer.link.waiting
                if waiting or tries > TRIES:
                    self._begun = batch, number
                    raise StateError(f"{self.name}: {waiting or problem}") from None
                self._writer.wait()
            else:
                number, tries = number + 1, 0
        self._begun, self.trouble = (None, 0), None

    def _write(self, item: Any) -> None:
        key = self._key(item)
        more = {} if self._number is None else {"partition": partition_of(key, self._number)}
        self._writer.send(self._writer.encoded(item), self._writer.key(key), **more)

    def _wait(self, problem: StateError, work: InFlight) -> None:
        """Make the pusher wait at its safe point until the client has room."""
        wait_for_disk(self, problem, work)

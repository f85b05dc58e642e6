"""`kafka`: a channel kind that writes its items to a topic, too, which engines can read without the platform."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from exop.errors import MeshError, StateError, counted
from exop.model.meshes.partitions import partition_of
from exop.plugin import to_items
from exop.runtime.channels.base import KeepingChannel
from exop.runtime.channels.partitioned import Partitioning, key_reader

if TYPE_CHECKING:
    from .range import TopicRange

#: The number of attempts to pass a record to a client without room; after that, the pusher waits at its safe point.
TRIES: Final = 100
#: Seconds for which a pusher lets a checkpoint collect its acknowledgements; under steady load they would never be all.
HELD: Final = 1.0


class KafkaChannel(KeepingChannel):
    """Passes items on, and writes each as a record of a topic, at least once.

    With `by`, the partitions of the topic are those of the channel: `partitions` must be their number, and the members
    of a group and the readers of the topic see the same split. Consumers in the mesh receive the items themselves;
    other applications read the topic, and engines by `native`.

    Extended interface: `written()`, `readable()`, `rows(since)`.
    """

    kind: ClassVar[str] = "kafka"
    entered: ClassVar[bool] = True
    reading: ClassVar[frozenset[str]] = frozenset({"oldest", "readable", "rows", "written"})

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
        start: Literal["newest", "oldest"] = "newest",
    ) -> None:
        super().__init__(name)
        if (by is None) != (partitions is None):
            problem = "has a field `by` and no number of `partitions`" if by else "has `partitions`, and no field `by`"
            raise MeshError(f"the channel {name!r} {problem}; give both, or neither")
        if by is not None and partitions is not None:
            self.partitioning = Partitioning(name, by, partitions)
        self._topic, self._brokers, self._client, self._patience = topic, brokers, client or {}, patience
        self._key, self._number, self._start = key_reader(by), partitions, start
        self._range: TopicRange | None = None
        self._lock, self._delivering = threading.Lock(), threading.Lock()
        self._begun = _NONE

    def open(self) -> None:
        """Open the client, and compare the partitions of the topic with those of the channel."""
        # Imported lazily: an application without Kafka does not load its client.
        from .writer import opened

        self._writer, there = opened(f"the channel {self.name!r}", self._topic, self._brokers, self._client)
        if self._number is not None and there is not None and len(there) != self._number:
            self._writer.close(0)
            raise MeshError(
                f"the channel {self.name!r} has {counted(self._number, 'partition')}, and the topic {self._topic!r} "
                f"has {len(there)}; give partitions={len(there)}"
            )

    def close(self) -> None:
        """Wait for acknowledgements, and close the clients."""
        self._writer.close(self._patience)
        if self._range is not None:
            self._range.close()

    def native(self, engine: str) -> Mapping[str, Any] | None:
        """Return the reference by which Spark's tasks read the topic; `None` for other engines."""
        if engine != "spark":
            return None
        return {"format": "kafka", "brokers": self._brokers, "topic": self._topic, "client": self._client}

    def oldest(self) -> dict[str, int]:
        """Return the offsets at which an engine begins: after the last records, or at the oldest ones; see `start`."""
        return self._read().ends(oldest=self._start == "oldest")

    def written(self) -> dict[str, int]:
        """Wait until all items are acknowledged, and return the offsets after the last record of each partition."""
        self.sync()
        return self._read().ends()

    def readable(self) -> dict[str, int]:
        """Return the offset after the last record of each partition."""
        return self._read().ends()

    def rows(self, since: Mapping[str, int]) -> list[Any]:
        """Return the values of the records from these offsets on, for a slet that takes the place of an engine."""
        return [*self._read().values(since, self.written())]

    def _read(self) -> TopicRange:
        # Imported lazily: only an engine that reads the topic itself needs it.
        from .range import TopicRange

        with self._lock:  # an engine asks in its own thread
            if self._range is None:
                self._range = TopicRange(self._writer.link, self._client)
            return self._range

    def sync(self) -> None:
        """Wait until the records that the checkpoint counts are acknowledged, while the stream runs."""
        with self._delivering:
            self._writer.deliver(self._patience)

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of records, and of those without an acknowledgement."""
        self._writer.serve()
        found: dict[str, int | float | str] = {"topic": self._topic, "records": self._writer.records}
        found["unacknowledged"] = self._writer.unacknowledged
        waiting = self._writer.link.waiting
        return {**found, "waiting": waiting} if waiting else found

    def _keep(self, batch: Any) -> None:
        """Write a batch, or nothing of it if an item cannot be encoded.

        If a record is not taken, the next call with this batch continues with that record. If the batch comes again as
        single items, those that were written are not written again.
        """
        if self._delivering.locked() and self._delivering.acquire(timeout=HELD):
            self._delivering.release()
        (before, records, number), left = self._begun, _NONE
        if before is not batch:
            written, records, number = records[:number], [self._record(item) for item in to_items(batch)], 0
            if written and records == written[: len(records)]:
                number = len(records)
                left = None, written[number:], len(written) - number
        send, tries = self._writer.send, 0
        try:
            while number < len(records):
                try:
                    send(*records[number])
                except BufferError as problem:
                    tries += 1
                    self._writer.serve()
                    waiting = self._writer.link.waiting
                    if waiting or tries > TRIES:
                        raise StateError(f"{self.name}: {waiting or problem}") from None
                    self._writer.wait()
                else:
                    number, tries = number + 1, 0
        except BaseException:
            self._begun = batch, records, number
            raise
        self._begun, self.trouble = left, None

    def _record(self, item: Any) -> _Record:
        writer = self._writer
        if self._number is None:
            return writer.encoded(item), None
        key = self._key(item)
        return writer.encoded(item), writer.key(key), partition_of(key, self._number)


#: The value and the key of a record, and its partition.
_Record: TypeAlias = tuple[bytes, None] | tuple[bytes, bytes | None, int]
#: The batch that is not written completely, its records, and the number of those that are written.
_NONE: Final[tuple[Any, list[_Record], int]] = (None, [], 0)

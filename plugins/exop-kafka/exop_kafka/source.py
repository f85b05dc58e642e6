"""`kafka:read`: a source whose offsets are part of its memento, not of a consumer group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

from exop import Batch, Memento, Slet
from exop.errors import SettingError
from exop.model.slets.ports import PortType
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec

#: The largest batch that the client returns.
MOST: Final = 1_000_000


class Record(NamedTuple):
    """One record of a topic.

    Attributes:
        time: Milliseconds since 1970; -1 if the record has no time.
    """

    key: bytes | None = None
    value: bytes | None = None
    time: int = -1
    partition: int = -1
    offset: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Offsets(Memento):
    """The offset of the next record of each partition that has been read."""

    next: dict[int, int] = field(default_factory=dict)


class ReadKafka(Slet, name="read"):
    """Emit the records of a topic, in batches; the records of each partition are in order.

    The position is in the memento, so that a durable application continues exactly from its checkpoint, whatever a
    consumer group says. Several sources may share the partitions of a topic by `partitions`. While no broker answers,
    the source waits; the metric `waiting` says why.

    Args:
        topic: The name of the topic.
        brokers: The addresses of some brokers, `HOST:PORT,HOST:PORT`.
        offsets: The state.
        partitions: The partitions to read; with an empty list all partitions, also those that are added while it reads.
        start: Where to begin in a partition without a stored offset: at its oldest record, or after its newest one.
            Partitions that are added later are read from their oldest record on.
        follow: Whether to wait for new records; otherwise the stream ends after the present records.
        lot: The maximum number of records in a batch.
        prefetch: The maximum number of KiB that the client reads ahead; then it fetches nothing until the application
            has taken some (back-pressure).
        client: Further settings of librdkafka, such as `security.protocol`.
    """

    topic: str
    brokers: str
    offsets: Offsets
    partitions: list[int] = field(default_factory=list)
    start: Literal["oldest", "newest"] = "oldest"
    follow: bool = True
    lot: int = 1000
    prefetch: int = 16_384
    client: dict[str, str] = field(default_factory=dict)
    reopens: ClassVar[bool] = True
    gathers: ClassVar[int] = MOST

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Check the settings that the client would refuse only while it reads."""
        lot, partitions = settings["lot"], settings["partitions"]
        if not 0 < lot <= MOST:
            raise SettingError(place="", setting="lot", problem=f"it is {lot}, and must be from 1 to {MOST}")
        if len({*partitions}) < len(partitions):
            raise SettingError(place="", setting="partitions", problem=f"one of {partitions} is there twice")
        return spec_of(cls)

    @classmethod
    def repeats(cls, settings: Mapping[str, Any]) -> bool:
        """Return whether it reads one named partition: several partitions interleave as the brokers answer."""
        return len(settings["partitions"]) == 1

    def __enter__(self) -> Self:
        # Imported lazily: an application without Kafka does not load its client.
        from .reader import Reader

        self._reader = Reader(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._reader.close()

    def __iter__(self) -> Iterator[Batch[Record] | None]:
        reader = self._reader
        while (left := reader.assigned(self.offsets.next)) is None:
            reader.wait()
            yield None
        while self.follow or left:
            if reader.has_grown():
                left = reader.assigned(self.offsets.next) or left
            batch, reached, problem = reader.taken(left)
            self.offsets.next |= reached
            yield batch or None
            if problem is not None:
                raise problem

    def metrics(self) -> dict[str, int | float | str]:
        """Return the lag: the number of records in the topic that the source has not emitted."""
        behind = self._reader.lag(dict(self.offsets.next))
        found: dict[str, int | float | str] = {f"lag.{partition}": number for partition, number in behind.items()}
        waiting = self._reader.link.waiting
        return {"lag": sum(behind.values()), **found, **({"waiting": waiting} if waiting else {})}

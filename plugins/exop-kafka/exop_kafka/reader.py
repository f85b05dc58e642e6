"""`Reader`: the consumer of one source; it reads the partitions that it is given, and joins no group."""

from __future__ import annotations

import time
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka import KafkaError as Failure

from exop import Batch

from .errors import KafkaError, TopicMissing
from .link import ANSWER, REFRESH, Link
from .source import Record

if TYPE_CHECKING:
    from .source import ReadKafka

#: Seconds for which the source waits for the first record of a batch; between two waits it can be parked.
PAUSE: Final = 0.1
#: Seconds between two looks at the ends of the partitions.
LOOK: Final = 0.5
_TIME, _PARTITION, _OFFSET = itemgetter(1), itemgetter(3), itemgetter(4)


class Reader:
    """The consumer of a source, with the settings of the slet."""

    def __init__(self, slet: ReadKafka) -> None:
        self._slet = slet
        self.link = Link("kafka:read", slet.topic, slet.brokers)
        own = {
            "group.id": "exop",  # required by the client; no group is joined, and nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": not slet.follow,
            "queued.max.messages.kbytes": slet.prefetch,
            "fetch.error.backoff.ms": 200,
        }
        self._ends, self._look_at = dict[int, int](), 0.0
        self._assigned, self._refresh_at = list[int](), time.monotonic() + REFRESH
        self._consumer: Any = self.link.opened(Consumer, self.link.options(own, slet.client))
        try:
            self._owned = self._find_owned()
        except BaseException:
            self._consumer.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def wait(self) -> None:
        """Wait for a moment for a broker."""
        self._consumer.poll(PAUSE)

    def lag(self, offsets: dict[int, int]) -> dict[int, int]:
        """Return the number of records behind each offset, according to the ends that `taken` has last noted."""
        return {partition: max(0, self._ends.get(partition, 0) - offset) for partition, offset in offsets.items()}

    def _note_ends(self) -> None:
        """Note the ends of the partitions, every `LOOK` seconds as soon as the client knows them.

        Called by the thread that polls: the client makes the calls of other threads wait, without end on an idle topic.
        """
        if (now := time.monotonic()) < self._look_at:
            return
        for one in self._owned or ():
            ends = self._consumer.get_watermark_offsets(TopicPartition(self._slet.topic, one), cached=True)
            self._ends[one] = ends[1] if ends is not None else -1
        if min(self._ends.values(), default=-1) >= 0:
            self._look_at = now + LOOK

    def _find_owned(self) -> list[int] | None:
        """Return the partitions to read; `None` while no broker answers."""
        there = self.link.partitions(self._consumer, ANSWER)
        if there is None:
            return None
        if strange := [one for one in self._slet.partitions if one not in there]:
            problem = f"the topic has no partition {', '.join(map(str, strange))}; it has {len(there)}, from 0 on"
            raise self.link.error(TopicMissing, problem, "correct `partitions`, or add partitions to the topic")
        return self._slet.partitions or there

    def assigned(self, known: dict[int, int]) -> set[int] | None:
        """Begin to read at the *known* offsets, to which those of other partitions are added.

        A partition that the topic has got since then is read from its oldest record on. Return the partitions, or
        `None` if no broker answers. While one of a new partition does not, the others are read until the next look.
        """
        self._owned = self._owned if self._owned is not None else self._find_owned()
        if self._owned is None:
            return None
        begin, newest = dict[int, int](), self._slet.start == "newest" and (not known or bool(self._slet.partitions))
        for partition in self._owned:
            ends = None
            if partition not in known or not self._slet.follow:
                ends = self.link.ends(self._consumer, partition, ANSWER)
                if ends is None:
                    self._owned = self._assigned or self._owned
                    return None
                begin[partition] = ends[newest]
        known |= {partition: offset for partition, offset in begin.items() if partition not in known}
        self._consumer.assign([TopicPartition(self._slet.topic, one, known[one]) for one in self._owned])
        self._assigned = self._owned
        return set(self._owned)

    def has_grown(self) -> bool:
        """Return whether the topic has partitions that are not read yet; a look every `REFRESH` seconds.

        Raises:
            TopicMissing: the topic was deleted, of which the client says nothing while it reads.
        """
        if self._slet.follow and time.monotonic() >= self._refresh_at:
            self._refresh_at = time.monotonic() + REFRESH
            there = self.link.grown(self._consumer, self._assigned)
            self._owned = self._slet.partitions or there
        return self._owned != self._assigned

    def taken(self, left: set[int]) -> tuple[Batch[Record], dict[int, int], KafkaError | None]:
        """Return the next records, the offsets behind them, and the error that follows.

        The partitions that have been read to their end are removed from *left*.
        """
        first = self._consumer.poll(PAUSE)
        self.link.look(self._consumer)
        self._note_ends()
        found: list[Message] = [] if first is None else [first, *self._consumer.consume(self._slet.lot - 1, 0)]
        problem = None
        if any(map(Message.error, found)):
            for one in found:
                if (failure := one.error()) is not None:
                    problem = self._failed(one, failure, left) or problem
            found = [one for one in found if one.error() is None]
        batch = _records(found)
        last = dict(zip(map(_PARTITION, batch), map(_OFFSET, batch), strict=True))
        return batch, {partition: offset + 1 for partition, offset in last.items()}, problem

    def _failed(self, message: Message, failure: Failure, left: set[int]) -> KafkaError | None:
        """Return the error for a failure that does not pass by itself."""
        partition = message.partition()
        if failure.code() == Failure._PARTITION_EOF:
            left.discard(-1 if partition is None else partition)
            return None
        try:
            self.link.check(failure, f"partition {partition}")
        except KafkaError as problem:
            return problem
        return None


def _records(messages: list[Message]) -> Batch[Record]:
    """Return the records of messages; column by column, without a call of Python for each."""
    columns = (
        map(Message.key, messages),
        map(Message.value, messages),
        map(_TIME, map(Message.timestamp, messages)),
        map(Message.partition, messages),
        map(Message.offset, messages),
        [() if one is None else tuple(one) for one in map(Message.headers, messages)],
    )
    return Batch(map(partial(tuple.__new__, Record), zip(*columns, strict=True)))

"""`TopicRange`: the ends of the partitions of a topic, and the records of a range, for engines that read by offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as Failure

from .errors import BrokersAway, KafkaError
from .link import ANSWER, REFRESH, Link

#: Seconds without a record after which reading a range fails.
TIMEOUT: Final = 60.0
#: The maximum number of seconds, and of records, of one call of the client.
POLL: Final = 1.0
BATCH_ROWS: Final = 10_000


class TopicRange:
    """One consumer of a topic, without a group; any thread may call it."""

    def __init__(self, link: Link, client: Mapping[str, str]) -> None:
        self._link, self._turn = link, threading.Lock()
        own = {
            "group.id": "exop",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        self._consumer: Any = link.opened(Consumer, link.options(own, client))
        self._partitions: list[int] | None = None
        self._known: dict[str, int] = {}
        self._look_at = 0.0

    def close(self) -> None:
        """Close the client."""
        with self._turn:
            self._consumer.close()

    def ends(self, *, oldest: bool = False) -> dict[str, int]:
        """Return the offset behind the last record of each partition, or with *oldest* of the first one.

        While no broker answers, return the latest answer.

        Raises:
            BrokersAway: no broker has ever answered.
        """
        with self._turn:
            self._consumer.poll(0)  # for its errors, which it keeps until then
            if self._partitions is None:
                self._partitions = self._link.partitions(self._consumer, ANSWER)
                self._look_at = time.monotonic() + REFRESH
            elif time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + REFRESH
                self._partitions = self._link.grown(self._consumer, self._partitions)
            found = {}
            for one in self._partitions or ():
                ends = self._link.ends(self._consumer, one, ANSWER)
                if ends is not None:
                    found[str(one)] = ends[0 if oldest else 1]
            if self._partitions is None or (not oldest and len(found) < len(self._partitions) and not self._known):
                cure = "start the brokers, or correct their address"
                raise self._link.error(BrokersAway, "the ends of the topic are not known", cure)
            if len(found) == len(self._partitions):
                self._link.answered()
            if oldest:
                return found
            self._known |= found
            return dict(self._known)

    def values(self, begin: Mapping[str, int], end: Mapping[str, int]) -> Iterator[list[Any]]:
        """Yield the values of the records from *begin* up to *end*, partition by partition, decoded from JSON.

        Records without a value are left out.

        Raises:
            BrokersAway: no broker answers.
            KafkaError: a value is not JSON.
        """
        for part, after in end.items():
            at, waited = begin.get(part, 0), 0.0
            with self._turn:
                if at < after:
                    self._consumer.assign([TopicPartition(self._link.topic, int(part), at)])
                while at < after:
                    # Not more records than there are: the client would wait for the rest.
                    found = self._consumer.consume(min(BATCH_ROWS, after - at), POLL)
                    end_of_partition = at
                    for one in found:
                        if one.error() is not None and one.error().code() == Failure._PARTITION_EOF:
                            end_of_partition = one.offset()  # the last offsets may be marks of transactions
                        elif one.error() is not None:
                            self._link.check(one.error(), f"partition {part}")
                    records = [one for one in found if one.error() is None]
                    waited = 0.0 if records else waited + POLL
                    if waited >= TIMEOUT:
                        raise self._link.error(BrokersAway, f"no record came within {TIMEOUT:g} s", "try again")
                    at = max(end_of_partition, records[-1].offset() + 1 if records else at)
                    rows = [one for one in records if one.offset() < after and one.value() is not None]
                    yield [self._decoded(one, part) for one in rows]
                self._consumer.unassign()

    def _decoded(self, record: Any, partition: str) -> Any:
        try:
            return msgspec.json.decode(record.value())
        except (msgspec.MsgspecError, ValueError) as problem:
            where = f"partition {partition}, offset {record.offset()}: the value is not JSON: {problem}"
            cure = (
                "correct what writes the topic, and let the query that reads it pass this record (`exop configure "
                "APP.NODE on_error=skip`), or read it by `kafka:read` and a slet that decodes the values"
            )
            raise self._link.error(KafkaError, where, cure) from None

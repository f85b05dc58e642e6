"""`Writer`: writes records to a topic in order, and waits for their acknowledgements."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka import KafkaError as Failure

from exop.errors import counted
from exop.runtime.dataflow.batches import as_row

from .errors import BrokersAway, RecordRefused
from .link import ANSWER, Link

_log = logging.getLogger("exop.kafka")
#: Seconds between two attempts to pass a record to a client without room; and while no broker answers.
ROOM: Final = 0.01
NO_ROOM: Final = 0.2
#: Seconds to wait for acknowledgements while no broker answers.
AWAY: Final = 0.2


class Writer:
    """A producer with the acknowledgements of all replicas. Retries neither reorder nor double the records of one run.

    A record whose delivery fails for good is kept, and written again before the next one.
    """

    def __init__(self, link: Link, client: Mapping[str, str]) -> None:
        self.link = link
        self.records = 0
        self._settled = 0  # the records that `deliver` has found acknowledged
        self._failed: list[tuple[Failure, Message, dict[str, Any]]] = []
        self._turn = threading.Lock()
        own = {
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # a record waits until a broker is reachable
            "delivery.report.only.error": True,
            "partitioner": "murmur2_random",  # that of the Java clients: every writer chooses the same one
            "linger.ms": 5,
            "queue.buffering.max.kbytes": 65_536,
            "compression.type": "lz4",
        }
        self._producer: Producer = link.opened(Producer, link.options(own, client))
        self._client = client
        self._produce, self._refused, self._topic = self._producer.produce, self._delivered, link.topic

    @property
    def unacknowledged(self) -> int:
        """The number of records that no broker has acknowledged."""
        self._producer.poll(0)  # the length of the client also counts what it reports, such as a broker that is away
        return min(len(self._producer), self.records - self._settled) + len(self._failed)

    def partitions(self, timeout: float) -> list[int] | None:
        """Return the partitions of the topic; see `Link.partitions`.

        The request is sent by a consumer, because brokers may create the topic at the request of a producer.
        """
        consumer = self.link.opened(Consumer, self.link.options({"group.id": "exop"}, self._client))
        try:
            return self.link.partitions(consumer, timeout)
        finally:
            consumer.close()

    def send(self, value: bytes | None, key: bytes | None, partition: int = -1, **more: Any) -> None:
        """Pass one record to the client, which has room for it; without a *partition*, the key determines it.

        Raises:
            BufferError: the client holds as many records as it may; try again later.
            RecordRefused: the record is too large.
        """
        if self._failed:
            self._again()
        try:
            # A failed message has no time and no headers any more.
            failed = partial(self._delivered, **more) if more else self._refused
            self._produce(self._topic, value, key, partition, on_delivery=failed, **more)
        except KafkaException as problem:
            raise self.link.explained(problem.args[0], f"{len(value or b'')} bytes") from None
        self.records += 1
        if not self.records & 0x3FF:
            self._producer.poll(0)

    def serve(self) -> None:
        """Call back for failures. Called now and then, also while no records are sent."""
        self._producer.poll(0)
        self.link.look(self._producer)

    def wait(self) -> None:
        """Wait for a moment for room in the client, which waits for its brokers."""
        self._producer.poll(NO_ROOM if self.link.waiting else ROOM)
        self.link.look(self._producer)

    def deliver(self, patience: float) -> None:
        """Return when all records are acknowledged.

        Raises:
            BrokersAway: they are not, after *patience* seconds, or at once if no broker answers.
            RecordRefused, TopicMissing, TopicRefused: a record was not taken, and is kept.
        """
        if self._failed:
            self._again()
        self.link.look(self._producer)
        given = self.records
        left = self._producer.flush(AWAY if self.link.waiting else patience)
        if self._failed:
            raise self._refusal()
        if left:
            why = self.link.waiting or f"no acknowledgement within {patience:g} s"
            cure = "start the brokers; the records are kept until then"
            raise self.link.error(BrokersAway, f"{counted(left, 'record')} not acknowledged: {why}", cure)
        self._settled = given

    def close(self, patience: float) -> None:
        """Wait for acknowledgements for the last time, and report the records that have none."""
        self._producer.flush(AWAY if self.link.waiting else patience)
        if self.unacknowledged:
            _log.error("%s: %s not acknowledged", self.link.topic, counted(self.unacknowledged, "record"))
        self._producer.purge()
        self._producer.flush(AWAY)

    def encoded(self, item: Any) -> bytes:
        """Return an item as the value of a record: bytes unchanged, text as UTF-8, others as JSON.

        Raises:
            RecordRefused: JSON cannot hold the item.
        """
        kind = type(item)
        if kind is bytes:
            return item  # type: ignore[no-any-return]
        try:
            if kind is str:
                return item.encode()  # type: ignore[no-any-return]
            return msgspec.json.encode(item if kind in (dict, int, float, bool, list) else _row(item))
        except (TypeError, ValueError, msgspec.MsgspecError) as problem:
            cure = "send bytes, a text, or an item whose fields JSON can hold"
            words = f"a {kind.__qualname__} cannot be written{' as JSON' if kind is not str else ''}: {problem}"
            raise self.link.error(RecordRefused, words, cure) from None

    def key(self, key: Any) -> bytes | None:
        """Return a field of an item as the key of its record; `None` remains, and is no key."""
        return None if key is None else self.encoded(key)

    def _again(self) -> None:
        """Write the refused records again, now that the slet was resumed, and wait for the result."""
        with self._turn, suppress(BufferError, KafkaException):  # a checkpoint may come while a record is sent
            for _ in range(len(self._failed)):
                _, one, more = self._failed[0]
                partition = one.partition()  # none, if the client did not find the topic
                again = more if partition is None else {**more, "partition": partition}
                failing = partial(self._delivered, **more)
                self._produce(self.link.topic, one.value(), one.key(), on_delivery=failing, **again)
                del self._failed[0]  # only now: another thread must not count it as written
        self._producer.flush(1)
        if self._failed:
            raise self._refusal()

    def _refusal(self) -> Exception:
        failure, one, _ = self._failed[0]
        where = f"{counted(len(self._failed), 'record')}, the first of {len(one)} bytes with the key {one.key()!r:.60}"
        return self.link.explained(failure, where)

    def _delivered(self, failure: Failure | None, message: Message, **more: Any) -> None:
        if failure is not None and failure.code() not in (Failure._PURGE_QUEUE, Failure._PURGE_INFLIGHT):
            self._failed.append((failure, message, more))


def opened(slet: str, topic: str, brokers: str, client: Mapping[str, str]) -> tuple[Writer, list[int] | None]:
    """Return a writer, and the partitions of its topic; `None` if no broker has answered.

    Raises:
        ClientRefused, TopicMissing, TopicRefused: nothing can be written with these settings.
    """
    writer = Writer(Link(slet, topic, brokers), client)
    try:
        return writer, writer.partitions(ANSWER)
    except BaseException:
        writer.close(0)
        raise


def _row(item: Any) -> Any:
    try:
        return as_row(item)
    except TypeError:
        return item

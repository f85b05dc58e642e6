"""`Link`: the settings of a Kafka client, the state of its connection, and its errors as those of ExoP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError as Failure
from confluent_kafka import KafkaException, TopicPartition

from .errors import BrokersAway, ClientRefused, KafkaError, RecordRefused, RecordsGone, TopicMissing, TopicRefused

_log = logging.getLogger("exop.kafka")
#: Seconds to wait for an answer about a topic and its partitions, and between two looks for new partitions.
ANSWER: Final = 2.0
REFRESH: Final = 60.0
#: The settings of the client that exop-kafka itself gives; others may be set by `client`.
OWN: Final = frozenset({
    "auto.offset.reset", "bootstrap.servers", "delivery.report.only.error", "enable.auto.commit",
    "enable.auto.offset.store", "enable.partition.eof", "error_cb", "group.id", "transactional.id",
})  # fmt: skip
_MISSING: Final = {
    Failure.UNKNOWN_TOPIC_OR_PART, Failure._UNKNOWN_TOPIC, Failure._UNKNOWN_PARTITION, Failure.TOPIC_EXCEPTION,
}  # fmt: skip
_GONE: Final = {Failure.OFFSET_OUT_OF_RANGE, Failure._AUTO_OFFSET_RESET}
_TOO_LARGE: Final = {Failure.MSG_SIZE_TOO_LARGE, Failure.RECORD_LIST_TOO_LARGE}
_REFUSED: Final = {
    Failure.TOPIC_AUTHORIZATION_FAILED, Failure.CLUSTER_AUTHORIZATION_FAILED, Failure.SASL_AUTHENTICATION_FAILED,
    Failure._AUTHENTICATION, Failure._SSL,
}  # fmt: skip


class Link:
    """The connection of one client to its brokers.

    The client reconnects by itself, with a growing delay. Until then `waiting` has the reason.

    Attributes:
        waiting: Why the client waits; empty if a broker answers.
    """

    def __init__(self, slet: str, topic: str, brokers: str) -> None:
        self.waiting = ""
        self._refusal: Failure | None = None
        self._missing = False
        self._facts = {"slet": slet, "topic": topic, "brokers": brokers}
        self.topic = topic

    def options(self, own: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings for a client: *own*, and those that the application has *given*.

        Raises:
            ClientRefused: a given setting is one that exop-kafka itself sets.
        """
        if taken := sorted(OWN & given.keys()):
            cure = "leave it out of `client`: the settings of the slet, and the checkpoint, take its place"
            raise self.error(ClientRefused, f"the setting {', '.join(taken)} of the client belongs to exop-kafka", cure)
        if not self._facts["brokers"].strip():
            raise self.error(ClientRefused, "`brokers` is empty", "give some addresses, HOST:PORT,HOST:PORT")
        # A client keeps its statistics until it is polled, which may never be; see `look`.
        calls = {"error_cb": self._failed, "logger": _log, "statistics.interval.ms": 0}
        fixed = {"bootstrap.servers": self._facts["brokers"], "log_level": 2, "reconnect.backoff.max.ms": 2000}
        return {**fixed, **own, **given, **calls}

    def opened(self, kind: Callable[[dict[str, Any]], Any], options: dict[str, Any]) -> Any:
        """Make a client.

        Raises:
            ClientRefused: the Kafka client refuses a setting; the message contains its reason.
        """
        try:
            return kind(options)
        except (KafkaException, TypeError, ValueError) as problem:
            cure = "correct `client`; the names and values are those of librdkafka"
            raise self.error(ClientRefused, f"the Kafka client refuses a setting: {_words(problem)}", cure) from None

    def partitions(self, client: Any, timeout: float) -> list[int] | None:
        """Return the partitions of the topic, or `None` if no broker has answered within *timeout* seconds.

        Raises:
            TopicMissing, TopicRefused: the brokers have answered.
        """
        try:
            found = client.list_topics(self.topic, timeout=timeout).topics[self.topic]
        except KafkaException as problem:
            if not getattr(client, "assignment", list)():  # otherwise it might take a record
                client.poll(0)  # the reason for the refusal of a client comes only so
            self.check(self._refusal or problem.args[0])
            return None
        if found.error is not None:
            self.check(found.error)
            return None
        self.answered()
        return sorted(found.partitions)

    def grown(self, client: Any, known: list[int]) -> list[int]:
        """Return the *known* partitions of the topic, and those that were added, if a broker answers.

        Raises:
            TopicMissing: the topic was missing at the last call already; a broker that has just started knows none.
        """
        try:
            there = None if self.waiting else self.partitions(client, ANSWER)
        except TopicMissing:
            if self._missing:
                raise
            self._missing = True
            return known
        self._missing = False
        return sorted({*known, *(there or ())})

    def ends(self, client: Any, partition: int, timeout: float) -> tuple[int, int] | None:
        """Return the oldest offset of a partition, and that of its next record; `None` if no broker has answered.

        Raises:
            TopicMissing, TopicRefused: the brokers have answered.
        """
        try:
            found = client.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=timeout)
        except KafkaException as problem:
            failure = problem.args[0]
            # The client says so, too, of a partition whose broker it has just lost.
            if failure.code() == Failure._UNKNOWN_PARTITION:
                there = self.partitions(client, timeout)
                if there is None or partition in there:
                    return None
            self.check(failure)
            return None
        return None if found is None else (int(found[0]), int(found[1]))

    def look(self, client: Any) -> None:
        """Note that a broker is connected again; without waiting for it."""
        if not self.waiting:
            return
        try:
            client.list_topics(timeout=0)  # not of the topic, which brokers may create for a producer
        except KafkaException as problem:
            if problem.args[0].code() != Failure._TIMED_OUT:  # which says that a broker has the request
                return
        self.answered()

    def answered(self) -> None:
        """Record that a broker is reachable again."""
        if self.waiting:
            _log.info("%(slet)s: a broker answers again (topic %(topic)r at %(brokers)s)", self._facts)
            self.waiting, self._refusal = "", None

    def check(self, failure: Failure, where: str = "") -> None:
        """Raise the error for a permanent failure; otherwise record that the client waits for its brokers."""
        problem = self.explained(failure, where)
        if not isinstance(problem, BrokersAway):
            raise problem
        self._note(failure.str())

    def explained(self, failure: Failure, where: str = "") -> KafkaError:
        """Return the error for a failure of the client; *where* describes the partition or the record."""
        code, said = failure.code(), f"{where + ': ' if where else ''}{failure.str()}"
        if code in _MISSING:
            cure = "create the topic with these partitions, or correct the name; then resume the slet"
            return self.error(TopicMissing, f"the topic does not exist: {said}", cure)
        if code in _GONE:
            cure = "keep records for longer than the application may be down; to continue without them, set its offsets"
            return self.error(RecordsGone, f"the records at the stored offset are no longer kept: {said}", cure)
        if code in _TOO_LARGE:
            cure = "send smaller items, or raise message.max.bytes in `client`, for the topic and for the brokers"
            return self.error(RecordRefused, f"the record is too large: {said}", cure)
        if code in _REFUSED:
            return self.error(TopicRefused, f"the brokers refuse the client: {said}", "correct `client` or the rights")
        if failure.fatal():
            return self.error(TopicRefused, f"the client cannot continue: {said}", "replace the slet by itself")
        return self.error(BrokersAway, said, "start the brokers, or correct their address")

    def error(self, kind: type[KafkaError], problem: str, cure: str) -> KafkaError:
        """Return an error with the slet, the topic and the brokers."""
        return kind(**self._facts, problem=problem, cure=cure)

    def _failed(self, failure: Failure) -> None:
        """Record that no broker is reachable, or accepts the client. Called by the client while it is polled."""
        if failure.code() in _REFUSED:
            self._refusal = failure
        if failure.code() == Failure._ALL_BROKERS_DOWN:
            self._note((self._refusal or failure).str())

    def _note(self, problem: str) -> None:
        if not self.waiting:
            facts = {**self._facts, "problem": problem}
            _log.warning("%(slet)s waits for its brokers: %(problem)s (topic %(topic)r at %(brokers)s)", facts)
        self.waiting = f"no broker of {self._facts['brokers']} answers: {problem}"


def _words(problem: BaseException) -> str:
    failure = problem.args[0] if problem.args else None
    return (failure.str() if isinstance(failure, Failure) else str(problem)).strip()

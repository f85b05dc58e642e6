"""The errors of exop-kafka.

* ExopError
  x KafkaError            a problem with a topic or its brokers: `slet`, `topic`, `brokers`, `problem`, `cure`
    + ClientRefused         a setting that the Kafka client refuses
    + TopicMissing          the topic, or one of its partitions, does not exist
    + RecordsGone           the broker no longer keeps the records at the position of the source
    + BrokersAway           no broker has answered in time
    + RecordRefused         a record that can never be written, for example because it is too large
    + TopicRefused          the brokers refuse the client, for example without the right to read
"""

from __future__ import annotations

from typing import ClassVar

from exop.errors import ExopError


class KafkaError(ExopError):
    """A problem with a topic or its brokers."""

    template: ClassVar[str] = "{slet}: {problem} (topic {topic!r} at {brokers}); {cure}"


class ClientRefused(KafkaError):
    """The Kafka client refuses a setting."""


class TopicMissing(KafkaError):
    """The topic, or one of its partitions, does not exist."""


class RecordsGone(KafkaError):
    """The broker no longer keeps the records at the position of the source."""


class BrokersAway(KafkaError):
    """No broker has answered in time."""


class RecordRefused(KafkaError):
    """A record can never be written."""


class TopicRefused(KafkaError):
    """The brokers refuse the client."""

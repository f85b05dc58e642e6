"""Kafka topics as sources, sinks and channels.

The Kafka client is imported when it is first used, not with the plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from exop import hookimpl

if TYPE_CHECKING:
    from .channel import KafkaChannel
    from .mock import MockCluster
    from .sink import WriteKafka
    from .source import Offsets, ReadKafka, Record

_HOMES = {
    "KafkaChannel": "channel",
    "MockCluster": "mock",
    "Offsets": "source",
    "ReadKafka": "source",
    "Record": "source",
    "WriteKafka": "sink",
}

__all__ = [
    "KafkaChannel",
    "MockCluster",
    "Offsets",
    "ReadKafka",
    "Record",
    "WriteKafka",
    "register_channels",
    "register_slets",
]


@hookimpl
def register_slets() -> list[Any]:
    """Offer `kafka:read` and `kafka:write`."""
    from .sink import WriteKafka
    from .source import ReadKafka

    return [ReadKafka, WriteKafka]


@hookimpl
def register_channels() -> list[type]:
    """Offer the channel kind `kafka`."""
    from .channel import KafkaChannel

    return [KafkaChannel]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)

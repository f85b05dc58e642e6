"""What a buffered channel keeps beside plain items: batches, control items, and items under measurement."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from exop.runtime.convert import weight


class Kind(IntEnum):
    """What a packet holds."""

    BATCH = 0
    CONTROL = 1
    PROBE = 2


class Packet:
    """One entry of a buffer that is not a plain item.

    `origin` is the time at which a measured item left its source, `stored` the time it entered the buffer.
    """

    __slots__ = ("kind", "origin", "payload", "stored")

    def __init__(self, kind: Kind, payload: Any, origin: float = 0.0, stored: float = 0.0) -> None:
        self.kind = kind
        self.payload = payload
        self.origin = origin
        self.stored = stored


def items_of(entry: Any) -> int:
    """How many items an entry of a buffer holds: a control item is none."""
    if type(entry) is not Packet or entry.kind is Kind.PROBE:
        return 1
    return weight(entry.payload) if entry.kind is Kind.BATCH else 0


def plain(entry: Any) -> tuple[str, Any]:
    """An entry as plain data; that it was to be measured is forgotten."""
    if type(entry) is not Packet:
        return "item", entry
    return {Kind.BATCH: "batch", Kind.CONTROL: "control"}.get(entry.kind, "item"), entry.payload

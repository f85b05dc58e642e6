"""Bytes that are longer than a message: kept on the platform under a number, and carried there or away in pieces."""

from __future__ import annotations

import secrets
import threading
from typing import Final

from exop.errors import MessageTooLarge, PlanError
from exop.remoting.transport.limits import KIB, MIB

#: Bytes of one piece, of one whole, and of all that a platform keeps.
PIECE: Final = 2 * MIB
LARGEST: Final = 64 * MIB
TOGETHER: Final = 128 * MIB
#: How many wholes a platform keeps, be they empty.
MOST: Final = 256
#: Bytes that go inside of a message, and of each memento beside others.
INLINE: Final = 32 * KIB
FEW: Final = KIB
#: A piece, and room for what stands beside it.
LARGEST_REQUEST: Final = PIECE + 10_000


class Pieces:
    """The byte strings that a platform keeps for its clients: bounded, the oldest is dropped first."""

    def __init__(self) -> None:
        self._held: dict[str, bytearray] = {}
        self._lock = threading.Lock()

    def put(self, data: bytes, number: str = "") -> str:
        """Keep bytes, or more of those under *number*; returns the number.

        Raises:
            MessageTooLarge: it would be longer than the bound.
            PlanError: there is nothing under this number (any more).
        """
        with self._lock:
            held = self._known(number) if number else bytearray()
            check_size(len(held) + len(data))
            held += data
            number = number or secrets.token_hex(8)
            self._held[number] = held
            while len(self._held) > MOST or sum(map(len, self._held.values())) > TOGETHER:
                del self._held[next(iter(self._held))]
            return number

    def read(self, number: str, offset: int) -> bytes:
        """One piece of what is kept; with the last one it is forgotten."""
        with self._lock:
            held = self._known(number)
            if offset + PIECE >= len(held):
                del self._held[number]
            return bytes(held[offset : offset + PIECE])

    def take(self, number: str) -> bytes:
        """The whole; it is forgotten."""
        with self._lock:
            held = self._known(number)
            del self._held[number]
            return bytes(held)

    def _known(self, number: str) -> bytearray:
        if number not in self._held:
            raise PlanError(f"the platform keeps nothing under the number {number!r} (any more); send it again")
        return self._held[number]


def check_size(size: int) -> None:
    """Refuse what is too long to be carried.

    Raises:
        MessageTooLarge: it is.
    """
    if size > LARGEST:
        cure = "take it in the platform's own process, by platform.memento(application, node)"
        raise MessageTooLarge(what="the memento", size=size, limit=LARGEST, cure=cure)

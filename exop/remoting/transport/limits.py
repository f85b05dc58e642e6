"""The bounds of a control connection: sizes, times and numbers as one value, and the bytes that connections share."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
#: Bytes that the envelope of a message may add to its payload.
ENVELOPE = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits on the resources that a peer may use. Every limit of docs/explanation/control.md is a field.

    Tests use instances with short times; all other code uses the defaults.
    """

    frame: int = 4 * MIB
    """Bytes of one message; a longer one ends the connection before it is read."""
    small_frame: int = 64 * KIB
    """Up to this size a message takes nothing from the budgets below."""
    greeting_frame: int = 4 * KIB
    """Bytes of one message of the handshake, when nothing is known of the peer yet."""
    bytes_in: int = 16 * MIB
    """All larger requests together that are being received or handled; the next one waits at its header."""
    bytes_out: int = 16 * MIB
    """All larger replies together that are being sent; the next one is given up as `PlatformBusy`."""
    request: int = 64 * KIB
    """Bytes of a request, where the operation does not declare more (typed data is up to 70 times its message)."""
    plain_reply: int = 1 * MIB
    """Bytes of a reply that the client takes without a declared type."""
    fault: int = 64 * KIB
    """Bytes of an error that crosses."""
    greeting_time: float = 6.0
    """Seconds for the whole handshake."""
    frame_time: float = 10.0
    """Seconds for a message once begun, in either direction."""
    idle_time: float = 60.0
    """Seconds a connection may rest between two calls; a client opens a new one by itself."""
    queue_time: float = 5.0
    """Seconds a request may wait for its turn."""
    stop_time: float = 5.0
    """Seconds that stopping waits for operations that still run."""
    patience: float = 1.0
    """Seconds after which a connection that is not running an operation may be closed to make room."""
    connections: int = 64
    """Connections at a time; one thread each."""
    in_flight: int = 8
    """Operations that run at a time, over all connections; one per connection."""


DEFAULT_LIMITS = Limits()


class Budget:
    """Bytes for large messages that all connections of a server share; small messages take nothing.

    Without it, 64 connections with 4 MiB under way each, copied once or twice, would take a gigabyte.
    """

    def __init__(self, total: int, free_up_to: int) -> None:
        self._left = total
        self._total = total
        self._free_up_to = free_up_to
        self._changed = threading.Condition()

    @property
    def left(self) -> int:
        """Bytes that are free at the moment."""
        return self._left

    def take(self, size: int, deadline: float) -> int:
        """Wait for *size* bytes until *deadline* (of `time.monotonic`); return the number to give back."""
        if size <= self._free_up_to:
            return 0
        size = min(size, self._total)
        with self._changed:
            if not self._changed.wait_for(lambda: self._left >= size, max(0.0, deadline - time.monotonic())):
                raise TimeoutError("other large messages are under way")
            self._left -= size
        return size

    def give(self, size: int) -> None:
        """Return what `take` gave out."""
        if size:
            with self._changed:
                self._left += size
                self._changed.notify_all()

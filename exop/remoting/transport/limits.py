"""The bounds of a control connection, as one value: sizes, times, numbers."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds on what a peer may take of this process. Every bound of docs/explanation/control.md is a field here.

    Tests make their own with short times; all other code takes the defaults.
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

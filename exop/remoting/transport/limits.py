"""The limits of control connections: sizes, times, bytes that they share; and the connections that a server keeps."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from exop.errors import MessageTooLarge
from exop.remoting.transport.sockets import Peer

KIB = 1024
MIB = 1024 * KIB
#: Bytes that the envelope of a message may add to its payload.
ENVELOPE = 200
Phase: TypeAlias = Literal["greeting", "idle", "running", "replying"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits on the resources that a peer may use. Every limit of docs/explanation/control.md is a field.

    Tests use instances with short times; all other code uses the defaults.
    """

    frame: int = 4 * MIB  #: Bytes of one message; a longer one ends the connection before it is read.
    small_frame: int = 64 * KIB  #: Up to this size a message takes nothing from the budgets below.
    greeting_frame: int = 4 * KIB  #: Bytes of one message of the handshake, when nothing is known of the peer yet.
    bytes_in: int = 16 * MIB  #: All larger requests that are received or handled; the next one waits at its header.
    bytes_out: int = 16 * MIB  #: All larger replies that are being sent; the next one is given up as `PlatformBusy`.
    request: int = 64 * KIB  #: Bytes of a request, unless its operation declares more; decoded, up to 70 times as many.
    plain_reply: int = 1 * MIB  #: Bytes of a reply that the client takes without a declared type.
    fault: int = 64 * KIB  #: Bytes of an error that crosses.
    greeting_time: float = 6.0  #: Seconds for the whole handshake.
    frame_time: float = 10.0  #: Seconds for a message once begun, in either direction.
    idle_time: float = 60.0  #: Seconds a connection may rest between two calls; a client opens a new one by itself.
    silence: float = 8.0  #: Seconds without a call after which a reverse connection ends; its caller pings more often.
    queue_time: float = 5.0  #: Seconds a request may wait for its turn.
    stop_time: float = 5.0  #: Seconds that stopping waits for operations that still run.
    patience: float = 1.0  #: Seconds without an operation after which a connection may be closed to make room.
    connections: int = 64  #: Connections at a time; one thread each.
    per_peer: int = 16  #: Connections at a time of one certificate's name.
    in_flight: int = 8  #: Operations that run at a time, over all connections; one per connection.


DEFAULT_LIMITS = Limits()


def check_length(what: str, size: int, limit: int, cure: str = "send less at a time") -> None:
    """Raise `MessageTooLarge` if *what* has more bytes than *limit*."""
    if size > limit:
        raise MessageTooLarge(what=what, size=size, limit=limit, cure=cure)


class Budget:
    """Bytes for large messages that all connections of a server share; small messages take nothing.

    Without it, 64 connections with 4 MiB under way each, copied once or twice, would take a gigabyte.
    """

    def __init__(self, total: int, free_up_to: int) -> None:
        self.left = total  #: Bytes that are free at the moment.
        self._total = total
        self._free_up_to = free_up_to
        self._changed = threading.Condition()

    def take(self, size: int, deadline: float) -> int:
        """Wait for *size* bytes until *deadline* (of `time.monotonic`); return the number to give back."""
        if size <= self._free_up_to:
            return 0
        size = min(size, self._total)
        with self._changed:
            if not self._changed.wait_for(lambda: self.left >= size, max(0.0, deadline - time.monotonic())):
                raise TimeoutError("other large messages are under way")
            self.left -= size
        return size

    def give(self, size: int) -> None:
        """Return what `take` gave out."""
        if size:
            with self._changed:
                self.left += size
                self._changed.notify_all()


class Activity(NamedTuple):
    """The phase of a connection, since when (`time.monotonic`), and the operation that runs or ran last."""

    phase: Phase
    since: float
    operation: str = ""


class Connection:
    """One connection as the server sees it; its own thread notes its activity, and its peer once it is identified."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        # A second descriptor of the connection: ending it from outside can then never hit another socket that got the
        # number of a closed one.
        self._handle = socket.socket(fileno=os.dup(sock.fileno()))
        self._lock = threading.Lock()
        self.peer = peer
        self.is_released = False
        """Whether the socket belongs to another owner now, and is not closed with this connection."""
        self.activity = Activity("greeting", time.monotonic())
        self.thread: threading.Thread | None = None

    def enter(self, phase: Phase, operation: str = "") -> None:
        """Note the phase that begins now."""
        self.activity = Activity(phase, time.monotonic(), operation)

    def is_idle(self, patience: float) -> bool:
        """Whether it can be closed to make room: it never greeted, or runs nothing for longer than *patience*."""
        phase, since, _ = self.activity
        return phase == "greeting" or (phase != "running" and time.monotonic() - since > patience)

    def hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection from another thread; its own thread wakes and leaves.

        With `SHUT_RD` a reply under way still goes out.
        """
        with self._lock, suppress(OSError):  # it has ended by itself meanwhile
            self._handle.shutdown(how)

    def close(self) -> None:
        """Give the descriptor back: the last action of the connection's thread."""
        with self._lock:
            self._handle.close()


class Connections:
    """The connections of a server and their threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self.closing = threading.Event()

    def __len__(self) -> int:
        return len(self._open)

    def start(
        self, sock: socket.socket, serve: Callable[[socket.socket, Connection], None], peer: Peer | None = None
    ) -> None:
        """Run *serve* for *sock* in a thread of its own; *peer* is the peer, if it is identified already."""
        connection = Connection(sock, peer or Peer())

        def run() -> None:
            try:
                serve(sock, connection)
            finally:
                if not connection.is_released:
                    sock.close()
                connection.close()
                with self._lock:
                    self._open.discard(connection)

        connection.thread = threading.Thread(target=run, name="exop-control-peer", daemon=True)
        with self._lock:
            try:
                connection.thread.start()
            except RuntimeError:  # too many threads run
                connection.close()
                raise
            self._open.add(connection)

    def make_room(self) -> bool:
        """Whether one more fits. To make room, an idle connection is closed, those first that never greeted.

        While all of them were active a moment ago, it waits a moment: the newcomer waits in the queue of the socket.
        """
        patience = self._limits.patience
        deadline = time.monotonic() + 2 * patience
        while len(connections := self._all()) >= self._limits.connections:
            if idle := [one for one in connections if one.is_idle(patience)]:
                longest = min(idle, key=lambda one: (one.activity.phase != "greeting", one.activity.since))
                longest.hang_up()
                # Its thread is waited for: connections and threads never exceed their bound, not even in a flood.
                self._join([longest], deadline)
            if time.monotonic() >= deadline or (not idle and self.closing.wait(patience / 10)):
                return len(self._all()) < self._limits.connections
        return True

    def of(self, name: str) -> int:
        """The number of connections of platforms whose certificate has this name."""
        return sum(one.peer.certificate is not None and one.peer.name == name for one in self._all())

    def hang_up(self, which: Callable[[Peer], bool]) -> int:
        """End the connections of some peers; return how many they were."""
        found = [one for one in self._all() if which(one.peer)]
        for connection in found:
            connection.hang_up()
        return len(found)

    def close(self) -> list[str]:
        """End all connections except that of the calling thread; return the operations that did not end in time.

        Running operations may answer first; a reply that cannot be written is given up after a moment.
        """
        started, whole, left = time.monotonic(), self._limits.stop_time, self._all()
        for how, seconds in ((socket.SHUT_RD, min(self._limits.patience, whole)), (socket.SHUT_RDWR, whole)):
            for connection in left:
                connection.hang_up(how)
            self._join(left, started + seconds)
            left = [one for one in self._all() if one.thread is not threading.current_thread()]
        return [connection.activity.operation for connection in left]

    def _all(self) -> list[Connection]:
        with self._lock:
            return list(self._open)

    def _join(self, connections: list[Connection], deadline: float) -> None:
        for connection in connections:
            if connection.thread is not None and connection.thread is not threading.current_thread():
                connection.thread.join(max(0.0, deadline - time.monotonic()))

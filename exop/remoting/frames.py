"""rpyc's stream and channel with deadlines and a largest frame; nothing is unpacked here.

As rpyc brings them they read a frame of any length, unzip it, and wait for its end for ever.
"""

from __future__ import annotations

import select
import socket
import time

import rpyc  # noqa: F401 (first: threads that import different modules of it would wait for each other)
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream
from rpyc.lib import Timeout

from exop.remoting import envelope
from exop.remoting.budget import Budget
from exop.remoting.limits import Limits

_CHUNK = 256 * 1024


class FrameRefused(EOFError):
    """A frame that breaks the profile; an `EOFError`, because for rpyc the connection ends with it."""


class TooLate(EOFError):
    """A message was begun and not ended in time, or could not be written in time."""


class DeadlineStream(SocketStream):  # type: ignore[misc]
    """A socket of which every read and write ends at a deadline."""

    __slots__ = ()

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        super().__init__(sock)

    def poll(self, timeout: Timeout) -> bool:
        """Wait until something can be read, or the peer has closed; False when the time is over."""
        left = timeout.timeleft()
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(None if left is None else left * 1000))

    def readable(self) -> bool:
        """Whether something has come, or the peer has closed; without waiting."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def read_until(self, count: int, deadline: float) -> memoryview:
        """Read exactly *count* bytes, or raise EOFError when the peer ends or *deadline* passes before."""
        data = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            try:
                received = self.sock.recv_into(data[filled:])
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as problem:
                raise EOFError(str(problem)) from problem
            if not received:
                raise EOFError("the peer has closed the connection")
            filled += received
        return data

    def write_until(self, data: bytes, deadline: float) -> None:
        """Write all of *data*, or raise EOFError when the peer ends or *deadline* passes before."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.sock.send(rest[:_CHUNK]) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
            except OSError as problem:
                raise EOFError(str(problem)) from problem

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.sock, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TooLate("a message was begun and not ended in time")


class BoundedChannel(Channel):  # type: ignore[misc]
    """Frames of a bounded size in a bounded time, checked by shape, never compressed."""

    __slots__ = ("_accepted", "_budget", "_held", "_limits", "call_deadline")

    def __init__(self, stream: DeadlineStream, limits: Limits, accepted: frozenset[int], budget: Budget) -> None:
        super().__init__(stream, compress=False)
        self._limits = limits
        self._accepted = accepted
        self._budget = budget
        self._held = 0
        self.call_deadline: float | None = None
        """When the call under way ends: a client does not wait longer for half a reply."""

    def recv(self) -> memoryview:
        """Read one message of the profile."""
        # A view: rpyc takes slices of what it gets, and each would copy a large message once more.
        frame = self._receive(self._limits.frame, self._deadline())
        try:
            envelope.check(frame, self._accepted)
        except envelope.EnvelopeError as problem:
            raise FrameRefused(str(problem)) from None
        return frame

    def send(self, data: bytes) -> None:
        """Write one message; the size was checked by who made it."""
        if len(data) > self._limits.frame:
            raise ValueError(f"a message of {len(data)} bytes is over the bound of {self._limits.frame}")
        deadline = self._deadline()
        header = self.FRAME_HEADER.pack(len(data), 0)
        if len(data) <= self._limits.small_frame:
            self.stream.write_until(header + data + self.FLUSHER, deadline)
        else:
            # Not joined: a copy of a large message costs more than two calls of the kernel.
            for part in (header, data, self.FLUSHER):
                self.stream.write_until(part, deadline)

    def receive_greeting(self, deadline: float) -> bytes:
        """Read one message of the handshake: small, and before any message of the profile."""
        return bytes(self._receive(self._limits.greeting_frame, deadline))

    def send_greeting(self, data: bytes, deadline: float) -> None:
        """Write one message of the handshake."""
        self.stream.write_until(self.FRAME_HEADER.pack(len(data), 0) + data + self.FLUSHER, deadline)

    def settle(self) -> None:
        """Give back what the last message took of the budget."""
        self._budget.give(self._held)
        self._held = 0

    def _receive(self, largest: int, deadline: float) -> memoryview:
        length, compressed = self.FRAME_HEADER.unpack(self.stream.read_until(self.FRAME_HEADER.size, deadline))
        if compressed:
            raise FrameRefused("compressed messages are not accepted")
        if length > largest:
            raise FrameRefused(f"a message of {length} bytes is over the bound of {largest}")
        self._held += self._budget.take(length, deadline)
        frame: memoryview = self.stream.read_until(length + len(self.FLUSHER), deadline)
        if frame[length:] != self.FLUSHER:
            raise FrameRefused("the message does not end where it says")
        return frame[:length]

    def _deadline(self) -> float:
        own = time.monotonic() + self._limits.frame_time
        return own if self.call_deadline is None else min(own, self.call_deadline)

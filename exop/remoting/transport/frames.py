"""The messages of the control connection: over rpyc's stream and channel, with deadlines and bounds.

The stream and channel of rpyc read a frame of any length, decompress it, and wait for its end for ever; its loader
builds any value that a peer describes: three bytes make a frozenset of 216 bytes, so a frame of 4 MiB takes 300 MB.
Here, a frame is the handshake or one of three messages, or the connection ends:

    kind (1 byte), number (8), length of the name (2), the name of the operation (requests only), the payload

rpyc's format of values and its connection, with objects, references, attributes and exceptions, are not used.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Final, NamedTuple

import rpyc  # noqa: F401 (first: threads that import different modules of it would wait for each other)
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from exop.remoting.transport.limits import Budget, Limits

#: The kinds of messages: none of rpyc's own, which are 1 to 3.
REQUEST, REPLY, FAULT = 11, 12, 13
_HEAD: Final = struct.Struct("!BQH")
_CHUNK: Final = 256 * 1024


class FrameRefused(EOFError):
    """A frame that breaks the profile; the connection ends with it."""


class TooLate(EOFError):
    """A message was not received or written completely in time."""


class Message(NamedTuple):
    """One of the three messages; only a request names an operation."""

    kind: int
    number: int
    payload: bytes
    operation: str = ""

    def packed(self) -> bytes:
        """The bytes of the message."""
        name = self.operation.encode()
        return b"".join((_HEAD.pack(self.kind, self.number, len(name)), name, self.payload))


def parse_message(frame: bytes | bytearray | memoryview, accepted: frozenset[int]) -> Message:
    """Parse *frame* as one of the *accepted* messages, or raise `FrameRefused`."""
    try:
        kind, number, length = _HEAD.unpack_from(frame)
        begin = _HEAD.size + length
        name = bytes(frame[_HEAD.size : begin]).decode()
    except (struct.error, UnicodeDecodeError) as problem:
        raise FrameRefused(f"the message is no message of the profile ({problem})") from None
    if kind not in accepted or len(frame) < begin or (name and kind != REQUEST):
        raise FrameRefused(f"a message of kind {kind} and {len(frame)} bytes is not accepted here")
    return Message(kind, number, bytes(frame[begin:]), name)


class DeadlineStream(SocketStream):  # type: ignore[misc]
    """A socket whose reads and writes end at a deadline."""

    __slots__ = ()

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        super().__init__(sock)

    def readable(self, seconds: float = 0.0) -> bool:
        """Wait until something can be read, or the peer has closed; `False` when the time is over."""
        return self._polled(select.POLLIN, seconds)

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
        if not self._polled(event, max(0.0, deadline - time.monotonic())):
            raise TooLate("a message was not complete in time")

    def _polled(self, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.sock, event)
        return bool(poll.poll(seconds * 1000))


class BoundedChannel(Channel):  # type: ignore[misc]
    """Messages of a bounded size in a bounded time, never compressed."""

    __slots__ = ("_accepted", "_budget", "_held", "_limits", "call_deadline")

    def __init__(self, stream: DeadlineStream, limits: Limits, accepted: frozenset[int], budget: Budget) -> None:
        super().__init__(stream, compress=False)
        self._limits = limits
        self._accepted = accepted
        self._budget = budget
        self._held = 0
        self.call_deadline: float | None = None
        """The deadline of the call under way: a client does not wait longer for half a reply."""

    def receive(self) -> Message:
        """Read one message of the profile."""
        return parse_message(self._receive(self._limits.frame, self._deadline()), self._accepted)

    def transmit(self, message: Message) -> None:
        """Write one message."""
        data = message.packed()
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
        """Give the bytes of the last message back to the budget."""
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

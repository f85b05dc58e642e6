"""The frames of the control connection: rpyc's, with deadlines and bounds.

The stream and channel of rpyc read a frame of any length, decompress it, and wait for its end for ever; its loader
builds any value that a peer describes: three bytes make a frozenset of 216 bytes, so a frame of 4 MiB takes 300 MB.
Here, a frame is one of three messages, read byte by byte, or the connection ends:

    request    1  (number, (OPERATION, (1, (text, bytes))))
    reply      2  (number, (1, bytes))
    fault      3  (number, bytes)

rpyc's connection, with its objects, references, attributes and exceptions, is not used.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import rpyc  # noqa: F401 (first: threads that import different modules of it would wait for each other)
from rpyc.core import brine
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from exop.remoting.transport.limits import KIB, Budget, Limits
from exop.remoting.transport.sockets import in_words

REQUEST, REPLY, FAULT = 1, 2, 3
OPERATION: Final = 100  #: The one handler number; rpyc's own are 1 to 20.
BY_VALUE: Final = 1
_PAIR: Final = 0x11
_EMPTY, _ONE, _FOUR = 0x01, 0x0A, 0x0D
_SHORT, _LONG = 0x0E, 0x0F
_TEXT: Final = 0x08
_DIGITS: Final = 0x16
_SMALL_FIRST, _SMALL_LAST, _SMALL_ZERO = 0x20, 0xEF, 0x50


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
        """The bytes of the message, in rpyc's format."""
        content: object = self.payload
        if self.kind == REQUEST:
            content = OPERATION, (BY_VALUE, (self.operation, self.payload))
        elif self.kind == REPLY:
            content = BY_VALUE, self.payload
        data: bytes = bytes([self.kind]) + brine.dump((self.number, content))
        return data


def parse_message(frame: bytes | bytearray | memoryview, accepted: frozenset[int]) -> Message:
    """Parse *frame* as one of the *accepted* messages."""
    reader = _Reader(frame)
    try:
        if (kind := frame[0]) not in accepted:
            raise FrameRefused(f"message kind {kind} is not accepted here")
        reader.expect(_PAIR)
        number, operation = reader.number(), ""
        if kind == REQUEST:
            reader.expect(_PAIR, _SMALL_ZERO + OPERATION, _PAIR, _SMALL_ZERO + BY_VALUE, _PAIR, _TEXT)
            operation = reader.data(100).decode()  # no name is longer
        elif kind == REPLY:
            reader.expect(_PAIR, _SMALL_ZERO + BY_VALUE)
        payload = reader.data(len(frame))
    except (IndexError, UnicodeDecodeError, ValueError) as problem:
        raise FrameRefused(f"the message is no message of the profile ({problem})") from None
    if reader.at != len(frame):
        raise FrameRefused("the message has another length than it says")
    return Message(kind, number, payload, operation)


class _Reader:
    """Reads values in rpyc's format from a frame."""

    def __init__(self, frame: bytes | bytearray | memoryview) -> None:
        self._frame = frame
        self.at = 1

    def expect(self, *tags: int) -> None:
        """Read these bytes; raise `FrameRefused` if the frame contains others."""
        for tag in tags:
            if self._frame[self.at] != tag:
                raise FrameRefused(f"unexpected {self._frame[self.at]:#x} at byte {self.at}")
            self.at += 1

    def number(self) -> int:
        """Read a number that is not negative."""
        tag = self._frame[self.at]
        self.at += 1
        if _SMALL_FIRST <= tag <= _SMALL_LAST:
            return tag - _SMALL_ZERO
        length = self._frame[self.at]
        self.at += 1 + length
        digits = bytes(self._frame[self.at - length : self.at])
        if tag != _DIGITS or not 0 < length <= 19 or not digits.isdigit():
            raise FrameRefused(f"no number before byte {self.at}")
        return int(digits)

    def data(self, most: int) -> bytes:
        """Read a byte string of at most *most* bytes, in any of its forms."""
        tag, head, length = self._frame[self.at], 1, 0
        if _ONE <= tag <= _FOUR:
            length = 1 + tag - _ONE
        elif tag == _SHORT:
            head, length = 2, self._frame[self.at + 1]
        elif tag == _LONG:
            head, length = 5, int.from_bytes(self._frame[self.at + 1 : self.at + 5], "big")
        elif tag != _EMPTY:
            raise FrameRefused(f"no byte string at byte {self.at}")
        begin, self.at = self.at + head, self.at + head + length
        if length > most or self.at > len(self._frame):
            raise FrameRefused(f"a byte string of {length} bytes at byte {begin} is too long")
        return bytes(self._frame[begin : self.at])


class DeadlineStream(SocketStream):  # type: ignore[misc]
    """A socket whose reads and writes end at a deadline."""

    __slots__ = ()

    def readable(self, seconds: float = 0.0) -> bool:
        """Wait until something can be read, or the peer has closed; `False` when the time is over."""
        if (pending := getattr(self.sock, "pending", None)) is not None and pending():  # decrypted already
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def read_until(self, count: int, deadline: float) -> memoryview:
        """Read exactly *count* bytes, or raise `EOFError` when the peer ends or *deadline* passes before."""
        data = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            if not (received := self._within(deadline, self.sock.recv_into, data[filled:])):
                raise EOFError("the peer has closed the connection")
            filled += received
        return data

    def write_until(self, data: bytes, deadline: float) -> None:
        """Write all of *data*, or raise `EOFError` when the peer ends or *deadline* passes before."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._within(deadline, self.sock.send, rest[: 256 * KIB]) :]

    def _within(self, deadline: float, work: Callable[[memoryview], int], data: memoryview) -> int:
        self.sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            return work(data)
        except (BlockingIOError, TimeoutError):
            raise TooLate("a message was not complete in time") from None
        except OSError as problem:
            raise EOFError(in_words(problem)) from problem


class BoundedChannel(Channel):  # type: ignore[misc]
    """Messages of a bounded size in a bounded time, never compressed."""

    __slots__ = ("_accepted", "_budget", "_held", "_limits", "call_deadline")

    def __init__(self, sock: socket.socket, limits: Limits, accepted: frozenset[int], budget: Budget) -> None:
        super().__init__(DeadlineStream(sock), compress=False)
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
        if len(data := message.packed()) > self._limits.frame:
            raise ValueError(f"a message of {len(data)} bytes is over the bound of {self._limits.frame}")
        self.write(data, self._deadline())

    def receive_greeting(self, deadline: float) -> bytes:
        """Read one message of the handshake: small, and before any message of the profile."""
        return bytes(self._receive(self._limits.greeting_frame, deadline))

    def write(self, data: bytes, deadline: float) -> None:
        """Write the bytes of one message, also of the handshake."""
        header = self.FRAME_HEADER.pack(len(data), 0)
        # Joined only if it is small: a copy of a large message costs more than two calls of the kernel.
        small = len(data) <= self._limits.small_frame
        for part in (header + data + self.FLUSHER,) if small else (header, data, self.FLUSHER):
            self.stream.write_until(part, deadline)

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

"""The frames of a data connection, with rpyc's header, the limits that hold for them, and what they are made from.

After the header (length, compression flag, which is always 0) a frame has one of three forms, and ends with rpyc's
flusher:

    MESSAGE   one of the messages below, in msgpack, decoded against its declared type
    DATA      number, first, events, form, total, offset, and a part of the body: events of a connector
    BYTES     number, 0, 0, 0, total, offset, and a part of the body: a byte string, for example a memento

A body of more than `DataLimits.part` bytes is sent in parts, so that connectors, reports and heartbeats alternate.

Connectors are attached by `Attach`, from the sending side, with a number that stands for the key and the epoch; a
number is never used again. The receiving side answers with the first `Report` or with `Refused`, and later with further
reports; a `Refused` for a connector in use ends the number, and the sending side attaches again under another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Final, TypeAlias

import msgspec

from exop.remoting.transport.frames import BoundedChannel
from exop.remoting.transport.limits import KIB, MIB
from exop.runtime.channels.inbox import Inbox
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.wire import Buffer, Progress

MESSAGE, DATA, BYTES = range(3)
HEADER: Final[Struct] = BoundedChannel.FRAME_HEADER
FLUSHER: Final[bytes] = BoundedChannel.FLUSHER
HEAD: Final = Struct("!BQQLBQQ")
WHOLE: Final = Struct("!LBBQQLBQQ")
#: Bytes of a frame by which its time begins again: a slow network takes long for a large one.
PROGRESS: Final = 64 * KIB
START: Final = HEADER.size + HEAD.size

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Key: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]


@dataclass(frozen=True, slots=True)
class DataLimits:
    """The limits of a data connection. Tests use instances with short times; all other code uses the defaults."""

    part: int = 1280 * KIB  #: Bytes of a body that are sent at a time.
    batch: int = 1 * MIB  #: Bytes of small frames that are sent at a time.
    message: int = 4 * KIB  #: Bytes of a message.
    body: int = 256 * MIB  #: Bytes of one body, and of all bodies of which a part has been sent or received.
    stored: int = 1024 * MIB  #: Bytes of the byte strings that have been received and not been taken.
    connectors: int = 10_000  #: Connectors that the peer may attach at a time.
    numbers: int = 100_000  #: Connectors that may be attached during a connection.
    waiting: int = 20_000  #: Connectors and answers that wait for the sender; a peer that asks for more is cut off.
    frame_time: float = 8.0  #: Seconds for a frame once begun, or for the next 64 KiB of it, in either direction.
    ping_time: float = 2.0  #: Seconds between two heartbeats.
    silence: float = 8.0  #: Seconds without a byte of the peer, after which the connection ends.
    first_pause: float = 0.1
    longest_pause: float = 5.0  #: Seconds to the next attempt to connect, doubled from the first to the longest.
    tick: float = 0.25  #: Seconds after which a thread that waits for the socket looks at the clock.


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The base of the messages."""


class Attach(Message, frozen=True, tag=0):
    """The sending side offers a connector."""

    number: Number
    epoch: Number
    key: Key


class Withdraw(Message, frozen=True, tag=1):
    """The sending side detaches a connector."""

    number: Number
    key: Key


class Report(Message, frozen=True, tag=2):
    """The progress of the receiving side; the first one resumes the connector."""

    number: Number
    incarnation: Annotated[str, msgspec.Meta(max_length=200)]
    next: Number
    done: Number
    credit: Number


class Refused(Message, frozen=True, tag=3):
    """The receiving side does not accept a connector, or detaches it."""

    number: Number
    reason: Annotated[str, msgspec.Meta(max_length=2000)]


class Ping(Message, frozen=True, tag=4):
    """A heartbeat."""

    stamp: int


class Pong(Message, frozen=True, tag=5):
    """The answer to a heartbeat, with its stamp."""

    stamp: int


unpack_message = msgspec.msgpack.Decoder(Attach | Withdraw | Report | Refused | Ping | Pong).decode
_encode = msgspec.msgpack.Encoder().encode


def pack_message(message: Message) -> bytes:
    """Encode *message* as a frame."""
    body = _encode(message)
    return b"".join((HEADER.pack(1 + len(body), 0), bytes([MESSAGE]), body, FLUSHER))


class Outgoing:
    """A source of frames, by default of none; the sender thread asks it when it is `Ready`.

    Attributes:
        queued: Whether the sender thread is going to ask.
        deferred: Whether it is going to ask after a delay.
    """

    queued = deferred = False

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append frames of at most about `DataLimits.part` bytes to *buffers*.

        Returns:
            Their size in bytes, and whether more may follow.
        """
        return 0, False


class Single(Outgoing):
    """One message to send."""

    def __init__(self, message: Message) -> None:
        self._frame = pack_message(message)

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append the message."""
        buffers.append(self._frame)
        return len(self._frame), False


class Body:
    """A body on its way out, sent in one part or several."""

    def __init__(self, kind: int, number: int, buffers: Sequence[Buffer], about: tuple[int, int, int]) -> None:
        self._kind = kind
        self._number = number
        self._about = about
        self._buffers = buffers
        self.total = sum(map(size_of, buffers))
        self.sent = 0

    def append_to(self, buffers: list[Buffer], most: int) -> int:
        """Append a frame with the next part of at most *most* bytes; return the size of the part."""
        part = min(self.total - self.sent, most)
        buffers.append(WHOLE.pack(HEAD.size + part, 0, self._kind, self._number, *self._about, self.total, self.sent))
        if part == self.total:
            buffers.extend(self._buffers)
        else:
            left, rest = part, [*self._buffers]
            for buffer in rest:
                buffers.append(memoryview(buffer).cast("B")[:left])
                left -= size_of(buffers[-1])
                if not left:
                    break
            drop(rest, part)
            self._buffers = rest
        buffers.append(FLUSHER)
        self.sent += part
        return part


def size_of(buffer: Buffer) -> int:
    """The number of bytes of a buffer."""
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def drop(buffers: list[Buffer], size: int) -> None:
    """Remove the first *size* bytes."""
    done = 0
    while done < len(buffers) and size >= size_of(buffers[done]):
        size -= size_of(buffers[done])
        done += 1
    del buffers[:done]
    if size:
        buffers[0] = memoryview(buffers[0]).cast("B")[size:]


class Parts:
    """Admits bodies that are sent in parts: `DataLimits.body` bounds all of them together. In the sender thread."""

    def __init__(self, limits: DataLimits) -> None:
        self.limits = limits
        self.total = 0

    def admit(self, body: Body) -> bool:
        """Whether the next part of *body* may be sent."""
        if body.total <= self.limits.part:
            return True
        if not body.sent:
            if self.total and self.total + body.total > self.limits.body:
                return False
            self.total += body.total
        if body.total - body.sent <= self.limits.part:
            self.total -= body.total
        return True


class SenderEnd(Outgoing):
    """An attached outbox.

    The lock orders `frames` in the sender thread with `resumed` and `disconnected` in the receiver thread: frames from
    before a resumption never go out under the number after it.
    """

    def __init__(self, parts: Parts, key: str, epoch: int, sender: Outbox) -> None:
        self.sender = sender
        self.key, self.epoch, self.bytes = key, epoch, 0
        self.number = -1
        self.bodies: deque[Body] = deque()
        self._parts = parts
        self._lock = threading.Lock()
        self.resumed = False

    def report(self, progress: Progress) -> None:
        """Take the progress of the inbox."""
        if self.resumed:
            self.sender.acknowledged(progress)
            return
        with self._lock:
            self.sender.resumed(progress)
            self.resumed = True

    def stop(self, reason: str) -> bool:
        """Send nothing until the next report; return whether the connector was in use."""
        with self._lock:
            resumed, self.resumed = self.resumed, False
            self.sender.disconnected(reason)
        return resumed

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append the next frames of the outbox."""
        size, limits = 0, self._parts.limits
        if asked := not self.bodies:
            self._ask(limits.batch)
        while size < limits.batch and self.bodies:
            if not self._parts.admit(body := self.bodies[0]):
                return size, True
            size += body.append_to(buffers, limits.part)
            if body.sent == body.total:
                self.bodies.popleft()
        return size, size >= limits.batch or not asked

    def _ask(self, size: int) -> None:
        with self._lock:
            frames = self.sender.frames(size) if self.resumed else ()
            most = self._parts.limits.body
            for frame in frames:
                if (body := Body(DATA, self.number, frame.body, (frame.first, frame.events, frame.form))).total > most:
                    self.resumed = False
                    self.sender.disconnected(f"a frame of {body.total} bytes is over the bound of {most}")
                    break
                self.bodies.append(body)
                self.bytes += body.total


class ReceiverEnd(Outgoing):
    """An attached inbox."""

    def __init__(self, key: str, epoch: int, receiver: Inbox) -> None:
        self.receiver = receiver
        self.key, self.epoch, self.bytes = key, epoch, 0
        self.number: int | None = None
        self.reported: Report | None = None
        self.broken = ""  #: Why the inbox accepts nothing any more.

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append the progress of the inbox."""
        if (number := self.number) is None:
            return 0, False
        if (report := Report(number, *self.receiver.progress())) == self.reported:
            return 0, False
        self.reported = report
        buffers.append(frame := pack_message(report))
        return len(frame), False


class BytesTransfer(Outgoing):
    """A byte string on its way out."""

    def __init__(self, parts: Parts, body: Body) -> None:
        self._parts = parts
        self.body = body
        self.ended = threading.Event()

    def gather(self, buffers: list[Buffer]) -> tuple[int, bool]:
        """Append the next part."""
        if not self._parts.admit(self.body):
            return 0, True
        size = self.body.append_to(buffers, self._parts.limits.part)
        if not (more := self.body.sent < self.body.total):
            self.ended.set()
        return size, more

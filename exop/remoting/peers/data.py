"""The data connection to a peer: frames over any connected socket, with one sender and one receiver thread.

The buffers of a body are sent by `sendmsg` without joining them; large bodies are received into memory of their own.
The receiver thread sends a heartbeat every two seconds, and ends the connection when nothing arrives for eight.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from exop.model.values.columns import allocate
from exop.remoting.peers import data_frames as frames
from exop.remoting.peers.data_frames import BYTES, DATA, FLUSHER, HEAD, HEADER, MESSAGE, PROGRESS, START, drop
from exop.remoting.transport.frames import FrameRefused, TooLate
from exop.remoting.transport.sockets import in_words
from exop.runtime.channels.wire import COLUMNS, CONTROL, Buffer
from exop.runtime.drivers.base import Signal

if TYPE_CHECKING:
    from exop.remoting.peers.link import PeerLink

#: The largest number of buffers of one `sendmsg` (IOV_MAX).
_BUFFERS: Final = 1000
_TIME: Final = Struct("ll")
_log = logging.getLogger("exop.remoting")


class _Socket:
    """A connected socket whose calls return after a tick at the latest."""

    def __init__(self, sock: socket.socket, tick: float) -> None:
        self._sock = sock
        sock.settimeout(None)
        time_limit = _TIME.pack(int(tick), int(tick % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, time_limit)

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Fill the *buffers*, or a part of them; return how many bytes have been received, -1 after a tick."""
        try:
            return self._sock.recvmsg_into(buffers)[0]
        except BlockingIOError:
            return -1

    def send(self, buffers: Sequence[Buffer], flags: int = 0) -> int:
        """Send a part of the *buffers*; return how many bytes, 0 after a tick, or at once with `MSG_DONTWAIT`."""
        try:
            return self._sock.sendmsg(buffers, (), flags)
        except BlockingIOError:
            return 0


class _TlsSocket:
    """The same for TLS, whose state both threads share: they take turns, and wait outside of their turn."""

    def __init__(self, sock: ssl.SSLSocket, tick: float) -> None:
        self._sock = sock
        self._turn = threading.Lock()
        self._tick = int(tick * 1000)
        sock.setblocking(False)

    def receive(self, buffers: Sequence[memoryview]) -> int:
        """Fill the first of the *buffers*, or a part of it; return how many bytes were received, -1 after a tick."""
        return self._within(select.POLLIN, -1, self._sock.recv_into, buffers[0])

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Send a part of the *buffers*; return how many bytes have been sent, 0 after a tick."""
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        rest = memoryview(data).cast("B")
        # OpenSSL tells of progress when it has sent all that it is given.
        while rest and (sent := self._within(select.POLLOUT, 0, self._sock.send, rest[:PROGRESS])):
            rest = rest[sent:]
        return len(memoryview(data).cast("B")) - len(rest)

    def _within(self, event: int, late: int, work: Callable[[memoryview], int], data: memoryview) -> int:
        for _ in range(2):
            try:
                with self._turn:
                    return work(data)
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            poll = select.poll()
            poll.register(self._sock, event)
            if not poll.poll(self._tick):
                break
        return late


class _Partial:
    """A body of which a part has been received; with *most* (the bytes of a part), one that is not kept."""

    def __init__(self, about: tuple[int, int, int], total: int, most: int | None) -> None:
        self.about, self.total, self.most = about, total, most
        size = total if most is None else min(total, most)
        self.body = allocate(size) if about[2] == COLUMNS else memoryview(bytearray(size))
        self.filled = 0

    def room(self, offset: int, size: int) -> memoryview:
        """Return the memory for a part."""
        return self.body[offset : offset + size] if self.most is None else self.body[:size]


class Ready:
    """The connectors that the sender thread asks for frames: at once, or 5 ms later. Any thread may add one."""

    #: Seconds by which reports that are not urgent wait for later ones.
    DELAY: Final = 0.005

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now: deque[frames.Outgoing] = deque()
        self._later: deque[tuple[float, frames.Outgoing]] = deque()
        self._signal = Signal()
        self._sleeping = False

    def __len__(self) -> int:
        return len(self._now)

    def add(self, one: frames.Outgoing) -> None:
        """Let the sender thread ask *one* for frames; a connection lets its sender thread end."""
        if not one.queued:
            one.queued = True
            self._now.append(one)
            if self._sleeping:
                self._wake()

    def add_later(self, one: frames.Outgoing) -> None:
        """Let the sender thread ask *one* for frames after `DELAY`."""
        if not one.deferred:
            one.deferred = True
            self._later.append((self._clock() + self.DELAY, one))
            if self._sleeping:
                self._wake()

    def next(self) -> frames.Outgoing:
        """Return the next one, when it is due."""
        while True:
            if self._later and self._later[0][0] <= self._clock():
                one = self._later.popleft()[1]
                one.deferred = False
                return one
            if self._now:
                return self._now.popleft()
            self._sleeping = True
            rest = self._later[0][0] - self._clock() if self._later else None
            # Read again after `_sleeping` was set: from then on, an addition sets the signal.
            if not self._now and (rest is None or rest > 0):
                self._signal.wait(rest)
            self._sleeping = False

    def clear(self) -> None:
        """Remove everything."""
        # One by one: what another thread adds meanwhile is removed like the others, or stays.
        while self._now:
            self._now.popleft().queued = False
        while self._later:
            self._later.popleft()[1].deferred = False

    def _wake(self) -> None:
        self._sleeping = False
        self._signal.set()


class DataConnection(frames.Outgoing):
    """One connection; `run` receives in the calling thread and sends in a thread of its own until the connection ends.

    Args:
        sock: The connected socket; it is closed at the end.
        link: Takes what arrives, in the receiver thread; its methods may raise `FrameRefused`. The body of events is
            valid during the call only, except that of `COLUMNS`.
        ready: The queue of what is to be sent; it remains when the connection has ended.
    """

    def __init__(self, sock: socket.socket, link: PeerLink, ready: Ready) -> None:
        self.round_trip: float | None = None  #: Seconds of the last heartbeat and its answer.
        self._sock = sock
        self._link = link
        self._ready = ready
        self._limits, self._clock = limits, clock = link.limits, link.clock
        self._stream = _TlsSocket(sock, limits.tick) if isinstance(sock, ssl.SSLSocket) else _Socket(sock, limits.tick)
        self._reason = ""
        self._heard = self._pinged = clock()
        self._begun: float | None = None
        self._progress = 0
        self._partial: dict[tuple[int, int], _Partial] = {}
        self._held = 0
        # Held from asking for frames until they are in `_buffers`, and while these are sent: the frames of a connector
        # go out in the order of their numbers.
        self._turn = threading.Lock()
        self._buffers: list[Buffer] = []
        self._ended = False
        self._pong = 0.0

    def close(self, reason: str | Exception) -> None:
        """End the connection; the first reason is the one that counts."""
        words = f"the connection was lost ({in_words(reason)})" if isinstance(reason, OSError) else str(reason)
        self._reason = self._reason or words
        with suppress(OSError):  # it has ended by itself
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        self._ready.add(self)

    def finish(self, ends: Collection[frames.ReceiverEnd], reason: str) -> None:
        """Send the progress of these inboxes, for which an outbox of the peer may wait, and end the connection."""
        until = time.monotonic() + self._limits.tick
        for one in ends:
            one.receiver.settle(until)
        if self._turn.acquire(timeout=self._limits.tick):  # unless the peer reads nothing
            try:
                for one in ends:
                    one.gather(self._buffers)
                self._write(self._buffers)
            except (EOFError, OSError) as problem:
                self.close(problem)
            finally:
                self._turn.release()
        self.close(reason)

    def answers(self, seconds: float) -> bool:
        """Whether the peer answers within *seconds* what is sent now, or, if it has much to send, still sends."""
        begun, self._pinged = self._clock(), -math.inf  # the receiver thread asks as soon as it looks at the clock
        while not self._reason and self._pong < begun and self._clock() < begun + seconds:
            time.sleep(self._limits.tick / 10)
        return not self._reason and max(self._pong, self._heard - seconds / 2) >= begun

    def run(self) -> str:
        """Receive and send until the connection ends; return the reason."""
        sender = threading.Thread(target=self._send_all, name=f"exop-data-to-{self._link.peer}", daemon=True)
        sender.start()
        try:
            self._receive_all()
        except (EOFError, OSError) as problem:
            if isinstance(problem, FrameRefused):
                _log.warning("the data connection to %r ends: %s", self._link.peer, problem)
            self.close(problem)
        finally:
            self.close("the receiver thread has failed")
            sender.join()
            with self._turn:
                # A thread that still calls `send_now` takes no frames of the next connection.
                self._ended = True
                self._sock.close()
        return self._reason

    def send_now(self, one: frames.Outgoing) -> bool:
        """Ask *one* for frames, and send them in the calling thread; the sender thread sends what the socket leaves.

        Returns:
            `False` if the sender thread is at work or the connection has ended: then *one* was not asked.
        """
        if isinstance(stream := self._stream, _TlsSocket) or not self._turn.acquire(blocking=False):
            return False
        try:
            if (buffers := self._buffers) or self._ended or self._ready:
                return False
            more = one.gather(buffers)[1]
            if buffers:
                drop(buffers, stream.send(buffers[:_BUFFERS], socket.MSG_DONTWAIT))
            if more or buffers:
                self._ready.add(one)
        except OSError as problem:
            self.close(problem)
        except BaseException:
            # The frames are lost with the connection, and sent again on the next one.
            self.close("a push was interrupted while it sent")
            raise
        finally:
            self._turn.release()
        return True

    def _send_all(self) -> None:
        size = 0
        try:
            while (one := self._ready.next()) is not self:
                one.queued = False
                with self._turn:
                    buffers = self._buffers
                    added, more = one.gather(buffers)
                    size += added
                    if more:
                        self._ready.add(one)
                    if buffers and (size >= self._limits.batch or len(buffers) >= _BUFFERS // 2 or not self._ready):
                        self._write(buffers)
                        size = 0
        except (EOFError, OSError) as problem:
            self.close(problem)
        finally:
            self.close("the sender thread has failed")

    def _write(self, buffers: list[Buffer]) -> None:
        begun = self._clock()
        while buffers:
            if sent := self._stream.send(buffers[:_BUFFERS]):
                begun = self._clock()
            elif self._clock() - begun > self._limits.frame_time:
                raise TooLate(f"the peer has read nothing for {self._limits.frame_time:g} s")
            drop(buffers, sent)

    def _receive_all(self) -> None:
        data = memoryview(bytearray(2 * self._limits.part))
        start = end = 0
        while True:
            if (stop := self._frames(data, start, end)) == end:
                self._begun = None
            elif stop > start or self._begun is None:
                self._begun = self._heard
            start = stop
            if following := self._receive_part(data, start, end):
                start, end = 1, following
                continue
            if start:
                data[: end - start] = data[start:end]
                start, end = 0, end - start
            end += self._read(data[end:])

    def _frames(self, data: memoryview, start: int, end: int) -> int:
        """Handle the complete frames from *start* to *end*; return where the next one begins."""
        largest = HEAD.size + self._limits.part
        while end - start >= HEADER.size:
            length, compressed = HEADER.unpack_from(data, start)
            if compressed:
                raise FrameRefused("compressed frames are not accepted")
            if not 0 < length <= largest:
                raise FrameRefused(f"a frame of {length} bytes; it has from 1 to {largest}")
            if (stop := start + HEADER.size + length) >= end:
                break
            if data[stop] != FLUSHER[0]:
                raise FrameRefused("the frame does not end where it says")
            self._frame(data[start + HEADER.size : stop])
            start = stop + 1
        return start

    def _frame(self, frame: memoryview) -> None:
        if frame[0] == MESSAGE:
            self._message(frame[1:])
            return
        if len(frame) < HEAD.size or frame[0] not in (DATA, BYTES):
            raise FrameRefused(f"a frame of kind {frame[0]} and {len(frame)} bytes")
        kind, number, first, events, form, total, offset = HEAD.unpack_from(frame)
        if len(body := frame[HEAD.size :]) == total and not offset:
            if not self._link.begins(kind, number, (first, events, form), total):
                return
            lasting = bytes(body) if kind == BYTES or form == COLUMNS else body
            self._deliver(kind, number, (first, events, form), lasting)
            return
        partial = self._partial_of(kind, number, (first, events, form), total, offset, len(body))
        partial.room(offset, len(body))[:] = body
        self._filled(kind, number, partial, len(body))

    def _receive_part(self, data: memoryview, start: int, end: int) -> int:
        """Receive the rest of the incomplete frame at *start* straight into its body, if it is a part of a large one.

        Returns:
            The number of bytes that have been received from the end of the part on, and are at the beginning of *data*:
            at least the flusher. 0 if the frame is to be received as usual.
        """
        if end - start < START:
            return 0
        kind, number, first, events, form, total, offset = HEAD.unpack_from(data, start + HEADER.size)
        size = HEADER.unpack_from(data, start)[0] - HEAD.size
        if kind not in (DATA, BYTES) or (size == total and kind == DATA and form != COLUMNS):
            return 0
        partial = self._partial_of(kind, number, (first, events, form), total, offset, size)
        there = end - start - START
        rest = partial.room(offset, size)
        rest[:there] = data[start + START : end]
        rest = rest[there:]
        while (count := self._read(rest, data[: START + 1]) if rest else self._read(data[: START + 1])) <= len(rest):
            rest = rest[count:]
        if data[0] != FLUSHER[0]:
            raise FrameRefused("the frame does not end where it says")
        self._begun = None
        self._filled(kind, number, partial, size)
        return count - len(rest)

    def receiving(self, number: int) -> int:
        """Return how many bytes of an incomplete byte string have been received."""
        return 0 if (partial := self._partial.get((BYTES, number))) is None else partial.filled

    def _partial_of(
        self, kind: int, number: int, about: tuple[int, int, int], total: int, offset: int, size: int
    ) -> _Partial:
        if (partial := self._partial.get((kind, number))) is None:
            if offset or total > self._limits.body or (self._held and self._held + total > self._limits.body):
                raise FrameRefused(f"a body of {total} bytes from byte {offset}, beside {self._held} bytes of others")
            kept = self._link.begins(kind, number, about, total)
            partial = self._partial[kind, number] = _Partial(about, total, None if kept else self._limits.part)
            self._held += total
        if size <= 0 or (about, total, offset) != (partial.about, partial.total, partial.filled):
            raise FrameRefused(f"a part of {size} bytes from byte {offset} that does not follow the one before")
        if offset + size > total:
            raise FrameRefused(f"a part that ends at byte {offset + size} of {total}")
        return partial

    def _filled(self, kind: int, number: int, partial: _Partial, size: int) -> None:
        partial.filled += size
        if partial.filled == partial.total:
            del self._partial[kind, number]
            self._held -= partial.filled
            if partial.most is None:
                self._deliver(kind, number, partial.about, partial.body)

    def _deliver(self, kind: int, number: int, about: tuple[int, int, int], body: Buffer) -> None:
        if kind == BYTES:
            self._link.stored(number, body)
        elif about[2] > CONTROL:
            raise FrameRefused(f"events of the form {about[2]}")
        else:
            self._link.data(number, *about, body)

    def _message(self, frame: memoryview) -> None:
        if len(self._ready) > self._limits.waiting:
            raise FrameRefused("the peer sends messages faster than it reads their answers")
        try:
            message = frames.unpack_message(frame[: self._limits.message])
        except (msgspec.MsgspecError, RecursionError) as problem:
            raise FrameRefused(f"a message that cannot be decoded: {problem}") from None
        if isinstance(message, frames.Ping):
            self._ready.add(frames.Single(frames.Pong(message.stamp)))
        elif isinstance(message, frames.Pong):
            self.round_trip = max(0.0, self._clock() - message.stamp / 1e6)
            self._pong = message.stamp / 1e6
        else:
            self._link.message(message)

    def _read(self, *buffers: memoryview) -> int:
        """Receive at least one byte; look at the clock meanwhile."""
        limits = self._limits
        while True:
            count = self._stream.receive(buffers)
            if (now := self._clock()) - self._pinged >= limits.ping_time:
                self._pinged = now
                self._ready.add(frames.Single(frames.Ping(int(now * 1e6))))
            if count == 0:
                raise EOFError("the peer has closed the connection")
            if count > 0:
                self._heard = now
                self._progress += count
                if self._progress >= PROGRESS and self._begun is not None:
                    self._progress, self._begun = 0, now
            elif now - self._heard >= limits.silence:
                raise TooLate(f"nothing has been received for {limits.silence:g} s")
            if self._begun is not None and now - self._begun > limits.frame_time:
                raise TooLate(f"a frame was not complete after {limits.frame_time:g} s")
            if count > 0:
                return count

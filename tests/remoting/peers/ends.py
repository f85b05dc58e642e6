"""An outbox and an inbox for tests, two links that a socket pair connects, and a proxy between them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from exop import Platform
from exop.remoting.api.remote_platform import RemotePlatform
from exop.remoting.peers.data_frames import DataLimits
from exop.remoting.peers.link import PeerLink
from exop.runtime.channels.wire import ITEMS, Buffer, Frame, Progress, Wire

#: Far more than anything takes, also on a busy machine.
PATIENCE = 30.0
#: Short pauses, and a clock that is looked at often.
QUICK = DataLimits(first_pause=0.01, longest_pause=0.05, tick=0.02)


class Clock:
    """A clock that the test sets forward."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Waiting:
    """Waits for conditions about what the threads of a link do."""

    def __init__(self) -> None:
        self.changed = threading.Condition()

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until *condition* holds; fail after a long time."""
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE), f"not within {PATIENCE:g} s: {vars(self)}"

    def wait_while_time_passes(self, condition: Callable[[], object], *clocks: Clock) -> None:
        """Set the clocks forward, by a second at a time, until *condition* holds."""
        with self.changed:
            for _ in range(int(PATIENCE / 0.05)):
                if self.changed.wait_for(condition, 0.05):
                    return
                for clock in clocks:
                    clock.now += 1.0
        raise AssertionError(f"not within {PATIENCE:g} s: {vars(self)}")


class Outbox(Waiting):
    """Keeps events until they are acknowledged; an event is a body of its own."""

    def __init__(self, wire: Wire, key: str = "app/c/a>b", epoch: int = 1, form: int = ITEMS) -> None:
        super().__init__()
        self.wire, self.key, self.form = wire, key, form
        self.kept: dict[int, Sequence[Buffer]] = {}
        self.end = 0
        self.at: int | None = None
        self.credit = 0
        self.asked = 0
        self.reasons: list[str] = []
        self.resumptions: list[Progress] = []
        self.detach = wire.send_from(key, epoch, self)

    def post(self, *bodies: bytes | Sequence[Buffer]) -> None:
        """Send each of the *bodies* as one event; the calling thread itself sends a single one, if it can."""
        with self.changed:
            for body in bodies:
                self.kept[self.end] = (body,) if isinstance(body, bytes) else body
                self.end += 1
        (self.wire.send_now if len(bodies) == 1 else self.wire.wake)(self.key)

    def frames(self, size: int) -> Sequence[Frame]:
        """Return frames up to the credit."""
        found: list[Frame] = []
        with self.changed:
            self.asked += 1
            while self.at is not None and self.at < min(self.end, self.credit) and size > 0:
                body = self.kept[self.at]
                found.append(Frame(self.at, 1, self.form, body))
                size -= sum(map(len, body))
                self.at += 1
            self.changed.notify_all()
        return found

    def resumed(self, progress: Progress) -> None:
        """Send again from the next event that is missing."""
        with self.changed:
            self.resumptions.append(progress)
            self.at = progress.next
            self._take(progress)

    def acknowledged(self, progress: Progress) -> None:
        """Drop what is acknowledged, and send what the credit permits."""
        with self.changed:
            self._take(progress)
            more = self.at is not None and self.at < min(self.end, self.credit)
        if more:
            self.wire.wake(self.key)

    def disconnected(self, reason: str) -> None:
        """Send nothing."""
        with self.changed:
            self.reasons.append(reason)
            self.at = None
            self.changed.notify_all()

    def _take(self, progress: Progress) -> None:
        for number in [number for number in self.kept if number < progress.done]:
            del self.kept[number]
        self.credit = progress.credit
        self.changed.notify_all()


class Inbox(Waiting):
    """Stores what is new, up to its credit."""

    def __init__(
        self, wire: Wire, key: str = "app/c/a>b", epoch: int = 1, window: int = 16, bodies: Sequence[bytes] = ()
    ) -> None:
        super().__init__()
        self.wire, self.key, self.window = wire, key, window
        self.bodies = list(bodies)
        self.doubled = 0
        self.done: int | None = None
        self.reasons: list[str] = []
        self.forms: set[int] = set()
        self.failure: Exception | None = None
        self.on_event: Callable[[], object] = lambda: None
        self.detach = wire.receive_into(key, epoch, self)

    def progress(self) -> Progress:
        """Report all as done, unless the test holds it back."""
        with self.changed:
            received = len(self.bodies)
            done = received if self.done is None else self.done
            return Progress("first", received, done, done + self.window)

    def settle(self, until: float) -> None:
        """Wait for nothing: events are done when they are received."""

    def admit(self, header: tuple[int, int, int, int]) -> None:
        """Accept any header."""

    def received(self, frame: Frame) -> None:
        """Store an event that is new."""
        with self.changed:
            if self.failure is not None:
                raise self.failure
            assert frame.first <= len(self.bodies), f"event {frame.first} after {len(self.bodies)} events"
            assert frame.first < (len(self.bodies) if self.done is None else self.done) + self.window
            if frame.first < len(self.bodies):
                self.doubled += 1
            else:
                self.bodies.append(b"".join(map(bytes, frame.body)))
                self.forms.add(frame.form)
                self.on_event()
            self.changed.notify_all()
        self.wire.wake(self.key)

    def disconnected(self, reason: str) -> None:
        """Note the reason."""
        with self.changed:
            self.reasons.append(reason)
            self.changed.notify_all()


class Proxy(Waiting):
    """Carries bytes between the sockets of two links, until the test interferes.

    Attributes:
        carries: Whether bytes are carried from the dialler, and to it; other bytes are lost.
        reads: Set while bytes are read at all.
        refuses: Whether connections are refused.
        cut_after: Returns the bytes after which a direction of a connection is cut, also within a frame.
    """

    def __init__(self) -> None:
        super().__init__()
        self.links: tuple[PeerLink, PeerLink] | None = None
        self.carries = [True, True]
        self.reads = threading.Event()
        self.reads.set()
        self.refuses = False
        self.cut_after: Callable[[], int] | None = None
        self.dials = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []

    def dial(self) -> socket.socket:
        """Connect the first link with the second one; return the socket of the first."""
        with self.changed:
            self.dials += 1
            self.changed.notify_all()
        if self.refuses:
            raise ConnectionRefusedError("the network is down")
        assert self.links is not None
        ours, near = socket.socketpair()
        far, theirs = socket.socketpair()
        self._pairs.append((near, far))
        for direction, (source, target) in enumerate(((near, far), (far, near))):
            thread = threading.Thread(target=self._carry, args=(source, target, direction), daemon=True)
            thread.start()
            self._threads.append(thread)
        self.links[1].accept(theirs)
        return ours

    def cut(self) -> None:
        """End the present connections."""
        for pair in self._pairs:
            for sock in pair:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        """End all connections and threads."""
        self.reads.set()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _carry(self, source: socket.socket, target: socket.socket, direction: int) -> None:
        left = None if self.cut_after is None else self.cut_after()
        with source:
            while True:
                try:
                    data = source.recv(1 << 16)
                    self.reads.wait()
                    if left is not None:
                        data, left = data[:left], left - len(data)
                    if data and self.carries[direction]:
                        target.sendall(data)
                except OSError:
                    data = b""
                if not data or (left is not None and left <= 0):
                    with suppress(OSError):
                        target.shutdown(socket.SHUT_RDWR)
                    return


def managed(platform: Platform, peer: str) -> RemotePlatform:
    """The management interface of a peer of a platform."""
    return platform.remoting.peers[peer].platform()


def dialling(peer: str, dial: Callable[[], socket.socket], **options: Any) -> PeerLink:
    """A link that connects by *dial*."""
    link = PeerLink(peer, **options)
    link.dial_at("", None, dial, leads=False)
    return link


class Pair:
    """Two links, connected by a proxy; each has a clock of its own if *clocks* are given."""

    def __init__(self, clocks: tuple[Clock, Clock] | None = None, **options: Any) -> None:
        self.proxy = Proxy()
        options = {"limits": QUICK, **options}
        mine, theirs = ({}, {}) if clocks is None else ({"clock": one} for one in clocks)
        self.a = dialling("b", self.proxy.dial, **options, **mine)
        self.b = PeerLink("a", **options, **theirs)
        self.proxy.links = self.a, self.b
        for link in (self.a, self.b):
            link.start()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *exc: object) -> None:
        self.proxy.reads.set()
        for link in (self.a, self.b):
            link.close()
        self.proxy.close()

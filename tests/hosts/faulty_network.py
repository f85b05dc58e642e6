"""A network between platforms of one process that holds, delays and forgets bytes, link by link."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest

from exop import Platform
from exop.errors import PeerUnreachable
from exop.remoting.peers import service
from exop.remoting.peers.data_frames import DataLimits
from exop.remoting.peers.link import PeerLink
from exop.remoting.transport.limits import Limits
from tests.hosts.hosts_rig import HANG, SEEN, Offered
from tests.rig import PATIENCE, eventually

LOOPBACK = "127.0.0.1"
#: The directions of a cable: from the platform that has dialled, and to it.
OUT, BACK = "out", "back"
#: A lost peer is noticed soon.
DATA = DataLimits(frame_time=2.0, ping_time=0.2, silence=2.0, tick=0.05)
CONTROL = Limits(greeting_time=2.0, frame_time=2.0)


class Cable:
    """A TCP proxy between two platforms.

    Attributes:
        held: The directions in which no byte arrives; what was sent arrives later.
        delay: Seconds that each byte takes.
        forgotten: Whether the connections that exist are dead, and neither end learns of it.
    """

    def __init__(self, uri: str) -> None:
        name, _, place = uri.removeprefix("tcp://").rpartition("@")
        host, _, port = place.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server((LOOPBACK, 0))
        self.uri = f"tcp://{name}@{LOOPBACK}:{self._listener.getsockname()[1]}"
        self.held: set[str] = set()
        self.delay = 0.0
        self._age = 0
        self._changed = threading.Condition()
        self._closed = False
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, *directions: str) -> None:
        """Hold these directions from now on, and no others."""
        with self._changed:
            self.held = set(directions)
            self._changed.notify_all()

    def forget(self) -> None:
        """Let no byte of the connections that exist arrive any more; new connections work."""
        with self._changed:
            self._age += 1

    def close(self) -> None:
        """End all connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for sock in (self._listener, *self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for direction, source, sink in ((OUT, near, far), (BACK, far, near)):
                    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._carry(direction, source, sink, self._age)

    def _carry(self, direction: str, source: socket.socket, sink: socket.socket, age: int) -> None:
        under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def receive() -> None:
            data = b"begin"
            while data:
                try:
                    data = source.recv(65536)
                except OSError:
                    data = b""
                under_way.put((time.monotonic() + self.delay, data))

        def deliver() -> None:
            with suppress(OSError):
                while True:
                    due, data = under_way.get()
                    with self._changed:
                        self._changed.wait_for(lambda: self._closed or direction not in self.held)
                        self._changed.wait_for(lambda: self._closed, max(0.0, due - time.monotonic()))
                    if age == self._age and not data:
                        sink.shutdown(socket.SHUT_WR)
                    elif age == self._age:
                        sink.sendall(data)
                    if not data:
                        return

        for work in (receive, deliver):
            threading.Thread(target=work, daemon=True).start()


@contextmanager
def cabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Platform], dict[str, Cable]]]:
    """Three platforms a, b and c, each linked with both others; and the cables by the names of their ends: `ab`, …"""
    monkeypatch.setattr(service, "PeerLink", partial(PeerLink, limits=DATA))
    monkeypatch.setattr(service, "DEFAULT_LIMITS", CONTROL)
    SEEN.clear()
    HANG.set()
    with ExitStack() as stack:
        found: list[Platform] = []
        cables: dict[str, Cable] = {}
        for name in "abc":
            one = stack.enter_context(platform(name))
            for other in found:
                cables[other.name + name] = cable = Cable(str(other.address))
                stack.callback(cable.close)
                eventually(partial(linked, one, cable.uri), f"the link from {name} to {other.name}")
                assert other.remoting.wires[name].wait_until(connected=True, timeout=PATIENCE)
            found.append(one)
        yield found, cables


def linked(one: Platform, uri: str) -> bool:
    """Link a platform; on a busy machine, a greeting may come later than `CONTROL` allows."""
    with suppress(PeerUnreachable):
        return bool(one.remoting.connect(uri))
    return False


def platform(name: str) -> Platform:
    """A platform with the slets of the tests, at a port of this host."""
    from exop.hooks import Plugins

    plugins = Plugins()
    plugins.register("test", Offered())
    return Platform(name=name, control=False, plugins=plugins, listen=f"tcp://{LOOPBACK}:0")

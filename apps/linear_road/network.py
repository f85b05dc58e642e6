"""The network between two platforms of the demo: a TCP proxy on loopback that can be cut and healed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 64 * 1024
HOST: Final = "127.0.0.1"


class Network:
    """Passes the bytes of all connections on to a port of this host; while it is cut, none arrive.

    Neither side learns of the cut: connections stay open, and bytes that are under way arrive when it is healed.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = []
        self._closed = False
        #: The port to dial instead of the target.
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="network", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cut(self) -> None:
        """Let no more bytes arrive."""
        self._whole.clear()

    def heal(self) -> None:
        """Let the bytes arrive again."""
        self._whole.set()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        self._whole.set()
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):  # it has ended by itself
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), name="network", daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._whole.wait()
        try:
            far = socket.create_connection((HOST, self._target))
        except OSError:
            near.close()
            return
        self._sockets += [near, far]
        for source, sink in ((near, far), (far, near)):
            with suppress(OSError):  # it was closed meanwhile
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pass, args=(source, sink), name="network", daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one of the two sides has ended the connection
            while data := source.recv(_CHUNK):
                self._whole.wait()
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

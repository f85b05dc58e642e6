"""The control server: answers the operations of a platform on a Unix socket, for its owner only.

An embedded platform starts one, so rpyc is imported only when a client connects.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from exop.remoting.transport.limits import DEFAULT_LIMITS, Connection, Connections, Limits
from exop.remoting.transport.rundir import claim, socket_path
from exop.remoting.transport.sockets import Listener, peer_of

if TYPE_CHECKING:
    from exop.remoting.transport.operation import Operation, Role
    from exop.remoting.transport.session import Sessions

    Operations = Mapping[str, Operation] | Callable[[], Mapping[str, Operation]]

_log = logging.getLogger("exop.remoting")
_RETRY_AFTER = 0.1


class ControlServer:
    """Serve *operations* at *address*: a socket path, or None for a name of its own in the run directory.

    The operations may be given as a function, which is called when the first peer connects. Peers are shown *name* and
    have the *role*: on a Unix socket the peer is the owner.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from exop.remoting import ControlClient, operation, operations
    >>> @operation
    ... def ready() -> bool:
    ...     return True
    >>> with ControlServer(operations(ready), Path(mkdtemp()) / "control.sock") as server:
    ...     with ControlClient(server.address) as client:
    ...         client.call("ready")
    True
    """

    def __init__(
        self,
        operations: Operations,
        address: str | Path | None = None,
        *,
        name: str = "",
        limits: Limits = DEFAULT_LIMITS,
        role: Role = "admin",
    ) -> None:
        self._role: Role = role
        self._operations = operations
        self._wanted = None if address is None else socket_path(address)
        self._name = name
        self._limits = limits
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._connections = Connections(limits)
        self._counts: Counter[str] = Counter()
        self._sessions: Sessions | None = None
        self._listener: Listener | None = None
        self._acceptor: threading.Thread | None = None
        self._undo_entry: Callable[[], None] = lambda: None

    @property
    def address(self) -> Path:
        """The address of the listener; known from `start` on."""
        if self._listener is None:
            raise RuntimeError("the control server has not been started")
        return self._listener.path

    @property
    def counts(self) -> dict[str, int]:
        """Counts since the start: `accepted`, `declined`, and how connections ended: `ended.closed`, `ended.late`, …"""
        with self._lock:
            return dict(self._counts)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def start(self) -> None:
        """Listen and return.

        Raises:
            AddressInUse: a running process listens at the address; the error names the process.
            AddressUnusable: no socket can be created at the address, or the directory is not safe.
        """
        if self._listener is not None:
            raise RuntimeError("a control server starts once")
        self._listener, self._undo_entry = claim(self._wanted)
        self._acceptor = threading.Thread(target=self._accept_all, name="exop-control", daemon=True)
        self._acceptor.start()

    def stop(self) -> None:
        """Stop listening, remove the socket, wait until running operations have answered, and end all connections.

        An operation may call this method; its own connection ends after the answer. In a forked child, the copy of the
        socket is closed, and the parent continues to listen.
        """
        with self._lock:
            if self._listener is None or self._acceptor is None or self._stopping.is_set():
                return
            self._stopping.set()
        if not self._listener.is_ours:
            self._listener.close()
            return
        self._connections.closing.set()
        self._listener.sock.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._undo_entry()
        self._listener.close()
        for operation in self._connections.close():
            _log.warning("operation %r still runs after the control server has stopped", operation)

    def __enter__(self) -> ControlServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _accept_all(self) -> None:
        assert self._listener is not None
        while not self._stopping.is_set():
            try:
                sock, _ = self._listener.sock.accept()
            except OSError as problem:
                # A lack of descriptors or memory passes; the wait prevents a busy loop.
                if not self._stopping.wait(_RETRY_AFTER):
                    _log.warning("the control server cannot accept a connection: %s", problem.strerror)
                continue
            try:
                self._take(sock)
            except Exception:  # noqa: BLE001 - one bad connection must not end the accepting
                _log.exception("a control connection could not be set up")
                sock.close()

    def _take(self, sock: socket.socket) -> None:
        peer = peer_of(sock)
        if not peer.trusted:
            _log.warning("a control connection of user %d (process %d) was declined", peer.uid, peer.pid)
            self._decline(sock, f"it serves its owner only, and you are user {peer.uid}")
        elif not self._connections.make_room():
            self._decline(sock, f"all its {self._limits.connections} connections are at work; try again")
        else:
            self._count("accepted")
            self._connections.start(sock, self._serve)

    def _serve(self, sock: socket.socket, connection: Connection) -> None:
        try:
            self._count("ended." + self._loaded_sessions().serve(sock, connection))
        except Exception:  # noqa: BLE001 - it ends this connection and no other
            _log.exception("a control connection failed")
            self._count("ended.failed")

    def _count(self, event: str) -> None:
        with self._lock:
            self._counts[event] += 1

    def _decline(self, sock: socket.socket, problem: str) -> None:
        self._count("declined")
        self._loaded_sessions().decline(sock, problem)

    def _loaded_sessions(self) -> Sessions:
        with self._lock:
            if self._sessions is None:
                # rpyc and msgspec cost 50 ms: imported when the first peer connects.
                from exop.remoting.transport.session import Sessions

                table = self._operations() if callable(self._operations) else self._operations
                self._sessions = Sessions(table, self._name, self._limits, self._role)
            return self._sessions

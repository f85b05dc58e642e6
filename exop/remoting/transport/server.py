"""The control server: answers the operations of a platform on a Unix socket, for its owner only, and for its peers.

An embedded platform starts one, so rpyc is imported only when a client connects.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from exop.errors import PeerRefused, PeerUnreachable
from exop.remoting.transport.endpoints import Endpoint, address_of, listen
from exop.remoting.transport.limits import DEFAULT_LIMITS, Connection, Connections, Limits
from exop.remoting.transport.operation import Operation, Role
from exop.remoting.transport.rundir import claim, socket_path
from exop.remoting.transport.sockets import Listener, Peer, UnixListener

if TYPE_CHECKING:
    from exop.remoting.identity import Identity
    from exop.remoting.transport.handshake import Hooks
    from exop.remoting.transport.session import Sessions

_log = logging.getLogger("exop.remoting")


def owner_is_admin(peer: Peer) -> Role | None:
    """The role `admin` for the owner of the platform, on the same host, and no role for other peers."""
    return "admin" if peer.trusted else None


class ControlServer:
    """Serve *operations* at *address*, and at the URIs *listen*.

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

    Args:
        operations: The operations, or a function that is called when the first peer connects.
        address: A socket path, a state directory, or None for a name of its own in the run directory.
        name: The name that peers are shown.
        local: Whether to listen at *address* at all.
        listen: Further addresses for peers, as in `exop.remoting.transport.endpoints`.
        identity: The identity of the platform, for addresses with TLS.
        roles: Returns the role of a peer, or `None`, and is asked before each operation; it raises `PeerRefused` for a
            peer that may not connect. By default, the owner is `admin`.
        hooks: Takes over the connections of peers that are not control connections; without it, these are declined.
        on_refusal: Called with the peer, or its address, and the reason when a connection is refused; an attacker
            chooses how many of these there are. By default, each is a warning in the log.
    """

    def __init__(
        self,
        operations: Mapping[str, Operation] | Callable[[], Mapping[str, Operation]],
        address: str | Path | None = None,
        *,
        name: str = "",
        limits: Limits = DEFAULT_LIMITS,
        local: bool = True,
        listen: Sequence[str] = (),
        identity: Identity | None = None,
        roles: Callable[[Peer], Role | None] = owner_is_admin,
        hooks: Hooks | None = None,
        on_refusal: Callable[[str, str], None] = lambda peer, reason: _log.warning(
            "a connection of %s was refused: %s", peer, reason
        ),
    ) -> None:
        self.roles = roles
        self.on_refusal = on_refusal
        self.operations = operations
        self._wanted = None if address is None else socket_path(address)
        self.name = name
        self.limits = limits
        self._local = local
        self._uris = tuple(listen)
        self._identity = identity
        self.hooks = hooks
        self._lock = threading.RLock()
        self._connections = Connections(limits)
        self._sessions: Sessions | None = None
        self._listeners: list[Listener] = []
        self._acceptors: list[threading.Thread] = []
        self._started = False

    @property
    def address(self) -> Path:
        """The path of the Unix socket; known from `start` on."""
        for listener in self._listeners:
            if isinstance(listener, UnixListener):
                return listener.path
        raise RuntimeError("the control server has not been started, or has no Unix socket")

    @property
    def uris(self) -> list[str]:
        """The addresses of `listen` as peers dial them, with port and name; known from `start` on."""
        found = [Endpoint.parse(one.address) for one in self._listeners[int(self._local) :]]
        return [str(replace(one, platform=self.name)) for one in found]

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
        if self._started:
            raise RuntimeError("a control server starts once")
        self._started = True
        try:
            if self._local:
                self._listeners.append(claim(self._wanted))
            for uri in self._uris:
                self._listeners.append(listen(uri, self._identity))
        except BaseException:
            self.stop()
            raise
        for one in self._listeners:
            thread = threading.Thread(target=self._accept_all, args=(one,), name="exop-control", daemon=True)
            self._acceptors.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop listening, remove the socket, wait until running operations have answered, and end all connections.

        An operation may call this method; its own connection ends after the answer. In a forked child, the copy of the
        socket is closed, and the parent continues to listen.
        """
        with self._lock:
            if not self._started or self._connections.closing.is_set():
                return
            self._connections.closing.set()
        if ours := all(one.is_ours for one in self._listeners):
            for listener in self._listeners:
                listener.sock.shutdown(socket.SHUT_RDWR)  # wakes its acceptor
            for acceptor in self._acceptors:
                acceptor.join()
        for listener in self._listeners:
            listener.close()
        for operation in self._connections.close() if ours else ():
            _log.warning("operation %r still runs after the control server has stopped", operation)

    def serve_at(self, uri: str, platform: str = "", *, ended: Callable[[], None]) -> Peer:
        """Dial the platform at *uri*, and let it call the operations of this one: a connection with exchanged roles.

        Returns once the platform there, which must be called *platform* if that is given, has accepted. *ended* is
        called when the connection ends.

        Raises:
            PeerUnreachable, PeerRefused, ProtocolMismatch: there is no connection.
        """
        from exop.remoting.transport.handshake import REVERSE, Hello, meet

        hello = Hello(name=self.name, platform=platform, kind=REVERSE)
        contact = meet(Endpoint.parse(uri), hello, self.limits, math.inf, self._identity, self.hooks)
        sessions = self._loaded_sessions()
        if self._connections.closing.is_set():
            contact.channel.close()
            raise PeerUnreachable(address=uri, problem="this platform stops")

        def serve(sock: socket.socket, connection: Connection) -> None:
            try:
                sessions.serve_reverse(sock, connection)
            finally:
                ended()

        self._connections.start(contact.sock, serve, contact.peer)
        return contact.peer

    def hang_up(self, which: Callable[[Peer], bool]) -> int:
        """End the connections of the peers for which *which* returns true; return how many they were."""
        return self._connections.hang_up(which)

    def __enter__(self) -> ControlServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _accept_all(self, listener: Listener) -> None:
        while not self._connections.closing.is_set():
            try:
                sock, _ = listener.sock.accept()
            except OSError as problem:
                # A lack of descriptors or memory passes; the wait prevents a busy loop.
                if not self._connections.closing.wait(0.1):
                    _log.warning("the control server cannot accept a connection: %s", problem.strerror)
                continue
            try:
                if self._connections.make_room():
                    self._connections.start(sock, lambda sock, connection: self._serve(listener, sock, connection))
                else:
                    full = f"all its {self.limits.connections} connections are at work; try again"
                    self._loaded_sessions().decline(sock, full)
            except Exception:  # noqa: BLE001 - one bad connection must not end the accepting
                _log.exception("a control connection could not be set up")
                sock.close()

    def _serve(self, listener: Listener, accepted: socket.socket, connection: Connection) -> None:
        """Identify the peer, in the thread of its connection, and serve it."""
        limits, address = self.limits, address_of(accepted)
        deadline = time.monotonic() + limits.greeting_time
        try:
            sock, connection.peer = listener.identify(accepted, deadline)
        except (PeerRefused, OSError) as refused:
            from exop.remoting.identity import explain

            problem = refused.facts["problem"] if isinstance(refused, PeerRefused) else explain(refused, self._identity)
            self.on_refusal(address or f"a process at {listener.address}", problem)
            if isinstance(refused, PeerRefused) and accepted.fileno() >= 0:
                self._loaded_sessions().decline(accepted, problem)
            return
        if connection.peer.certificate is not None and self._connections.of(connection.peer.name) > limits.per_peer:
            problem = f"{limits.per_peer} connections of {connection.peer.name!r} are open; use one of them"
            self.on_refusal(str(connection.peer), problem)
            self._loaded_sessions().decline(sock, problem)
            return
        try:
            self._loaded_sessions().serve(sock, connection, deadline)
        except Exception:  # noqa: BLE001 - it ends this connection and no other
            _log.exception("a control connection failed")

    def _loaded_sessions(self) -> Sessions:
        with self._lock:
            if self._sessions is None:
                # rpyc and msgspec cost 50 ms: imported when the first peer connects.
                from exop.remoting.transport.session import Sessions

                self._sessions = Sessions(self)
            return self._sessions

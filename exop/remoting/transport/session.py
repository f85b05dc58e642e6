"""One accepted connection from hello to end, and the operations that it calls.

Imports rpyc: loaded when the first peer connects.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from exop.errors import ExopError, OperationFailed, PeerRefused, PlatformBusy, RequestInvalid, UnknownOperation
from exop.remoting.transport import handshake
from exop.remoting.transport.client import ControlClient
from exop.remoting.transport.codec import BadMessage, decode_message, encode_error, encode_message
from exop.remoting.transport.frames import FAULT, REPLY, REQUEST, BoundedChannel, FrameRefused, Message
from exop.remoting.transport.limits import ENVELOPE, Budget, Connection, check_length
from exop.remoting.transport.operation import PEER, ROLES, Operation, Role, operation
from exop.remoting.transport.operation import operations as operations_of
from exop.remoting.transport.sockets import Peer
from exop.runtime.history import CALLER
from exop.safe_repr import RAISED, clean

if TYPE_CHECKING:
    from exop.remoting.transport.server import ControlServer

_log = logging.getLogger("exop.remoting")
#: Characters of a name from a peer that the log shows.
_SHOWN = 100


class Sessions:
    """Serve the connections of a server: one thread each, at most `Limits.in_flight` operations at a time."""

    def __init__(self, server: ControlServer) -> None:
        given, limits, hooks = server.operations, server.limits, server.hooks
        self._server, self._limits, self._hooks = server, limits, hooks
        self._operations = {**operations_of(self), **(given() if callable(given) else given)}
        self._tickets = handshake.Tickets()
        self._slots = threading.BoundedSemaphore(limits.in_flight)
        self._welcome = handshake.Welcome(server.name, os.getpid(), run=hooks.run if hooks is not None else "")
        self._incoming = Budget(limits.bytes_in, limits.small_frame)
        self._outgoing = Budget(limits.bytes_out, limits.small_frame)

    @operation(role=None)
    def ping(self) -> None:
        """Answer, so that the peer sees that the connection lasts."""

    @operation(role=None)
    def data_ticket(self) -> str:
        """Return a ticket for one data connection of the calling platform."""
        return self._tickets.issue((PEER.get() or Peer()).name)

    def serve(self, sock: socket.socket, connection: Connection, deadline: float) -> None:
        """Serve an accepted connection until its peer goes, or breaks a bound."""
        with self._bounded(sock, connection) as channel:
            hello = handshake.accept(channel, self._welcome, partial(self._objection, connection.peer), deadline)
            connection.peer = peer = _named(connection.peer, hello)
            if hello.kind == handshake.CONTROL or self._hooks is None:
                self._answer_all(channel, connection, self._limits.idle_time)
                return
            sock.settimeout(None)
            if hello.kind == handshake.REVERSE:
                welcome = handshake.Welcome(peer.name, peer.pid, exop=hello.exop)
                contact = handshake.Contact(sock, handshake.calling_channel(sock, self._limits), welcome, peer)
                self._hooks.on_reverse(ControlClient.over(contact, self._limits), peer)
            else:
                self._hooks.on_data(sock, peer)
            connection.is_released = True

    def serve_reverse(self, sock: socket.socket, connection: Connection) -> None:
        """Serve a dialled connection whose roles are exchanged, as `serve`; the peer must call or ping."""
        with self._bounded(sock, connection) as channel:
            self._answer_all(channel, connection, self._limits.silence)

    def decline(self, sock: socket.socket, problem: str) -> None:
        """Tell a peer that it is not served, without waiting for anything that it might send, and close."""
        with closing(self._channel(sock)) as channel, suppress(EOFError):
            # A fresh socket has room for one small message, so this does not wait.
            channel.write(encode_message(handshake.Declined(problem)), time.monotonic())

    @contextmanager
    def _bounded(self, sock: socket.socket, connection: Connection) -> Iterator[BoundedChannel]:
        """Make the channel of a connection, log why the connection ends, and close it unless it is released."""
        channel = self._channel(sock)
        try:
            yield channel
        except PeerRefused as problem:
            self._server.on_refusal(str(connection.peer), str(problem))
        except FrameRefused as problem:
            _log.warning("a connection of %s was ended: %s", connection.peer, problem)
        except (EOFError, TimeoutError) as problem:
            _log.debug("a connection of %s has ended: %s", connection.peer, problem)
        finally:
            channel.settle()
            if not connection.is_released:
                channel.close()

    def _answer_all(self, channel: BoundedChannel, connection: Connection, patience: float) -> None:
        """Answer requests until none begins for *patience* seconds."""
        CALLER.set(str(connection.peer))
        PEER.set(connection.peer)
        connection.enter("idle")
        while channel.stream.readable(patience):
            self._exchange(channel, connection)
            channel.settle()
            connection.enter("idle")

    def _objection(self, peer: Peer, hello: handshake.Hello) -> str:
        """The reason for which a peer is not accepted, or an empty string."""
        name, sender = self._welcome.name, _named(peer, hello)
        # Over TCP without a certificate, a program may have been sent here by mistake.
        if hello.platform != name and (hello.platform or not (peer.pid or peer.certificate)):
            given = f"not {clean(hello.platform[:_SHOWN])!r}" if hello.platform else "name it: tcp://NAME@HOST:PORT"
            return f"it is the platform {name!r}, {given}"
        if hello.name not in ("", sender.name):
            return f"your certificate is that of {sender.name!r}, not of {clean(hello.name[:_SHOWN])!r}"
        if hello.name and hello.name == name:  # before it is told which rights it lacks
            return f"both platforms are called {name!r}, or are one; start one with a name of its own: --name NAME"
        if any(len(text) > _SHOWN or not text.isprintable() for text in (hello.name, hello.run)):
            return f"the name of a platform has at most {_SHOWN} characters, and is printable"
        if hello.kind not in handshake.KINDS or (hello.kind != handshake.CONTROL and self._hooks is None):
            return f"it has no {clean(hello.kind[:_SHOWN])} connections"
        if hello.kind != handshake.CONTROL and sender.name in ("", name):
            return f"a connection of a platform needs a name other than {name!r}"
        try:
            self._server.roles(sender)
        except PeerRefused as problem:
            return str(problem.facts.get("problem", problem))
        if hello.kind == handshake.DATA and not self._tickets.redeem(hello.ticket, sender.name):
            return "the ticket of the data connection is not valid: unknown, used, expired, or of another platform"
        return self._hooks.objection(sender, hello.kind) if self._hooks is not None else ""

    def _channel(self, sock: socket.socket) -> BoundedChannel:
        return BoundedChannel(sock, self._limits, frozenset({REQUEST}), self._incoming)

    def _exchange(self, channel: BoundedChannel, connection: Connection) -> None:
        """Receive a request and answer it. A function of its own, so that an idle connection holds no message."""
        request, held = channel.receive(), 0
        name = request.operation
        connection.enter("running", name)
        try:
            kind, payload = self._answer(name, request.payload)
            try:
                # Never waited for: a reply that waits would take the memory all the same.
                held = self._outgoing.take(len(payload), time.monotonic())
            except TimeoutError:
                busy = PlatformBusy(operation=name, problem="too many large replies are being sent")
                kind, payload = FAULT, encode_error(busy, self._limits.fault)
            connection.enter("replying", name)
            channel.transmit(Message(kind, request.number, payload))
        finally:
            self._outgoing.give(held)

    def _answer(self, name: str, payload: bytes) -> tuple[int, bytes]:
        """Run an operation; return the kind and the payload of the answer. Never raises."""
        try:
            return REPLY, self._run(name, payload)
        except ExopError as error:
            failure = error
        except RAISED:
            # The peer gets a number and the log the traceback: the inside of the platform is not the peer's to see.
            reference = secrets.token_hex(4)
            _log.exception("operation %r failed (reference %s)", name, reference)
            failure = OperationFailed(operation=name, reference=reference)
        return FAULT, encode_error(failure, self._limits.fault)

    def _run(self, name: str, payload: bytes) -> bytes:
        if (operation := self._operations.get(name)) is None:
            raise UnknownOperation(operation=name, known=sorted(self._operations))
        if operation.role is not None:
            role = self._server.roles(PEER.get() or Peer())
            if role is None or ROLES.index(operation.role) > ROLES.index(role):
                raise self._refusal(operation, payload, role)
        check_length(f"the request to {name!r}", len(payload), operation.max_request)
        try:
            request = decode_message(payload, operation.request)
        except BadMessage as problem:
            raise RequestInvalid(operation=name, problem=str(problem)) from None
        if not self._slots.acquire(timeout=self._limits.queue_time):
            raise PlatformBusy(operation=name, problem=f"it waited {self._limits.queue_time:g} s for its turn")
        started = time.monotonic()
        try:
            reply = encode_message(operation.handler(request))
        finally:
            self._slots.release()
        if (taken := time.monotonic() - started) > 5.0:
            _log.warning("operation %r took %.1f s; operations should be short", name, taken)
        check_length(f"the reply to {name!r}", len(reply), self._limits.frame - ENVELOPE, "ask for it in pages")
        return reply

    def _refusal(self, operation: Operation, payload: bytes, role: Role | None) -> PeerRefused:
        """Log a call for which the role of the peer is too low; return the error, which names no operation."""
        lacks = f"needs the role {operation.role}, and the role of this peer is {role or 'none'}"
        name, application, reason = operation.name, "", f"{operation.name!r} {lacks}"
        if operation.on_refusal is not None and len(payload) <= operation.max_request:
            with suppress(BadMessage):
                application = operation.on_refusal(name, decode_message(payload, operation.request), reason)
        about = f" on the application {application[:_SHOWN]!r}" if application else ""
        _log.warning("refused a call of %s%s: %s", CALLER.get(), about, reason)
        peer = PEER.get() or Peer()
        roles = "observe reads, operate changes applications, admin bundles and the platform"
        how = f'; [peers."{peer.name}"] in the policy of {self._server.name} gives it a role: {roles}'
        return PeerRefused(address=self._server.name, problem=f"the call {lacks}{how if peer.certificate else ''}")


def _named(peer: Peer, hello: handshake.Hello) -> Peer:
    """The peer with its name, that of its certificate or else of its greeting, and with its run."""
    return replace(peer, name=peer.name or hello.name, run=hello.run)

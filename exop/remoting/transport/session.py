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
from collections.abc import Mapping
from contextlib import suppress

from exop.errors import (
    ExopError,
    MessageTooLarge,
    OperationFailed,
    PeerRefused,
    PlatformBusy,
    RequestInvalid,
    UnknownOperation,
)
from exop.remoting.transport.codec import BadMessage, decode_message, encode_error, encode_message
from exop.remoting.transport.frames import (
    FAULT,
    REPLY,
    REQUEST,
    BoundedChannel,
    DeadlineStream,
    Declined,
    FrameRefused,
    Message,
    Refused,
    TooLate,
    Welcome,
    accept,
)
from exop.remoting.transport.limits import ENVELOPE, Budget, Connection, Limits
from exop.remoting.transport.operation import ROLES, Operation, Role
from exop.remoting.transport.sockets import peer_of
from exop.runtime.history import CALLER
from exop.safe_repr import RAISED

_log = logging.getLogger("exop.remoting")
#: Seconds from which the log reports an operation as long.
_LONG = 5.0
#: Characters of a name from a peer that the log shows.
_SHOWN = 100


class Sessions:
    """Serve the connections of a server: one thread each, at most `Limits.in_flight` operations at a time."""

    def __init__(self, operations: Mapping[str, Operation], name: str, limits: Limits, role: Role) -> None:
        self._operations = dict(operations)
        self._limits = limits
        self._role = role
        self._slots = threading.BoundedSemaphore(limits.in_flight)
        self._welcome = Welcome(name=name, pid=os.getpid())
        self._incoming = Budget(limits.bytes_in, limits.small_frame)
        self._outgoing = Budget(limits.bytes_out, limits.small_frame)

    def serve(self, sock: socket.socket, connection: Connection) -> str:
        """Serve one peer until it goes or breaks a bound; return why it ended, in one word."""
        channel, peer = self._channel(sock), peer_of(sock)
        CALLER.set(f"user {peer.uid} (process {peer.pid})")
        try:
            accept(channel, self._welcome, time.monotonic() + self._limits.greeting_time)
            while True:
                connection.enter("idle")
                if not channel.stream.readable(self._limits.idle_time):
                    return "idle"
                self._exchange(channel, connection)
                channel.settle()
        except (FrameRefused, Refused):
            return "broken"
        except (TooLate, TimeoutError):
            return "late"
        except EOFError:
            return "closed"
        finally:
            channel.settle()
            channel.close()

    def decline(self, sock: socket.socket, problem: str) -> None:
        """Tell a peer that it is not served, without waiting for anything that it might send, and close."""
        channel = self._channel(sock)
        try:
            # A fresh socket has room for one small message, so this does not wait.
            channel.send_greeting(encode_message(Declined(problem)), time.monotonic())
        except EOFError:
            return
        finally:
            channel.close()

    def _channel(self, sock: socket.socket) -> BoundedChannel:
        return BoundedChannel(DeadlineStream(sock), self._limits, frozenset({REQUEST}), self._incoming)

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
        operation = self._find(name)
        if ROLES.index(operation.role) > ROLES.index(self._role):
            raise self._refusal(operation, payload)
        if len(payload) > operation.max_request:
            what = f"the request to {name!r}"
            raise MessageTooLarge(what=what, size=len(payload), limit=operation.max_request, cure="send less at a time")
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
        if (taken := time.monotonic() - started) > _LONG:
            _log.warning("operation %r took %.1f s; operations should be short", name, taken)
        largest = self._limits.frame - ENVELOPE
        if len(reply) > largest:
            what = f"the reply to {name!r}"
            raise MessageTooLarge(what=what, size=len(reply), limit=largest, cure="ask for it in pages")
        return reply

    def _find(self, name: str) -> Operation:
        found = self._operations.get(name)
        if found is None:
            raise UnknownOperation(operation=name, known=sorted(self._operations))
        return found

    def _refusal(self, operation: Operation, payload: bytes) -> PeerRefused:
        """Log a call for which the role of the peer is too low; return the error."""
        name, application = operation.name, ""
        reason = f"{name!r} needs the role {operation.role}, and peers of this connection may {self._role} only"
        if operation.on_refusal is not None and len(payload) <= operation.max_request:
            with suppress(BadMessage):
                application = operation.on_refusal(name, decode_message(payload, operation.request), reason)
        about = f" on the application {application[:_SHOWN]!r}" if application else ""
        _log.warning("refused a call of %s%s: %s", CALLER.get(), about, reason)
        return PeerRefused(reason)

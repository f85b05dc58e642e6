"""The client: call the operations of a platform, and get typed replies or errors."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, overload

import msgspec

from exop.errors import CallTimeout, ConnectionLost, PeerRefused, PeerUnreachable, RequestInvalid
from exop.remoting.identity import Identity
from exop.remoting.transport import codec
from exop.remoting.transport.codec import Page, PageRequest, Request
from exop.remoting.transport.endpoints import Endpoint
from exop.remoting.transport.frames import FAULT, REQUEST, Message
from exop.remoting.transport.handshake import CONTROL, DATA, Contact, Hello, Hooks, Welcome, meet
from exop.remoting.transport.limits import DEFAULT_LIMITS, ENVELOPE, Limits, check_length
from exop.remoting.transport.operation import unanswered
from exop.remoting.transport.rundir import socket_path

T = TypeVar("T")
#: A request, or its fields by name.
AnyRequest: TypeAlias = Request | Mapping[str, Any] | None


class ControlClient:
    """Call the operations of the platform at *address*: a URI, or the path of its socket or state directory.

    The client connects at the first call, and once more after the platform has closed an idle connection. Threads may
    share a client, whose calls are made one after the other. A call without an answer closes the connection, so that no
    call receives the late answer of another call.

    Args:
        address: See `exop.remoting.transport.endpoints` for URIs.
        timeout: The seconds that a call may take, unless it gives another time.
        identity: The identity of the caller, for addresses with TLS.
        name: The name of the calling platform; empty for a command or program.
        platform: The name that the platform at the address must have; empty for any name.
        hooks: Those of the calling platform, which may object to the one at the address.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        timeout: float = 10.0,
        limits: Limits = DEFAULT_LIMITS,
        identity: Identity | None = None,
        name: str = "",
        platform: str = "",
        hooks: Hooks | None = None,
    ) -> None:
        if (endpoint := Endpoint.parse(address)).scheme == "unix":
            endpoint = replace(endpoint, place=str(socket_path(endpoint.place)))
        if platform:
            endpoint = replace(endpoint, platform=platform)
        self._endpoint: Endpoint | None = endpoint
        self._address = endpoint.label
        self._timeout = timeout
        self._limits = limits
        self._identity = identity
        self._name, self._hooks = name, hooks
        self._lock = threading.Lock()
        self._contact: Contact | None = None
        self._number = 0

    @classmethod
    def over(cls, contact: Contact, limits: Limits) -> ControlClient:
        """Call the platform that has dialled, over its connection with exchanged roles; it cannot be dialled again."""
        client = cls("inproc:", limits=limits)
        client._endpoint, client._address, client._contact = None, contact.peer.name, contact
        return client

    @overload
    def call(self, operation: str, request: AnyRequest = None, *, timeout: float | None = None) -> Any: ...

    @overload
    def call(self, operation: str, request: AnyRequest, reply: type[T], *, timeout: float | None = None) -> T: ...

    def call(
        self, operation: str, request: AnyRequest = None, reply: Any = Any, *, timeout: float | None = None
    ) -> Any:
        """Call *operation* and return its reply as an instance of *reply*, or by default as plain values, up to 1 MiB.

        *request* is the request, or its fields by name.

        Raises:
            PeerUnreachable: no platform listens at the address, or (`ConnectionLost`, `CallTimeout`) the answer did not
                arrive.
            PeerRefused, ProtocolMismatch: the platform does not accept this client.
            ExopError: the error of the operation, of its own class.
        """
        try:
            payload = codec.encode_message({} if request is None else request, exactly=True)
        except (OverflowError, UnicodeError) as problem:
            raise RequestInvalid(operation=operation, problem=str(problem)) from None
        check_length(f"the request to {operation!r}", len(payload), self._limits.frame - ENVELOPE)
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise CallTimeout(seconds=seconds, address=self._address, **unanswered(operation))
        try:
            answer = self._exchange(operation, payload, deadline, seconds)
        finally:
            self._lock.release()
        if reply is Any:
            cure = "ask for it in pages, or call with the type of the reply"
            check_length(f"the reply to {operation!r}", len(answer), self._limits.plain_reply, cure)
        try:
            return codec.decode_message(answer, reply)
        except codec.BadMessage as problem:
            reason = f"its reply to {operation!r} is of another type ({problem})"
            raise PeerRefused(address=self._address, problem=reason) from None

    def items(
        self, operation: str, request: PageRequest, item: type[T], *, timeout: float | None = None
    ) -> Iterator[T]:
        """Call an operation that answers in pages until the last page, and yield the items of all pages."""
        while True:
            found = self.call(operation, request, cast(Any, Page)[item], timeout=timeout)
            yield from found.items
            if found.after is None:
                return
            request = msgspec.structs.replace(request, after=found.after)

    def ping(self, timeout: float = 6.0) -> float | None:
        """Return the seconds of a round trip; `None` while another call is under way, which has a deadline of its own.

        Raises:
            PeerUnreachable: the platform does not answer within *timeout* seconds, or the connection has ended.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            started = time.monotonic()
            self._exchange("ping", codec.encode_message({}), started + timeout, timeout)
            return time.monotonic() - started
        finally:
            self._lock.release()

    def open_data(self) -> socket.socket:
        """Open a data connection to the platform, with a ticket obtained by a call; raises as `call`."""
        ticket = self.call("data_ticket", None, str)
        contact = self._met(DATA, time.monotonic() + self._timeout, ticket)
        contact.sock.settimeout(None)
        return contact.sock

    def platform(self) -> Welcome:
        """Return the greeting of the platform; connect if necessary."""
        with self._lock:
            return self._connected(time.monotonic() + self._timeout).welcome

    def close(self) -> None:
        """Close the connection. A later call opens a new connection."""
        with self._lock:
            self._drop()

    def hang_up(self) -> None:
        """End the connection from another thread: a call under way fails. A later call opens a new connection."""
        if (contact := self._contact) is not None:
            with suppress(OSError):  # it has ended by itself; its thread wakes and closes it
                socket.socket.shutdown(contact.sock, socket.SHUT_RDWR)

    def __enter__(self) -> ControlClient:
        self.platform()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _exchange(self, operation: str, payload: bytes, deadline: float, seconds: float) -> bytes:
        """Send one request, and wait for its answer."""
        channel = self._connected(deadline).channel
        number, self._number, channel.call_deadline = self._number, self._number + 1, deadline
        try:
            channel.transmit(Message(REQUEST, number, payload, operation))
            answer = None
            while answer is None or answer.number != number:
                if not channel.stream.readable(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError("no answer in time")
                answer = channel.receive()
        except BaseException as problem:
            self._drop()
            if isinstance(problem, TimeoutError) or (isinstance(problem, EOFError) and time.monotonic() >= deadline):
                raise CallTimeout(seconds=seconds, address=self._address, **unanswered(operation)) from None
            if isinstance(problem, EOFError):
                raise ConnectionLost(problem=str(problem), address=self._address, **unanswered(operation)) from None
            raise
        finally:
            channel.settle()
        if answer.kind == FAULT:
            raise codec.decode_error(answer.payload, self._limits.fault)
        return answer.payload

    def _connected(self, deadline: float) -> Contact:
        if self._contact is not None and self._contact.channel.stream.readable():
            self._drop()  # the platform has closed the connection, or has sent something that was not asked for
        if self._contact is None:
            self._contact = self._met(CONTROL, deadline)
        return self._contact

    def _met(self, kind: str, deadline: float, ticket: str = "") -> Contact:
        if self._endpoint is None:
            raise PeerUnreachable(address=self._address, problem="the connection has ended, and only the peer can dial")
        hello = Hello(name=self._name, kind=kind, ticket=ticket)
        return meet(self._endpoint, hello, self._limits, deadline, self._identity, self._hooks)

    def _drop(self) -> None:
        contact, self._contact = self._contact, None
        if contact is not None:
            contact.channel.close()

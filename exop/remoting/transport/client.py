"""The calling side: ask a running platform, and get typed answers or its errors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from exop.errors import CallTimeout, ConnectionLost, MessageTooLarge, PeerRefused, PeerUnreachable, RequestInvalid
from exop.remoting.api.rundir import socket_path
from exop.remoting.transport.budget import Budget
from exop.remoting.transport.limits import DEFAULT_LIMITS, Limits
from exop.remoting.transport.sockets import dial, peer_of

if TYPE_CHECKING:
    from exop.remoting.transport.codec import Request
    from exop.remoting.transport.frames import BoundedChannel, Message
    from exop.remoting.transport.handshake import Welcome
    from exop.remoting.transport.paging import PageRequest

T = TypeVar("T")
_OVERHEAD = 200


class ControlClient:
    """Call the operations of the platform at *address*: a socket path, or its state directory.

    It connects when it is first needed, and again when the platform has closed a connection that rested. Threads may
    share it; they take turns. A call that did not come to its answer closes the connection, so that no late answer is
    taken for another's.
    """

    def __init__(self, address: str | Path, *, timeout: float = 10.0, limits: Limits = DEFAULT_LIMITS) -> None:
        self._path = socket_path(address)
        self._timeout = timeout
        self._limits = limits
        self._lock = threading.Lock()
        self._link: _Link | None = None

    @overload
    def call(
        self, operation: str, request: Request | Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any: ...

    @overload
    def call(
        self,
        operation: str,
        request: Request | Mapping[str, Any] | None,
        reply: type[T],
        *,
        timeout: float | None = None,
    ) -> T: ...

    def call(
        self,
        operation: str,
        request: Request | Mapping[str, Any] | None = None,
        reply: Any = Any,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Ask *operation* and return its reply as a *reply*; without that type as plain values, up to 1 MiB.

        Raises:
            PeerUnreachable: no platform is there, or (`ConnectionLost`, `CallTimeout`) the answer did not come.
            PeerRefused, ProtocolMismatch: it does not talk to us.
            ExopError: the error of the operation, of its own class.
        """
        from exop.remoting.transport.codec import pack

        try:
            payload = pack({} if request is None else request, exactly=True)
        except (OverflowError, UnicodeError) as problem:
            raise RequestInvalid(operation=operation, problem=str(problem)) from None
        if len(payload) > self._limits.frame - _OVERHEAD:
            raise MessageTooLarge(
                what=f"the request to {operation!r}",
                size=len(payload),
                limit=self._limits.frame - _OVERHEAD,
                cure="send less at a time",
            )
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise CallTimeout(address=str(self._path), operation=operation, seconds=seconds)
        try:
            answer = self._exchange(operation, payload, deadline, seconds)
        finally:
            self._lock.release()
        return self._decoded(operation, answer, reply)

    def items(
        self, operation: str, request: PageRequest, item: type[T], *, timeout: float | None = None
    ) -> Iterator[T]:
        """Ask an operation that answers in pages until there are no more, and yield what the pages hold."""
        from msgspec.structs import replace

        from exop.remoting.transport.paging import Page

        while True:
            found = self.call(operation, request, cast(Any, Page)[item], timeout=timeout)
            yield from found.items
            if found.after is None:
                return
            request = replace(request, after=found.after)

    def platform(self) -> Welcome:
        """Return the platform's greeting: connect if need be."""
        with self._lock:
            return self._connected(time.monotonic() + self._timeout).welcome

    def close(self) -> None:
        """End the connection; the next call would make a new one."""
        with self._lock:
            self._drop()

    def __enter__(self) -> ControlClient:
        self.platform()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, operation: str, payload: bytes, deadline: float, seconds: float) -> bytes:
        from exop.remoting.transport.faults import rebuild
        from exop.remoting.transport.frames import FAULT

        link = self._connected(deadline)
        try:
            answer = link.ask(operation, payload, deadline)
        except BaseException as problem:
            self._drop()
            late = isinstance(problem, TimeoutError) or (isinstance(problem, EOFError) and time.monotonic() >= deadline)
            if late:
                raise CallTimeout(address=str(self._path), operation=operation, seconds=seconds) from None
            if isinstance(problem, EOFError):
                raise ConnectionLost(address=str(self._path), operation=operation, problem=str(problem)) from None
            raise
        if answer.kind == FAULT:
            raise rebuild(answer.payload, self._limits.fault)
        return answer.payload

    def _decoded(self, operation: str, answer: bytes, reply: Any) -> Any:
        from exop.remoting.transport.codec import BadMessage, unpack

        if reply is Any and len(answer) > self._limits.plain_reply:
            raise MessageTooLarge(
                what=f"the reply to {operation!r}",
                size=len(answer),
                limit=self._limits.plain_reply,
                cure="ask for it in pages, or call with the type of the reply",
            )
        try:
            return unpack(answer, reply)
        except BadMessage as problem:
            raise PeerRefused(
                address=str(self._path), problem=f"its reply to {operation!r} is of another type ({problem})"
            ) from None

    def _connected(self, deadline: float) -> _Link:
        if self._link is not None and self._link.stale():
            self._drop()
        if self._link is None:
            self._link = _Link.to(self._path, self._limits, deadline)
        return self._link

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.channel.close()


class _Link:
    """One connection to a platform, after the handshake."""

    def __init__(self, channel: BoundedChannel, welcome: Welcome) -> None:
        self.channel = channel
        self.welcome = welcome
        self._number = 0

    @classmethod
    def to(cls, path: Path, limits: Limits, deadline: float) -> _Link:
        """Connect, check the peer's identity, and shake hands."""
        # rpyc costs 30 ms: only who calls another process pays it.
        from exop.remoting.transport.frames import FAULT, REPLY, BoundedChannel, DeadlineStream
        from exop.remoting.transport.handshake import greet

        deadline = min(deadline, time.monotonic() + limits.greeting_time)
        try:
            sock = dial(path, max(0.001, deadline - time.monotonic()))
        except OSError as problem:
            raise PeerUnreachable(address=str(path), problem=problem.strerror or str(problem)) from None
        channel = BoundedChannel(
            DeadlineStream(sock), limits, frozenset({REPLY, FAULT}), Budget(limits.frame, limits.small_frame)
        )
        try:
            peer = peer_of(sock)
            if not peer.trusted and os.geteuid() != 0:
                raise PeerRefused(address=str(path), problem=f"it belongs to user {peer.uid}, not to you")
            return cls(channel, greet(channel, str(path), deadline))
        except BaseException:
            channel.close()
            raise

    def stale(self) -> bool:
        """Whether the platform has closed the connection, or has sent something unasked."""
        return bool(self.channel.stream.readable())

    def ask(self, operation: str, payload: bytes, deadline: float) -> Message:
        """Send one request and wait for its answer.

        Raises:
            TimeoutError: it did not come in time.
            EOFError: the connection ended, or a message broke the profile.
        """
        from exop.remoting.transport.frames import REQUEST, Message

        channel, number = self.channel, self._number
        self._number, channel.call_deadline = number + 1, deadline
        try:
            channel.transmit(Message(REQUEST, number, payload, operation))
            while True:
                if not channel.stream.readable(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError("no answer in time")
                if (answer := channel.receive()).number == number:
                    return answer
        finally:
            channel.settle()

"""The client: find the running platforms of this user, call their operations, and get typed replies or errors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from exop.errors import (
    CallTimeout,
    ConnectionLost,
    MessageTooLarge,
    PeerRefused,
    PeerUnreachable,
    RemotingError,
    RequestInvalid,
)
from exop.remoting.transport.limits import DEFAULT_LIMITS, ENVELOPE, Budget, Limits
from exop.remoting.transport.rundir import find_entries, socket_path
from exop.remoting.transport.sockets import dial, peer_of

if TYPE_CHECKING:
    from exop.remoting.transport.codec import PageRequest, Request
    from exop.remoting.transport.frames import BoundedChannel, Message, Welcome

T = TypeVar("T")
#: Seconds for an answer: on a computer whose cores are all busy, the handshake alone needs more than one.
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class RunningPlatform:
    """A platform of this user that listens."""

    pid: int
    address: Path
    name: str = ""
    exop: str = ""
    problem: str = ""
    """Why it does not answer; empty when it does."""


def find_platforms(timeout: float = _PATIENCE) -> list[RunningPlatform]:
    """Return the running platforms of this user, including those that do not answer within *timeout* seconds.

    Entries of processes that have ended are removed from the run directory.
    """
    found = []
    for address, pid in find_entries().items():
        try:
            with ControlClient(address, timeout=timeout) as client:
                welcome = client.platform()
        except RemotingError as error:
            found.append(RunningPlatform(pid, address, problem=str(error)))
        else:
            found.append(RunningPlatform(welcome.pid, address, welcome.name, welcome.exop))
    return found


class ControlClient:
    """Call the operations of the platform at *address*: a socket path, or its state directory.

    The client connects at the first call, and once more after the platform has closed an idle connection. Threads may
    share a client, whose calls are made one after the other. A call without an answer closes the connection, so that no
    call receives the late answer of another call.
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
        """Call *operation* and return its reply as an instance of *reply*, or by default as plain values, up to 1 MiB.

        Raises:
            PeerUnreachable: no platform listens at the address, or (`ConnectionLost`, `CallTimeout`) the answer did not
                arrive.
            PeerRefused, ProtocolMismatch: the platform does not accept this client.
            ExopError: the error of the operation, of its own class.
        """
        from exop.remoting.transport.codec import encode_message

        try:
            payload = encode_message({} if request is None else request, exactly=True)
        except (OverflowError, UnicodeError) as problem:
            raise RequestInvalid(operation=operation, problem=str(problem)) from None
        if len(payload) > (limit := self._limits.frame - ENVELOPE):
            what = f"the request to {operation!r}"
            raise MessageTooLarge(what=what, size=len(payload), limit=limit, cure="send less at a time")
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
        """Call an operation that answers in pages until the last page, and yield the items of all pages."""
        from msgspec.structs import replace

        from exop.remoting.transport.codec import Page

        while True:
            found = self.call(operation, request, cast(Any, Page)[item], timeout=timeout)
            yield from found.items
            if found.after is None:
                return
            request = replace(request, after=found.after)

    def platform(self) -> Welcome:
        """Return the greeting of the platform; connect if necessary."""
        with self._lock:
            return self._connected(time.monotonic() + self._timeout).welcome

    def close(self) -> None:
        """Close the connection. A later call opens a new connection."""
        with self._lock:
            self._drop()

    def __enter__(self) -> ControlClient:
        self.platform()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _exchange(self, operation: str, payload: bytes, deadline: float, seconds: float) -> bytes:
        from exop.remoting.transport.codec import decode_error
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
            raise decode_error(answer.payload, self._limits.fault)
        return answer.payload

    def _decoded(self, operation: str, answer: bytes, reply: Any) -> Any:
        from exop.remoting.transport.codec import BadMessage, decode_message

        if reply is Any and len(answer) > self._limits.plain_reply:
            what, cure = f"the reply to {operation!r}", "ask for it in pages, or call with the type of the reply"
            raise MessageTooLarge(what=what, size=len(answer), limit=self._limits.plain_reply, cure=cure)
        try:
            return decode_message(answer, reply)
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
        # Imported lazily: rpyc costs 30 ms.
        from exop.remoting.transport.frames import FAULT, REPLY, BoundedChannel, DeadlineStream, greet

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
        """Whether the platform has closed the connection, or has sent something that was not asked for."""
        return bool(self.channel.stream.readable())

    def ask(self, operation: str, payload: bytes, deadline: float) -> Message:
        """Send one request and wait for its answer."""
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

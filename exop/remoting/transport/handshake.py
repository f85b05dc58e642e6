"""The handshake of a connection: both sides compare their versions and names before any other message.

    dialler     Hello(protocol, exop, name, platform, kind, ticket, run)
    acceptor    Welcome(protocol, exop, name, pid, kind, run)  or  Declined(problem, protocol, exop)

The kind of the connection says what follows:

    control     the dialler calls operations of the acceptor
    reverse     the acceptor calls operations of the dialler: for peers of which only one can dial
    data        frames of remote connectors; the dialler presents a ticket, obtained on a control connection

The protocol number changes when an older side could misread a message; new operations and new fields do not change it.
An acceptor of an older release takes every connection for `control`, and says so in its `Welcome`.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from exop import __version__
from exop.errors import ConnectionLost, PeerRefused, PeerUnreachable, ProtocolMismatch
from exop.remoting.identity import Identity, explain
from exop.remoting.transport.codec import BadMessage, decode_message, encode_message
from exop.remoting.transport.endpoints import Endpoint, dial
from exop.remoting.transport.frames import FAULT, REPLY, BoundedChannel, FrameRefused, TooLate
from exop.remoting.transport.limits import Budget, Limits
from exop.remoting.transport.operation import REPEAT
from exop.remoting.transport.sockets import Peer
from exop.safe_repr import clean

if TYPE_CHECKING:
    from exop.remoting.transport.client import ControlClient

PROTOCOL = 2
CONTROL, REVERSE, DATA = "control", "reverse", "data"
KINDS: Final = (CONTROL, REVERSE, DATA)
_SHOWN = 40  #: Characters of the other side's release or name that are shown.


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a dialler.

    Attributes:
        name: The name of the dialling platform; empty for a command or program.
        platform: The name that the platform at the address must have; empty for any name.
        run: As `Peer.run`; empty for a command or program, and of earlier releases.
    """

    protocol: int = PROTOCOL
    exop: str = __version__
    name: str = ""
    platform: str = ""
    kind: str = CONTROL
    ticket: str = ""
    run: str = ""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The platform accepts the peer: the name and process of the platform."""

    name: str
    pid: int
    protocol: int = PROTOCOL
    exop: str = __version__
    kind: str = CONTROL
    run: str = ""


class Declined(msgspec.Struct, frozen=True, tag="declined"):
    """The platform declines the peer."""

    problem: str
    protocol: int = PROTOCOL
    exop: str = ""


class Hooks(Protocol):
    """Takes over the accepted connections of platforms, in their threads; the platform has the `Peer.run` *run*."""

    run: str

    def objection(self, peer: Peer, kind: str) -> str:
        """Return why a platform may not be connected in this way, or an empty string."""

    def on_reverse(self, client: ControlClient, peer: Peer) -> None:
        """Use *client* for calls of the platform that has dialled, and ping it more often than `Limits.silence`."""

    def on_data(self, sock: socket.socket, peer: Peer) -> None:
        """Use *sock* as the data connection of the platform that has dialled."""


class Contact(NamedTuple):
    """A dialled connection after the handshake."""

    sock: socket.socket
    channel: BoundedChannel
    welcome: Welcome
    peer: Peer


class Tickets:
    """Tickets for data connections: random, for one use, valid for 10 seconds, each for one peer."""

    #: The tickets of one peer that are valid at a time; its oldest makes room, and never that of another peer.
    MOST: Final = 8

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._issued: dict[str, tuple[str, float]] = {}

    def issue(self, peer: str) -> str:
        """Return a new ticket for the platform *peer*."""
        ticket = os.urandom(24).hex()
        with self._lock:
            now = self._clock()
            self._issued = {key: one for key, one in self._issued.items() if one[1] > now}
            for old in [key for key, one in self._issued.items() if one[0] == peer][: 1 - self.MOST]:
                del self._issued[old]
            self._issued[ticket] = peer, now + 10.0
        return ticket

    def redeem(self, ticket: str, peer: str) -> bool:
        """Whether the ticket was issued for *peer*, in time, and is used for the first time."""
        with self._lock:
            owner, end = self._issued.pop(ticket, ("", 0.0))
        return bool(owner) and owner == peer and self._clock() < end


def accept(channel: BoundedChannel, welcome: Welcome, objection: Callable[[Hello], str], deadline: float) -> Hello:
    """The acceptor's side: receive the peer's greeting, and accept the peer; raises `PeerRefused` at an *objection*."""
    try:
        hello = decode_message(channel.receive_greeting(deadline), Hello)
    except BadMessage:
        raise PeerRefused("no hello") from None
    if hello.protocol != PROTOCOL:
        channel.write(encode_message(Declined("another protocol", exop=__version__)), deadline)
        theirs = f"exop {clean(hello.exop[:_SHOWN])} with protocol {hello.protocol}"
        raise PeerRefused(f"it is {theirs}, and this platform is exop {__version__} with protocol {PROTOCOL}")
    if problem := objection(hello):
        channel.write(encode_message(Declined(problem)), deadline)
        raise PeerRefused(problem)
    channel.write(encode_message(msgspec.structs.replace(welcome, kind=hello.kind)), deadline)
    return hello


def meet(
    endpoint: Endpoint, hello: Hello, limits: Limits, deadline: float, identity: Identity | None, hooks: Hooks | None
) -> Contact:
    """The dialler's side: connect to *endpoint*, identify the platform there, and be accepted.

    Raises:
        PeerUnreachable: no platform answers there in time, or (`ConnectionLost`) the connection ends.
        PeerRefused: either side does not accept the other.
        ProtocolMismatch: the platform there uses another protocol.
    """
    deadline = min(deadline, time.monotonic() + limits.greeting_time)
    endpoint = replace(endpoint, platform=(wanted := endpoint.platform or hello.platform))
    sock, peer = dial(endpoint, max(0.001, deadline - time.monotonic()), identity)
    channel = calling_channel(sock, limits)
    try:
        hello = msgspec.structs.replace(hello, platform=wanted, run=hooks.run if hooks is not None else "")
        try:
            welcome = greet(channel, endpoint.label, deadline, hello, identity)
        except TooLate:
            # The kernel gives no number for a process on another host, or in another container.
            who = f"process {peer.pid}" if peer.pid else "a process that is not visible here"
            how = f" (`kill -CONT {peer.pid}`), or end it" if peer.pid else ", or end it, where it runs"
            cure = f"wait if it is busy, continue it if it is stopped{how}"
            problem = f"{who} listens there, but does not answer"
            raise PeerUnreachable(address=endpoint.label, problem=problem, cure=cure) from None
        for name, source in ((wanted, "the one that is wanted"), (peer.name, "its certificate")):
            if name and welcome.name != name:
                problem = f"it calls itself {clean(welcome.name[:_SHOWN])!r}, and the name of {source} is {name!r}"
                raise PeerRefused(address=endpoint.label, problem=problem)
        peer = replace(peer, name=welcome.name, run=welcome.run)
        if hooks is not None and (problem := hooks.objection(peer, hello.kind)):
            raise PeerRefused(address=endpoint.label, problem=problem)
    except BaseException:
        channel.close()
        raise
    return Contact(sock, channel, welcome, peer)


def calling_channel(sock: socket.socket, limits: Limits) -> BoundedChannel:
    """The channel of a side that calls operations."""
    return BoundedChannel(sock, limits, frozenset({REPLY, FAULT}), Budget(limits.frame, limits.small_frame))


def greet(channel: BoundedChannel, address: str, deadline: float, hello: Hello, identity: Identity | None) -> Welcome:
    """The dialler's side of the greeting; raises `TooLate` after *deadline*."""
    tls = f"if it listens with TLS, write tls{address[3:]}, which needs certificates (`exop certs`); else "
    cure = f"{tls if address.startswith('tcp:') else ''}{REPEAT}"
    try:
        # It may have declined before it read anything; the answer can still be read then.
        with suppress(EOFError):
            channel.write(encode_message(hello), deadline)
        answer = decode_message(channel.receive_greeting(deadline), Welcome | Declined)  # type: ignore[arg-type]
    except (BadMessage, FrameRefused):
        raise ProtocolMismatch(f"what answers at {address} uses another protocol, or is no platform; {cure}") from None
    except TooLate:
        raise
    except EOFError as problem:
        if isinstance(alert := problem.__cause__, ssl.SSLError):
            raise PeerRefused(address=address, problem=explain(alert, identity)) from None
        raise ConnectionLost(address=address, operation="hello", problem=str(problem), cure=cure) from None
    release = f"exop {clean(answer.exop[:_SHOWN])}" if answer.exop else "an unknown release"
    if answer.protocol != PROTOCOL:
        own, other = f"exop {__version__}", answer.protocol
        raise ProtocolMismatch(address=address, ours=PROTOCOL, theirs=other, release=release, our_release=own)
    if isinstance(answer, Declined):
        raise PeerRefused(address=address, problem=answer.problem)
    if answer.kind != hello.kind:
        raise PeerRefused(address=address, problem=f"its release, {release}, has no {hello.kind} connections")
    return answer

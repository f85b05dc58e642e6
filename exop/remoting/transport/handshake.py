"""The first exchange on a connection: both sides compare their versions, before any other message.

    peer       Hello(protocol, exop)
    platform   Welcome(protocol, exop, name, pid)  or  Declined(problem, protocol, exop)

The protocol number changes when an older side could misread a message; new operations and new fields do not change it.
"""

from __future__ import annotations

import logging

import msgspec

from exop import __version__
from exop.errors import ConnectionLost, PeerRefused, PeerUnreachable, ProtocolMismatch
from exop.remoting.transport.codec import BadMessage, pack, unpack
from exop.remoting.transport.frames import BoundedChannel, FrameRefused, TooLate
from exop.safe_repr import clean

PROTOCOL = 2
_SHOWN = 40
"""Characters of the other side's release that are shown."""
_log = logging.getLogger("exop.remoting")


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a peer."""

    protocol: int = PROTOCOL
    exop: str = __version__


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The platform takes the peer: its name and process."""

    name: str
    pid: int
    protocol: int = PROTOCOL
    exop: str = __version__


class Declined(msgspec.Struct, frozen=True, tag="declined"):
    """The platform does not take the peer."""

    problem: str
    protocol: int = PROTOCOL
    exop: str = ""


class Silent(Exception):
    """The peer sent no handshake, so it could not read an explanation either."""


def receive(channel: BoundedChannel, welcome: Welcome, deadline: float) -> None:
    """The platform's side: receive the peer's greeting and accept it.

    Raises:
        Silent: it is no peer of ours, or has another version (the answer says so).
        EOFError: it went away, or took too long.
    """
    try:
        hello = unpack(channel.receive_greeting(deadline), Hello)
    except BadMessage:
        raise Silent("no hello") from None
    if hello.protocol != PROTOCOL:
        channel.send_greeting(pack(Declined("another protocol", exop=__version__)), deadline)
        _log.warning(
            "a client of exop %s with protocol %d was declined; this platform is exop %s with protocol %d",
            *(clean(hello.exop[:_SHOWN]), hello.protocol, __version__, PROTOCOL),
        )
        raise Silent(f"protocol {hello.protocol}")
    channel.send_greeting(pack(welcome), deadline)


def greet(channel: BoundedChannel, address: str, deadline: float) -> Welcome:
    """The peer's side: greet the platform and be accepted.

    Raises:
        PeerRefused, ProtocolMismatch, PeerUnreachable: it did not come to that.
    """
    try:
        answer = unpack(_exchange(channel, deadline), Welcome | Declined)  # type: ignore[arg-type]
    except (BadMessage, FrameRefused):
        raise _mismatch(address, "something else", "no release that can be told") from None
    except TooLate:
        raise PeerUnreachable(address=address, problem="a process listens there, but does not answer") from None
    except EOFError as problem:
        raise ConnectionLost(address=address, operation="hello", problem=str(problem)) from None
    if answer.protocol != PROTOCOL:
        release = f"exop {clean(answer.exop[:_SHOWN])}" if answer.exop else "a release that does not tell its number"
        raise _mismatch(address, answer.protocol, release)
    if isinstance(answer, Declined):
        raise PeerRefused(address=address, problem=answer.problem)
    return answer


def _mismatch(address: str, theirs: object, release: str) -> ProtocolMismatch:
    return ProtocolMismatch(
        address=address, ours=PROTOCOL, theirs=theirs, release=release, our_release=f"exop {__version__}"
    )


def _exchange(channel: BoundedChannel, deadline: float) -> bytes:
    try:
        channel.send_greeting(pack(Hello()), deadline)
    except TooLate:
        raise
    except EOFError:
        # It may have declined before it read anything: then that is still to be read.
        pass
    return channel.receive_greeting(deadline)

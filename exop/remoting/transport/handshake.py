"""The first exchange on a connection: both sides compare their versions before any other message.

    peer       Hello(protocol, exop)
    platform   Welcome(protocol, exop, name, pid)  or  Declined(problem, protocol, exop)

The protocol number changes when an older side could misread a message; new operations and new fields do not change it.
"""

from __future__ import annotations

import logging

import msgspec

from exop import __version__
from exop.errors import ConnectionLost, PeerRefused, PeerUnreachable, ProtocolMismatch
from exop.remoting.transport.codec import BadMessage, decode_message, encode_message
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
    """The platform accepts the peer: the name and process of the platform."""

    name: str
    pid: int
    protocol: int = PROTOCOL
    exop: str = __version__


class Declined(msgspec.Struct, frozen=True, tag="declined"):
    """The platform declines the peer."""

    problem: str
    protocol: int = PROTOCOL
    exop: str = ""


class Refused(Exception):
    """The greeting of the peer is no handshake, or of another protocol."""


def accept(channel: BoundedChannel, welcome: Welcome, deadline: float) -> None:
    """The platform's side: receive the peer's greeting and accept it."""
    try:
        hello = decode_message(channel.receive_greeting(deadline), Hello)
    except BadMessage:
        raise Refused("no hello") from None
    if hello.protocol != PROTOCOL:
        channel.send_greeting(encode_message(Declined("another protocol", exop=__version__)), deadline)
        _log.warning(
            "a client of exop %s with protocol %d was declined; this platform is exop %s with protocol %d",
            *(clean(hello.exop[:_SHOWN]), hello.protocol, __version__, PROTOCOL),
        )
        raise Refused(f"protocol {hello.protocol}")
    channel.send_greeting(encode_message(welcome), deadline)


def greet(channel: BoundedChannel, address: str, deadline: float) -> Welcome:
    """The peer's side: greet the platform and be accepted."""
    try:
        answer = decode_message(_exchange(channel, deadline), Welcome | Declined)  # type: ignore[arg-type]
    except (BadMessage, FrameRefused):
        raise _mismatch(address, "something else", "no known release") from None
    except TooLate:
        raise PeerUnreachable(address=address, problem="a process listens there, but does not answer") from None
    except EOFError as problem:
        raise ConnectionLost(address=address, operation="hello", problem=str(problem)) from None
    if answer.protocol != PROTOCOL:
        release = f"exop {clean(answer.exop[:_SHOWN])}" if answer.exop else "an unknown release"
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
        channel.send_greeting(encode_message(Hello()), deadline)
    except TooLate:
        raise
    except EOFError:
        # It may have declined before it read anything; the answer can still be read then.
        pass
    return channel.receive_greeting(deadline)

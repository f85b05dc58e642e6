"""The messages between feeds and Spark's workers."""

import socket
import struct

import pytest
from exop_spark.feed import wire


@pytest.fixture
def ends():
    """Two connected sockets."""
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_a_message_arrives_as_it_was_sent(ends):
    """The header and the payload are unchanged, whatever bytes they contain."""
    left, right = ends
    wire.send(left, {"ask": "read", "end": 7}, b"\0\xff" * 1000)
    assert wire.receive(right) == ({"ask": "read", "end": 7}, bytearray(b"\0\xff" * 1000))


def test_a_refusal_is_raised_with_its_reason(ends):
    """The server's error is the message of the exception."""
    left, right = ends
    wire.send(right, {"error": "no such feed"})
    with pytest.raises(wire.WireError, match="no such feed"):
        wire.ask(left, {"ask": "read"})


def test_half_a_message_is_an_error(ends):
    """The connection was closed before its end."""
    left, right = ends
    left.sendall(struct.pack("!IQ", 10, 0) + b"{")
    left.close()
    with pytest.raises(wire.WireError, match="has closed the connection"):
        wire.receive(right)


@pytest.mark.parametrize("lengths", [(1 << 20, 0), (2, 5)])
def test_a_message_that_claims_too_much_is_refused_unread(ends, lengths):
    """Lengths are checked before anything is allocated for them."""
    left, right = ends
    left.sendall(struct.pack("!IQ", *lengths))
    with pytest.raises(wire.WireError, match="larger than those of a feed"):
        wire.receive(right, most=0)

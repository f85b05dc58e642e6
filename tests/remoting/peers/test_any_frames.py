"""Any frames on a data connection: they are taken, or end the connection with a reason, and break nothing."""

from __future__ import annotations

import socket
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from exop.remoting.peers import link as link_module
from exop.remoting.peers.data_frames import FLUSHER, HEAD, HEADER
from exop.remoting.peers.link import PeerLink
from tests.remoting.peers.ends import PATIENCE, QUICK, Inbox, Outbox

KEYS = ("app/c/a>b", "app/d/b>a", "app/e/a>b")
NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1))
VALUES = st.one_of(NUMBERS, st.sampled_from(KEYS), st.text(max_size=5), st.none(), st.binary(max_size=5))
MESSAGES = st.lists(VALUES, max_size=7).map(lambda found: b"\0" + msgspec.msgpack.encode([*found]))
TAGGED = st.tuples(st.integers(0, 6), st.lists(VALUES, max_size=6)).map(
    lambda found: b"\0" + msgspec.msgpack.encode([found[0], *found[1]])
)
ATTACHES = st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from(KEYS)).map(
    lambda found: b"\0" + msgspec.msgpack.encode([0, *found])
)
PARTS = st.builds(
    lambda kind, number, first, events, form, rest: HEAD.pack(kind, number, first, events, form, *rest[:2]) + rest[2],
    st.integers(0, 3),
    NUMBERS,
    NUMBERS,
    st.integers(0, 2**32 - 1),
    st.integers(0, 5),
    st.tuples(st.one_of(st.integers(0, 20), NUMBERS), st.one_of(st.integers(0, 20), NUMBERS), st.binary(max_size=20)),
)
FRAMES = st.one_of(ATTACHES, MESSAGES, TAGGED, PARTS, st.binary(max_size=60)).map(
    lambda body: HEADER.pack(len(body), 0) + body + FLUSHER
)
STREAM = st.lists(st.one_of(FRAMES, FRAMES, FRAMES, st.binary(max_size=20)), max_size=12).map(b"".join)


@settings(max_examples=100, deadline=None)
@given(STREAM)
def test_any_stream_of_frames(stream: bytes) -> None:
    """No thread of the link fails, the connection ends with its peer, and the link takes the next connection."""
    with patch.object(link_module._log, "exception") as failed:
        link = PeerLink("peer", limits=QUICK)
        outbox, inbox = Outbox(link, KEYS[1]), Inbox(link, KEYS[0])
        link.start()
        try:
            for sent in (stream, b""):
                theirs, ours = socket.socketpair()
                link.accept(theirs)
                with ours:
                    assert link.wait_until(connected=True, timeout=PATIENCE)
                    ours.settimeout(PATIENCE)
                    ours.sendall(sent)
                    ours.shutdown(socket.SHUT_WR)
                    while ours.recv(1 << 16):
                        pass
        finally:
            outbox.detach(), inbox.detach()
            link.close()
        failed.assert_not_called()

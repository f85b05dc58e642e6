"""Any frames on a data connection: they are taken, or end the connection with a reason, and break nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from exop.model.slets.ports import PortType
from exop.remoting.peers import link as link_module
from exop.remoting.peers.data_frames import DATA, FLUSHER, HEAD, HEADER
from exop.remoting.peers.link import PeerLink
from exop.runtime.channels import wire
from exop.runtime.channels.frame_body import SCALARS, BodyReader
from exop.runtime.channels.inbox import Inbox
from exop.runtime.channels.wire import COLUMNS, ITEMS, LIST, Frame
from tests.remoting.peers.ends import PATIENCE, QUICK, Outbox
from tests.runtime.rig import Log, joined

#: The credit of the inbox, and the items of a list that it takes; the least bytes of a body that it refuses.
CAPACITY, MOST, LARGE = 4, 16, 1 << 20
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
#: The connector of the inbox is attached, and gets frames with as many items as they say, or near to it; some are none.
ATTACHED = b"\0" + msgspec.msgpack.encode([0, 0, 1, KEYS[0]])
EVENTS = st.builds(
    lambda first, form, item, nulls, more, rest: (
        HEAD.pack(DATA, 0, first, nulls + more, form, 6 + nulls + rest, 0)
        + SCALARS
        + struct.pack(">BI", 0xDD, nulls)
        + item * nulls
    ),
    st.sampled_from([0, 0, 0, 1, 5]),
    st.sampled_from([ITEMS, ITEMS, LIST, COLUMNS]),
    st.sampled_from([b"\xc0", b"\xc0", b"\xc1", b"\x80"]),
    st.sampled_from([1, 3, CAPACITY + 1, MOST + 1, 300]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([0, 0, 0, 4 * LARGE]),
)
FRAMES = st.one_of(ATTACHES, MESSAGES, TAGGED, PARTS, st.binary(max_size=60)).map(
    lambda body: HEADER.pack(len(body), 0) + body + FLUSHER
)
SENT = st.one_of(FRAMES, FRAMES, FRAMES, st.binary(max_size=20))
STREAM = st.one_of(
    st.lists(SENT, max_size=12).map(b"".join),
    st.lists(EVENTS, min_size=1, max_size=8).map(
        lambda bodies: b"".join(HEADER.pack(len(body), 0) + body + FLUSHER for body in [ATTACHED, *bodies])
    ),
)


class Noted(Inbox):
    """An inbox, what it has decoded, and the reasons for which it has refused the body of a frame that it admits."""

    def typed(self, types: Any) -> None:
        """Note the frames that are decoded."""
        super().typed(types)
        read, self.decoded, self.stopped = self._read, list[Frame](), list[str]()
        self._read = lambda frame, *more: (self.decoded.append(frame), read(frame, *more))[1]

    def received(self, frame: Frame) -> None:
        """Note what stops the inbox."""
        before = len(self.decoded)
        try:
            super().received(frame)
        except ValueError as problem:
            self.stopped += [str(problem)] if len(self.decoded) > before else []
            raise


def any_stream(stream: bytes) -> None:
    """No thread of the link fails, the connection ends with its peer, and the link takes the next connection.

    What is beyond the credit or a bound is neither decoded nor awaited; what cannot be decoded stops no inbox.
    """
    bounds = {"MOST_ITEMS": MOST, "MOST_ROWS": MOST, "MOST_OF_EVENT": LARGE - 1, "MOST_BYTES": LARGE // 2 - 1}
    with patch.object(link_module._log, "exception") as failed, patch.multiple(wire, **bounds):
        link = PeerLink("peer", limits=QUICK)
        outbox, inbox = Outbox(link, KEYS[1]), Noted("in", peer="peer", key=KEYS[0], epoch=1, capacity=CAPACITY)
        inbox.typed([PortType()])
        joined(inbox, Log())
        inbox.progress()
        detach = inbox._attached_to(link)
        link.start()
        awaited = []
        try:
            for sent in (stream, b""):
                theirs, ours = socket.socketpair()
                link.accept(theirs)
                with ours:
                    assert link.wait_until(connected=True, timeout=PATIENCE)
                    connection = link._connection
                    ours.settimeout(PATIENCE)
                    ours.sendall(sent)
                    ours.shutdown(socket.SHUT_WR)
                    while ours.recv(1 << 16):
                        pass
                    parts = getattr(connection, "_partial", {}).items()
                    awaited += [one for (kind, _), one in parts if kind == DATA and one.most is None]
        finally:
            outbox.detach(), detach()
            link.close()
        failed.assert_not_called()
    assert inbox.stopped == [], "a body that cannot be decoded stops the inbox"
    for frame in inbox.decoded:
        assert frame.first < CAPACITY, "the first event is beyond the credit"
        assert frame.events <= (MOST if frame.form in (LIST, COLUMNS) else CAPACITY), "more than the bounds permit"
    assert all(one.total < LARGE for one in awaited), "a body beyond the bounds is awaited"


def all_streams(examples: int) -> None:
    """Try so many streams, the same every time."""
    search = settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate])
    search(given(STREAM)(any_stream))()


def test_any_stream_of_frames() -> None:
    """The link and its inbox stand any of them."""
    all_streams(100)


def received_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body is received before its header is compared with the credit and the bounds."""
    monkeypatch.setattr(Inbox, "admit", lambda self, header: None)


def decoded_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body is decoded without a look at its header."""
    monkeypatch.setattr(Inbox, "admit", lambda self, header: True)


def decoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that cannot be decoded is refused like a header that is wrong."""
    monkeypatch.setattr(BodyReader, "read_each", lambda self, frame, failed: self.read(frame))


@pytest.mark.parametrize("plant", [received_unchecked, decoded_unchecked, decoded_whole])
def test_a_planted_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """One of the streams shows it."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        all_streams(60)

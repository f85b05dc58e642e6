"""The link to a peer: attaching, epochs, resumption, large bodies and byte strings."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from exop.errors import ConnectionLost
from exop.remoting.peers.link import PeerLink
from exop.runtime.channels.wire import COLUMNS
from tests.remoting.peers.ends import PATIENCE, QUICK, Inbox, Outbox, Pair, dialling
from tests.rig import eventually

KIB = 1024


@pytest.mark.parametrize("first", ["outbox", "inbox"])
def test_events_arrive_in_order_whichever_end_is_attached_first(first: str) -> None:
    """Events are delivered once and in order, and are dropped by the outbox when they are acknowledged."""
    with Pair() as pair:
        if first == "outbox":
            outbox = Outbox(pair.a)
            outbox.wait(lambda: outbox.reasons)
            inbox = Inbox(pair.b)
        else:
            inbox = Inbox(pair.b)
            outbox = Outbox(pair.a)
        bodies = [b"%d" % number for number in range(1000)]
        for body in bodies:
            outbox.post(body)
        inbox.wait(lambda: len(inbox.bodies) == 1000)
        outbox.wait(lambda: not outbox.kept)
        assert inbox.bodies == bodies
        assert inbox.doubled == 0


def test_both_directions_and_several_connectors_share_the_connection() -> None:
    """Each connector has its own numbers, credit and order, in both directions."""
    with Pair() as pair:
        ends = []
        for number in range(5):
            for source, target in ((pair.a, pair.b), (pair.b, pair.a)):
                key = f"app/c{number}/{target.peer}>{source.peer}"
                ends.append((Outbox(source, key), Inbox(target, key)))
        for at in range(200):
            for outbox, _ in ends:
                outbox.post(b"%d of %b" % (at, outbox.key.encode()))
        for outbox, inbox in ends:
            inbox.wait(lambda inbox=inbox: len(inbox.bodies) == 200)
            assert inbox.bodies == [b"%d of %b" % (at, outbox.key.encode()) for at in range(200)]


@pytest.mark.parametrize("buffers", [1, 3, 2000])
@pytest.mark.parametrize("size", [0, 1, 255 * KIB, 1280 * KIB, 1280 * KIB + 1, 9000 * KIB + 17])
def test_bodies_of_any_size_arrive_whole(size: int, buffers: int) -> None:
    """A body in one buffer or many, above or below the size of a part, arrives as it was."""
    body = os.urandom(size)
    step = max(1, size // buffers)
    pieces = [memoryview(body)[at : at + step] for at in range(0, size, step)]
    with Pair() as pair:
        inbox, outbox = Inbox(pair.b), Outbox(pair.a, form=COLUMNS)
        outbox.post(pieces, b"after", pieces)
        inbox.wait(lambda: len(inbox.bodies) == 3)
        assert inbox.bodies == [body, b"after", body]
        assert inbox.forms == {COLUMNS}


def test_other_connectors_pass_a_large_body() -> None:
    """Events that are pushed while a body of 64 MiB is under way arrive before its end."""
    passed = []
    with Pair() as pair:
        large, small = Outbox(pair.a, "large"), Outbox(pair.a, "small")
        into_large, into_small = Inbox(pair.b, "large"), Inbox(pair.b, "small", window=200)
        into_large.on_event = lambda: passed.append(len(into_small.bodies))
        for outbox in (small, large):
            outbox.wait(lambda outbox=outbox: outbox.resumptions)
        pair.proxy.reads.clear()
        large.post(bytes(64 * KIB * KIB))
        small.post(*[b"%d" % number for number in range(100)])
        pair.proxy.reads.set()
        into_large.wait(lambda: into_large.bodies)
        assert passed == [100]


def test_a_report_that_permits_no_waiting_event_does_not_wake_the_sender() -> None:
    """The outbox is asked for frames after the first report, and once per push."""
    with Pair() as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b)
        outbox.wait(lambda: outbox.asked == 1)
        for number in range(1, 4):
            outbox.post(b"event")
            outbox.wait(lambda number=number: outbox.credit == inbox.window + number)
        assert outbox.asked == 4


def test_another_epoch_is_refused_until_both_ends_have_the_same() -> None:
    """A connector of another epoch is refused with the reason, and nothing is delivered; the same epoch is resumed."""
    with Pair() as pair:
        inbox, outbox = Inbox(pair.b, epoch=2), Outbox(pair.a, epoch=1)
        outbox.post(b"old")
        outbox.wait(lambda: outbox.reasons)
        assert outbox.reasons == ["the connector has the epoch 2, not 1"]
        outbox.detach()
        successor = Outbox(pair.a, epoch=2)
        successor.post(b"new")
        inbox.wait(lambda: inbox.bodies)
        assert inbox.bodies == [b"new"]
        assert not outbox.resumptions


def test_an_inbox_that_is_replaced_under_load_gets_every_event_from_its_next_one() -> None:
    """Frames for the previous inbox never reach its successor; the outbox is resumed where the successor continues."""
    with Pair() as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b, window=4)
        bodies = [b"%d" % number for number in range(300)]
        for number, body in enumerate(bodies):
            outbox.post(body)
            if number % 50 == 49:
                inbox.wait(lambda inbox=inbox, number=number: len(inbox.bodies) > number - 20)
                inbox.detach()
                inbox = Inbox(pair.b, window=4, bodies=inbox.bodies)
        inbox.wait(lambda: len(inbox.bodies) == 300)
        assert inbox.bodies == bodies
        assert len(outbox.resumptions) > 1


def test_a_detached_outbox_is_reported_to_the_inbox() -> None:
    """The inbox is disconnected when the outbox is detached, and resumed by its successor."""
    with Pair() as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b)
        outbox.wait(lambda: outbox.resumptions)
        outbox.detach()
        inbox.wait(lambda: inbox.reasons)
        assert inbox.reasons == ["the peer has detached the connector"]
        successor = Outbox(pair.a)
        successor.wait(lambda: successor.resumptions)


def test_a_frame_that_the_inbox_cannot_decode_stops_its_connector_only() -> None:
    """A refused frame ends the use of its connector with the reason at both ends; the others go on."""
    with Pair() as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b)
        other, into_other = Outbox(pair.a, "other"), Inbox(pair.b, "other")
        inbox.failure = ValueError("no item of the type int")
        outbox.post(b"bad")
        outbox.wait(lambda: "no item of the type int" in outbox.reasons)
        inbox.wait(lambda: inbox.reasons == ["no item of the type int"])
        other.post(b"good")
        into_other.wait(lambda: into_other.bodies)
        assert pair.proxy.dials == 1
        assert (other.reasons, into_other.reasons) == ([], [])


@pytest.mark.parametrize(("direction", "side"), [("read", 0), ("write", 1)])
def test_a_connector_that_the_policy_does_not_permit_is_refused(direction: str, side: int) -> None:
    """The sending platform asks for `read`, the receiving one for `write`; a refusal reaches the outbox."""
    asked = []

    def may(wanted: str, key: str) -> bool:
        asked.append((wanted, key))
        return wanted != direction

    with Pair(may=may) as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b)
        outbox.post(b"secret")
        outbox.wait(lambda: outbox.reasons)
        assert outbox.reasons == ["the policy of the platform does not permit it"]
        assert not inbox.bodies
        assert not outbox.resumptions
        assert (direction, "app/c/a>b") in asked


def test_byte_strings_travel_beside_events() -> None:
    """A byte string of several megabytes is taken by its number at the peer; events pass it."""
    data = os.urandom(5 * KIB * KIB)
    with Pair() as pair:
        assert all(link.wait_until(connected=True, timeout=PATIENCE) for link in (pair.a, pair.b))
        outbox, inbox = Outbox(pair.a), Inbox(pair.b)
        sender = threading.Thread(target=pair.a.send_bytes, args=(7, data))
        sender.start()
        outbox.post(b"event")
        assert bytes(pair.b.take_bytes(7, PATIENCE)) == data
        sender.join()
        inbox.wait(lambda: inbox.bodies)


def test_byte_strings_are_lost_with_the_connection() -> None:
    """Without a connection, sending and taking raise ConnectionLost."""
    link = PeerLink("b")
    with pytest.raises(ConnectionLost):
        link.send_bytes(1, b"x")
    with pytest.raises(ConnectionLost):
        link.take_bytes(1, PATIENCE)


def test_each_connection_and_loss_is_told() -> None:
    """The state of the link is told after every change, with the reason of a loss."""
    seen = []

    def changed(link: PeerLink) -> None:
        if link.peer == "b":
            seen.append((link.connected, link.reason))

    with Pair(changed=changed) as pair:
        assert pair.a.wait_until(connected=True, timeout=PATIENCE)
        pair.proxy.cut()
        outbox = Outbox(pair.a)
        inbox = Inbox(pair.b)
        outbox.post(b"x")
        inbox.wait(lambda: inbox.bodies)
    assert [state for state, _ in seen] == [True, False] * (len(seen) // 2)
    assert len(seen) >= 4
    assert seen[-1][1] == "the platform has closed the link"


def test_a_link_that_is_closed_leaves_no_thread_and_no_socket() -> None:
    """After `close`, the threads have ended and the peer has seen the end of the connection."""
    ours, theirs = socket.socketpair()
    link = dialling("b", lambda: ours, limits=QUICK)
    link.start()
    assert link.wait_until(connected=True, timeout=PATIENCE)
    link.close()
    assert not [one.name for one in threading.enumerate() if one.name.startswith("exop-data")]
    assert ours.fileno() == -1
    with theirs:
        while theirs.recv(1000):
            continue


def test_a_byte_string_is_not_waited_for_on_the_next_connection() -> None:
    """What was lost with a connection does not come: the receiver learns it, however soon the peer is there again."""
    with Pair() as pair:
        assert all(link.wait_until(connected=True, timeout=PATIENCE) for link in (pair.a, pair.b))
        with ThreadPoolExecutor(1) as pool:
            taken, before = pool.submit(pair.b.take_bytes, 1, PATIENCE), pair.b._connection
            eventually(lambda: pair.b._news._waiters, "it waits")
            with pair.b._news:
                pair.b._connection = Mock()
                pair.b._news.notify_all()
            with pytest.raises(ConnectionLost):
                taken.result(PATIENCE)
            pair.b._connection = before

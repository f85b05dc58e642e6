"""Faults of the network and of peers, each by its event: nothing is lost or doubled, and memory stays bounded."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from exop.errors import CallTimeout
from exop.remoting.peers.data import _TlsSocket
from exop.remoting.peers.data_frames import (
    BYTES,
    DATA,
    HEAD,
    MESSAGE,
    Attach,
    DataLimits,
    Ping,
    Pong,
    Refused,
    Report,
    pack_message,
)
from exop.remoting.peers.link import PeerLink
from exop.runtime.channels.wire import COLUMNS
from tests.remoting.peers.ends import PATIENCE, QUICK, Clock, Inbox, Outbox, Pair, dialling
from tests.rig import eventually

KIB = 1024


@pytest.mark.parametrize("seed", range(6))
def test_the_connection_is_cut_again_and_again_within_frames(seed: int) -> None:
    """Whatever the byte after which a connection ends, each event arrives once and in order, in both directions."""
    chance = random.Random(seed)
    sizes = [1, 100, 5000, 70_000, 1_400_000]
    bodies = [chance.randbytes(chance.choice(sizes)) for _ in range(120)]
    with Pair() as pair:
        # Enough for a body of each connector: every connection makes progress.
        pair.proxy.cut_after = lambda: chance.randrange(5_000_000, 8_000_000)
        pair.proxy.cut()
        ends = [
            (Outbox(one, f"c{at}", form=COLUMNS), Inbox(other, f"c{at}"))
            for at, (one, other) in enumerate([(pair.a, pair.b), (pair.b, pair.a), (pair.a, pair.b)])
        ]
        for body in bodies:
            for outbox, _ in ends:
                outbox.post(body)
        for at, (_, inbox) in enumerate(ends):
            inbox.wait(lambda inbox=inbox: len(inbox.bodies) == len(bodies))
            assert inbox.bodies == bodies, at
        assert pair.proxy.dials > 3


@pytest.mark.parametrize(
    "lost", [(True, True), (True, False), (False, True)], ids=["half-open", "one way", "other way"]
)
def test_bytes_are_lost_without_an_end_of_the_connection(lost: tuple[bool, bool]) -> None:
    """The side that hears nothing for 8 s ends the connection, the other one sees the end; then all is resumed."""
    clocks = Clock(), Clock()
    with Pair(clocks) as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b)
        outbox.post(b"before")
        inbox.wait(lambda: len(inbox.bodies) == 1)
        pair.proxy.carries = [not one for one in lost]
        outbox.post(b"lost at first")
        deaf = [clock for clock, nothing in zip(clocks, reversed(lost), strict=True) if nothing]
        outbox.wait_while_time_passes(lambda: outbox.reasons, *deaf)
        inbox.wait(lambda: inbox.reasons)
        assert "nothing has been received for 8 s" in outbox.reasons + inbox.reasons
        pair.proxy.carries = [True, True]
        pair.proxy.cut()  # connections that were made meanwhile
        inbox.wait(lambda: len(inbox.bodies) == 2)
        assert inbox.bodies == [b"before", b"lost at first"]
        assert inbox.doubled == 0


def test_an_idle_connection_is_kept_by_heartbeats() -> None:
    """While time passes without events, both sides answer heartbeats, and measure the round trip."""
    clocks = Clock(), Clock()
    with Pair(clocks) as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b)
        outbox.wait(lambda: outbox.resumptions)
        heard = [Heartbeats(link) for link in (pair.a, pair.b)]
        for _ in range(20):
            for clock in clocks:
                clock.now += 2.0
            for one in heard:
                one.wait_for_another()
        assert pair.proxy.dials == 1
        assert not outbox.reasons
        assert pair.a.round_trip is not None
        outbox.post(b"x")
        inbox.wait(lambda: inbox.bodies)


class Heartbeats:
    """Waits for the answers to the heartbeats of a link."""

    def __init__(self, link: PeerLink) -> None:
        self._answered = threading.Semaphore(0)
        connection = link._connection
        assert connection is not None
        handle = connection._message

        def message(frame: memoryview) -> None:
            before = connection.round_trip = None
            handle(frame)
            if connection.round_trip is not before:
                self._answered.release()

        connection._message = message  # type: ignore[method-assign]

    def wait_for_another(self) -> None:
        """Wait for one more answer."""
        assert self._answered.acquire(timeout=PATIENCE)


def test_a_peer_that_reads_slowly_holds_the_sender_back() -> None:
    """Events are taken from the outbox only within the credit; all arrive when the peer reads again."""
    with Pair() as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b, window=8)
        outbox.wait(lambda: outbox.resumptions)
        pair.proxy.reads.clear()
        bodies = [os.urandom(100 * KIB) for _ in range(200)]
        outbox.post(*bodies)
        other, into_other = Outbox(pair.b, "back"), Inbox(pair.a, "back")
        assert outbox.at is not None
        assert outbox.at <= 8 + len(inbox.bodies)
        pair.proxy.reads.set()
        other.post(b"back")
        into_other.wait(lambda: into_other.bodies)
        inbox.wait(lambda: len(inbox.bodies) == 200)
        assert inbox.bodies == bodies
        assert pair.proxy.dials == 1


def test_a_peer_that_never_reads_is_given_up() -> None:
    """A connection on which nothing can be sent for 8 s ends, although the peer still sends."""
    clock = Clock()
    ours, theirs = socket.socketpair()
    link = dialling("b", lambda: ours, limits=QUICK, clock=clock)
    with theirs:
        outbox = Outbox(link)
        link.start()
        outbox.post(bytes(64 * KIB * KIB))
        theirs.sendall(pack_message(Report(0, "x", 0, 0, 1)))
        outbox.wait(lambda: outbox.at == 1)
        stopped = threading.Event()

        def send() -> None:
            with contextlib.suppress(OSError):
                while not stopped.wait(0.01):
                    theirs.sendall(pack_message(Report(0, "x", 0, 0, 1)))

        sending = threading.Thread(target=send)
        sending.start()
        outbox.wait_while_time_passes(lambda: outbox.reasons, clock)
        stopped.set()
        sending.join()
        assert outbox.reasons[0] == "the peer has read nothing for 8 s"
        link.close()


def test_the_peer_cannot_be_reached_for_a_while() -> None:
    """The link dials with longer and longer pauses, and resumes when the peer answers."""
    with Pair() as pair:
        outbox, inbox = Outbox(pair.a), Inbox(pair.b)
        outbox.wait(lambda: outbox.resumptions)
        pair.proxy.refuses = True
        pair.proxy.cut()
        outbox.wait(lambda: outbox.reasons)
        before = pair.proxy.dials
        pair.proxy.wait(lambda: pair.proxy.dials > before + 3)
        outbox.post(b"x")
        pair.proxy.refuses = False
        inbox.wait(lambda: inbox.bodies == [b"x"])


def part(kind: int, number: int, total: int, offset: int, body: bytes, form: int = COLUMNS, first: int = 0) -> bytes:
    """A frame with a part of a body."""
    head = HEAD.pack(kind, number, first, 1, form, total, offset)
    return struct.pack("!LB", len(head) + len(body), 0) + head + body + b"\n"


ATTACH = pack_message(Attach(0, 1, "app/c/a>b"))
GARBAGE = {
    "random bytes": (os.urandom(4096).replace(b"\n", b"x"), ""),
    "a giant frame": (struct.pack("!LB", 1 << 31, 0) + bytes(100), "a frame of 2147483648 bytes"),
    "a compressed frame": (struct.pack("!LB", 10, 1) + bytes(11), "compressed frames are not accepted"),
    "an empty frame": (struct.pack("!LB", 0, 0) + b"\n", "a frame of 0 bytes"),
    "another end": (struct.pack("!LB", 3, 0) + b"\0\0\0x", "the frame does not end where it says"),
    "an unknown kind": (struct.pack("!LB", 2, 0) + b"\x09\0\n", "a frame of kind 9"),
    "a message of no type": (struct.pack("!LB", 3, 0) + bytes([MESSAGE]) + b"\x91\x63\n", "a message that cannot be"),
    "a deep message": (
        struct.pack("!LB", 3001, 0) + bytes([MESSAGE]) + b"\x91" * 3000 + b"\n",
        "a message that cannot",
    ),
    "events that are not attached": (part(DATA, 7, 3, 0, b"abc"), "events of the connector 7, which is not attached"),
    "events of a refused connector": (
        pack_message(Attach(0, 1, "unknown")) + part(DATA, 0, 3, 0, b"abc"),
        "events of the connector 0, which is not attached",
    ),
    "a number used twice": (ATTACH + ATTACH, "the number 0 has been used for a connector before"),
    "a report on nothing": (pack_message(Report(3, "x", 0, 0, 1)), "a message about the connector 3"),
    "a body that is too large": (ATTACH + part(DATA, 0, 1 << 40, 0, b"abc"), "a body of 1099511627776 bytes"),
    "a part that does not follow": (ATTACH + part(DATA, 0, 9, 3, b"abc"), "a body of 9 bytes from byte 3"),
    "a part twice": (ATTACH + 2 * part(DATA, 0, 9, 0, b"abc"), "that does not follow the one before"),
    "a part beyond the end": (ATTACH + part(DATA, 0, 4, 0, b"abc") + part(DATA, 0, 4, 3, b"abc"), "a part that ends"),
    "an empty part": (ATTACH + part(DATA, 0, 4, 0, b""), "a part of 0 bytes"),
    "an unknown form": (ATTACH + part(DATA, 0, 3, 0, b"abc", form=9), "events of the form 9"),
    "bytes that are not permitted": (part(BYTES, 0, 3, 0, b"abc"), "the policy of the platform does not permit it"),
}


@pytest.mark.parametrize(("sent", "reason"), GARBAGE.values(), ids=GARBAGE)
def test_a_peer_sends_garbage(sent: bytes, reason: str) -> None:
    """Anything malformed ends the connection with the reason; nothing is delivered, and the next connection works."""
    ours, theirs = socket.socketpair()
    link = PeerLink("b", limits=QUICK, may=lambda direction, key: direction != "operate")
    link.start()
    inbox = Inbox(link)
    try:
        with theirs:
            link.accept(ours)
            theirs.sendall(sent)
            inbox.wait(lambda: inbox.reasons)
            assert reason in inbox.reasons[0]
        again, other = socket.socketpair()
        with other:
            link.accept(again)
            other.sendall(ATTACH + part(DATA, 0, 3, 0, b"abc"))
            inbox.wait(lambda: inbox.bodies == [b"abc"])
    finally:
        link.close()


def test_a_peer_resets_the_connection() -> None:
    """The reason is in words, without the number of the kernel."""
    ours, theirs = socket.socketpair()
    link = PeerLink("b", limits=QUICK)
    link.start()
    outbox = Outbox(link)
    try:
        link.accept(ours)
        theirs.recv(1)  # the rest is not read, so the end is an error at the other side
        theirs.close()
        outbox.wait(lambda: outbox.reasons)
        assert outbox.reasons[0].startswith("the connection was lost (")
        assert "Errno" not in outbox.reasons[0]
    finally:
        link.close()


@pytest.mark.parametrize("begun", [b"\0", part(DATA, 0, 10, 0, b"abc")[:-2]], ids=["half a header", "half a frame"])
def test_a_peer_sends_half_a_frame(begun: bytes) -> None:
    """A frame that is not complete after 8 s ends the connection."""
    clock = Clock()
    ours, theirs = socket.socketpair()
    link = PeerLink("b", limits=QUICK, clock=clock)
    link.start()
    inbox = Inbox(link)
    try:
        with theirs:
            link.accept(ours)
            theirs.sendall(ATTACH + begun)
            inbox.wait_while_time_passes(lambda: inbox.reasons, clock)
            assert inbox.reasons[0] in ("a frame was not complete after 8 s", "nothing has been received for 8 s")
    finally:
        link.close()


def test_a_restarted_peer_learns_the_progress_of_an_idle_inbox() -> None:
    """The new outbox has the number of the former one, and the inbox has nothing new to report: it reports again."""
    with Pair() as pair:
        inbox, outbox = Inbox(pair.b), Outbox(pair.a)
        outbox.post(b"x")
        inbox.wait(lambda: inbox.bodies == [b"x"])
        outbox.wait(lambda: not outbox.kept)
        pair.a.close()
        pair.a = dialling("b", pair.proxy.dial, limits=QUICK)
        pair.proxy.links = pair.a, pair.b
        again = Outbox(pair.a)
        pair.a.start()
        again.wait(lambda: again.resumptions)
        assert again.resumptions[0].next == 1


def test_offers_arrive_in_another_order_than_they_are_numbered() -> None:
    """Outboxes that are attached at the same time may pass each other; an older offer of the same outbox is dropped."""
    ours, theirs = socket.socketpair()
    link = PeerLink("b", limits=QUICK)
    link.start()
    first, second = Inbox(link, "first"), Inbox(link, "second")
    with theirs:
        link.accept(ours)
        for number, key in ((5, "first"), (3, "second"), (2, "first")):
            theirs.sendall(pack_message(Attach(number, 1, key)))
        for number in (5, 3):
            theirs.sendall(part(DATA, number, 3, 0, b"abc"))
        for inbox in (first, second):
            inbox.wait(lambda inbox=inbox: inbox.bodies == [b"abc"])
        assert link.connected
    link.close()


def test_a_peer_attaches_too_many_connectors() -> None:
    """The connectors of a peer are bounded."""
    ours, theirs = socket.socketpair()
    link = PeerLink("b", limits=DataLimits(connectors=5, tick=0.02))
    link.start()
    inbox = Inbox(link)
    with theirs:
        link.accept(ours)
        for number in range(6):
            theirs.sendall(pack_message(Attach(number, 1, f"c{number}")))
        inbox.wait(lambda: inbox.reasons)
        assert "more than 5 connectors" in inbox.reasons[0]
    link.close()


def test_a_peer_sends_byte_strings_that_are_not_taken() -> None:
    """The byte strings that wait to be taken are bounded."""
    with Pair(limits=DataLimits(stored=3000, tick=0.02, first_pause=0.01, longest_pause=0.05)) as pair:
        assert pair.a.wait_until(connected=True, timeout=PATIENCE)
        inbox = Inbox(pair.b)
        for number in range(4):
            with contextlib.suppress(Exception):
                pair.a.send_bytes(number, bytes(1000))
        inbox.wait(lambda: inbox.reasons)
        assert inbox.reasons[0] == "too many byte strings that have not been taken"


def secured(folder: Path) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Two ends of a TLS connection."""
    authority = pytest.importorskip("exop.remoting.authority")
    identity = pytest.importorskip("exop.remoting.identity")
    authority.create_authority(folder / "certs")
    one, other = (identity.Identity(authority.issue(folder / "certs", name)) for name in ("a", "b"))
    ours, theirs = socket.socketpair()
    found: list[ssl.SSLSocket] = []
    server = threading.Thread(target=lambda: found.append(other.files().server.wrap_socket(theirs, server_side=True)))
    server.start()
    mine = one.files().client.wrap_socket(ours)
    server.join()
    return mine, found[0]


def test_events_over_tls_in_both_directions_at_once(tmp_path: Path) -> None:
    """Two threads share the state of a TLS connection; bodies of any size arrive whole in both directions."""
    bodies = [os.urandom(size) for size in (1, 20_000, 3_000_000, 10, 700_000)]
    mine, theirs = secured(tmp_path)
    still: dict[str, Any] = {"limits": QUICK, "clock": Clock()}  # no heartbeat is late: these sockets are used once
    a, b = dialling("b", lambda: mine, **still), dialling("a", lambda: theirs, **still)
    pairs = [(Outbox(x, x.peer, form=COLUMNS), Inbox(y, x.peer)) for x, y in ((a, b), (b, a))]
    for link in (a, b):
        link.start()
    for _ in range(20):
        for outbox, _inbox in pairs:
            outbox.post(*bodies)
    for _, inbox in pairs:
        inbox.wait(lambda inbox=inbox: len(inbox.bodies) == 20 * len(bodies))
        assert inbox.bodies == 20 * bodies
    for link in (a, b):
        link.close()


def test_a_socket_that_is_closed_before_it_is_used(tmp_path: Path) -> None:
    """It counts as a connection that has failed, and the next one is used."""
    closed, rest = secured(tmp_path)
    closed.close()
    rest.close()
    link = PeerLink("b", limits=QUICK)
    link.start()
    link.accept(closed)
    eventually(lambda: "Bad file descriptor" in link.reason, "the failure")
    ours, theirs = socket.socketpair()
    link.accept(ours)
    assert link.wait_until(True, PATIENCE)
    link.close()
    theirs.close()


class Raw:
    """The peer of a link, as the messages that it sends and gets."""

    def __init__(self, **options: Any) -> None:
        self.link = PeerLink("b", limits=QUICK, **options)
        self.link.start()
        ours, self.sock = socket.socketpair()
        self.sock.settimeout(PATIENCE)
        self.link.accept(ours)
        self._got = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self.link.close()
        self.sock.close()

    def send(self, *given: bytes) -> None:
        """Send; everything has been processed at the end."""
        self.sock.sendall(b"".join((*given, pack_message(Ping(len(self._got))))))
        self.expect(pack_message(Pong(len(self._got))))

    def expect(self, message: bytes) -> None:
        """Receive until the message has come."""
        while message not in self._got:
            data = self.sock.recv(1 << 16)
            assert data, "the connection has ended"
            self._got += data


def test_an_inbox_that_is_attached_again_waits_for_the_next_offer() -> None:
    """Events that came while there was no inbox are lost: those after them under the same number are not for it."""
    with Raw() as peer:
        first = Inbox(peer.link)
        peer.send(ATTACH, part(DATA, 0, 1, 0, b"a"))
        assert first.bodies == [b"a"]
        first.detach()
        peer.send(part(DATA, 0, 1, 0, b"b", first=1))
        again = Inbox(peer.link, bodies=first.bodies)
        peer.send(part(DATA, 0, 1, 0, b"c", first=2))
        peer.send(pack_message(Attach(1, 1, again.key)), part(DATA, 1, 1, 0, b"b", first=1))
        assert again.bodies == [b"a", b"b"]


def test_an_outbox_is_offered_again_if_the_inbox_was_detached_before_its_first_report() -> None:
    """The peer has forgotten the offer, and binds the next one when the inbox is attached again."""
    with Raw() as peer:
        outbox = Outbox(peer.link)
        peer.expect(ATTACH)
        peer.sock.sendall(pack_message(Refused(0, "the connector has been detached")))
        peer.expect(pack_message(Attach(1, 1, outbox.key)))
        peer.sock.sendall(pack_message(Refused(1, "no such connector is attached")))
        peer.send(pack_message(Report(1, "x", 0, 0, 1)))
        assert outbox.resumptions


def test_a_peer_without_a_role_hands_over_what_is_expected() -> None:
    """What arrives after the end of a plan is dropped; other byte strings end the connection."""
    with Raw(may=lambda direction, key: direction != "operate") as peer:
        peer.link.expect_bytes(range(10, 20))
        peer.send(part(BYTES, 10, 1, 0, b"a", form=0), part(BYTES, 11, 1, 0, b"b", form=0))
        assert peer.link.take_bytes(10, PATIENCE) == b"a"
        peer.link.drop_bytes(range(10, 20))
        peer.send(part(BYTES, 12, 1, 0, b"c", form=0))
        for number in (11, 12):
            with pytest.raises(CallTimeout):
                peer.link.take_bytes(number, 0.0)
        with pytest.raises(AssertionError, match="the connection has ended"):
            peer.send(part(BYTES, 20, 1, 0, b"d", form=0))


def test_a_link_tells_what_has_come_of_a_byte_string() -> None:
    """A large one may come slowly, which is no reason to give it up."""
    with Raw() as peer:
        peer.send(part(BYTES, 10, 4, 0, b"ab", form=0))
        assert peer.link.receiving(10) == 2
        peer.send(part(BYTES, 10, 4, 2, b"cd", form=0))
        assert peer.link.receiving(10) == 0
        assert peer.link.take_bytes(10, PATIENCE) == b"abcd"


def test_tls_tells_what_a_slow_peer_has_taken(tmp_path: Path) -> None:
    """A part of a large body counts as progress: the connection of a slow network is not given up."""
    mine, theirs = secured(tmp_path)
    with mine, theirs:
        assert _TlsSocket(mine, 0.01).send([bytes(KIB), bytes(4 * KIB * KIB)]) > KIB


def test_a_large_frame_takes_as_long_as_the_network_needs() -> None:
    """The time of a frame begins again with each 64 KiB of it."""
    clock, body = Clock(), bytes(256 * KIB)
    with Raw(clock=clock) as peer:
        inbox = Inbox(peer.link)
        peer.send(ATTACH)
        frame = part(DATA, 0, len(body), 0, body)
        for at in range(0, len(frame), 64 * KIB):
            clock.now += 5.0
            peer.sock.sendall(frame[at : at + 64 * KIB])
            heard = peer.link._connection
            eventually(lambda heard=heard: heard._begun in (None, clock.now), "progress")
        inbox.wait(lambda: inbox.bodies == [body])

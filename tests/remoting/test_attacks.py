"""What a hostile peer tries on the control connection: each fails, costs little, and disturbs nobody else.

The platform runs in a process of its own with deadlines of half a second, so that its memory can be watched. After each
attack a well-behaved client gets its answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import msgpack
import pytest
from rpyc.core import brine, consts
from rpyc.core.channel import Channel
from rpyc.core.service import VoidService
from rpyc.core.stream import SocketStream

from exop.errors import ExopError
from exop.remoting import ControlClient
from tests.remoting.target import HEADER, SHORT, RawPeer, Target, wait_until

FRAME = 4 * 1024 * 1024
#: MiB: eight operations at a time, each with a reply of 4 MB in up to four copies, and what is being sent.
GROWTH = 160.0
"""MiB that an attack may cost for a moment: the budgets of 16 MiB, copied a few times."""


@pytest.fixture(autouse=True)
def unharmed(target: Target) -> Iterator[None]:
    """After each attack: memory bounded, connections gone, a good client gets its answer."""
    assert target.asks()
    before = target.forget_peak()
    yield
    assert target.asks()
    grown = target.peak() - before
    assert grown < GROWTH
    assert target.process.poll() is None


def is_refused(target: Target, attack: Callable[[RawPeer], object]) -> bool:
    """Whether the platform hangs up on a peer that has greeted and then attacks."""
    with RawPeer(target.path) as peer:
        attack(peer)
        return peer.ended()


RPYC_REQUESTS: dict[str, tuple[int, tuple[object, ...]]] = {
    "a string times a billion": (consts.HANDLE_CALLATTR, ("A", "__mul__", (10**9,), ())),
    "a format of a gigabyte": (consts.HANDLE_CALLATTR, ("x", "__format__", (">1000000000",), ())),
    "a power that holds the interpreter": (consts.HANDLE_CALLATTR, (7, "__pow__", (6_000_000,), ())),
    "the root object": (consts.HANDLE_GETROOT, ()),
    "an attribute": (consts.HANDLE_GETATTR, ("x", "__class__")),
    "setting an attribute": (consts.HANDLE_SETATTR, ("x", "y", 1)),
    "deleting an attribute": (consts.HANDLE_DELATTR, ("x", "y")),
    "a call": (consts.HANDLE_CALL, ("x", (), ())),
    "the names of an object": (consts.HANDLE_DIR, ("x",)),
    "the text of an object": (consts.HANDLE_REPR, ("x",)),
    "the methods of a class": (consts.HANDLE_INSPECT, (("builtins.str", 1, 0),)),
    "a pickle": (consts.HANDLE_PICKLE, ("x", 2)),
    "an iterator": (consts.HANDLE_BUFFITER, ("x", 1000)),
    "a comparison": (consts.HANDLE_CMP, ("x", "y", "__lt__")),
    "a release of references": (consts.HANDLE_DEL, ("x", 100)),
    "a ping with a large echo": (consts.HANDLE_PING, ("x" * 3_000_000,)),
    "the closing": (consts.HANDLE_CLOSE, ()),
    "a handler that does not exist": (77, ()),
}


@pytest.mark.parametrize("name", RPYC_REQUESTS)
def test_rpyc_requests(target: Target, name: str) -> None:
    """Of rpyc's own requests none is there, whatever it asks."""
    handler, arguments = RPYC_REQUESTS[name]
    assert is_refused(target, lambda peer: peer.send_message(1, 0, (handler, (consts.LABEL_VALUE, arguments))))


BOXED: dict[str, tuple[int, object]] = {
    "a reference that claims to be bytes": (consts.LABEL_REMOTE_REF, ("builtins.bytes", 1, 2)),
    "a reference to a local object": (consts.LABEL_LOCAL_REF, ("builtins.object", 1, 2)),
    "a boxed tuple": (consts.LABEL_TUPLE, ((consts.LABEL_VALUE, "echo"), (consts.LABEL_VALUE, b""))),
    "a tuple with a reference": (
        consts.LABEL_TUPLE,
        ((consts.LABEL_VALUE, "echo"), (consts.LABEL_REMOTE_REF, ("builtins.bytes", 1, 2))),
    ),
    "a text for bytes": (consts.LABEL_VALUE, ("echo", "text")),
    "bytes for the name": (consts.LABEL_VALUE, (b"echo", b"")),
    "no payload": (consts.LABEL_VALUE, ("echo",)),
    "one value more": (consts.LABEL_VALUE, ("echo", b"", b"")),
    "a number": (consts.LABEL_VALUE, ("echo", 7)),
    "a very long name": (consts.LABEL_VALUE, ("e" * 1_000_000, b"")),
}


@pytest.mark.parametrize("name", BOXED)
def test_arguments(target: Target, name: str) -> None:
    """The one request takes a name and bytes, by value; references and everything else end the connection."""
    assert is_refused(target, lambda peer: peer.send_message(1, 0, (100, BOXED[name])))


def _nested(depth: int) -> bytes:
    return b"\x10" * depth + b"\x00"


FRAMES: dict[str, bytes] = {
    "nothing": b"",
    "a reply": bytes([2]) + brine.dump((0, (1, b"x"))),
    "a foreign exception": bytes([3]) + brine.dump((0, (("os", "system"), ("true",), (), "traceback"))),
    "an unknown kind": bytes([9]) + brine.dump((0, (100, (1, ("ready", b"\x80"))))),
    "nested tuples": bytes([1]) + _nested(500_000),
    "frozensets, 72 times their bytes": bytes([1, 0x11, 0x50, 0x15])
    + (1_390_000).to_bytes(4, "big")
    + b"\x1a\x10P" * 1_390_000,
    "slices": bytes([1, 0x11, 0x50, 0x15]) + (800_000).to_bytes(4, "big") + b"\x19\x12\x00\x00\x00" * 800_000,
    "an announced tuple of 4 G": bytes([1, 0x11, 0x50, 0x15]) + b"\xff" * 4,
    "an announced text of 4 G": bytes([1, 0x11, 0x50, 0x11, 0xB4, 0x11, 0x51, 0x11, 0x08, 0x0F]) + b"\xff" * 4,
    "a number of 4 million digits": bytes([1, 0x11, 0x17]) + (4_000_000).to_bytes(4, "big") + b"9" * 4_000_000,
    "no digits in a number": bytes([1, 0x11, 0x16, 3]) + b"1_0",
    "trailing bytes": bytes([1]) + brine.dump((0, (100, (1, ("ready", b"\x80"))))) + b"x",
    "cut short": (bytes([1]) + brine.dump((0, (100, (1, ("ready", b"\x80"))))))[:-1],
    "noise": bytes(range(256)) * 4000,
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames(target: Target, name: str) -> None:
    """A frame that is not the one request ends the connection before anything of it is built."""
    assert is_refused(target, lambda peer: peer.send_frame(FRAMES[name]))


STREAMS: dict[str, bytes] = {
    "a frame of 4 GiB": b"\xff\xff\xff\xff\x00" + bytes(1_000_000),
    "a frame over the bound": HEADER.pack(FRAME + 1, 0) + bytes(1_000_000),
    "a zipped gigabyte": HEADER.pack(len(bomb := zlib.compress(bytes(1 << 26), 9)), 1) + bomb + b"\n",
    "a wrong end": HEADER.pack(3, 0) + b"abcX",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "half a header": b"\x00\x00",
    "half a frame": HEADER.pack(FRAME, 0) + bytes(1000),
    "nothing of a frame": HEADER.pack(1000, 0),
}


@pytest.mark.parametrize("greeted", [True, False], ids=["greeted", "silent"])
@pytest.mark.parametrize("name", STREAMS)
def test_streams(target: Target, name: str, greeted: bool) -> None:
    """Bytes that are no frame of ours, or a frame that does not end in time, end the connection, greeted or not."""
    with RawPeer(target.path, greet=greeted) as peer:
        peer.send(STREAMS[name])
        assert peer.ended()


def test_greeting_is_small(target: Target) -> None:
    """Before the handshake not even a frame within the bound of later ones is read."""
    with RawPeer(target.path, greet=False) as peer:
        peer.send(HEADER.pack(100_000, 0) + bytes(1000))
        assert peer.ended()


def test_dribble(target: Target) -> None:
    """A frame that comes byte by byte ends the connection when its time is over, however steadily it comes."""
    with RawPeer(target.path) as peer:
        peer.send(HEADER.pack(100_000, 0))
        peer.sock.settimeout(SHORT.frame_time / 10)
        pieces = 0
        while pieces < 100:
            peer.send(b"x")
            pieces += 1
            try:
                if not peer.sock.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
        assert pieces < 30


PAYLOADS: dict[str, bytes] = {
    "no msgpack": b"\xc1",
    "nothing": b"",
    "nested arrays": b"\x91" * 60_000,
    "an announced array of 4 G": b"\xdd\xff\xff\xff\xff",
    "an announced map of 4 G": b"\xdf\xff\xff\xff\xff",
    "an announced text of 4 G": b"\x81\xa5words\xdb\xff\xff\xff\xff",
    "trailing bytes": msgpack.packb({"words": ["a"]}) + b"\x00",
    "another type": msgpack.packb({"words": 7}),
    "a number key": msgpack.packb({1: 2}),
    "an unknown extension": msgpack.packb({"words": msgpack.ExtType(5, b"x")}),
    "no utf-8": b"\x81\xa5words\x91\xa1\xff",
    "empty maps": b"\x81\xa5words\xdd" + (60_000).to_bytes(4, "big") + b"\x80" * 60_000,
    "too many": msgpack.packb({"words": [""] * 60_000}),
    "4 MiB": msgpack.packb({"words": ["x"] * 2_000_000}),
    "4 MiB of empty maps": b"\xdd" + (4_000_000).to_bytes(4, "big") + b"\x80" * 4_000_000,
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_payloads(target: Target, name: str) -> None:
    """A payload that is not of the declared type gets an error, and the connection lives on."""
    with RawPeer(target.path) as peer:
        peer.ask("echo", PAYLOADS[name])
        assert peer.frame()[0] == consts.MSG_EXCEPTION
        peer.ask("ready", b"\x80", number=1)
        assert peer.frame() == bytes([consts.MSG_REPLY]) + brine.dump((1, (1, b"\xc3")))


@pytest.mark.parametrize("name", ["nope", "", "__class__", "exposed_echo", "échø", "echo\x00"])
def test_unknown_operations(target: Target, name: str) -> None:
    """A name that is not in the table gets an error, whatever attribute it may be."""
    with RawPeer(target.path) as peer:
        peer.ask(name, b"\x80")
        answer = peer.frame()
        assert answer[0] == consts.MSG_EXCEPTION
        assert b"UnknownOperation" in answer


def test_name_that_is_no_text(target: Target) -> None:
    """A name that is no UTF-8 ends the connection."""
    message = bytes([1]) + brine.dump((0, (100, (1, ("echo", b""))))).replace(b"echo", b"ec\xff\xff")
    assert is_refused(target, lambda peer: peer.send_frame(message))


def test_stock_rpyc_client(target: Target) -> None:
    """The client of rpyc itself gets nothing: not before the handshake, not after it."""
    for greeted in (True, False):
        peer = RawPeer(target.path, greet=greeted)
        connection = VoidService()._connect(Channel(SocketStream(peer.sock)), {"sync_request_timeout": 5})
        with pytest.raises(EOFError):
            connection.root
        connection.close()


@pytest.mark.parametrize("greeted", [True, False], ids=["greeted", "silent"])
def test_idle_flood(target: Target, greeted: bool) -> None:
    """300 connections that say nothing: 64 are held at most, one thread each, and a good client comes in."""
    peers = [RawPeer(target.path, greet=greeted) for _ in range(300 if not greeted else 100)]
    # Two of its own, and some that are ending: a silent peer does not wait for that.
    assert target.threads() <= 64 + 2 + (16 if greeted else 100)
    assert target.asks()
    for peer in peers:
        peer.close()
    assert wait_until(target.is_quiet)


def test_silent_connections_end(target: Target) -> None:
    """A connection that never greets ends with the time of the handshake, without anybody needing its place."""
    with RawPeer(target.path, greet=False) as peer:
        assert peer.ended()


def test_half_frame_flood(target: Target) -> None:
    """100 large frames begun and not ended hold no more than the budget, and not each other's place."""
    peers = [RawPeer(target.path) for _ in range(60)]
    for peer in peers:
        peer.sock.setblocking(False)
        try:
            peer.sock.send(HEADER.pack(FRAME, 0) + bytes(100_000))
        except BlockingIOError:
            continue
    assert target.asks()
    for peer in peers:
        peer.sock.settimeout(5.0)
        assert peer.ended()
        peer.close()


def test_large_requests_at_once(target: Target) -> None:
    """Many of the largest requests at a time wait for the budget, instead of adding up."""
    body = bytes([1]) + brine.dump((0, (100, (1, ("upload", msgpack.packb({"data": bytes(3_990_000)}))))))
    peers = [RawPeer(target.path) for _ in range(12)]
    for peer in peers:
        peer.send_frame(body)
    answers = [peer.frame() for peer in peers]
    assert all(answer[0] == consts.MSG_REPLY for answer in answers)
    for peer in peers:
        peer.close()


def test_non_reader(target: Target) -> None:
    """A peer that asks and never reads is hung up on when its reply could not be written in time."""
    peers = [RawPeer(target.path) for _ in range(3)]
    for peer in peers:
        peer.ask("fill", msgpack.packb({"size": 4_000_000}))
    assert target.asks()
    assert wait_until(target.is_quiet)
    for peer in peers:
        assert peer.ended()
        peer.close()


def test_large_replies_at_once(target: Target) -> None:
    """Of many large replies that nobody reads only a few are held; the other peers are told to try again."""

    def refused() -> int:
        """Ask for twelve replies; a slow platform may begin with the last ones when the first ones are read."""
        peers = [RawPeer(target.path) for _ in range(12)]
        for peer in peers:
            peer.ask("fill", msgpack.packb({"size": 4_000_000}))
        found = 0
        for peer in peers:
            try:
                found += b"PlatformBusy" in peer.frame()
            except (EOFError, ConnectionResetError):
                continue
            finally:
                peer.close()
        return found

    assert wait_until(lambda: refused() >= 4)


def test_pipelining_is_not_queued(target: Target) -> None:
    """Requests sent ahead wait in the socket: what the platform holds does not grow, and the sender is slowed."""
    with RawPeer(target.path) as peer:
        peer.sock.setblocking(False)
        one = bytes([1]) + brine.dump((0, (100, (1, ("fill", msgpack.packb({"size": 1_000_000}))))))
        frame = HEADER.pack(len(one), 0) + one + b"\n"
        sent = 0
        try:
            while sent < 100_000:
                peer.sock.send(frame)
                sent += 1
        except (BlockingIOError, BrokenPipeError):
            assert sent < 100_000
        assert sent < 100_000


@pytest.mark.parametrize("under_way", ["request", "reply"])
def test_dropped_in_the_middle(target: Target, under_way: str) -> None:
    """Peers that hang up in the middle of a request, or of its reply, leave nothing behind."""
    for _ in range(20):
        with RawPeer(target.path) as peer:
            if under_way == "request":
                peer.send(HEADER.pack(1_000_000, 0) + bytes(50_000))
            else:
                peer.ask("fill", msgpack.packb({"size": 4_000_000}))
                peer.sock.recv(1000)
    assert wait_until(target.is_quiet)


def test_errors_tell_nothing_inside(target: Target) -> None:
    """What breaks inside crosses without class, text, path or line."""
    with RawPeer(target.path) as peer:
        peer.ask("stumble", b"\x80")
        answer = peer.frame()
    for word in (b"ZeroDivision", b"secret", b"Traceback", b".py", b"line", b"6.0"):
        assert word not in answer


def test_memory_does_not_creep(target: Target) -> None:
    """Many rounds of failing leave no more memory in use than one."""

    def round_of_failures() -> None:
        with ControlClient(target.path) as client:
            for request in ({"words": 7}, {"words": ["x" * 60_000] * 1}, {"other": bytes(60_000)}):
                for _ in range(20):
                    try:
                        client.call("echo", request)
                    except ExopError:
                        continue

    round_of_failures()
    before = target.forget_peak()
    for _ in range(10):
        round_of_failures()
    assert target.forget_peak() - before < 8

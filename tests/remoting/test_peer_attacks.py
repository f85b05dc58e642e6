"""Attacks of peers over the network: each is refused, counted by a line of the log, and costs at most 20 MB.

The platform runs in a process of its own, with deadlines of half a second. It listens with TLS, and on loopback without
it. After each attack a well-behaved peer with a certificate gets its answer.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgpack
import pytest
from rpyc.core import brine

from exop.errors import PeerRefused, RemotingError
from exop.remoting import ControlClient
from exop.remoting.authority import revoke
from exop.remoting.identity import Identity
from exop.remoting.transport.endpoints import dial
from exop.remoting.transport.handshake import CONTROL, DATA, PROTOCOL
from exop.remoting.transport.limits import MIB
from tests.remoting.attacked import GROWTH, PATIENCE, Attacked
from tests.remoting.certificates import UNACCEPTABLE, Forger
from tests.remoting.target import HEADER, wait_until

pytestmark = pytest.mark.edges

SCHEMES = ("tcp", "tls")
FRAME = 4 * MIB


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A platform that admits `good` as an administrator, and gives no role to `evil`."""
    with Attacked.begin(tmp_path_factory.mktemp("attacked")) as attacked:
        for scheme in SCHEMES:  # both transports, and what an answer imports, belong to the memory of before
            with attacked.greeted(scheme) as peer:
                peer.ask("echo", msgpack.packb({"words": ["a"]}))
                assert peer.frame()
        yield attacked


@pytest.fixture(autouse=True)
def unharmed(attacked: Attacked) -> Iterator[None]:
    """After each attack: memory as before, connections gone, a good peer gets its answer."""
    assert attacked.asks(attacked.client(attacked.good))
    before = attacked.forget_peak()
    yield
    assert attacked.asks(attacked.client(attacked.good))
    assert attacked.peak() - before < GROWTH
    assert attacked.process.poll() is None
    assert "Traceback" not in attacked.log()
    assert wait_until(lambda: attacked.threads() == 4)  # its own, and one for each listener


@pytest.fixture
def logs(attacked: Attacked) -> Callable[[str], bool]:
    """Whether a text appears in the log of the platform, in a line written since the beginning of the test."""
    begin = len(attacked.log())
    return lambda text: wait_until(lambda: text in attacked.log()[begin:])


@pytest.mark.parametrize("name", UNACCEPTABLE)
def test_certificates(attacked: Attacked, logs: Callable[[str], bool], name: str) -> None:
    """Without a valid certificate of the authority and TLS 1.3, no byte of a greeting is read."""
    make, _, text = UNACCEPTABLE[name]
    client = ControlClient(attacked.uris["tls"], identity=make(attacked.authority, attacked.other))
    with pytest.raises(RemotingError):
        client.call("ready")
    assert logs(text)


def test_revoked_certificate(attacked: Attacked, logs: Callable[[str], bool]) -> None:
    """A certificate that was valid a moment ago is refused, without a restart of the platform."""
    folder = attacked.authority.issue("former")
    assert attacked.client(Identity(folder)).ping() is not None
    revoke(attacked.authority.folder, "former")
    with pytest.raises(RemotingError):
        ControlClient(attacked.uris["tls"], identity=Forger(folder)).ping()
    assert logs("its certificate is revoked; issue a new one: `exop certs issue NAME`")


def test_name_of_another_peer(attacked: Attacked, logs: Callable[[str], bool]) -> None:
    """A valid certificate gives its own name only, and with it no more than its own role."""
    with pytest.raises(PeerRefused, match="your certificate is that of 'evil', not of 'good'"):
        attacked.client(attacked.evil, name="good").call("ready")
    with pytest.raises(PeerRefused, match="the role of this peer is none"):
        attacked.client(attacked.evil).call("ready")
    assert logs("platform evil")


HELLO = msgpack.packb({"type": "hello", "protocol": PROTOCOL, "exop": "0"})
BEFORE_TLS: dict[str, bytes] = {
    "a request of a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a greeting without TLS": HEADER.pack(len(HELLO), 0) + HELLO + b"\n",
    "zeros": bytes(100_000),
    "noise": bytes(range(256)) * 100,
    "the first bytes of TLS": b"\x16\x03\x01\x40\x00" + bytes(10),
    "a giant TLS record": b"\x16\x03\x01\xff\xff" + bytes(100_000),
}


@pytest.mark.parametrize("name", BEFORE_TLS)
def test_plain_bytes_on_the_tls_port(attacked: Attacked, logs: Callable[[str], bool], name: str) -> None:
    """Bytes that are no TLS end the connection, at once or at the deadline of the handshake."""
    with attacked.plain("tls") as peer:
        peer.send(BEFORE_TLS[name])
        assert peer.ended()
    assert logs("a connection of 127.0.0.1")


def test_tls_on_the_plain_port(attacked: Attacked, logs: Callable[[str], bool]) -> None:
    """For a port without TLS, a TLS handshake is a compressed frame of hundreds of megabytes, and is not read."""
    with pytest.raises(PeerRefused):
        dial(attacked.uris["tcp"].replace("tcp", "tls").replace("target@", ""), PATIENCE, attacked.good)
    assert logs("compressed messages are not accepted")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_dribbled_handshake(attacked: Attacked, scheme: str) -> None:
    """A peer that sends its handshake byte by byte is cut off at the deadline for the whole handshake."""
    first = ssl.MemoryBIO()
    client = attacked.good.files().client.wrap_bio(ssl.MemoryBIO(), first)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    rest = first.read() if scheme == "tls" else HEADER.pack(4000, 0) + bytes(4000)
    with attacked.plain(scheme) as peer:
        peer.sock.settimeout(0.05)
        for byte in rest:
            peer.send(bytes([byte]))
            try:
                if not peer.sock.recv(1):
                    return
            except TimeoutError:
                continue
            except ConnectionResetError:
                return
    pytest.fail("the platform has read the whole handshake")


def _nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\x90"


GREETINGS: dict[str, bytes] = {
    "no message": b"\xc1",
    "nothing": b"",
    "nested lists": _nested(4000),
    "maps that amplify": b"\xdc\x0f\x90" + b"\x80" * 3984,
    "a list for a name": msgpack.packb({"type": "hello", "protocol": PROTOCOL, "name": ["x"] * 500}),
    "a huge number": msgpack.packb({"type": "hello", "protocol": 2**63}),
    "a ticket of another type": msgpack.packb({"type": "hello", "protocol": PROTOCOL, "kind": "data", "ticket": 7}),
    "an unknown kind": msgpack.packb(
        {"type": "hello", "protocol": PROTOCOL, "platform": "target", "name": "good", "kind": "\x1b[2Jroot"}
    ),
    "a name that is not printable": msgpack.packb(
        {"type": "hello", "protocol": PROTOCOL, "platform": "target", "name": "good\nbad"}
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", GREETINGS)
def test_greetings(attacked: Attacked, logs: Callable[[str], bool], name: str, scheme: str) -> None:
    """A greeting that is none ends the connection, and the log shows the peer and no control characters."""
    begin = len(attacked.log())
    with attacked.connected(scheme) as peer:
        peer.send_frame(GREETINGS[name])
        assert peer.ended()
    assert logs("a connection of ")
    assert "\x1b[2J" not in attacked.log()[begin:]


FRAMES: dict[str, bytes] = {
    "a giant frame": HEADER.pack(0xFFFFFFFF, 0) + bytes(100_000),
    "a frame over the bound": HEADER.pack(FRAME + 1, 0) + bytes(100_000),
    "half a frame": HEADER.pack(100_000, 0) + bytes(50_000),
    "half a header": b"\0\0",
    "a compression bomb": HEADER.pack(len(bomb := zlib.compress(bytes(4 * FRAME))), 1) + bomb + b"\n",
    "no end": HEADER.pack(3, 0) + b"abcd" + bytes(1000),
    "garbage": bytes(range(1, 256)) * 100,
    "nested tuples": HEADER.pack(100_001, 0) + b"\x01" + b"\x10" * 100_000 + b"\n",
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", FRAMES)
def test_frames(attacked: Attacked, name: str, scheme: str) -> None:
    """A frame that breaks a bound ends the connection of a peer, whatever its role."""
    with attacked.greeted(scheme) as peer:
        peer.send(FRAMES[name])
        assert peer.ended()


REQUESTS: dict[str, tuple[str, bytes]] = {
    "nested 100 000 deep": ("echo", _nested(60_000)),
    "nested in a large request": ("upload", b"\x81\xa4data" + _nested(100_000)),
    "maps that amplify": ("echo", b"\x81\xa5words\xdc\xea\x60" + b"\x80" * 60_000),
    "maps that amplify in a large request": ("upload", b"\x81\xa4data\xdd\x00\x2d\xc6\xc0" + b"\x80" * 3_000_000),
    "a request for an operation without parameters": ("data_ticket", b"\x81\xa1x\xdc\xea\x60" + b"\x80" * 60_000),
    "an unknown operation": ("__import__", b"\x80"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", REQUESTS)
def test_requests(attacked: Attacked, name: str, scheme: str) -> None:
    """A request of another type than the operation declares becomes an error, and is not built before."""
    operation, payload = REQUESTS[name]
    with attacked.greeted(scheme) as peer:
        for number in range(3):
            peer.ask(operation, payload, number)
            assert peer.frame()[0] == 3


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("silent", ["before the handshake", "after half a handshake"])
def test_500_idle_connections(attacked: Attacked, scheme: str, silent: str) -> None:
    """Connections that say nothing make room for others; a good peer is served among them."""
    with ExitStack() as stack:
        for count in range(500):
            peer = stack.enter_context(attacked.plain(scheme))
            if silent.startswith("after"):
                peer.send(b"\x16\x03\x01\x02\x00\x01" if scheme == "tls" else HEADER.pack(100, 0))
            if count % 100 == 99:
                assert attacked.asks(attacked.client(attacked.good))
        assert attacked.threads() <= 64 + 4 + 3
        assert wait_until(lambda: attacked.threads() == 4)


def test_connections_of_one_certificate(attacked: Attacked) -> None:
    """A peer that keeps many connections busy is declined from the 17th on: it cannot use up those of others."""
    with ExitStack() as stack:
        answers = []
        for _ in range(40):
            peer = stack.enter_context(attacked.connected("tls", attacked.evil))
            answers.append(msgpack.unpackb(peer.greet(platform="target"))["type"])
        assert answers == ["welcome"] * 16 + ["declined"] * 24
        assert attacked.asks(attacked.client(attacked.good))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_peer_that_never_reads(attacked: Attacked, scheme: str) -> None:
    """A peer that asks for much and reads nothing is hung up on when the reply cannot be written in time."""
    with attacked.greeted(scheme) as peer:
        for number in range(100):
            peer.ask("fill", msgpack.packb({"size": 2_000_000}), number)
        assert attacked.asks(attacked.client(attacked.good))
        assert wait_until(lambda: attacked.threads() == 4)


def test_many_unknown_operations(attacked: Attacked) -> None:
    """A peer without a role that tries names is refused, and learns of no operation; nothing of it is kept."""
    with attacked.client(attacked.evil) as client:
        for number in range(500):
            with pytest.raises(RemotingError):
                client.call(f"operation {number}" * 4)


def _ticket(attacked: Attacked, identity: Identity, name: str) -> str:
    with attacked.client(identity, name=name) as client:
        return str(client.call("data_ticket"))


TICKETS: dict[str, Callable[[Attacked], str]] = {
    "none": lambda attacked: "",
    "invented": lambda attacked: "A" * 32,
    "of another peer": lambda attacked: _ticket(attacked, attacked.good, "good"),
    "very long": lambda attacked: "A" * 3000,
}


@pytest.mark.parametrize("name", TICKETS)
def test_tickets(attacked: Attacked, logs: Callable[[str], bool], name: str) -> None:
    """A data connection needs a ticket that was issued to the same peer."""
    with attacked.connected("tls", attacked.evil) as peer:
        answer = msgpack.unpackb(peer.greet(platform="target", kind=DATA, ticket=TICKETS[name](attacked)))
        assert (answer["type"], "not valid" in answer["problem"]) == ("declined", True)
        assert peer.ended()
    assert logs("platform evil")


def test_replayed_ticket(attacked: Attacked) -> None:
    """A ticket opens one data connection, and no control connection takes one."""
    ticket = _ticket(attacked, attacked.good, "good")
    answers = []
    for kind in (DATA, DATA, CONTROL):
        with attacked.connected("tls") as peer:
            answers.append(msgpack.unpackb(peer.greet(platform="target", kind=kind, ticket=ticket))["type"])
    assert answers == ["welcome", "declined", "welcome"]


def test_hoarded_tickets(attacked: Attacked) -> None:
    """The platform keeps a bounded number of tickets, however many a peer asks for."""
    with attacked.client(attacked.evil, name="evil") as client:
        for _ in range(1000):
            assert client.call("data_ticket")


def test_pretended_data_connections(attacked: Attacked) -> None:
    """A peer without a ticket that floods the platform with data connections holds none of them."""
    body = msgpack.packb({"type": "hello", "protocol": PROTOCOL, "exop": "0", "platform": "target", "kind": "data"})
    for _ in range(30):
        with attacked.connected("tcp") as peer:
            peer.send(HEADER.pack(len(body), 0) + body + b"\n" + bytes(500_000))
            assert peer.ended()


def test_brine_of_another_kind(attacked: Attacked) -> None:
    """Replies and faults that the platform has not asked for end the connection."""
    for kind in (2, 3, 9):
        with attacked.greeted("tls") as peer:
            peer.send_frame(bytes([kind]) + brine.dump((0, (1, b"x"))))
            assert peer.ended()

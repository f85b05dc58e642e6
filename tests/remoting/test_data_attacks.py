"""Attacks on the data connection of a platform, by a peer with a certificate that may write to channels of a name.

Some come also from peers with each of the other rights.

Each ends the connection, or is refused, and costs at most 20 MB; a well-behaved peer keeps its own data connection.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

from exop.remoting import ControlClient
from exop.remoting.identity import Identity
from exop.remoting.peers.data_frames import (
    BYTES,
    DATA,
    FLUSHER,
    HEAD,
    HEADER,
    Attach,
    Ping,
    Refused,
    Report,
    Withdraw,
    pack_message,
    unpack_message,
)
from exop.runtime.channels.frame_body import body_of, event_of
from exop.runtime.channels.wire import ITEMS
from tests.remoting.attacked import GROWTH, PATIENCE, Attacked
from tests.remoting.target import EPOCH

pytestmark = pytest.mark.edges

POLICY = """
[peers.good]
role = "observe"

[peers.evil]
write = ["shop/orders*"]

[peers.reader]
read = ["*/*"]

[peers.observer]
role = "observe"

[peers.operator]
role = "operate"
"""
#: The peers that have another right.
OTHERS = ("reader", "observer", "operator")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A platform whose policy permits `evil` to write to some channels, which it has not."""
    folder = tmp_path_factory.mktemp("attacked")
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    policy.chmod(0o600)
    with Attacked.begin(folder, policy) as attacked:
        attacked.others = {name: Identity(attacked.authority.issue(name)) for name in OTHERS}
        for name in ("good", "evil", *OTHERS):  # what the first connections import belongs to the memory of before
            Link(attacked, name).close()
        yield attacked


class Link:
    """The connections of a peer: control, and data after its ticket."""

    def __init__(self, attacked: Attacked, name: str) -> None:
        self.name = name
        identity = {"good": attacked.good, "evil": attacked.evil, **attacked.others}[name]
        self.client = ControlClient(attacked.uris["tls"], identity=identity, name=name, timeout=PATIENCE)
        self.data = self.client.open_data()
        self.data.settimeout(PATIENCE)

    def send(self, data: bytes) -> None:
        """Send bytes; a platform that has hung up is no failure of the test."""
        with suppress(ConnectionError, ssl.SSLError):
            self.data.sendall(data)

    def read(self, size: int) -> bytes:
        """Read so many bytes."""
        found = b""
        while len(found) < size:
            found += self.data.recv(size - len(found)) or pytest.fail("the platform has hung up")
        return found

    def ended(self) -> bool:
        """Read to the end; whether the platform has hung up before the time was over."""
        with suppress(ConnectionError, ssl.SSLError):
            while self.data.recv(1 << 16):
                pass
        return True

    def close(self) -> None:
        """End both connections."""
        self.data.close()
        self.client.close()


@pytest.fixture
def good(attacked: Attacked) -> Iterator[Link]:
    """A well-behaved peer, which stays connected during the attack, and is answered after it."""
    link = Link(attacked, "good")
    link.send(pack_message(Ping(1)))
    assert link.data.recv(100)
    yield link
    link.send(pack_message(Ping(2)))
    assert link.data.recv(100)
    assert link.client.ping() is not None
    link.close()


@pytest.fixture
def evil(attacked: Attacked, good: Link, request: pytest.FixtureRequest) -> Iterator[Link]:
    """A connection of the attacker; after the attack, the memory is as before."""
    before = attacked.forget_peak()
    link = Link(attacked, getattr(request, "param", "evil"))
    yield link
    link.close()
    assert attacked.peak() - before < GROWTH
    assert attacked.process.poll() is None
    assert "Traceback" not in attacked.log()


def head(kind: int, number: int, total: int, offset: int = 0, form: int = 0) -> bytes:
    """The head of a part of a body."""
    return HEAD.pack(kind, number, 0, 1, form, total, offset)


MIB = 1 << 20
FRAMES: dict[str, bytes] = {
    "a giant frame": HEADER.pack(0xFFFFFFFF, 0) + bytes(100_000),
    "an empty frame": HEADER.pack(0, 0) + FLUSHER,
    "a compressed frame": HEADER.pack(10, 1) + bytes(10) + FLUSHER,
    "no end": HEADER.pack(3, 0) + b"abcd" + bytes(1000),
    "garbage": bytes(range(1, 256)) * 100,
    "a frame of no kind": HEADER.pack(50, 0) + b"\x07" + bytes(49) + FLUSHER,
    "a head that is too short": HEADER.pack(5, 0) + bytes([DATA]) + bytes(4) + FLUSHER,
    "events of no connector": HEADER.pack(HEAD.size + 5, 0) + head(DATA, 7, 5) + b"12345" + FLUSHER,
    "a giant body of no connector": HEADER.pack(HEAD.size + 5, 0) + head(DATA, 7, 255 * MIB) + b"12345",
    "bytes without permission": HEADER.pack(HEAD.size + 5, 0) + head(BYTES, 7, 255 * MIB) + b"12345",
    "a body of petabytes": HEADER.pack(HEAD.size + 5, 0) + head(BYTES, 7, 1 << 62) + b"12345",
    "a part from the middle": HEADER.pack(HEAD.size + 5, 0) + head(BYTES, 7, 500, 100) + b"12345" + FLUSHER,
}
MESSAGES: dict[str, bytes] = {
    "no message": b"\xc1",
    "of an unknown kind": msgspec.msgpack.encode([77, 1, 2]),
    "nested lists": b"\x91" * 4000 + b"\x90",
    "maps that amplify": b"\xdc\x0f\x00" + b"\x80" * 3840,
    "a negative number": msgspec.msgpack.encode([0, -1, 0, "k"]),
    "a key of another type": msgspec.msgpack.encode([0, 1, 0, {"k": 1}]),
    "a very long key": msgspec.msgpack.encode([0, 1, 0, "k" * 3000]),
    "over the bound": msgspec.msgpack.encode([0, 1, 0, "k" * 100_000]),
}
FRAMES |= {
    f"a message: {name}": HEADER.pack(len(body) + 1, 0) + b"\0" + body + FLUSHER for name, body in MESSAGES.items()
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames(evil: Link, name: str) -> None:
    """A frame that breaks a bound, or belongs to no connector, ends the connection before its body is stored."""
    evil.send(FRAMES[name])
    assert evil.ended()


def attach(number: int, channel: str) -> bytes:
    """An offer of a connector as a frame."""
    return pack_message(Attach(number, 0, f"shop/{channel}{number}{'x' * 900}/evil>target"))


FLOODS: dict[str, Callable[[int], bytes]] = {
    "pings": lambda number: pack_message(Ping(number)),
    "connectors": lambda number: attach(number, "orders"),
    "connectors that are not permitted": lambda number: attach(number, "secrets"),
    "connectors that come and go": lambda number: (
        attach(number, "orders") + pack_message(Withdraw(number, f"shop/orders{number}{'x' * 900}/evil>target"))
    ),
}


@pytest.mark.parametrize("epoch", [0, EPOCH - 1, EPOCH + 1, 1 << 62])
def test_old_and_future_epochs(attacked: Attacked, evil: Link, epoch: int) -> None:
    """An offer of another epoch is refused, again and again; an event under its number ends the connection."""
    key = "shop/orders/evil>target"
    for number in range(5000):
        evil.send(pack_message(Attach(number, epoch, key)))
    body = b"".join(bytes(part) for part in body_of([event_of("push", 666, 0.0)]))
    evil.send(HEADER.pack(HEAD.size + len(body), 0) + head(DATA, 4999, len(body), form=ITEMS) + body + FLUSHER)
    assert evil.ended()
    assert "events of the connector 4999, which is not attached" in attacked.log()


def test_the_right_epoch_is_attached(evil: Link) -> None:
    """The same offer of the epoch that the inbox has is answered by its progress."""
    evil.send(pack_message(Attach(0, EPOCH, "shop/orders/evil>target")))
    kinds = list[type]()
    while Report not in kinds:
        length, _ = HEADER.unpack(evil.read(HEADER.size))
        kinds.append(type(unpack_message(evil.read(length + 1)[1:-1])))
    assert Refused not in kinds


@pytest.mark.parametrize("reads", [True, False], ids=["read", "not read"])
@pytest.mark.parametrize("name", FLOODS)
def test_floods(evil: Link, name: str, reads: bool) -> None:
    """The connection of a peer that sends messages without end costs little, whether it reads the answers or not."""
    reading = threading.Thread(target=evil.ended)
    if reads:
        reading.start()
    with suppress(OSError):
        for begin in range(0, 100_000, 500):
            block = b"".join(map(FLOODS[name], range(begin, begin + 500)))
            evil.data.sendall(block * (16 if name == "pings" else 1))  # answers to pings are small: they fill buffers
        evil.data.sendall(FRAMES["a compressed frame"])  # all that was sent before has been handled when this one is
    if reads:
        reading.join()
    else:
        evil.ended()


@pytest.mark.parametrize("name", ["bytes without permission", "a body of petabytes", "connectors"])
@pytest.mark.parametrize("evil", OTHERS, indirect=True)
def test_another_right_brings_no_memory(evil: Link, name: str) -> None:
    """Who may read, observe or operate may not write; the state that an operator may send is stored as it comes."""
    with suppress(OSError):
        for begin in range(0, 10_000, 500) if name in FLOODS else ():
            evil.data.sendall(b"".join(map(FLOODS[name], range(begin, begin + 500))))
    evil.send(FRAMES.get(name, FRAMES["a compressed frame"]))
    assert (evil.name, name) == ("operator", "bytes without permission") or evil.ended()

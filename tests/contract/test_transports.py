"""The contract of every transport: what a connection does, whatever its scheme."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exop.errors import PeerUnreachable
from exop.remoting.authority import create_authority, issue
from exop.remoting.identity import Identity
from exop.remoting.transport.endpoints import Endpoint, dial, listen
from exop.remoting.transport.sockets import Listener, Peer

SCHEMES = ("unix", "tcp", "tls", "inproc")
PATIENCE = 60.0


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    """The name of a transport."""
    return str(request.param)


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    """The identity of the platform "there", which both ends use."""
    create_authority(tmp_path / "authority")
    return Identity(issue(tmp_path / "authority", "there"))


@pytest.fixture
def listener(scheme: str, tmp_path: Path, identity: Identity) -> Iterator[Listener]:
    """A listener of the transport."""
    uris = {
        "unix": f"unix:{tmp_path / 'there.sock'}",
        "tcp": "tcp://127.0.0.1:0",
        "tls": "tls://127.0.0.1:0",
        "inproc": f"inproc:{tmp_path.name}",
    }
    listener = listen(uris[scheme], identity)
    yield listener
    listener.close()


class Pair:
    """The two ends of one connection, and what each end knows of the other."""

    def __init__(self, listener: Listener, identity: Identity) -> None:
        with ThreadPoolExecutor(1) as pool:
            accepted = pool.submit(self._accept, listener)
            self.here, self.listening = dial(listener.address, PATIENCE, identity)
            self.there, self.dialling = accepted.result(PATIENCE)

    def _accept(self, listener: Listener) -> tuple[socket.socket, Peer]:
        return listener.identify(listener.sock.accept()[0], time.monotonic() + PATIENCE)

    def close(self) -> None:
        """Close both ends."""
        self.here.close()
        self.there.close()


@pytest.fixture
def pair(listener: Listener, identity: Identity) -> Iterator[Pair]:
    """A connection of the transport."""
    pair = Pair(listener, identity)
    yield pair
    pair.close()


def read(sock: socket.socket, count: int) -> bytes:
    """Read exactly *count* bytes."""
    sock.settimeout(PATIENCE)
    data = bytearray()
    while len(data) < count:
        data += sock.recv(count - len(data))
    return bytes(data)


def test_bytes_go_both_ways_unchanged(pair: Pair) -> None:
    """More bytes than any buffer holds arrive in their order, in both directions at the same time."""
    sent = os.urandom(1 << 20) * 3
    with ThreadPoolExecutor(3) as pool:
        writing = pool.submit(pair.here.sendall, sent)
        reading = pool.submit(read, pair.there, len(sent))
        writing.result(PATIENCE)
        assert reading.result(PATIENCE) == sent
        answering = pool.submit(pair.there.sendall, sent[:-1])
        assert read(pair.here, len(sent) - 1) == sent[:-1]
        answering.result(PATIENCE)


def test_each_end_knows_the_other(pair: Pair, scheme: str) -> None:
    """A transport identifies both ends: by the user on this host, or by the name in the certificate."""
    for peer in (pair.listening, pair.dialling):
        if scheme == "tls":
            assert (peer.name, peer.uid, peer.certificate is not None) == ("there", None, True)
        else:
            assert (peer.uid, peer.trusted) == (os.geteuid(), True)
        assert peer.address


def test_closing_one_end_ends_the_other(pair: Pair) -> None:
    """The other end reads the end of the stream."""
    pair.here.close()
    pair.there.settimeout(PATIENCE)
    assert pair.there.recv(1) == b""


def test_reading_has_a_deadline(pair: Pair) -> None:
    """A read without data ends with the time-out of the socket, and the connection can be used further."""
    pair.here.settimeout(0.01)
    with pytest.raises(TimeoutError):
        pair.here.recv(1)
    pair.there.sendall(b"late")
    assert read(pair.here, 4) == b"late"


def test_address_can_be_dialled_and_parsed(listener: Listener, scheme: str) -> None:
    """The address of a listener is a URI of its scheme, with the real port, and parses to itself."""
    endpoint = Endpoint.parse(listener.address)
    assert (endpoint.scheme, str(endpoint)) == (scheme, listener.address)
    assert endpoint.port or scheme in ("unix", "inproc")


def test_shutdown_wakes_the_accepting_thread(listener: Listener) -> None:
    """A thread that waits for a connection ends with an `OSError` when the listener shuts down."""
    entered = threading.Event()

    def accept() -> None:
        entered.set()
        listener.sock.accept()

    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept)
        assert entered.wait(PATIENCE)
        listener.sock.shutdown(socket.SHUT_RDWR)
        assert isinstance(accepting.exception(PATIENCE), OSError)


def test_dialling_after_the_end_is_an_error(listener: Listener, identity: Identity) -> None:
    """After the listener is closed, the error names the address."""
    listener.sock.shutdown(socket.SHUT_RDWR)
    listener.close()
    with pytest.raises(PeerUnreachable) as failed:
        dial(listener.address, PATIENCE, identity)
    assert failed.value.facts["address"] == Endpoint.parse(listener.address).label


def test_listening_twice_is_an_error(listener: Listener, identity: Identity) -> None:
    """A second listener at the same address is refused, and the first goes on."""
    from exop.errors import AddressInUse, AddressUnusable

    with pytest.raises((AddressInUse, AddressUnusable)):
        listen(listener.address, identity)
    Pair(listener, identity).close()

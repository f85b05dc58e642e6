"""Addresses, and the transports where they differ: loopback and users, TLS and certificates."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from exop.errors import AddressUnusable, PeerRefused, PeerUnreachable
from exop.remoting.identity import Identity
from exop.remoting.transport import endpoints
from exop.remoting.transport.endpoints import Endpoint, dial, listen
from exop.remoting.transport.sockets import Listener
from tests.remoting.certificates import UNACCEPTABLE, Authority

PATIENCE = 60.0

ADDRESSES: dict[str, Endpoint] = {
    "tcp://127.0.0.1:7700": Endpoint("tcp", "127.0.0.1", 7700),
    "tcp://[::1]:7700": Endpoint("tcp", "::1", 7700),
    "tcp://localhost:7700": Endpoint("tcp", "localhost", 7700),
    "tls://b.example.org:7700": Endpoint("tls", "b.example.org", 7700),
    "tls://b@10.0.0.2:7700": Endpoint("tls", "10.0.0.2", 7700, "b"),
    "tls://two%20words@10.0.0.2:7700": Endpoint("tls", "10.0.0.2", 7700, "two words"),
    "unix:/run/a b.sock": Endpoint("unix", "/run/a b.sock"),
    "inproc:east": Endpoint("inproc", "east"),
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_addresses(text: str) -> None:
    """An address parses to its parts, and these are written as the same address."""
    assert Endpoint.parse(text) == ADDRESSES[text]
    assert str(ADDRESSES[text]) == text


def test_a_path_is_the_address_of_a_socket() -> None:
    """Text with a slash and without a scheme is one."""
    for given in (path := Path("a.sock"), f"./{path}"):
        assert Endpoint.parse(given) == Endpoint("unix", str(given))


INVALID: dict[str, str] = {
    "tcp://127.0.0.1": "it is no address of a platform; write tls://HOST:PORT, ",
    "tls://:7700": "it is no address of a platform; write tls://HOST:PORT, ",
    "tls://b:7700/path": "it is no address of a platform; write tls://HOST:PORT, ",
    "foo": "foo cannot be used: it is no address of a platform",
    "10.0.0.2:7700": "10.0.0.2:7700 cannot be used: it is no address of a platform",
    "tls:/b:7700": "tls:/b:7700 cannot be used",
    "b:7700/": "b:7700/ cannot be used",
    "https://b:7700": "https://b:7700 cannot be used: it is no address of a platform",
    "tls://b:port": "tls://b:port cannot be used",
    "tls://b:99999": "tls://b:99999 cannot be used",
    "tcp://10.0.0.2:7700": r"without TLS, only loopback addresses are used; use tls:// with certificates",
    "tcp://0.0.0.0:7700": "only loopback",
    "tcp://example.org:7700": "only loopback",
    "tcp://127.example.org:7700": "only loopback",
    "tls://127.0.0.1:0": r"TLS needs certificates; give the folder of the certificates \(--identity;",
}


@pytest.mark.parametrize("use", [listen, lambda address: dial(address, PATIENCE)])
@pytest.mark.parametrize("text", INVALID)
def test_invalid_addresses(use: Callable[[str], object], text: str) -> None:
    """An address that cannot be used is refused before a socket is made, with the reason and the cure."""
    with pytest.raises(AddressUnusable, match=INVALID[text]):
        use(text)


def test_nothing_listens() -> None:
    """A port without a listener is an error with the reason of the kernel."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PeerUnreachable, match="Connection refused"):
        dial(f"tcp://127.0.0.1:{port}", PATIENCE)


def test_kernel_notices_a_silent_peer() -> None:
    """A TCP connection sends small messages at once, and the kernel ends it after 8 s of silence."""
    listener = listen("tcp://127.0.0.1:0")
    sock, _ = dial(listener.address, PATIENCE)
    for end in (sock, listener.sock.accept()[0]):
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000
        idle, interval, count = (
            end.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count <= 8
        end.close()
    listener.close()


@pytest.mark.parametrize(
    ("owner", "text", "there"),
    [
        (os.geteuid() + 1, "you are user ", "belongs to user"),
        (None, "the caller gave up while the platform was stopped or busy", "no process listens at exactly this"),
    ],
    ids=["another user", "closed"],
)
def test_an_end_that_is_not_ours(owner: int | None, text: str, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another user can connect to a loopback port, and is refused by both ends; so is a closed socket."""
    listener = listen("tcp://127.0.0.1:0")
    sock, _ = dial(listener.address, PATIENCE)
    monkeypatch.setattr(endpoints, "_owner", lambda *address: owner)
    with sock, listener.sock.accept()[0] as accepted:
        with pytest.raises(PeerRefused, match=text):
            listener.identify(accepted, time.monotonic() + PATIENCE)
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(PeerRefused, match=there):
            dial(listener.address, PATIENCE)
    listener.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_closed_socket_has_no_owner(host: str) -> None:
    """The kernel lists a closed socket as that of root: it counts as unknown."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        accepted, _ = server.accept()
        local, remote = accepted.getpeername(), accepted.getsockname()
        assert endpoints._owner(local, remote, "01") == os.geteuid()
        client.close()
        assert endpoints._owner(local, remote, "01") is None
        accepted.close()


def met(listener: Listener, uri: str, identity: Any) -> tuple[BaseException | None, BaseException | None]:
    """Dial *uri*; return the errors of the listener and of the dialler, which reads one byte."""

    def accept() -> None:
        sock, _ = listener.identify(listener.sock.accept()[0], time.monotonic() + PATIENCE)
        with sock:
            sock.sendall(b"!")

    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept)
        failed: BaseException | None = None
        try:
            sock, _ = dial(uri, PATIENCE, identity)
            with sock:
                assert sock.recv(1) == b"!"
        except (PeerRefused, PeerUnreachable, OSError) as error:
            failed = error
        return accepting.exception(PATIENCE), failed


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority of all platforms."""
    return Authority(tmp_path / "authority")


@pytest.fixture
def listener(authority: Authority) -> Iterator[Listener]:
    """The listener of the platform "there"."""
    listener = listen("tls://127.0.0.1:0", Identity(authority.issue("there")))
    yield listener
    listener.close()


@pytest.fixture
def here(authority: Authority) -> Identity:
    """The identity of the dialler."""
    return Identity(authority.issue("dialler"))


def test_both_ends_prove_their_names(listener: Listener, here: Identity) -> None:
    """Certificates of one authority, and the name that was expected: both ends accept."""
    assert met(listener, listener.address.replace("//", "//there@"), here) == (None, None)


@pytest.mark.parametrize("name", UNACCEPTABLE)
def test_dialler_that_is_not_accepted(listener: Listener, authority: Authority, tmp_path: Path, name: str) -> None:
    """A dialler without a valid certificate of the authority gets no connection, and sees it at its first read."""
    make, text, _ = UNACCEPTABLE[name]
    refused, failed = met(listener, listener.address, make(authority, Authority(tmp_path / "other")))
    assert isinstance(refused, ssl.SSLError)
    assert text in str(refused)
    assert failed is not None


@pytest.mark.parametrize(
    "name",
    [
        "an expired certificate",
        "a future certificate",
        "a certificate of another authority",
        "a self-signed certificate",
    ],
)
def test_listener_that_is_not_accepted(authority: Authority, here: Identity, tmp_path: Path, name: str) -> None:
    """A dialler refuses a listener without a valid certificate of the authority, with the reason and the cure."""
    make, _, text = UNACCEPTABLE[name]
    listener = listen("tls://127.0.0.1:0", make(authority, Authority(tmp_path / "other")))
    refused, failed = met(listener, listener.address, here)
    assert isinstance(refused, ssl.SSLError)
    assert isinstance(failed, PeerRefused)
    assert text in str(failed)
    listener.close()


def test_certificate_of_another_platform(listener: Listener, here: Identity) -> None:
    """A valid certificate with another name than the expected one is refused."""
    _, failed = met(listener, listener.address.replace("//", "//other@"), here)
    assert isinstance(failed, PeerRefused)
    assert "its certificate is that of 'there', not of 'other'" in str(failed)


@pytest.mark.parametrize(
    ("sent", "error", "patience"),
    [(b"GET / HTTP/1.1\r\n\r\n", ssl.SSLError, PATIENCE), (b"\x16\x03\x01", TimeoutError, 0.01)],
    ids=["no TLS", "half a message"],
)
def test_plain_connection_to_a_tls_port(
    listener: Listener, sent: bytes, error: type[BaseException], patience: float
) -> None:
    """Bytes that are no TLS end the connection; bytes that stop end it at the deadline."""
    with socket.create_connection(("127.0.0.1", Endpoint.parse(listener.address).port)) as sock:
        sock.sendall(sent)
        with pytest.raises(error):
            listener.identify(listener.sock.accept()[0], time.monotonic() + patience)


def test_tls_to_a_plain_port(here: Identity) -> None:
    """A listener that does not use TLS is refused."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(1)
                accepted.sendall(b"220 mail.example.org ESMTP\r\n")

        answering = pool.submit(answer)
        with pytest.raises(PeerRefused, match="the other side does not use TLS"):
            dial(f"tls://127.0.0.1:{server.getsockname()[1]}", PATIENCE, here)
        answering.result(PATIENCE)

"""A client between a user and a server that may be hostile, broken, or of another release."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from rpyc.core import brine

from exop import __version__, connect
from exop.cli.commands.checking import _running
from exop.cli.commands.looking import ps
from exop.errors import CallTimeout, ConnectionLost, PeerRefused, PeerUnreachable, ProtocolMismatch, RemotingError
from exop.remoting import ControlClient, ControlServer, Limits, find_platforms
from exop.remoting.transport import endpoints, sockets
from exop.remoting.transport.codec import encode_message
from exop.remoting.transport.frames import BoundedChannel
from exop.remoting.transport.handshake import PROTOCOL, Declined, Welcome
from exop.remoting.transport.sockets import Peer
from tests.remoting.target import HEADER, SHORT, RawPeer

WELCOME = encode_message(Welcome(name="fake", pid=1))
REPLY = bytes([2]) + brine.dump((0, (1, msgpack.packb("fine"))))


def frame(body: bytes, compressed: int = 0) -> bytes:
    """One frame as it goes over the socket."""
    return HEADER.pack(len(body), compressed) + body + b"\n"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., ControlClient]]:
    """Start a server that answers each message with the next of the given bytes, and return a client of it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "fake.sock"))
    listener.listen()
    over = threading.Event()

    def serve(answers: tuple[bytes, ...]) -> None:
        sock, _ = listener.accept()
        sock.settimeout(5)
        with sock:
            for answer in answers:
                if not sock.recv(1_000_000):
                    return
                sock.sendall(answer)
            over.wait(60)

    with ThreadPoolExecutor(1) as pool:

        def start(*answers: bytes, timeout: float = 30.0, limits: Limits = SHORT) -> ControlClient:
            pool.submit(serve, answers)
            return ControlClient(tmp_path / "fake.sock", timeout=timeout, limits=limits)

        yield start
        over.set()
    listener.close()


def test_fake_server_answers(fake: Callable[..., ControlClient]) -> None:
    """The server of these tests is taken for a platform while it behaves."""
    assert fake(frame(WELCOME), frame(REPLY)).call("ready") == "fine"


HOSTILE: dict[str, bytes] = {
    "a request to the client": frame(bytes([1]) + brine.dump((0, (100, (1, ("ready", b"\x80")))))),
    "a request for its root object": frame(bytes([1]) + brine.dump((0, (3, (1, ()))))),
    "a foreign exception": frame(bytes([3]) + brine.dump((0, (("os", "system"), ("true",), (), "text")))),
    "a reference": frame(bytes([2]) + brine.dump((0, (4, ("builtins.bytes", 1, 2))))),
    "a text": frame(bytes([2]) + brine.dump((0, (1, "text")))),
    "compressed": frame(REPLY, 1),
    "over the bound": HEADER.pack(0xFFFFFFFF, 0) + bytes(1000),
    "noise": bytes(range(256)),
    "half a reply": frame(REPLY)[:-3],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_replies(fake: Callable[..., ControlClient], name: str) -> None:
    """A reply that breaks the profile ends the connection in bounded time, and nothing of it is built."""
    with pytest.raises(ConnectionLost):
        fake(frame(WELCOME), HOSTILE[name]).call("ready")


def test_half_a_reply_ends_with_the_call(fake: Callable[..., ControlClient]) -> None:
    """The time of a call covers a reply that has begun and does not end."""
    client = fake(frame(WELCOME), frame(REPLY)[:-3], limits=replace(SHORT, frame_time=600.0))
    client.platform()
    started = time.monotonic()
    with pytest.raises(CallTimeout):
        client.call("ready", timeout=0.1)
    assert time.monotonic() - started < 60, "it has waited for the end of the connection"


@pytest.mark.parametrize(("operation", "cure"), [("ready", "it may still carry it out"), ("status", "repeat it")])
def test_no_reply(fake: Callable[..., ControlClient], operation: str, cure: str) -> None:
    """A server that does not answer ends the call in its time; only what changes something is in doubt then."""
    client = fake(frame(WELCOME), b"")
    client.platform()
    with pytest.raises(CallTimeout, match=rf"within 0\.1 s; .*{cure}"):
        client.call(operation, timeout=0.1)


def test_answer_to_nobody(fake: Callable[..., ControlClient]) -> None:
    """A reply with another number is not taken for the one that is waited for."""
    other = bytes([2]) + brine.dump((55, (1, msgpack.packb("wrong"))))
    assert fake(frame(WELCOME), frame(other) + frame(REPLY)).call("ready") == "fine"


FAULTS: dict[str, tuple[object, str]] = {
    "of a class that is none of ours": ({"code": "ZeroDivisionError", "text": "boom"}, "boom"),
    "of a name in the module that is no error": ({"code": "suggest", "text": "boom"}, "boom"),
    "that steers the terminal": ({"code": "PeerRefused", "text": "a\x1b[2Jb"}, r"a\\x1b\[2Jb"),
    "with facts that do not fit": ({"code": "PeerRefused", "text": "boom", "facts": {"self": 1}}, "boom"),
    "of no fault's form": (7, "gave no reason"),
    "too large": ({"code": "PeerRefused", "text": "x" * 100_000}, "too many to read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(fake: Callable[..., ControlClient], name: str) -> None:
    """An error of whatever form becomes an error of ours, its text made harmless."""
    fault, text = FAULTS[name]
    body = bytes([3]) + brine.dump((0, msgpack.packb(fault)))
    with pytest.raises(RemotingError, match=text):
        fake(frame(WELCOME), frame(body)).call("ready")


GREETINGS: dict[str, tuple[bytes, type[Exception], str]] = {
    "another protocol": (
        frame(encode_message(Welcome(name="new", pid=1, protocol=PROTOCOL + 1, exop="9.1"))),
        ProtocolMismatch,
        rf"uses protocol {PROTOCOL + 1} \(exop 9.1\), this one {PROTOCOL} \(exop {__version__}\); use the same release",
    ),
    "declined by the release of protocol 1": (
        frame(msgpack.packb({"type": "declined", "problem": "another protocol", "protocol": 1})),
        ProtocolMismatch,
        rf"uses protocol 1 \(an unknown release\), this one {PROTOCOL} \(exop {__version__}\)",
    ),
    "declined by another protocol": (
        frame(encode_message(Declined("another protocol", protocol=PROTOCOL + 1))),
        ProtocolMismatch,
        f"uses protocol {PROTOCOL + 1}",
    ),
    "declined": (frame(encode_message(Declined("all is full"))), PeerRefused, "refused: all is full"),
    "no platform": (b"220 mail.example.org ESMTP\r\n", ProtocolMismatch, "uses another protocol, or is no platform"),
    "noise in a frame": (frame(b"\xc1\xc1"), ProtocolMismatch, "uses another protocol"),
    "a long one": (HEADER.pack(100_000, 0), ProtocolMismatch, "uses another protocol"),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_greetings(fake: Callable[..., ControlClient], name: str) -> None:
    """A server that greets otherwise is named as what it is: another release, or no platform."""
    answer, error, text = GREETINGS[name]
    with pytest.raises(error, match=text):
        fake(answer).call("ready")


@pytest.mark.parametrize("alert", [b"", b"\x15\x03\x03\x00\x02\x02\x46"], ids=["ends", "alert"])
def test_a_listener_with_tls_that_is_dialled_without(alert: bytes) -> None:
    """It ends the connection, with or without an alert; the error names the address that may help."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            with server.accept()[0] as accepted:
                accepted.recv(1000)
                accepted.sendall(alert)

        answering, address = pool.submit(answer), f"//127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises((ConnectionLost, ProtocolMismatch), match=f"if it listens with TLS, write tls:{address}, "):
            ControlClient(f"tcp:{address}").call("ready")
        answering.result(60)


@pytest.mark.parametrize("protocol", [1, 99])
def test_old_client_is_told(server: ControlServer, protocol: int, caplog: pytest.LogCaptureFixture) -> None:
    """A client of another protocol is told which one is spoken here, and hung up on; the log names both releases."""
    with RawPeer(server.address, greet=False) as peer:
        peer.send_frame(msgpack.packb({"type": "hello", "protocol": protocol, "exop": "9.9\x1b"}))
        answer = msgpack.unpackb(peer.frame())
        assert (answer["type"], answer["protocol"], answer["exop"]) == ("declined", PROTOCOL, __version__)
        assert peer.ended()
    (line,) = (one.getMessage() for one in caplog.records)
    ours = f"this platform is exop {__version__} with protocol {PROTOCOL}"
    assert line.endswith(f"was refused: it is exop 9.9\\x1b with protocol {protocol}, and {ours}")


def test_newer_greeting_with_more_fields(server: ControlServer) -> None:
    """A greeting of this protocol with fields of a later release is accepted."""
    with RawPeer(server.address, greet=False) as peer:
        peer.send_frame(msgpack.packb({"type": "hello", "protocol": PROTOCOL, "exop": "9", "colour": "red"}))
        assert msgpack.unpackb(peer.frame())["type"] == "welcome"


def test_silent_server(fake: Callable[..., ControlClient]) -> None:
    """A server that accepts and says nothing ends the handshake in its time."""
    with pytest.raises(PeerUnreachable, match="does not answer"):
        fake(b"", timeout=0.1).call("ready")


def test_server_of_another_user(server: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client does not talk to a server of another user who has put a socket in the place."""
    monkeypatch.setattr(endpoints, "peer_of", lambda sock: Peer(pid=1, uid=1234))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PeerRefused, match="belongs to user 1234"):
        ControlClient(server.address).call("ready")


def test_interrupted_call(server: ControlServer, desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in a call the client is usable, and no late answer is mistaken for another's."""
    client = ControlClient(server.address)
    assert client.call("ready") is True

    def interrupt(self: object, *request: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BoundedChannel, "transmit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.call("linger")
    assert client.call("ready") is True


def test_find_platforms(server: ControlServer) -> None:
    """Running platforms are found with name, process, address and release."""
    (found,) = find_platforms()
    assert (found.name, found.pid, found.address, found.exop) == ("desk", os.getpid(), server.address, __version__)
    assert found.problem == ""


def test_find_silent_platform(
    fake: Callable[..., ControlClient], tmp_path: Path, run_directory: Path, monkeypatch: Any, capsys: Any
) -> None:
    """A platform that does not answer is listed with its process, and not for ever waited for; nor is a name there."""
    fake(b"")
    run_directory.mkdir(mode=0o700)
    (run_directory / "4711.sock").symlink_to(tmp_path / "fake.sock")
    monkeypatch.setattr(find_platforms, "__defaults__", (0.1,))  # for all that have imported it
    with pytest.raises(PeerUnreachable) as named:
        connect("b")
    assert ps() == 0
    _, row, line = capsys.readouterr().out.splitlines()
    assert row.split() == ["4711", "-", "does", "not", "answer", str(tmp_path / "fake.sock")]
    told = f"process {os.getpid()} listens there, but does not answer; wait if it is busy, continue it if it is stopped"
    assert line.startswith("process 4711: ")
    assert told in line
    assert str(named.value).startswith("no platform that answers has the name or number b; ")
    assert told in str(named.value)


@pytest.mark.parametrize("visible", [True, False])
def test_a_silent_process_in_another_container(
    fake: Callable[..., ControlClient], tmp_path: Path, run_directory: Path, monkeypatch: Any, *, visible: bool
) -> None:
    """Its number is not known here, and may be that of another process: no error and no cure names one."""
    fake(b"")
    run_directory.mkdir(mode=0o700)
    (run_directory / f"{os.getpid()}.sock").symlink_to(tmp_path / "fake.sock")
    monkeypatch.setattr(find_platforms, "__defaults__", (0.1,))
    if not visible:
        for module in (sockets, endpoints):
            monkeypatch.setattr(module, "peer_of", lambda _: Peer(0, os.geteuid()))
    (found,) = [one for one in _running() if one.verdict == "broken"]
    if visible:
        assert found.cure == f"kill {os.getpid()}"
    else:
        assert found.cure == "end it, where it runs"
        assert "a process that is not visible here listens there, but does not answer; wait if it" in found.fact
        assert "kill" not in found.fact

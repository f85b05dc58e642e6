"""A platform in a process of its own, and a peer that speaks to it in raw bytes."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from exop.remoting import ControlClient, ControlServer, Limits, operations
from exop.remoting.transport.sockets import Peer, dial

SHORT = Limits(greeting_time=0.5, frame_time=0.5, idle_time=20.0, patience=0.2, queue_time=0.5, stop_time=1.0)
HEADER = struct.Struct("!LB")
#: The epoch of the inbox that a whole platform has.
EPOCH = 7


class Target:
    """The process, its socket, and what it costs."""

    def __init__(self, process: subprocess.Popen[str], path: Path, uris: dict[str, str]) -> None:
        self.process = process
        self.path = path
        self.uris = uris

    @classmethod
    def start(cls, python: str, path: Path, *more: Path) -> Target:
        """Start it and wait until it listens: at *path*, and with an identity on loopback by tcp and tls, too.

        With the file of a policy, it is a whole platform, which listens by tls only, and has an inbox for `evil`.
        """
        command = [python, "-m", "tests.remoting.target", str(path), *map(str, more)]
        with path.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        word, *uris = process.stdout.readline().split()
        assert word == "listening"
        return cls(process, path, {uri.partition(":")[0]: uri for uri in uris})

    def log(self) -> str:
        """The text that it has logged so far."""
        return self.path.with_suffix(".log").read_text()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)

    def asks(self, client: ControlClient | None = None) -> bool:
        """Whether a well-behaved client gets its answer."""
        with client or ControlClient(self.path, timeout=60.0) as asking:
            return bool(asking.call("echo", {"words": ["a", "b"]}) == {"text": "a b", "count": 2})

    def peak(self) -> float:
        """The most memory it had since `forget_peak`, in MiB."""
        return self._status("VmHWM") / 1024

    def forget_peak(self) -> float:
        """Begin anew; returns what it has now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self._status("VmRSS") / 1024

    def threads(self) -> int:
        """How many threads it has."""
        return self._status("Threads")

    def is_quiet(self) -> bool:
        """Whether no connection is left: its own two threads remain."""
        return self.threads() == 2

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith(name + ":")))


class RawPeer:
    """A connection to *path* that says whatever it is told."""

    def __init__(self, path: Path, greet: bool = True, dialled: socket.socket | None = None) -> None:
        self.sock = dialled or dial(path, 5.0)
        self.sock.settimeout(5.0)
        if greet and dialled is None:
            self.greet()

    def greet(self, **fields: str) -> bytes:
        """Shake hands as a good peer does, or with other fields."""
        from exop.remoting.transport.codec import encode_message
        from exop.remoting.transport.handshake import Hello

        self.send_frame(encode_message(Hello(**fields)))
        return self.frame()

    def send(self, data: bytes) -> None:
        """Send bytes; a peer that has hung up is no failure of the test."""
        with suppress(ConnectionError, ssl.SSLError):
            self.sock.sendall(data)

    def send_frame(self, body: bytes, compressed: int = 0) -> None:
        """Send one frame."""
        self.send(HEADER.pack(len(body), compressed) + body + b"\n")

    def send_message(self, kind: int, *content: Any) -> None:
        """Send one rpyc message, packed by rpyc's own brine."""
        from rpyc.core import brine

        self.send_frame(bytes([kind]) + brine.dump(content))

    def ask(self, operation: str, payload: bytes, number: int = 0) -> None:
        """Send one well-formed request."""
        self.send_message(1, number, (100, (1, (operation, payload))))

    def frame(self) -> bytes:
        """Read one frame."""
        length, _ = HEADER.unpack(self._read(HEADER.size))
        return self._read(length + 1)[:-1]

    def ended(self) -> bool:
        """Read to the end; whether the platform has hung up before the time was over."""
        try:
            while self.sock.recv(65536):
                pass
        except (ConnectionError, ssl.SSLError):
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


def wait_until(condition: Any, seconds: float = 60.0) -> bool:
    """Whether *condition* comes true before the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


class Held:
    """Hooks that keep what they get."""

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.run = ""

    def objection(self, peer: Peer, kind: str) -> str:
        """Object to nobody."""
        return ""

    def on_reverse(self, client: ControlClient, peer: Peer) -> None:
        """Keep the client."""
        self.kept.append(client)

    def on_data(self, sock: socket.socket, peer: Peer) -> None:
        """Keep the socket."""
        self.kept.append(sock)


def main() -> None:
    """Serve until the standard input ends."""
    from exop import Application, Platform
    from exop.remoting.identity import Identity
    from exop.stock.slets import pass_on
    from tests.remoting.desk import Desk

    if len(sys.argv) > 3:
        _, _, folder, policy = sys.argv
        with Platform(
            name="target", control=False, listen="tls://127.0.0.1:0", identity=folder, policy=policy
        ) as platform:
            app = Application("shop")
            inbox = {"key": "shop/orders/evil>target", "peer": "evil", "epoch": EPOCH}
            app.add("taken", pass_on, item=app.channel("orders", kind="inbox", **inbox))
            platform.apply(app.build())
            print("listening", platform.address, flush=True)  # noqa: T201
            sys.stdin.read()
        return
    identity = Identity(sys.argv[2]) if len(sys.argv) > 2 else None
    listen = ["tcp://127.0.0.1:0", "tls://127.0.0.1:0"] if identity is not None else []
    server = ControlServer(
        operations(Desk()),
        Path(sys.argv[1]),
        name="target",
        limits=SHORT,
        listen=listen,
        identity=identity,
        roles=lambda peer: "admin" if peer.trusted or peer.name == "good" else None,
        hooks=Held(),
    )
    with server:
        print("listening", *server.uris, flush=True)  # noqa: T201
        sys.stdin.read()


if __name__ == "__main__":
    main()

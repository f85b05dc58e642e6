"""Connections between platforms: control, with exchanged roles, and data; names, roles and tickets."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from exop.errors import CallTimeout, ConnectionLost, PeerRefused, PeerUnreachable
from exop.remoting import ControlClient, ControlServer, operation, operations
from exop.remoting.identity import Identity
from exop.remoting.transport.handshake import PROTOCOL, REVERSE, Tickets
from exop.remoting.transport.operation import PEER, Role
from exop.remoting.transport.sockets import Peer
from exop.runtime.history import CALLER
from tests.remoting.certificates import Authority
from tests.remoting.desk import Desk
from tests.remoting.target import SHORT, RawPeer, wait_until

PATIENCE = 60.0
SCHEMES = ("inproc", "tcp", "tls")


@dataclass
class Hooks:
    """What a server hands over."""

    clients: queue.Queue[tuple[ControlClient, Peer]] = field(default_factory=queue.Queue)
    sockets: queue.Queue[tuple[socket.socket, Peer]] = field(default_factory=queue.Queue)
    run: str = "a run"
    objections: list[str] = field(default_factory=list)

    def objection(self, peer: Peer, kind: str) -> str:
        """Return what the test objects."""
        return self.objections[0] if self.objections else ""

    def on_reverse(self, client: ControlClient, peer: Peer) -> None:
        """Keep the client."""
        self.clients.put((client, peer))

    def on_data(self, sock: socket.socket, peer: Peer) -> None:
        """Keep the socket."""
        self.sockets.put((sock, peer))


class Caller:
    """An operation that says who calls it."""

    @operation(role="observe")
    def caller(self) -> list[str]:
        """The name of the peer, and the text for the history."""
        peer = PEER.get()
        return [peer.name if peer is not None else "", CALLER.get()]

    @operation(role="operate")
    def end(self) -> None:
        """Needs a higher role."""


class Hosts:
    """Platforms that listen by one transport; servers and clients of them end with the test."""

    def __init__(self, scheme: str, folder: Path, stack: ExitStack) -> None:
        self.scheme = scheme
        self._folder = folder
        self._stack = stack
        self._authority = Authority(folder / "authority") if scheme == "tls" else None
        self._identities: dict[str, Identity] = {}

    def identity(self, name: str) -> Identity | None:
        """The identity of a platform, if the transport needs one."""
        if self._authority is None:
            return None
        if name not in self._identities:
            self._identities[name] = Identity(self._authority.issue(name))
        return self._identities[name]

    def server(self, name: str, hooks: Hooks | None = None, **given: Any) -> ControlServer:
        """Start a platform."""
        uri = f"inproc:{self._folder.name}-{name}" if self.scheme == "inproc" else f"{self.scheme}://127.0.0.1:0"
        roles: Callable[[Peer], Role | None] = lambda peer: "observe"  # noqa: E731
        settings: dict[str, Any] = {"limits": SHORT, "roles": roles, "local": False, "listen": [uri]} | given
        server = ControlServer(
            operations(Caller(), Desk()), name=name, hooks=hooks, identity=self.identity(name), **settings
        )
        self._stack.callback(server.stop)
        server.start()
        return server

    def client(self, server: ControlServer, name: str = "", **given: Any) -> ControlClient:
        """A client with the name of a platform, or without one."""
        identity = self.identity(name or "visitor")
        client = ControlClient(server.uris[0], identity=identity, name=name, timeout=PATIENCE, **given)
        self._stack.callback(client.close)
        return client


@pytest.fixture(params=SCHEMES)
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    """Platforms of each transport."""
    with ExitStack() as stack:
        yield Hosts(request.param, tmp_path, stack)


@pytest.fixture
def on_tls(tmp_path: Path) -> Iterator[Hosts]:
    """Platforms with certificates."""
    with ExitStack() as stack:
        yield Hosts("tls", tmp_path, stack)


@pytest.fixture
def on_tcp(tmp_path: Path) -> Iterator[Hosts]:
    """Platforms on loopback."""
    with ExitStack() as stack:
        yield Hosts("tcp", tmp_path, stack)


def test_operations_know_their_caller(hosts: Hosts) -> None:
    """An operation is called by the peer that the certificate names, or its greeting on the same host."""
    name, text = hosts.client(hosts.server("east"), "west").call("caller")
    assert name == "west"
    assert text.startswith("platform west")


def test_visitor(hosts: Hosts) -> None:
    """A command is no platform: on the same host it has no name, with TLS that of its certificate."""
    name, _ = hosts.client(hosts.server("east")).call("caller")
    assert name == ("visitor" if hosts.scheme == "tls" else "")


def test_exchanged_roles(hosts: Hosts) -> None:
    """A platform that only the other can reach calls its operations over a connection that the other dials."""
    hooks = Hooks()
    east, west = hosts.server("east", hooks), hosts.server("west", listen=[])
    ended = threading.Event()
    assert west.serve_at(east.uris[0], "east", ended=ended.set).name == "east"
    client, peer = hooks.clients.get(timeout=PATIENCE)
    assert peer.name == client.platform().name == "west"
    assert client.call("caller")[0] == "east"
    with pytest.raises(PeerRefused, match="needs the role operate"):
        client.call("end")
    client.close()
    assert ended.wait(PATIENCE)
    with pytest.raises(PeerUnreachable, match=r"no platform answers at west: .*only the peer can dial"):
        client.call("caller")


def test_data_connection(hosts: Hosts) -> None:
    """With a ticket, obtained on the control connection, a platform opens a data connection in both directions."""
    hooks = Hooks()
    here = hosts.client(hosts.server("east", hooks), "west").open_data()
    there, peer = hooks.sockets.get(timeout=PATIENCE)
    assert peer.name == "west"
    for sender, receiver in ((here, there), (there, here)):
        sender.sendall(b"frames")
        receiver.settimeout(PATIENCE)
        assert receiver.recv(100) == b"frames"
    here.close()
    there.close()


def test_data_connection_is_no_control_connection(hosts: Hosts) -> None:
    """The server neither counts a data connection nor ends it when it stops."""
    hooks = Hooks()
    server = hosts.server("east", hooks)
    client = hosts.client(server, "west")
    here = client.open_data()
    there, _ = hooks.sockets.get(timeout=PATIENCE)
    client.close()
    assert wait_until(lambda: server.connections == 0)
    server.stop()
    here.sendall(b"still")
    assert there.recv(100) == b"still"
    here.close()
    there.close()


def test_another_platform_than_the_wanted_one(hosts: Hosts) -> None:
    """A dialler that wants another platform does not connect."""
    client = hosts.client(hosts.server("east"), "west", platform="north")
    with pytest.raises(PeerRefused, match=r"east.*north"):
        client.call("caller")


def test_nameless_greeting_on_loopback(on_tcp: Hosts) -> None:
    """On loopback TCP, a peer must name the platform: a program that was sent there by mistake does not."""
    client = ControlClient(on_tcp.server("east").uris[0].replace("east@", ""))
    with pytest.raises(PeerRefused, match="name it: tcp://NAME@HOST:PORT"):
        client.call("caller")


def test_name_of_another_peer(on_tls: Hosts) -> None:
    """A platform that calls itself otherwise than its certificate is declined, and so is one that listens."""
    east = on_tls.server("east")
    client = ControlClient(east.uris[0], identity=on_tls.identity("north"), name="west")
    with pytest.raises(PeerRefused, match="your certificate is that of 'north', not of 'west'"):
        client.call("caller")
    lying = ControlServer(
        {}, name="south", local=False, listen=["tls://127.0.0.1:0"], identity=on_tls.identity("north"), limits=SHORT
    )
    with lying, pytest.raises(PeerRefused, match="it calls itself 'south', and the name of its certificate is 'north'"):
        ControlClient(lying.uris[0].replace("south@", ""), identity=on_tls.identity("west")).call("caller")


@pytest.mark.parametrize(
    ("name", "told"),
    [("", "needs a name other than 'east'"), ("east", "both platforms are called 'east'")],
    ids=["none", "its own"],
)
def test_platforms_need_names(on_tcp: Hosts, name: str, told: str) -> None:
    """A platform that has no name, or that of the platform it dials, is declined."""
    east, west = on_tcp.server("east", Hooks()), on_tcp.server(name, listen=[])
    with pytest.raises(PeerRefused, match=told):
        west.serve_at(east.uris[0], ended=lambda: None)


def test_server_without_peers(on_tcp: Hosts) -> None:
    """A server that has no use for the connections of platforms declines them."""
    east, west = on_tcp.server("east"), on_tcp.server("west", listen=[])
    with pytest.raises(PeerRefused, match="it has no reverse connections"):
        west.serve_at(east.uris[0], ended=lambda: None)
    with pytest.raises(PeerRefused, match="it has no data connections"):
        on_tcp.client(east, "west").open_data()


def test_acceptor_of_an_older_release(on_tcp: Hosts) -> None:
    """A platform that takes each connection for a control connection is not served by mistake."""
    west = on_tcp.server("west", listen=[])
    with socket.create_server(("127.0.0.1", 0)) as old:
        answer = {"type": "welcome", "name": "old", "pid": 1, "protocol": PROTOCOL, "exop": "0.0.9"}
        packed = msgpack.packb(answer)

        def reply() -> None:
            accepted, _ = old.accept()
            with accepted:
                accepted.recv(10_000)
                accepted.sendall(len(packed).to_bytes(4, "big") + b"\0" + packed + b"\n")

        with ThreadPoolExecutor(1) as pool:
            replying = pool.submit(reply)
            with pytest.raises(PeerRefused, match=r"its release, exop 0\.0\.9, has no reverse connections"):
                west.serve_at(f"tcp://127.0.0.1:{old.getsockname()[1]}", ended=lambda: None)
            replying.result(PATIENCE)


def test_role_of_each_peer(on_tls: Hosts) -> None:
    """Each peer has its own role, which is looked up at each call; a peer without one may only ping."""
    roles: dict[str, Role] = {"west": "observe"}
    east = on_tls.server("east", roles=lambda peer: roles.get(peer.name))
    west, north = on_tls.client(east, "west"), on_tls.client(east, "north")
    assert west.call("caller")[0] == "west"
    with pytest.raises(PeerRefused, match=r"the role observe, and the role of this peer is none; .*\[peers..north.\]"):
        north.call("caller")
    assert north.ping() is not None
    del roles["west"]
    with pytest.raises(PeerRefused, match="the role of this peer is none"):
        west.call("caller")


def test_peer_that_may_not_connect(on_tls: Hosts) -> None:
    """A peer that the roles refuse is declined in the handshake, with the reason."""

    def roles(peer: Peer) -> Role | None:
        raise PeerRefused(address=peer.address, problem=f"{peer.name} is not in the policy")

    with pytest.raises(PeerRefused, match="west is not in the policy"):
        on_tls.client(on_tls.server("east", roles=roles), "west").call("caller")


def test_default_roles(on_tls: Hosts, tmp_path: Path) -> None:
    """By default, the owner on the same host may do everything, and a peer with a certificate nothing."""
    server = ControlServer(
        operations(Caller()),
        tmp_path / "socket",
        name="east",
        listen=["tls://127.0.0.1:0"],
        identity=on_tls.identity("east"),
    )
    with server:
        assert ControlClient(server.address).call("end") is None
        with pytest.raises(PeerRefused, match="the role of this peer is none"):
            on_tls.client(server, "west").call("caller")


def test_ping_while_a_call_is_under_way(server: ControlServer, desk: Desk) -> None:
    """A connection that works on a call is not pinged: the call has a deadline of its own."""
    client = ControlClient(server.address)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.call, "linger")
        assert desk.waiting.acquire(timeout=PATIENCE)
        assert client.ping() is None
        desk.open.set()
        assert waiting.result(PATIENCE) == "open"
    assert client.ping() is not None


def test_ping_of_a_peer_that_stands_still(on_tcp: Hosts) -> None:
    """A ping that is not answered in time is an error, and so is one over an ended connection."""
    hooks = Hooks()
    east = on_tcp.server("east", hooks)
    with RawPeer(Path(), dialled=socket.create_connection(("127.0.0.1", int(east.uris[0].rpartition(":")[2])))) as peer:
        assert peer.greet(name="west", platform="east", kind=REVERSE)
        client, _ = hooks.clients.get(timeout=PATIENCE)
        with pytest.raises(CallTimeout, match="did not answer 'ping'"):
            client.ping(timeout=0.05)
        with pytest.raises(PeerUnreachable, match="only the peer can dial"):
            client.ping()


def test_silent_caller(on_tcp: Hosts) -> None:
    """The dialler ends a connection with exchanged roles when the caller neither calls nor pings."""
    hooks = Hooks()
    east = on_tcp.server("east", hooks)
    west = on_tcp.server("west", listen=[], limits=replace(SHORT, silence=0.05))
    ended = threading.Event()
    west.serve_at(east.uris[0], ended=ended.set)
    assert ended.wait(PATIENCE)
    client, _ = hooks.clients.get(timeout=PATIENCE)
    with pytest.raises((ConnectionLost, PeerUnreachable)):
        client.ping()


def test_hanging_up(hosts: Hosts) -> None:
    """A server ends the connections of chosen peers, in both directions, and no others."""
    hooks = Hooks()
    east, west = hosts.server("east", hooks), hosts.server("west", hooks)
    ended = threading.Event()
    west.serve_at(east.uris[0], ended=ended.set)
    clients = [hosts.client(west, name) for name in ("east", "north")]
    greetings = [client.platform() for client in clients]
    assert wait_until(lambda: west.hang_up(lambda peer: peer.name == "east") == 0 and west.connections == 1)
    assert ended.wait(PATIENCE)
    assert clients[1].platform() is greetings[1]


def test_stopping_ends_dialled_connections(hosts: Hosts) -> None:
    """A platform that stops serves no other any more."""
    hooks = Hooks()
    east, west = hosts.server("east", hooks), hosts.server("west", listen=[])
    ended = threading.Event()
    west.serve_at(east.uris[0], ended=ended.set)
    west.stop()
    assert ended.wait(PATIENCE)
    with pytest.raises(PeerUnreachable, match="stops"):
        west.serve_at(east.uris[0], ended=ended.set)


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def test_a_ticket_is_for_one_use() -> None:
    """A ticket admits its platform once."""
    tickets = Tickets()
    ticket = tickets.issue("west")
    assert tickets.redeem(ticket, "west")
    assert not tickets.redeem(ticket, "west")


def test_a_ticket_of_another_platform() -> None:
    """A ticket that another platform presents is not valid, and has lost its value for its owner."""
    tickets = Tickets()
    ticket = tickets.issue("west")
    assert not tickets.redeem(ticket, "north")
    assert not tickets.redeem(ticket, "west")


def test_a_ticket_expires() -> None:
    """A ticket is valid for ten seconds."""
    clock = Clock()
    tickets = Tickets(clock=clock)
    early, late = tickets.issue("west"), tickets.issue("west")
    clock.now += 9.9
    assert tickets.redeem(early, "west")
    clock.now += 0.2
    assert not tickets.redeem(late, "west")


def test_tickets_are_bounded() -> None:
    """The oldest ticket of the same platform makes room; no ticket is an empty text, or belongs to nobody."""
    tickets = Tickets()
    other = tickets.issue("north")
    issued = [tickets.issue("west") for _ in range(Tickets.MOST + 1)]
    assert not tickets.redeem(issued[0], "west")
    assert tickets.redeem(issued[1], "west")
    assert tickets.redeem(other, "north"), "a platform that asks for many tickets takes none from others"
    assert not tickets.redeem("", "")
    assert not tickets.redeem(tickets.issue(""), "")

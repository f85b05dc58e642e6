"""`RemotingService`: the peers of a platform, the links to them, and what they offer (paper §4.3)."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from exop.errors import ExopError, IdentityError, PeerRefused, PeerUnreachable, PlatformBusy, RemotingError, UnknownName
from exop.model import properties as names
from exop.registry import Registration, ServiceReference, ServiceRegistry
from exop.remoting.api.remote_platform import RemotePlatform
from exop.remoting.peers.discovery import Announcement, announce, announcements
from exop.remoting.peers.link import PeerLink
from exop.remoting.policy import Access, AccessControl
from exop.remoting.transport.client import ControlClient
from exop.remoting.transport.endpoints import Endpoint, needed
from exop.remoting.transport.handshake import CONTROL
from exop.remoting.transport.limits import DEFAULT_LIMITS
from exop.remoting.transport.operation import Operation
from exop.remoting.transport.server import ControlServer
from exop.remoting.transport.sockets import Peer, in_words
from exop.runtime.channels.connector import LOST

#: Seconds between two pings of a control connection with exchanged roles.
_EVERY: Final = 2.0
#: Seconds that closing waits for threads that dial a peer which does not answer; they end by themselves.
_CLOSING: Final = 1.0
#: The direction of the items, by the channel kind of the half of a connector on this platform.
DIRECTIONS: Final = {"outbox": "out", "inbox": "in", "reader": "in"}
_log = logging.getLogger("exop.remoting")


class Links(dict[str, PeerLink]):
    """Links by names; *find* returns the link of another name, which may come later if *awaited*, or raises."""

    def __init__(self, find: Callable[[str], PeerLink], *, awaited: bool = False) -> None:
        super().__init__()
        self._find, self._awaited = find, awaited

    def __missing__(self, peer: str) -> PeerLink:
        return self._find(peer)

    def __contains__(self, peer: object) -> bool:
        return self._awaited or super().__contains__(peer)


@dataclass(eq=False, repr=False)
class RemotingService:
    """Links a platform with its peers, and keeps the links: a lost peer is dialled again until the platform stops.

    Args:
        operations: Returns the operations that peers may call.
        registry: The registry of the platform; it shows the peers and connectors that can be reached.
        listen: The address at which the platform listens; `None` if it only dials.
        announced: Whether the platform announces its address on the local network.
    """

    name: str
    operations: Callable[[], Mapping[str, Operation]]
    registry: ServiceRegistry
    access: AccessControl
    listen: str | None
    announced: bool

    def __post_init__(self) -> None:
        self.run = os.urandom(8).hex()
        self.peers = Links(self._unknown)
        self.wires = self.peers if self.listen is None else Links(self._link, awaited=True)
        self._limits = DEFAULT_LIMITS
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._contacts: dict[str, Peer] = {}
        self._reversed: dict[str, ControlClient] = {}
        self._called: dict[str, ControlClient] = {}
        self._registered: dict[str, Registration] = {}
        self._offered: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._withdraw: Callable[[], None] = lambda: None
        self._server = ControlServer(
            self.operations,
            name=self.name,
            local=False,
            listen=() if self.listen is None else (self.listen,),
            identity=self.access.identity,
            roles=self.access.role,
            hooks=self,
            on_refusal=self._refused,
        )
        self._connectors = ConnectorServices(self.registry, self._registered.__contains__)

    @property
    def address(self) -> str | None:
        """The address at which peers reach this platform; `None` if it does not listen."""
        return next(iter(self._server.uris), None)

    def start(self) -> None:
        """Listen, and announce the address.

        Raises:
            AddressInUse, AddressUnusable: the platform cannot listen at the address, or not announce it.
            IdentityError: the certificate is that of another platform.
        """
        if (identity := self.access.identity) is not None and (name := identity.files().own.name) != self.name:
            problem = f"the certificate is that of {name!r}, and the platform is called {self.name!r}"
            raise IdentityError(place=str(identity.folder), problem=problem, cure="give both the same name")
        self._server.start()
        if self.announced:
            self._withdraw = announce(self.name, self.address or f"the platform {self.name}")
        if identity is not None:
            self._spawn("access", lambda: self.access.watch(self.hang_up, self._closing))

    def connect(self, uri: str, name: str | None = None) -> PeerLink:
        """Connect to the platform at *uri*, and return the link, which reconnects by itself from now on.

        Raises:
            PeerUnreachable: no platform answers at the address.
            PeerRefused, ProtocolMismatch: the platform there is not called *name*, or either side refuses the other.
        """
        link = self.add(self._greet(uri, name), uri)
        if not link.wait_until(connected=True, timeout=self._limits.greeting_time):
            raise PeerUnreachable(address=uri, problem=link.reason)
        return link

    def add(self, name: str, uri: str) -> PeerLink:
        """Link the platform with the peer *name* at *uri* as soon as that answers.

        Raises:
            AddressUnusable: the address needs certificates, and the platform has none.
            PeerRefused: there is a link to a peer of this name at another address.
        """
        with self._lock:
            link = self._link(name)
            needed(self.access.identity, Endpoint.parse(uri))  # no certificates come later
            if link.uri and len({replace(Endpoint.parse(one), platform=name) for one in (link.uri, uri)}) == 1:
                return link
            if link.uri:
                raise PeerRefused(address=uri, problem=f"the peer {name!r} is linked already, at {link.uri}")
            client, offered = self._client(uri, name), threading.Event()

            def dial() -> socket.socket:
                # The peer can call this platform before it gets the data connection.
                if not offered.wait(self._limits.greeting_time) or self._closing.is_set():
                    raise PeerUnreachable(address=uri, problem=link.reason)
                return client.open_data()

            link.dial_at(uri, client, dial, leads=self.name < name)
            self._offered[name], self._called[name] = offered, self._client(uri, name)
        self._spawn(f"peer-{name}", partial(self._offer_operations, link, offered))
        return link

    def call(self, peer: str, operation: str, **arguments: Any) -> Any:
        """Call an operation of a peer, and return its result; long byte strings cross in parts.

        All these calls share a connection of their own, unless only the peer can dial.

        Raises:
            UnknownName: there is no such peer.
            PeerUnreachable: the peer is lost.
        """
        return RemotePlatform(peer, self._called.get(peer) or self.peers[peer].caller()).ask(operation, **arguments)

    def status(self) -> list[dict[str, Any]]:
        """Return the peers and their connectors as plain data, by name."""
        return [self._status(link) for _, link in sorted(self.peers.items())]

    def discover(self, seconds: float) -> list[dict[str, str]]:
        """Listen for *seconds*; return the platforms that announce themselves.

        Each is greeted: the `state` is `peer`, `usable`, or `unusable` with the `problem`.

        Raises:
            AddressUnusable: the network does not permit multicast, or zeroconf is not installed.
        """
        return [self._examined(one) for one in announcements(seconds) if one.name != self.name]

    def close(self) -> None:
        """Stop listening, and end all links."""
        self._closing.set()
        self._withdraw()
        for offered in self._offered.values():
            offered.set()
        self._server.stop()  # first: no peer connects any more
        for link in list(self.peers.values()):
            link.close()
        for client in self._called.values():
            client.close()
        deadline = time.monotonic() + _CLOSING
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._connectors.close()

    def objection(self, peer: Peer, kind: str) -> str:
        """Return why a process cannot be *peer*: another one is, and answers. Otherwise, one that links is from now on.

        A process that is lost gives way, also if its connection does not show it yet: no restarted host is refused.
        """
        link, first = self.peers.get(peer.name), self._contacts.get(peer.name, peer)
        if link is not None and "" not in (first.run, peer.run) and first.run != peer.run:
            if link.answers(self._limits.greeting_time / 2):
                return (
                    f"another platform called {peer.name!r} is linked already, at {link.uri or first.address}, and "
                    f"answers; stop one of the two, or start one of them with a name of its own: --name NAME"
                )
            if kind != CONTROL:
                self.hang_up(lambda one: one.run == first.run, "the peer was started again")
                if link.client is not None:
                    link.client.hang_up()
        if kind != CONTROL:
            self._contacts[peer.name] = peer
        return ""

    def on_reverse(self, client: ControlClient, peer: Peer) -> None:
        """Call the operations of a peer that has dialled by *client*."""
        link = self._link(peer.name, peer)
        self._reversed[peer.name] = client
        link.call_by(client)
        self._spawn(f"peer-{peer.name}", partial(self._keep, link, client, peer))

    def on_data(self, sock: socket.socket, peer: Peer) -> None:
        """Use the data connection of a peer that has dialled."""
        self._link(peer.name, peer).accept(sock)

    def _link(self, name: str, contact: Peer | None = None) -> PeerLink:
        """Return the link to a peer, a new one if there is none; *contact* identifies the peer that has connected."""
        if name == self.name:
            raise PeerRefused(address=self.name, problem=f"this platform itself is called {name!r}")
        with self._lock:
            if contact is not None and self._contacts.setdefault(name, contact).run != contact.run:
                raise PeerRefused(f"another platform called {name!r} has connected meanwhile")
            if name not in self.peers:
                self.peers[name] = link = PeerLink(name, may=partial(self._may, name), changed=self._changed)
                link.start()
            return self.peers[name]

    def _unknown(self, peer: str) -> PeerLink:
        raise UnknownName(place=f"the platform {self.name!r}", kind="peer", name=peer, known=self.peers)

    def _client(self, uri: str, name: str) -> ControlClient:
        return ControlClient(
            uri, limits=self._limits, identity=self.access.identity, name=self.name, platform=name, hooks=self
        )

    def _greet(self, uri: str, name: str | None) -> str:
        """Greet the platform at *uri*, and return its name."""
        with self._client(uri, name or "") as client:
            return client.platform().name

    def _may(self, peer: str, access: Access, key: str) -> bool:
        """Whether the policy permits a connector with a peer, or byte strings of the peer."""
        contact = self._contacts.get(peer)
        return contact is not None and self.access.may(contact, access, key)

    def _refused(self, address: str, problem: str) -> None:
        """Record a refusal; if a platform refuses this one, before it is known by name, its host tells which it is."""
        self.access.refused("", "connect", problem, address)
        known = {name: self._contacts.get(name, Peer()).address.rpartition(":")[0] for name in list(self.peers)}
        there = [name for name, host in known.items() if host == address.rpartition(":")[0]]
        if problem.startswith("for the other side") and len(there) == 1 and not (link := self.peers[there[0]]).uri:
            link.failed(PeerRefused(problem))

    def _changed(self, link: PeerLink) -> None:
        """Show in the registry that a peer can be reached, or is lost."""
        with self._lock:
            if (registration := self._registered.pop(link.peer, None)) is not None:
                registration.unregister()
            if link.connected and not self._closing.is_set():
                properties = {names.KIND: "peer", names.NAME: link.peer, names.HOST: link.peer}
                self._registered[link.peer] = self.registry.register("Peer", link, properties)
        self._connectors.refresh()
        if not link.connected and link.peer in self._offered and not self._closing.is_set():
            # The peer may be another process by now, which can call this platform before it gets data.
            self._offered[link.peer].clear()
            self._server.hang_up(lambda peer: peer.name == link.peer)

    def _offer_operations(self, link: PeerLink, offered: threading.Event) -> None:
        """Let a dialled peer call operations of this platform; *offered* is set while it can, and why not is logged."""
        limits, told = link.limits, set[str]()
        pause = limits.first_pause
        while not self._closing.is_set():
            ended = threading.Event()
            try:
                self._server.serve_at(link.uri, link.peer, ended=ended.set)
            except (ExopError, OSError, RuntimeError) as problem:  # a lack of descriptors or threads passes
                link.failed(problem)
                if (why := in_words(problem)) not in told and not (link.connected or self._closing.is_set()):
                    told.add(why)
                    _log.warning("the peer %r is not linked: %s; the platform goes on trying", link.peer, why)
            else:
                pause, told = limits.first_pause, set()
                offered.set()
                ended.wait()
                offered.clear()
            self._closing.wait(pause)
            pause = min(2 * pause, limits.longest_pause)

    def _keep(self, link: PeerLink, client: ControlClient, peer: Peer) -> None:
        """Ping a peer that has dialled, until it dials anew, may not be connected any more, or is lost."""
        try:
            while not self._closing.wait(_EVERY) and self._reversed.get(peer.name) is client:
                if self.access.objection(peer):
                    break
                with suppress(PlatformBusy):  # it has answered
                    client.ping()
        except PeerUnreachable as problem:
            _log.info("the peer %r cannot be called: %s", link.peer, problem.facts.get("problem", problem))
        finally:
            client.close()
            if link.client is client:
                link.client = None

    def hang_up(self, which: Callable[[Peer], bool], why: str = "the rights of the peer have changed") -> int:
        """End all connections with some peers; return how many control connections they had opened."""
        for name, peer in list(self._contacts.items()):
            if (link := self.peers.get(name)) is not None and link.connected and which(peer):
                link.drop(why, self.access.objection(peer))
        return self._server.hang_up(which)

    def _examined(self, one: Announcement) -> dict[str, str]:
        uri, state, problem = one.uri, "peer" if one.name in self.peers else "usable", ""
        try:
            uri = str(replace(Endpoint.parse(uri), platform=one.name))
            self._greet(uri, None)  # raises also if another platform with the name of a peer has answered
        except RemotingError as error:
            linked = isinstance(error, PeerUnreachable) and one.name in self.peers and self.peers[one.name].connected
            state, problem = state if linked else "unusable", str(error)
        return {"name": one.name, "uri": uri, "exop": one.exop, "state": state, "problem": problem}

    def _status(self, link: PeerLink) -> dict[str, Any]:
        trip, contact = link.round_trip, self._contacts.get(link.peer)
        known = contact is not None and not self.access.objection(contact)
        return {
            "peer": link.peer,
            "address": link.uri or (contact.address if contact is not None else ""),
            "state": "connected" if link.connected else "disconnected",
            "role": self.access.role(contact) if contact is not None and known else None,
            "round_trip_ms": None if trip is None else round(trip * 1e3, 3),
            "problem": link.reason,
            "connectors": [_connector(end.half, count) for end, count in link.attached()],
        }

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"exop-{name}", daemon=True)
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()


def _connector(half: Any, size: int) -> dict[str, Any]:
    """Return a connector as plain data, by its half here; of one that has lost its state, also the problem."""
    figures = half.metrics()
    events = figures["sent" if "sent" in figures else "received"]
    return {
        "connector": half.key,
        "epoch": half.epoch,
        "direction": DIRECTIONS[half.kind],
        "state": figures["state"],
        "events": events,
        "bytes": size,
        "lag": figures.get("lag", events - figures["acknowledged"]),
        "credit": figures["credit"],
        **({"problem": half.trouble} if half.state == LOST else {}),
    }


class ConnectorServices:
    """The services of connectors: each is in the registry while its peer is *connected*, by name (paper §4.3).

    A smart connector (of the mode `offline`, or a reader with a `cache`) works without its peer, so its service stays.
    """

    def __init__(self, registry: ServiceRegistry, connected: Callable[[str], bool]) -> None:
        self._registry = registry
        self._connected = connected
        self._lock = threading.RLock()
        self._registered: dict[ServiceReference, Registration] = {}
        kinds = "".join(f"({names.CHANNEL_KIND}={kind})" for kind in DIRECTIONS)
        self._tracker = registry.track("Channel", f"(|{kinds})", added=self._follow, removed=self._leave)

    def refresh(self) -> None:
        """Register and unregister services after a peer has connected or was lost."""
        with self._lock:
            for channel in self._tracker:
                self._follow(channel)

    def close(self) -> None:
        """Unregister all services."""
        self._tracker.close()
        self._registry.settle()

    def _follow(self, channel: ServiceReference) -> None:
        half: Any = channel.service
        settings, of = half.asked.settings, channel.properties
        properties = {
            names.KIND: "connector",
            names.NAME: settings.get("key", half.asked.name),
            names.HOST: of[names.HOST],
            names.APPLICATION: of[names.APPLICATION],
            names.PEER: settings["peer"],
            names.DIRECTION: DIRECTIONS[str(of[names.CHANNEL_KIND])],
            names.CONNECTED_TO: of[names.INSTANCE],
        }
        smart = settings.get("mode") == "offline" or settings.get("cache")
        with self._lock:
            if not (smart or self._connected(settings["peer"])):
                self._leave(channel)
            elif channel not in self._registered:
                self._registered[channel] = self._registry.register("Connector", half, properties)

    def _leave(self, channel: ServiceReference) -> None:
        with self._lock:
            if (registration := self._registered.pop(channel, None)) is not None:
                registration.unregister()

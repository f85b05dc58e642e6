"""The fragments of a mesh: an ordinary mesh for each host, joined by remote connectors (paper §4.3).

Every channel is on one host, and every other host reaches it through a connector: an outbox at the sending host and an
inbox at the receiving host. At the host of the channel, a relay joins the connector and the channel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from exop.errors import MeshError
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import HERE, INBOX, NOTHING, OUTBOX, READER, ChannelSpec, KindLike, Node
from exop.model.meshes.repetition import lots_matter, varies, vary_in_lots
from exop.model.reached import reached
from exop.model.slets.described import read_type, type_text
from exop.model.slets.ports import WINDOW, PortType
from exop.model.slets.relay import RELAY
from exop.model.slets.spec import SletSpec
from exop.model.values.classes import find_unstorable

#: The kinds of the channels that only fragments have.
REMOTE: Final = (OUTBOX, INBOX, READER)


@dataclass(frozen=True)
class Connector:
    """The way of items between a channel and another host.

    Attributes:
        channel: The channel, which is at `target` if the connector is `inward`, otherwise at `source`.
        source, target: The hosts of the outbox and of the inbox.
        key: The name of the connector on the data connection between both hosts.
    """

    channel: str
    source: str
    target: str
    inward: bool
    key: str

    @property
    def outbox(self) -> str:
        """The name of the outbox."""
        return f"{self.channel}.to.{self.target}"

    @property
    def inbox(self) -> str:
        """The name of the inbox."""
        return f"{self.channel}.from.{self.source}"

    @property
    def halves(self) -> tuple[str, str, str, str]:
        """The hosts of the outbox and of the inbox, and their names."""
        return self.source, self.target, self.outbox, self.inbox

    @property
    def relay(self) -> tuple[str, str]:
        """The name of the relay between the connector and its channel, and its host."""
        return (self.inbox, self.target) if self.inward else (self.outbox, self.source)


@dataclass(frozen=True)
class Placement:
    """The hosts of the nodes and channels of a mesh.

    Attributes:
        home: The host of nodes and channels that name no other one.
        kinds: The classes of the channel kinds.
    """

    mesh: Mesh
    home: str
    kinds: Mapping[str, type[KindLike]] = field(default_factory=lambda: NOTHING)

    def of(self, node: Node) -> str:
        """Return the host of a node."""
        return self._named(node.host)

    @cached_property
    def channels(self) -> dict[str, str]:
        """The host of each channel."""
        return {name: self._named(self.mesh.place_of(name)) for name in self.mesh.channels}

    def _named(self, host: str | None) -> str:
        return self.home if host is None or host == HERE else host

    @cached_property
    def hosts(self) -> list[str]:
        """The hosts that have something of the mesh, in the order of their names."""
        return sorted({*map(self.of, self.mesh.nodes.values()), *self.channels.values()})

    @cached_property
    def crossings(self) -> dict[tuple[str, str, str], list[tuple[Node, str]]]:
        """The ports to channels on other hosts, by channel, way (`to`, `from`, or read `at`) and host of the port."""
        found: dict[tuple[str, str, str], list[tuple[Node, str]]] = {}
        for node in self.mesh.nodes.values():
            here = self.of(node)
            for port, channel in (node.outputs() | node.inputs()).items():
                if self.channels[channel] != here:
                    way = "to" if node.slet.ports[port].direction == "out" else "from"
                    way = "at" if self.reads(node, port) else way
                    found.setdefault((channel, way, here), []).append((node, port))
        return found

    @cached_property
    def connectors(self) -> dict[str, Connector]:
        """The connectors by key, in the order of the channels."""
        found: dict[str, Connector] = {}
        place = {channel: number for number, channel in enumerate(self.channels)}
        sides = [side for side in self.crossings if side[1] != "at"]
        for channel, way, host in sorted(sides, key=lambda side: (place[side[0]], side[1] != "to", side[2])):
            there, inward = self.channels[channel], way == "to"
            source, target = (host, there) if inward else (there, host)
            key = f"{self.mesh.name}/{channel}/{source}>{target}"
            found[key] = Connector(channel, source, target, inward, key)
        return found

    def ports(self, connector: Connector) -> dict[str, tuple[Node, str]]:
        """Return the ports (`node.port`) at a connector, which are on the host without the channel."""
        way, host = ("to", connector.source) if connector.inward else ("from", connector.target)
        return {f"{node.name}.{port}": (node, port) for node, port in self.crossings[connector.channel, way, host]}

    def reads(self, node: Node, port: str) -> bool:
        """Whether a port reads the content of its channel, which it does on another host by calls."""
        kind = self.kinds.get(self.mesh.channels[node.ports[port]].kind)
        return node.slet.ports[port].pulled and kind is not None and kind.pull_mode == "read"

    def feeders(self, connector: Connector) -> list[str]:
        """Return the outboxes at the host of an inbox, if a slet pulls there, whose items lead back to it elsewhere."""
        here = connector.target

        def before(end: tuple[str, str]) -> list[tuple[str, str]]:
            channel, host = end  # a channel, and where a port takes its items, or where it is itself
            if (there := self.channels[channel]) != host:
                return [(channel, there)] if there != here else []
            away = [(node, self.of(node)) for node, _ in self.mesh.producers(channel) if self.of(node) != here]
            return [(to, at) for node, at in away for port, to in node.inputs().items() if not self.reads(node, port)]

        nodes = (node for node in self.mesh.nodes.values() if self.of(node) == here and len(node.inputs()) > 1)
        pulls = any(port.pulled for node in nodes for port in node.slet.inputs)
        ends = {*reached([(connector.channel, here)], before)} if pulls else ()
        leaving = (one for one in self.connectors.values() if one.source == here)
        return [one.outbox for one in leaving if (one.channel, one.target) in ends]

    def sent(self, connector: Connector) -> PortType | None:
        """Return the type of the items that a connector carries; `None` if it is unknown."""
        channel = self.mesh.channels[connector.channel]
        if connector.inward:
            ends = self.ports(connector)
            types = [node.slet.ports[port].type for node, port in ends.values()]
            return replace(types[0], origin=", ".join(ends)) if all(one == types[0] for one in types) else None
        pushed = self.mesh.pushed(channel.name)
        kind = self.kinds.get(channel.kind)
        return pushed if pushed is None or kind is None else kind.carries(pushed)

    def varies(self, connector: Connector) -> str | None:
        """Return why a connector may get other events after a restart of the sending host, in words, or `None`."""

        def here(one: Node | ChannelSpec) -> bool:
            return (self.of(one) if isinstance(one, Node) else self.channels[one.name]) == connector.source

        mesh, channel = self.mesh, connector.channel
        lots = lots_matter(mesh, channel)
        return varies(mesh, channel, here) or (vary_in_lots(mesh, channel, here) if lots else None)

    @cached_property
    def punctuated(self) -> frozenset[str]:
        """The channels to which punctuations come from all producers, and the windows by time, which send their own."""
        mesh = self.mesh
        feeds = {name: [self._awaited(*end) for end in mesh.producers(name)] for name in mesh.channels}
        return frozenset(punctuated(feeds, {name for name, channel in mesh.channels.items() if time_field(channel)}))

    def _awaited(self, node: Node, port: str) -> list[str] | None:
        inputs = [(to, node.slet.ports[one].pulled, self.reads(node, one)) for one, to in node.inputs().items()]
        return awaited(node.slet, port, inputs)

    def sends_punctuations(self, connector: Connector) -> bool:
        """Whether punctuations come through a connector."""
        if not connector.inward:
            return connector.channel in self.punctuated
        return all(comes(self._awaited(*end), self.punctuated) for end in self.ports(connector).values())


def awaited(spec: SletSpec, port: str, inputs: Iterable[tuple[str, bool, bool]]) -> list[str] | None:
    """Return the channels by which punctuations reach an output past its slet; `None` if the slet makes them.

    Punctuations come from outputs whose types name them, and pass a slet if they come to all its inputs. *inputs* are
    the channels of the slet, each with whether its port pulls, and whether what the channel keeps is only read.
    """
    if spec.ports[port].type.punctuation:
        return None
    if spec.own_driver or any(one.type.punctuation for one in spec.inputs):
        return []
    return [channel for channel, pulled, read in inputs if not pulled or (spec.iterated and not read)]


def comes(channels: list[str] | None, known: Collection[str]) -> bool:
    """Whether punctuations leave an output that awaits them from *channels*, if they come to the *known* channels."""
    return channels is None or (bool(channels) and all(one in known for one in channels))


def punctuated(feeds: Mapping[str, Collection[list[str] | None]], found: set[str]) -> set[str]:
    """Add to *found* the channels to which punctuations come; *feeds*: what each of their producers awaits."""
    size = -1
    while len(found) > size:  # a cycle waits for itself
        size = len(found)
        found |= {name for name, ends in feeds.items() if ends and all(comes(one, found) for one in ends)}
    return found


def time_field(channel: ChannelSpec) -> str | None:
    """Return the field with the time of an item if a window is by time, now or after a pending update."""
    settings: dict[str, Any] = {}
    for given in (channel.settings, *(update.settings for update in channel.pending)) if channel.kind == WINDOW else ():
        settings |= given
        for sizes in (settings, *(settings.get("ports") or {}).values()):
            if sizes.get("seconds"):
                return str(sizes.get("time", settings.get("time")))
    return None


def fragments(
    mesh: Mesh, home: str, connectors: Mapping[str, int] = NOTHING, kinds: Mapping[str, type[KindLike]] = NOTHING
) -> dict[str, Mesh]:
    """Split a mesh into one mesh per host; hosts that have nothing of it are left out.

    Args:
        mesh: The whole mesh.
        home: The host of nodes and channels that name no other one.
        connectors: The epochs of the existing connectors, by key; a new one has the epoch `mesh.revision + 1`.
        kinds: The classes of the channel kinds.

    Raises:
        MeshError: a name is taken, or nodes and channels that belong together are on different hosts.
    """
    placement = Placement(mesh, home, kinds)
    check_placement(placement)
    if len(placement.hosts) < 2:
        return dict.fromkeys(placement.hosts, mesh)
    nodes: dict[str, dict[str, Node | None]] = {host: {} for host in placement.hosts}
    channels: dict[str, dict[str, ChannelSpec | None]] = {host: {} for host in placement.hosts}
    for name, channel in mesh.channels.items():
        channels[placement.channels[name]][name] = channel
    ends: dict[str, dict[str, str]] = {}
    for (name, way, _), crossing in placement.crossings.items():
        for node, port in crossing:
            ends.setdefault(node.name, {})[port] = f"{name}.{way}.{placement.channels[name]}"
    for node in mesh.nodes.values():
        ports = ends.get(node.name)
        nodes[placement.of(node)][node.name] = replace(node, ports={**node.ports, **ports}) if ports else node
    for connector in placement.connectors.values():
        outbox, inbox = _halves(placement, connector, connectors.get(connector.key, mesh.revision + 1))
        channels[connector.source][outbox.name] = outbox
        channels[connector.target][inbox.name] = inbox
        item, out = (inbox.name, connector.channel) if connector.inward else (connector.channel, outbox.name)
        name, host = connector.relay
        # What the channel refuses is treated by the policy of its producers, if they have the same, as on one host.
        policies = {node.policy for node, _ in placement.ports(connector).values()} if connector.inward else set()
        policy = min(policies) if len(policies) == 1 and policies != {RELAY.on_error} else None
        nodes[host][name] = Node(name, RELAY, ports={"item": item, "out": out}, on_error=policy)
    for host, reader in _readers(placement):
        channels[host][reader.name] = reader
    empty = Mesh(mesh.name, revision=mesh.revision, durable=mesh.durable)
    return {host: empty.edited(nodes[host], channels[host]) for host in placement.hosts}


def _halves(placement: Placement, connector: Connector, epoch: int) -> tuple[ChannelSpec, ChannelSpec]:
    """Return the outbox and the inbox of a connector."""
    channel = placement.mesh.channels[connector.channel]
    given = {name: one for name, one in channel.connector.items() if name != "cache"}
    ack = "done" if placement.mesh.durable is None else "stable"
    settings: dict[str, Any] = {"key": connector.key, "epoch": epoch, "mode": "async", "ack": ack, **given}
    after = {"after_checkpoint": True} if settings["ack"] == "stable" and placement.varies(connector) else {}
    # The consumers of a partitioned channel share its partitions at their host; a relay is in no group, and takes all.
    divided = placement.kinds[channel.kind].partitions_of(channel) if channel.kind in placement.kinds else None
    shared = {} if divided is None else dict(zip(("by", "partitions"), divided, strict=True))
    sent = replace(placement.sent(connector) or PortType(), punctuation=placement.sends_punctuations(connector))
    carried = read_type(type_text(sent))  # a fragment is the same on all hosts, with or without the classes
    outbox = ChannelSpec(connector.outbox, OUTBOX, {"peer": connector.target, **settings, **after}, type=carried)
    back = {"feeders": feeders} if (feeders := placement.feeders(connector)) else {}
    inbox = ChannelSpec(connector.inbox, INBOX, {"peer": connector.source, **settings, **shared, **back}, type=carried)
    return outbox, inbox


def _readers(placement: Placement) -> Iterator[tuple[str, ChannelSpec]]:
    """Yield the channels by which ports read the content of a channel on another host, each with its host."""
    for name, way, host in placement.crossings:
        if way == "at":
            channel, there = placement.mesh.channels[name], placement.channels[name]
            cache = channel.connector.get("cache", False)
            settings = {"peer": there, "channel": name, "reads": channel.kind, "cache": cache}
            carried = read_type(type_text(placement.mesh.pushed(name) or PortType()))  # as of a connector
            yield host, ChannelSpec(f"{name}.at.{there}", READER, settings, type=carried)


def epochs(before: Placement, after: Placement, known: Mapping[str, int]) -> dict[str, int]:
    """Return the epochs of the connectors of *after*, which replaces *before*.

    A connector keeps its *known* epoch, unless its channel moves from one of its ends to the other.
    """
    old, new = before.connectors, after.mesh.revision + 1
    return {key: known[key] if key in known and old.get(key) == one else new for key, one in after.connectors.items()}


def check_placement(placement: Placement) -> None:
    """Refuse a placement that cannot be split.

    Raises:
        MeshError: a connector has the name of a node or channel, a connector carries what cannot be sent, a group is on
            several hosts, or a window does for a port on another host what it can do only for its own.
    """
    mesh = placement.mesh
    for connector in placement.connectors.values():
        for name in (connector.outbox, connector.inbox):
            if name in mesh.channels or name in mesh.nodes:
                raise MeshError(
                    f"{mesh.name}: {name!r} is the name of a connector between {connector.source} and "
                    f"{connector.target}; give the node or channel of this name another one"
                )
        if (carried := placement.sent(connector)) is not None and (part := find_unstorable(carried.items)) is not None:
            raise MeshError(
                f"{mesh.name}: items of {connector.channel!r} ({carried}) go from {connector.source} to "
                f"{connector.target}, and a {part.name} cannot be sent{carried.sent_by}; use plain values, "
                f"collections, dataclasses, arrays or record batches, or place both ends on one host"
            )
    _check_windows(placement)
    groups: dict[str, Node] = {}
    for node in (node for node in mesh.nodes.values() if node.group is not None):
        first = groups.setdefault(node.group or "", node)
        if placement.of(node) != placement.of(first):
            raise MeshError(
                f"{mesh.name}: {first.name} ({placement.of(first)}) and {node.name} ({placement.of(node)}) are in the "
                f"group {node.group!r}, which shares partitions within one host; place all its members on one host, or "
                f"give them groups of their own"
            )


def _check_windows(placement: Placement) -> None:
    """Refuse windows whose slets on other hosts read them, evict from them, or have windows of their own sizes."""
    mesh = placement.mesh
    for channel in (one for one in mesh.channels.values() if one.kind == WINDOW):
        sizes, there = channel.settings.get("ports") or {}, placement.channels[channel.name]
        for node, port in mesh.consumers(channel.name):
            own = sizes.get(f"{node.name}.{port}")
            why = "reads its window" if node.slet.ports[port].pulled else ""
            why = why if own is None else "has windows of its own sizes"
            why = "evicts from its windows" if (own or {}).get("evict", channel.settings.get("evict")) else why
            if why and placement.of(node) != there:
                raise MeshError(
                    f"{mesh.name}: {node.name} ({placement.of(node)}) {why}, and the channel {channel.name!r} is on "
                    f"{there}; place both on one host; of a running mesh in one change, `exop move "
                    f"{mesh.name}.{channel.name} HOST {node.name}`"
                )

"""The wiring graph: what is connected to what, read from the `connected-to` properties of the ports in the registry.

Where a queue can stand has a name (its place): between a channel and one port, or in front of a channel.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from exop.model.ports import PortSpec
from exop.model.properties import CONNECTED_TO, INSTANCE
from exop.registry import ServiceReference
from exop.runtime.channel import Channel
from exop.runtime.component import Component
from exop.runtime.manager import LivePort

#: Begins the names of channels among the vertices of the graph.
CHANNEL: Final = "channel:"


@dataclass(frozen=True)
class Join:
    """One port of a component at a channel."""

    component: Component
    port: PortSpec

    @cached_property
    def name(self) -> str:
        """`node.port`."""
        return f"{self.component.node.name}.{self.port.name}"


@dataclass(frozen=True)
class Vertex:
    """A component with the channel of each of its connected ports; ports at a channel stand by *rank*."""

    component: Component
    ports: Mapping[str, str]
    rank: int


@dataclass
class Circuit:
    """The ports at each channel, and the channels of each component, by the names of channels and nodes."""

    channels: dict[str, Channel] = field(default_factory=dict)
    producers: dict[str, list[Join]] = field(default_factory=dict)
    consumers: dict[str, list[Join]] = field(default_factory=dict)
    nodes: dict[str, Vertex] = field(default_factory=dict)

    def outputs(self, component: Component) -> list[tuple[PortSpec, str]]:
        """The channel of each connected output port."""
        ports = self._ports(component)
        return [(port, ports[port.name]) for port in component.spec.outputs if port.name in ports]

    def inputs(self, component: Component) -> list[tuple[str, Join]]:
        """The channels that feed a component, each with the port it feeds."""
        ports = self._ports(component)
        return [(ports[port.name], Join(component, port)) for port in component.spec.inputs if port.name in ports]

    def _ports(self, component: Component) -> Mapping[str, str]:
        vertex = self.nodes.get(component.node.name)
        return vertex.ports if vertex is not None and vertex.component is component else {}

    def open(self, channel: Channel) -> None:
        """Add a channel to which nothing is connected yet."""
        self.channels[channel.name] = channel
        self.producers[channel.name] = []
        self.consumers[channel.name] = []

    def connect(self, component: Component, ports: Mapping[str, str]) -> None:
        """Add a component and connect its ports to channels; a successor gets the rank of its predecessor."""
        name = component.node.name
        last = next(reversed(self.nodes.values())).rank if self.nodes else 0
        rank = self.nodes[name].rank if name in self.nodes else last + 1
        self.nodes[name] = Vertex(component, dict(ports), rank)
        for port in (*component.spec.inputs, *component.spec.outputs):
            if port.name in ports:
                side = self.consumers if port.direction == "in" else self.producers
                insort_right(side[ports[port.name]], Join(component, port), key=self._rank)

    def patched(
        self,
        components: Mapping[str, tuple[Component, Mapping[str, str]] | None],
        opened: Iterable[Channel] = (),
        closed: Iterable[str] = (),
    ) -> Circuit:
        """Return a copy with other components and connections at some nodes (`None`: none), and other channels."""
        after = Circuit(dict(self.channels), dict(self.producers), dict(self.consumers), dict(self.nodes))
        for channel in opened:
            after.open(channel)
        ports = [self.nodes[node].ports for node in components if node in self.nodes]
        ports += [placed[1] for placed in components.values() if placed is not None]
        for name in {name for found in ports for name in found.values()}:
            for side in (after.producers, after.consumers):
                side[name] = [join for join in side[name] if join.component.node.name not in components]
        for node, placed in components.items():
            if placed is not None and placed[1]:
                after.connect(*placed)
            else:
                after.nodes.pop(node, None)
        for name in closed:
            del after.channels[name], after.producers[name], after.consumers[name]
        return after

    def only(self, nodes: Iterable[str], channels: Iterable[str]) -> Circuit:
        """These nodes and channels, as far as it has them, with all ports at the channels."""
        channels = [name for name in channels if name in self.channels]
        return Circuit(
            {name: self.channels[name] for name in channels},
            {name: self.producers[name] for name in channels},
            {name: self.consumers[name] for name in channels},
            {node: self.nodes[node] for node in nodes if node in self.nodes},
        )

    def part(self, nodes: Iterable[str], channels: Iterable[str] = ()) -> Circuit:
        """The connected parts in which these nodes and channels are; it need not have all of them."""
        found: dict[str, None] = {}
        todo = [*nodes, *map(channel_key, channels)]
        while todo:
            place = todo.pop()
            if place not in found:
                found[place] = None
                todo += (*self.upstream(place), *self.downstream(place))
        inside = sorted((place for place in found if place in self.nodes), key=lambda node: self.nodes[node].rank)
        return self.only(inside, [place.removeprefix(CHANNEL) for place in found if place.startswith(CHANNEL)])

    def upstream(self, place: str) -> list[str]:
        """The channels that feed a node, or the nodes that push into a channel (`channel:name`)."""
        if place.startswith(CHANNEL):
            return [join.component.node.name for join in self.producers.get(place.removeprefix(CHANNEL), ())]
        found = self.nodes.get(place)
        return [channel_key(name) for name, _ in self.inputs(found.component)] if found is not None else []

    def downstream(self, place: str) -> list[str]:
        """The channels into which a node pushes, or the nodes that a channel (`channel:name`) feeds."""
        if place.startswith(CHANNEL):
            return [join.component.node.name for join in self.consumers.get(place.removeprefix(CHANNEL), ())]
        found = self.nodes.get(place)
        return [channel_key(name) for _, name in self.outputs(found.component)] if found is not None else []

    def ordered(self) -> list[str]:
        """All nodes and channels from upstream to downstream; the edges that close cycles are ignored."""
        sources = [name for name, vertex in self.nodes.items() if not vertex.component.spec.inputs]
        todo = [*sources, *self.nodes, *map(channel_key, self.channels)][::-1]
        seen: set[str] = set()
        order: dict[str, None] = {}
        while todo:
            place = todo[-1]
            if place in seen:
                order.setdefault(todo.pop())
            else:
                seen.add(place)
                todo += [one for one in reversed(self.downstream(place)) if one not in seen]
        return [*reversed(order)]

    def direct(self, node: str, inserted: Container[str]) -> list[str]:
        """The channels that call a node, with no inserted queue between."""
        joins = self.inputs(self.nodes[node].component) if node in self.nodes else ()
        return [name for name, join in joins if not (join.port.pulled or edge_key(name, join) in inserted)]

    def callers(self, channel: str, inserted: Container[str]) -> list[str]:
        """The nodes that call a channel, and through it what it leads to: none if a queue stands there."""
        if self.channels[channel].buffered or before_key(channel) in inserted:
            return []
        return [join.component.node.name for join in self.producers[channel]]

    def joins(self, channels: Iterable[str]) -> Iterator[tuple[str, Join]]:
        """The ports at those of these channels that it has, each with its channel."""
        for name in channels:
            yield from ((name, join) for join in (*self.producers.get(name, ()), *self.consumers.get(name, ())))

    def _rank(self, join: Join) -> int:
        return self.nodes[join.component.node.name].rank


def read_circuit(ports: Iterable[ServiceReference], channels: Iterable[ServiceReference]) -> Circuit:
    """Resolve `connected-to`: from each port to its channel; both in the order of their registration."""
    circuit = Circuit()
    by_id: dict[object, str] = {}
    for reference in channels:
        channel: Channel = reference.service
        by_id[reference.properties[INSTANCE]] = channel.name
        circuit.open(channel)
    connected: dict[str, tuple[Component, dict[str, str]]] = {}
    for reference in sorted(ports, key=lambda one: one.id):
        name = by_id.get(reference.properties.get(CONNECTED_TO))
        if name is not None:
            live: LivePort = reference.service
            connected.setdefault(live.component.id, (live.component, {}))[1][live.spec.name] = name
    for component, found in connected.values():
        circuit.connect(component, found)
    return circuit


def interchangeable(before: Circuit, after: Circuit, node: str) -> bool:
    """Whether a node has the same connections in both, and no layout can tell its components apart."""
    if node not in before.nodes or node not in after.nodes or before.nodes[node].ports != after.nodes[node].ports:
        return False
    old, new = before.nodes[node].component, after.nodes[node].component
    driven = new.spec.iterated or new.spec.own_driver
    return old is new or (not driven and old.spec.shape == new.spec.shape)


def channel_key(channel: str) -> str:
    """The name of a channel among the vertices of the graph."""
    return f"{CHANNEL}{channel}"


def edge_key(channel: str, join: Join) -> str:
    """The place of a queue between a channel and one port."""
    return f"{channel} -> {join.name}"


def before_key(channel: str) -> str:
    """The place of a queue in front of a channel."""
    return f"-> {channel}"


def channel_of(queue: str) -> str:
    """The channel at whose place a queue stands, or the buffered channel of that name."""
    return queue.removeprefix("-> ").partition(" -> ")[0]


def inside(channel: str) -> str:
    """The place of the way into a channel that keeps something, behind any queue in front of it."""
    return f"into {channel}"


def port_at(place: str) -> str:
    """The only port (`node.port`) to which a place leads; empty for a channel."""
    if place.startswith(("channel ", "into ")):
        return ""
    return place.rpartition(" | " if place.startswith("window ") else " -> ")[2]


def channel_at(place: str) -> str:
    """The channel into which a place leads, or into one of whose windows; empty for a port."""
    kind, _, name = place.partition(" ")
    return name.rpartition(" | ")[0] if kind == "window" else name if kind in ("channel", "into") else ""


def in_front_of(circuit: Circuit, channel: str, join: Join) -> str:
    """The place of a queue in front of a port; a port that pulls alone from a queue channel has no other queue.

    It stands before a live channel, which shares its window with its slet, since that evicts from it.
    """
    found = circuit.channels[channel]
    if join.port.pulled:
        return channel if found.buffered and len(circuit.consumers[channel]) == 1 else edge_key(channel, join)
    return before_key(channel) if found.live else edge_key(channel, join)


def possible(circuit: Circuit) -> Iterator[str]:
    """Every place at which a queue can stand now."""
    for name, channel in circuit.channels.items():
        if not channel.buffered:
            yield before_key(name)
        yield from (edge_key(name, join) for join in circuit.consumers[name] if not join.port.pulled)

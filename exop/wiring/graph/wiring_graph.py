"""The wiring graph: what is connected to what, read from the `connected-to` properties of the ports in the registry.

Where a queue can stand has a name (its place): between a channel and one port, or in front of a channel.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Collection, Container, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Final

from exop.model.meshes.entries import Entries
from exop.model.properties import CONNECTED_TO, INSTANCE
from exop.model.slets.ports import PortSpec, node_at
from exop.registry import ServiceReference
from exop.runtime.channels.base import Channel
from exop.runtime.component import Component
from exop.runtime.component_manager import LivePort

#: Begins the names of channels among the vertices of the graph.
CHANNEL: Final = "channel:"


@dataclass(frozen=True)
class Edge:
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

    @cached_property
    def inputs(self) -> list[tuple[str, Edge]]:
        """The channels that feed it, each with the port that it feeds."""
        edges = (Edge(self.component, port) for port in self.component.spec.inputs if port.name in self.ports)
        return [(self.ports[edge.port.name], edge) for edge in edges]

    @cached_property
    def outputs(self) -> list[tuple[str, Edge]]:
        """The channels into which it pushes, each with the port by which it does."""
        edges = (Edge(self.component, port) for port in self.component.spec.outputs if port.name in self.ports)
        return [(self.ports[edge.port.name], edge) for edge in edges]

    @cached_property
    def upstream(self) -> list[str]:
        """The channels that feed it, as vertices."""
        return [channel_vertex(name) for name, _ in self.inputs]

    @cached_property
    def downstream(self) -> list[str]:
        """The channels into which it pushes, as vertices."""
        return [channel_vertex(name) for name, _ in self.outputs]


@dataclass(frozen=True)
class WiringGraph:
    """The ports at each channel, and the channels of each component, by name.

    `ranks` is the last rank of a component.
    """

    channels: Entries[Channel] = field(default_factory=lambda: Entries({}))
    producers: Entries[list[Edge]] = field(default_factory=lambda: Entries({}))
    consumers: Entries[list[Edge]] = field(default_factory=lambda: Entries({}))
    nodes: Entries[Vertex] = field(default_factory=lambda: Entries({}))
    ranks: int = 0

    def patched(
        self,
        components: Mapping[str, tuple[Component, Mapping[str, str]] | None],
        opened: Iterable[Channel] = (),
        closed: Iterable[str] = (),
    ) -> WiringGraph:
        """Return a copy with other components and connections at some nodes (`None`: none), and other channels.

        The copy shares what stays; a successor has the rank of its predecessor.
        """
        channels, gone, ranks = {channel.name: channel for channel in opened}, dict.fromkeys(closed), self.ranks
        placed = {node: one for node, one in components.items() if one is not None and one[1]}
        nodes: dict[str, Vertex | None] = {node: None for node in components if node in self.nodes}
        ports = [self.nodes[node].ports for node in nodes] + [found for _, found in placed.values()]
        names = dict.fromkeys((*channels, *chain.from_iterable(found.values() for found in ports)))
        producers, consumers = (
            {name: [one for one in side.get(name, ()) if one.component.node.name not in components] for name in names}
            for side in (self.producers, self.consumers)
        )
        for node, (component, found) in placed.items():
            ranks += node not in nodes
            nodes[node] = Vertex(component, dict(found), self.nodes[node].rank if node in nodes else ranks)

        def rank(edge: Edge) -> int:
            node = edge.component.node.name
            return (nodes.get(node) or self.nodes[node]).rank

        for vertex in filter(None, nodes.values()):
            for side, edges in ((consumers, vertex.inputs), (producers, vertex.outputs)):
                for channel, edge in edges:
                    insort_right(side[channel], edge, key=rank)
        return WiringGraph(
            self.channels.edited(channels | gone),
            self.producers.edited(producers | gone),
            self.consumers.edited(consumers | gone),
            self.nodes.edited(nodes),
            ranks,
        )

    def only(self, nodes: Iterable[str], channels: Iterable[str]) -> WiringGraph:
        """These nodes and channels, as far as it has them, with all ports at the channels."""
        channels = [name for name in channels if name in self.channels]
        return WiringGraph(
            Entries({name: self.channels[name] for name in channels}),
            Entries({name: self.producers[name] for name in channels}),
            Entries({name: self.consumers[name] for name in channels}),
            Entries({node: self.nodes[node] for node in nodes if node in self.nodes}),
        )

    def part(self, places: Collection[str]) -> WiringGraph:
        """Those of these nodes and channels (`channel:name`) that it has."""
        nodes, channels = self.named(places)
        return self.only(sorted(nodes, key=lambda node: self.nodes[node].rank), channels)

    def named(self, places: Collection[str]) -> tuple[list[str], list[str]]:
        """The names of the nodes, and of the channels, that it has among these places."""
        names = [place.removeprefix(CHANNEL) for place in places if place.startswith(CHANNEL)]
        return [one for one in places if one in self.nodes], [name for name in names if name in self.channels]

    def queues(self, place: str) -> Iterator[str]:
        """Yield the places for queues directly in front of a node or channel (`channel:name`), and a channel's own."""
        if place in self.nodes:
            yield from (edge_queue(name, edge) for name, edge in self.nodes[place].inputs)
        elif (name := place.removeprefix(CHANNEL)) in self.channels:
            yield from (name, input_queue(name))

    def around(self, place: str, cuts: Container[str]) -> Iterator[str]:
        """Yield what direct calls connect with a node or channel (`channel:name`) if queues stand at the *cuts*."""
        vertex, name = self.nodes.get(place), place.removeprefix(CHANNEL)
        if vertex is not None:
            pushed = (one for one, _ in vertex.outputs if not (self.channels[one].buffered or input_queue(one) in cuts))
            yield from map(channel_vertex, (*self.direct(place, cuts), *pushed))
        elif name in self.channels:
            fed = (edge for edge in self.consumers[name] if not (edge.port.pulled or edge_queue(name, edge) in cuts))
            yield from (*self.callers(name, cuts), *(edge.component.node.name for edge in fed))

    def upstream(self, place: str) -> list[str]:
        """The channels that feed a node, or the nodes that push into a channel (`channel:name`)."""
        vertex = self.nodes.get(place)
        if vertex is not None:
            return vertex.upstream
        return [edge.component.node.name for edge in self.producers.get(place.removeprefix(CHANNEL), ())]

    def downstream(self, place: str) -> list[str]:
        """The channels into which a node pushes, or the nodes that a channel (`channel:name`) feeds."""
        vertex = self.nodes.get(place)
        if vertex is not None:
            return vertex.downstream
        return [edge.component.node.name for edge in self.consumers.get(place.removeprefix(CHANNEL), ())]

    def ordered(self) -> list[str]:
        """All nodes and channels from upstream to downstream; the edges that close cycles are ignored."""
        sources = [name for name, vertex in self.nodes.items() if not vertex.component.spec.inputs]
        todo = [*sources, *self.nodes, *map(channel_vertex, self.channels)][::-1]
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
        edges = self.nodes[node].inputs if node in self.nodes else ()
        return [name for name, edge in edges if not (edge.port.pulled or edge_queue(name, edge) in inserted)]

    def callers(self, channel: str, inserted: Container[str]) -> list[str]:
        """The nodes that call a channel, and through it what it leads to: none if a queue stands there."""
        if self.channels[channel].buffered or input_queue(channel) in inserted:
            return []
        return [edge.component.node.name for edge in self.producers[channel]]

    def edges(self, channels: Iterable[str]) -> Iterator[tuple[str, Edge]]:
        """The ports at those of these channels that it has, each with its channel."""
        for name in channels:
            yield from ((name, edge) for edge in (*self.producers.get(name, ()), *self.consumers.get(name, ())))


def read_graph(ports: Iterable[ServiceReference], channels: Iterable[ServiceReference]) -> WiringGraph:
    """Resolve `connected-to`: from each port to its channel; both in the order of their registration."""
    by_id: dict[object, Channel] = {reference.properties[INSTANCE]: reference.service for reference in channels}
    connected: dict[str, tuple[Component, dict[str, str]]] = {}
    for reference in sorted(ports, key=lambda one: one.id):
        channel = by_id.get(reference.properties.get(CONNECTED_TO))
        if channel is not None:
            live: LivePort = reference.service
            connected.setdefault(live.component.id, (live.component, {}))[1][live.spec.name] = channel.name
    return WiringGraph().patched({one[0].node.name: one for one in connected.values()}, by_id.values())


def groups(graph: WiringGraph, channel: str) -> dict[tuple[str, str], list[Edge]]:
    """The ports that share the partitions of a channel, by group and port."""
    found: dict[tuple[str, str], list[Edge]] = {}
    if channel in graph.channels and graph.channels[channel].partitioning is not None:
        for edge in graph.consumers[channel]:
            if edge.component.node.group is not None:
                found.setdefault((edge.component.node.group, edge.port.name), []).append(edge)
    return found


def shifted(before: WiringGraph, after: WiringGraph, channel: str) -> list[Edge]:
    """The ports at a channel that share its partitions with other ports, or others, after a change, also elsewhere."""
    found: list[Edge] = []
    for (group, port), edges in groups(before, channel).items():
        stay = [vertex for edge in edges if (vertex := after.nodes.get(edge.component.node.name)) is not None]
        places = dict.fromkeys((channel, *(vertex.ports[port] for vertex in stay if port in vertex.ports)))
        now = {name: groups(after, name).get((group, port), ()) for name in places}
        names = {one.name for members in now.values() for one in members}
        shares = {after.channels[name].partitioning for name, members in now.items() if members}
        if names and (names != {one.name for one in edges} or shares != {before.channels[channel].partitioning}):
            found += edges
    return found


def touched(before: WiringGraph, after: WiringGraph, node: str) -> set[str]:
    """The channels at which the ports of a node come, go, or become others.

    There is none where a successor has the same ports, and no execution can tell it from its predecessor.
    """
    old, new = before.nodes.get(node), after.nodes.get(node)
    if old is None or new is None or not _alike(old.component, new.component):
        return {name for one in (old, new) if one is not None for name in one.ports.values()}
    ports = (port for port in {**old.ports, **new.ports} if old.ports.get(port) != new.ports.get(port))
    return {name for port in ports for name in (old.ports.get(port), new.ports.get(port)) if name is not None}


def _alike(old: Component, new: Component) -> bool:
    driven = new.spec.iterated or new.spec.own_driver
    return old is new or (not driven and old.spec.shape == new.spec.shape)


def connected(
    graphs: Sequence[WiringGraph], places: Iterable[str], cuts: Container[str] | None = None
) -> KeysView[str]:
    """All nodes and channels (`channel:name`) that are connected with these in one of the graphs.

    With *cuts*, these are what direct calls connect if queues stand there.
    """
    found, todo = dict[str, None](), [*places]
    while todo:
        if (place := todo.pop()) not in found:
            found[place] = None
            for graph in graphs:
                if cuts is not None:
                    todo += graph.around(place, cuts)
                else:
                    todo += graph.upstream(place)
                    todo += graph.downstream(place)
    return found.keys()


def channel_vertex(channel: str) -> str:
    """The name of a channel among the vertices of the graph."""
    return f"{CHANNEL}{channel}"


def edge_queue(channel: str, edge: Edge) -> str:
    """The place of a queue between a channel and one port."""
    return f"{channel} -> {edge.name}"


def input_queue(channel: str) -> str:
    """The place of a queue in front of a channel."""
    return f"-> {channel}"


def channel_of_queue(queue: str) -> str:
    """The channel at whose place a queue stands, or the buffered channel of that name."""
    return queue.removeprefix("-> ").partition(" -> ")[0]


def behind(queue: str, places: Container[str]) -> str:
    """The node or channel (`channel:name`) of *places* in front of which a queue stands, or the buffered channel."""
    channel, _, port = queue.rpartition(" -> ")
    return node_at(port, places)[0] if channel else channel_vertex(queue.removeprefix("-> "))


def channel_endpoint(channel: str) -> str:
    """The place of the way into a channel that keeps something, behind any queue in front of it."""
    return f"into {channel}"


def port_of_endpoint(place: str) -> str:
    """The only port (`node.port`) to which a place leads; empty for a channel."""
    if place.startswith(("channel ", "into ")):
        return ""
    return place.rpartition(" | " if place.startswith("window ") else " -> ")[2]


def channel_of_endpoint(place: str) -> str:
    """The channel into which a place leads, or into one of whose windows; empty for a port."""
    kind, _, name = place.partition(" ")
    return name.rpartition(" | ")[0] if kind == "window" else name if kind in ("channel", "into") else ""


def queue_before(graph: WiringGraph, channel: str, edge: Edge) -> str:
    """The place of a queue in front of a port; a port that pulls alone from a queue channel has no other queue.

    It stands before a live channel, which shares its window with its slet, since that evicts from it.
    """
    found = graph.channels[channel]
    if edge.port.pulled:
        return channel if found.buffered and len(graph.consumers[channel]) == 1 else edge_queue(channel, edge)
    return input_queue(channel) if found.live else edge_queue(channel, edge)


def possible(graph: WiringGraph, places: Container[str], queues: Mapping[str, str]) -> dict[str, str]:
    """Those of these queues that the wiring can insert in front of one of these nodes and channels (`channel:name`)."""
    here, there = {queue: why for queue, why in queues.items() if behind(queue, places) in places}, set[str]()
    for name in {channel_of_queue(queue) for queue in here} & graph.channels.keys():
        there |= {edge_queue(name, edge) for edge in graph.consumers[name] if not edge.port.pulled}
        there |= set() if graph.channels[name].buffered else {input_queue(name)}
    return {queue: why for queue, why in here.items() if queue in there}

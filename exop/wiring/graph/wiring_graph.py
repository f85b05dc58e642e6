"""The wiring graph: which port is connected to which channel, read from `connected-to` in the registry.

Its vertices are nodes and channels; an edge joins a port and a channel. For the names derived from it see `ids`.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Collection, Container, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from exop.model.properties import CONNECTED_TO, INSTANCE
from exop.model.reached import reached
from exop.model.slets.ports import PortSpec
from exop.registry import ServiceReference
from exop.runtime.channels.base import Channel
from exop.runtime.component import Component
from exop.wiring.graph import ids


@dataclass(frozen=True)
class Edge:
    """One port of a component at a channel."""

    component: Component
    port: PortSpec

    @cached_property
    def node(self) -> str:
        """The name of the component's node."""
        return self.component.node.name

    @cached_property
    def name(self) -> str:
        """`node.port`."""
        return f"{self.component.node.name}.{self.port.name}"

    def queue(self, channel: str) -> str:
        """The id of a queue between a channel and this port."""
        return f"{channel} -> {self.name}"


@dataclass(frozen=True)
class Vertex:
    """A component, and the channel of each of its connected ports; *rank* orders the ports at one channel."""

    component: Component
    ports: Mapping[str, str]
    rank: int

    @cached_property
    def inputs(self) -> list[tuple[str, Edge]]:
        """The channels that feed it, each with its edge."""
        edges = (Edge(self.component, port) for port in self.component.spec.inputs if port.name in self.ports)
        return [(self.ports[edge.port.name], edge) for edge in edges]

    @cached_property
    def outputs(self) -> list[tuple[str, Edge]]:
        """The channels that it pushes into, each with its edge."""
        edges = (Edge(self.component, port) for port in self.component.spec.outputs if port.name in self.ports)
        return [(self.ports[edge.port.name], edge) for edge in edges]


@dataclass(frozen=True)
class WiringGraph:
    """The channels, the edges at each channel, and the nodes, by name; `ranks` is the highest rank of a node."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    producers: Mapping[str, list[Edge]] = field(default_factory=dict)
    consumers: Mapping[str, list[Edge]] = field(default_factory=dict)
    nodes: Mapping[str, Vertex] = field(default_factory=dict)
    ranks: int = 0

    def patched(
        self,
        components: Mapping[str, tuple[Component, Mapping[str, str]] | None],
        added: Iterable[Channel] = (),
        removed: Iterable[str] = (),
    ) -> WiringGraph:
        """Return a copy with other components and connections at some nodes (`None`: none), and other channels.

        A successor has the rank of its predecessor.
        """
        channels, nodes, ranks = {**self.channels}, {**self.nodes}, self.ranks
        channels |= {channel.name: channel for channel in added}
        names = dict.fromkeys(channel.name for channel in added)
        placed: list[Vertex] = []
        for node, found in components.items():
            before = nodes.get(node)
            names |= dict.fromkeys(before.ports.values() if before is not None else ())
            if found is None or not found[1]:
                nodes.pop(node, None)
                continue
            component, ports = found
            ranks += before is None
            nodes[node] = vertex = Vertex(component, dict(ports), ranks if before is None else before.rank)
            names |= dict.fromkeys(vertex.ports.values())
            placed.append(vertex)

        def staying(side: Mapping[str, list[Edge]]) -> dict[str, list[Edge]]:
            kept = {name: [one for one in side.get(name, ()) if one.node not in components] for name in names}
            return {**side, **kept}

        producers, consumers = staying(self.producers), staying(self.consumers)
        for vertex in placed:
            for side, edges in ((consumers, vertex.inputs), (producers, vertex.outputs)):
                for name, edge in edges:
                    insort_right(side[name], edge, key=lambda one: nodes[one.node].rank)
        for name in removed:
            for entries in (channels, producers, consumers):
                entries.pop(name, None)
        return WiringGraph(channels, producers, consumers, nodes, ranks)

    def only(self, nodes: Iterable[str], channels: Iterable[str]) -> WiringGraph:
        """Return these nodes and channels, as far as they are here, with all edges at the channels."""
        channels = [name for name in channels if name in self.channels]
        return WiringGraph(
            {name: self.channels[name] for name in channels},
            {name: self.producers[name] for name in channels},
            {name: self.consumers[name] for name in channels},
            {node: self.nodes[node] for node in nodes if node in self.nodes},
        )

    def part(self, vertices: Collection[str]) -> WiringGraph:
        """Return those of these vertices that are here, with all edges at the channels."""
        nodes, channels = self.split(vertices)
        return self.only(sorted(nodes, key=lambda node: self.nodes[node].rank), channels)

    def split(self, vertices: Collection[str]) -> tuple[list[str], list[str]]:
        """Return the nodes, and the names of the channels, that are here among these vertices."""
        names = [vertex.removeprefix(ids.CHANNEL) for vertex in vertices if vertex.startswith(ids.CHANNEL)]
        return [one for one in vertices if one in self.nodes], [name for name in names if name in self.channels]

    def queues(self, vertex: str) -> Iterator[str]:
        """Yield the ids of the queues that can stand directly in front of a vertex, and a buffered channel's own."""
        if vertex in self.nodes:
            yield from (edge.queue(name) for name, edge in self.nodes[vertex].inputs)
        elif (name := vertex.removeprefix(ids.CHANNEL)) in self.channels:
            yield from (name, ids.input_queue(name))

    def called_with(self, vertex: str, queues: Container[str]) -> Iterator[str]:
        """Yield the vertices that direct calls connect with one, if there are inserted *queues*."""
        name = vertex.removeprefix(ids.CHANNEL)
        if vertex in self.nodes:
            pushed = (one for one, _ in self.nodes[vertex].outputs if not self._is_queued(one, queues))
            yield from map(ids.channel_vertex, (*self.direct_inputs(vertex, queues), *pushed))
        elif name in self.channels:
            fed = (one for one in self.consumers[name] if not (one.port.pulled or one.queue(name) in queues))
            yield from (*self.callers(name, queues), *(edge.node for edge in fed))

    def upstream(self, vertex: str) -> list[str]:
        """The channels that feed a node, or the nodes that push into a channel."""
        if vertex in self.nodes:
            return [ids.channel_vertex(name) for name, _ in self.nodes[vertex].inputs]
        return [edge.node for edge in self.producers.get(vertex.removeprefix(ids.CHANNEL), ())]

    def downstream(self, vertex: str) -> list[str]:
        """The channels that a node pushes into, or the nodes that a channel feeds."""
        if vertex in self.nodes:
            return [ids.channel_vertex(name) for name, _ in self.nodes[vertex].outputs]
        return [edge.node for edge in self.consumers.get(vertex.removeprefix(ids.CHANNEL), ())]

    def ordered(self) -> list[str]:
        """All vertices from upstream to downstream; edges that close a cycle are ignored."""
        sources = [name for name, vertex in self.nodes.items() if not vertex.component.spec.inputs]
        todo = [*sources, *self.nodes, *map(ids.channel_vertex, self.channels)][::-1]
        seen: set[str] = set()
        order: dict[str, None] = {}
        while todo:
            if (vertex := todo[-1]) in seen:
                order.setdefault(todo.pop())
            else:
                seen.add(vertex)
                todo += [one for one in reversed(self.downstream(vertex)) if one not in seen]
        return [*reversed(order)]

    def direct_inputs(self, node: str, queues: Container[str]) -> list[str]:
        """The channels that call a node, if there are inserted *queues*."""
        edges = self.nodes[node].inputs if node in self.nodes else ()
        return [name for name, edge in edges if not (edge.port.pulled or edge.queue(name) in queues)]

    def callers(self, channel: str, queues: Container[str]) -> list[str]:
        """The nodes that call a channel, and through it the nodes behind it, if there are inserted *queues*."""
        calls = channel in self.channels and not self._is_queued(channel, queues)
        return [edge.node for edge in self.producers[channel]] if calls else []

    def _is_queued(self, channel: str, queues: Container[str]) -> bool:
        return self.channels[channel].buffered or ids.input_queue(channel) in queues

    def edges(self, channels: Iterable[str]) -> list[tuple[str, Edge]]:
        """The edges at those of these channels that are here, each with its channel."""
        sides = self.producers, self.consumers
        return [(name, edge) for name in channels for side in sides for edge in side.get(name, ())]

    @property
    def fed(self) -> list[tuple[str, Edge]]:
        """All edges into slets, each with its channel."""
        return [(name, edge) for name, edges in self.consumers.items() for edge in edges]

    def groups(self, channel: str) -> dict[tuple[str, str], list[Edge]]:
        """The edges that share the partitions of a channel, by group and port."""
        found: dict[tuple[str, str], list[Edge]] = {}
        if channel in self.channels and self.channels[channel].partitioning is not None:
            for edge in self.consumers[channel]:
                if edge.component.node.group is not None:
                    found.setdefault((edge.component.node.group, edge.port.name), []).append(edge)
        return found

    def joined(self, channels: Collection[str]) -> dict[str | tuple[str, ...], str]:
        """The channel of each port, and of each group (channel, group, port), at these channels."""
        found: dict[str | tuple[str, ...], str] = {edge.name: name for name, edge in self.edges(channels)}
        found.update(((name, *group), name) for name in channels for group in self.groups(name))
        return found

    def queue_before(self, channel: str, edge: Edge) -> str:
        """The id of the queue in front of a port; a buffered channel from which it alone pulls is its queue.

        It stands before a live channel, which shares its window with its slet, since that evicts from it.
        """
        found = self.channels[channel]
        if edge.port.pulled:
            return channel if found.buffered and len(self.consumers[channel]) == 1 else edge.queue(channel)
        return ids.input_queue(channel) if found.live else edge.queue(channel)

    def insertable(self, vertices: Container[str], queues: Mapping[str, str]) -> dict[str, str]:
        """Return those of these queues (reasons by id) that the wiring can insert in front of one of these vertices."""
        here = {queue: why for queue, why in queues.items() if ids.vertex_behind(queue, vertices) in vertices}
        possible = set[str]()
        for name in {ids.channel_of_queue(queue) for queue in here} & self.channels.keys():
            possible |= {edge.queue(name) for edge in self.consumers[name] if not edge.port.pulled}
            possible |= set() if self.channels[name].buffered else {ids.input_queue(name)}
        return {queue: why for queue, why in here.items() if queue in possible}


def read_graph(ports: Iterable[ServiceReference], channels: Iterable[ServiceReference]) -> WiringGraph:
    """Resolve `connected-to` from each port to its channel; both stand in the order of their registration."""
    by_id: dict[object, Channel] = {reference.properties[INSTANCE]: reference.service for reference in channels}
    connected: dict[str, tuple[Component, dict[str, str]]] = {}
    for reference in sorted(ports, key=lambda one: one.id):
        if (channel := by_id.get(reference.properties.get(CONNECTED_TO))) is not None:
            component, port = reference.service
            connected.setdefault(component.id, (component, {}))[1][port] = channel.name
    return WiringGraph().patched({one[0].node.name: one for one in connected.values()}, by_id.values())


def regrouped(before: WiringGraph, after: WiringGraph, channel: str) -> list[Edge]:
    """The edges at a channel that share its partitions, if a change alters that, also by moving them elsewhere."""
    found: list[Edge] = []
    for (group, port), edges in before.groups(channel).items():
        stay = [after.nodes[edge.node].ports for edge in edges if edge.node in after.nodes]
        channels = dict.fromkeys((channel, *(ports[port] for ports in stay if port in ports)))
        now = {name: after.groups(name).get((group, port), ()) for name in channels}
        names = {one.name for members in now.values() for one in members}
        shares = {after.channels[name].partitioning for name, members in now.items() if members}
        if names and (names != {one.name for one in edges} or shares != {before.channels[channel].partitioning}):
            found += edges
    return found


def changed_channels(before: WiringGraph, after: WiringGraph, node: str) -> set[str]:
    """The channels at which ports of a node come, go, or change.

    There is none if a successor has the same ports, and runs in the same way as its predecessor.
    """
    old, new = before.nodes.get(node), after.nodes.get(node)
    if old is not None and new is not None:
        was, now = old.component, new.component
        driven = now.spec.iterated or now.spec.own_driver
        if was is now or (not driven and was.spec.shape == now.spec.shape):
            return {name for _, name in old.ports.items() ^ new.ports.items()}
    return {name for one in (old, new) if one is not None for name in one.ports.values()}


def connected(
    graphs: Sequence[WiringGraph], vertices: Iterable[str], queues: Container[str] | None = None
) -> KeysView[str]:
    """All vertices that are connected with these in one of the graphs; with *queues*, by direct calls past these."""

    def beside(vertex: str) -> Iterator[str]:
        for graph in graphs:
            if queues is not None:
                yield from graph.called_with(vertex, queues)
            else:
                yield from (*graph.upstream(vertex), *graph.downstream(vertex))

    return dict.fromkeys(reached(vertices, beside)).keys()


def find_cycles(graph: WiringGraph, order: Iterable[str]) -> list[list[str]]:
    """The cycles, each as the nodes that reach each other (Kosaraju's algorithm); a slet may feed itself.

    *order* has all vertices from upstream to downstream.
    """
    cycles, seen = [], set[str]()

    def above(vertex: str) -> list[str]:
        return [one for one in graph.upstream(vertex) if one not in seen]

    for start in order:
        group = [*reached({start} - seen, above)]
        seen.update(group)
        if len(group) > 1:
            members = [one for one in group if one in graph.nodes]
            cycles.append(sorted(members, key=lambda name: graph.nodes[name].rank))
    return cycles


def inner_channels(graph: WiringGraph, cycle: Collection[str]) -> list[str]:
    """The channels by which the nodes of a cycle reach each other."""
    found = dict.fromkeys(name for node in cycle for name, _ in graph.nodes[node].outputs)
    return [name for name in found if any(edge.node in cycle for edge in graph.consumers[name])]


def inner_queues(graph: WiringGraph, cycle: Collection[str]) -> Iterator[str]:
    """The ids of the queues that can stand inside a cycle, and its buffered channels."""
    for name in inner_channels(graph, cycle):
        yield from (name, ids.input_queue(name)) if graph.channels[name].buffered else (ids.input_queue(name),)
        yield from (edge.queue(name) for edge in graph.consumers[name] if edge.node in cycle)

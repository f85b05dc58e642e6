"""The execution plan: which driver runs which slet, and where a queue is inserted.

Two drivers may not run one slet: where they would meet, their queues share a worker, or the wiring inserts a queue.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Final, Literal, TypeAlias, TypeVar

from exop.errors import WiringError
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import ChannelSpec, Node
from exop.model.meshes.repetition import varies
from exop.model.slets.ports import node_at
from exop.runtime.channels.base import Channel
from exop.runtime.component import Component
from exop.runtime.durable.engine_journal import DiskJournal
from exop.wiring.graph import ids
from exop.wiring.graph.wiring_graph import Edge, WiringGraph, connected, find_cycles, inner_queues

#: A driver: a source or an engine, by its node, or the worker of a queue, by the queue's id or channel name.
DriverKey: TypeAlias = tuple[Literal["source", "engine", "queue"], str]
#: So many slets, and channels that keep something, may call each other directly; each takes up to seven frames.
LONGEST_CHAIN: Final = 100
#: Why a queue stands in a chain that would be longer.
LONG: Final = f"the direct chain is {LONGEST_CHAIN} slets long"

Value = TypeVar("Value")


@dataclass
class Wiring:
    """The connections of an application, and the drivers that follow from them.

    Components are named by their nodes, so a successor changes only the graph.

    Attributes:
        inserted: The ids of the queues that are needed, with the reasons.
        groups: For each queue (buffered channels by name, inserted ones by id), those that share its worker.
        drivers: The drivers of each node, and of each channel that keeps something, by vertex.
        depths: For each node, the length of the longest chain of direct calls that ends in it.
        order: How far downstream each vertex is.
        ranks: How far downstream each queue is: as far as the first vertex that its worker runs for it.
        cycles: The nodes of each cycle.
    """

    graph: WiringGraph = field(default_factory=WiringGraph)
    inserted: dict[str, str] = field(default_factory=dict)
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    drivers: dict[str, set[DriverKey]] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    order: dict[str, float] = field(default_factory=dict)
    ranks: dict[str, float] = field(default_factory=dict)
    cycles: list[list[str]] = field(default_factory=list)

    def served(self, queue: str) -> list[str]:
        """The queues that share the worker of a queue, upstream first."""
        return sorted(self.groups.get(queue, ()), key=self.ranks.__getitem__)

    def depth(self, endpoint: str) -> float:
        """Return how many direct calls lead to an endpoint from the queue, source or engine where they begin.

        Along direct channels, work at an endpoint is older than work at those further upstream.
        """
        if not endpoint:
            return math.inf
        graph, channel = self.graph, ids.channel_of_endpoint(endpoint)
        if channel in graph.channels:  # in the order in which an item comes there
            stage = ("channel", "into", "window").index(endpoint.partition(" ")[0])
            return (0 if graph.channels[channel].buffered else self.calls_above(channel)) + 0.4 + 0.2 * stage
        node, port = node_at(ids.port_of_endpoint(endpoint), graph.nodes)
        if node not in graph.nodes:
            return 0
        output = next((name for name, edge in graph.nodes[node].outputs if edge.port.name == port), None)
        return self.depths[node] if output is None else self.calls_above(output) + 0.2

    def pushers(self, channel: str) -> set[DriverKey]:
        """The drivers that push into a channel; none if it is not in this wiring."""
        found: set[DriverKey] = set()
        for component in (edge.component for edge in self.graph.producers.get(channel, ())):
            spec, node = component.spec, component.node.name
            own: set[DriverKey] = {("engine" if spec.own_driver else "source", node)}
            found |= own if spec.own_driver or spec.iterated else self.drivers.get(node, set())
        return found

    def calls_above(self, channel: str) -> int:
        """The number of direct calls that lead to a push into a channel."""
        pushers = (edge.component for edge in self.graph.producers[channel])
        found = [1 if one.spec.own_driver or one.spec.iterated else self.depths[one.node.name] for one in pushers]
        return max(found, default=0)


def plan_execution(graph: WiringGraph, kept: Mapping[str, str] | None = None) -> Wiring:
    """Assign drivers; insert queues and let queues share workers until no two drivers meet.

    The inserted queues in *kept* (reasons by id) stay as long as their edges do: they may hold items.
    """
    everything = [*graph.nodes, *map(ids.channel_vertex, graph.channels)]
    return Replanning(Wiring(), graph, everything, {}).executed(kept or {})


class Replanning:
    """Plans the execution of the part of an application in which connections change.

    This part is what direct calls connect with the *starts* of the change, up to the queues in *kept* (reasons by id).
    If there are cycles in it, or the order from upstream to downstream changes, it is all that is connected with it.

    Attributes:
        vertices: The vertices of the part.
        queues: The ids of the queues that can stand in front of them.
    """

    def __init__(self, before: Wiring, after: WiringGraph, starts: Collection[str], kept: Mapping[str, str]) -> None:
        self._before, self._after, self._kept = before, after, kept
        graphs = before.graph, after
        self.vertices = connected(graphs, starts, kept)
        self._order, self._cycles = dict[str, float](), before.cycles
        fits = bool(before.order) and {node for cycle in before.cycles for node in cycle}.isdisjoint(self.vertices)
        for vertex in self.vertices if fits else ():
            fits = fits and (vertex in self._order or self._fit(connected((after,), [vertex], kept)))
        if not fits:  # all that is connected, and with no others
            self.vertices = connected(graphs, starts)
            part = after.part(self.vertices)
            order = part.ordered()
            self._order = {vertex: float(number) for number, vertex in enumerate(order)}
            elsewhere = (cycle for cycle in self._cycles if cycle[0] not in self.vertices)
            self._cycles = [*elsewhere, *find_cycles(part, order)]
        self.queues = {queue for one in graphs for vertex in self.vertices for queue in one.queues(vertex)}

    def _fit(self, vertices: Collection[str]) -> bool:
        """Number these vertices between those upstream and downstream of them; `False` if there is no room."""
        graph, known = self._after.part(vertices), ChainMap(self._order, self._before.order)
        here = [vertex for vertex in graph.ordered() if vertex in vertices]
        above = {one for vertex in here for one in self._after.upstream(vertex) if one not in vertices}
        below = {one for vertex in here for one in self._after.downstream(vertex) if one not in vertices}
        top = max((known[one] for one in above if one in known), default=None)
        end = min((known[one] for one in below if one in known), default=(top or 0) + len(here) + 1)
        top = end - len(here) - 1 if top is None else top
        step = (end - top) / (len(here) + 1)
        self._order |= {vertex: top + step * number for number, vertex in enumerate(here, 1)}
        return step > 1e-6 and not find_cycles(graph, [*above, *here])

    def insertable(self, queues: Mapping[str, str]) -> dict[str, str]:
        """Those of these queues that can stand in the part."""
        return self._after.insertable(self.vertices, queues)

    def executed(self, queues: Mapping[str, str]) -> Wiring:
        """Return the execution plan of the whole application with these *queues*, and those that are kept."""
        before, graph = self._before, self._after
        vertices = [vertex for vertex in self._order if vertex in self.vertices]
        part, workers = Wiring(graph, self.insertable({**self._kept, **queues})), _Workers()
        while not _Walk(part, vertices, workers).is_complete():
            pass
        buffered = (name for name in graph.split(vertices)[1] if graph.channels[name].buffered)
        pulls = {name: [edge.port.pulled for edge in graph.consumers[name]] for name in buffered}
        # A buffered channel whose only consumer pulls is drained by that one.
        drained = [*(name for name, ports in pulls.items() if ports != [True]), *part.inserted]
        for cycle in self._cycles:
            if cycle[0] in self.vertices:
                workers.unite({*drained}.intersection(inner_queues(graph, cycle)))
        first: dict[str, str] = {}
        for vertex in filter(part.drivers.__contains__, vertices):
            for kind, name in part.drivers[vertex]:
                if kind == "queue":  # a source may have the same name
                    first.setdefault(name, vertex)
        # A queue that leads into further queues only is as far downstream as its channel.
        ranks = {queue: self._order[first.get(queue, ids.vertex_behind(queue, graph.nodes))] for queue in drained}
        return Wiring(
            graph,
            _patched(before.inserted, self.queues, part.inserted),
            _patched(before.groups, self.queues, {queue: workers[queue] for queue in drained}),
            _patched(before.drivers, self.vertices, part.drivers),
            _patched(before.depths, self.vertices, part.depths),
            _patched(before.order, self.vertices, self._order),
            _patched(before.ranks, self.queues, ranks),
            self._cycles,
        )


def _patched(before: Mapping[str, Value], gone: Iterable[str], fresh: Mapping[str, Value]) -> dict[str, Value]:
    found = {**before}
    for name in gone:
        found.pop(name, None)
    return found | {**fresh}


class _Workers(dict[str, frozenset[str]]):
    """All queues that share the worker of a queue, by that queue; most have a worker of their own."""

    def __missing__(self, queue: str) -> frozenset[str]:
        return frozenset((queue,))

    def unite(self, queues: Iterable[str]) -> None:
        """Let these queues share one worker, with those that share a worker with one of them."""
        group = frozenset[str]().union(*map(self.__getitem__, queues))
        self.update(dict.fromkeys(group, group))


class _Walk:
    """One walk downstream, to each slet after all of its callers, that separates the drivers that would meet there.

    A walk is incomplete if it inserts a queue in front of a channel after it has passed some of its readers.
    """

    def __init__(self, wiring: Wiring, vertices: Collection[str], workers: _Workers) -> None:
        self._wiring, self._workers = wiring, workers
        self._graph, self._inserted = wiring.graph, wiring.inserted
        self._nodes, self._channels = self._graph.split(vertices)
        self._behind: dict[str, set[DriverKey]] = {}
        self._late = False

    def is_complete(self) -> bool:
        """Note the drivers of each vertex, and insert the queues that this takes; `False`: walk again."""
        graph, queues = self._graph, self._inserted
        self._wiring.drivers = {}
        callers = {
            node: [caller for name in graph.direct_inputs(node, queues) for caller in graph.callers(name, queues)]
            for node in self._nodes
        }
        for vertex in [graph.nodes[node] for node in TopologicalSorter(callers).static_order()]:
            component = vertex.component
            fed = [(name, edge) for name, edge in vertex.inputs if not edge.port.pulled]
            self._limit_chain(component, fed)
            if self._are_several(keys := self._drivers_of(component, fed)):
                for name, edge in fed if any(kind != "queue" for kind, _ in keys) else ():
                    if not self._graph.channels[name].buffered:
                        self._insert(name, edge, f"several drivers meet in {component.node.name}: {_named(keys)}")
                keys = self._drivers_of(component, fed)
                self._workers.unite(queue for _, queue in keys)
            self._wiring.drivers[component.node.name] = keys
            if self._late:
                return False
        for name in self._channels:
            self._drivers_behind(name)
        return True

    def _insert(self, name: str, edge: Edge, reason: str) -> None:
        """Put a queue between a channel and a port."""
        if (queue := self._graph.queue_before(name, edge)) not in self._inserted:
            self._inserted[queue] = reason
            if queue == ids.input_queue(name):
                self._behind.pop(name, None)
                self._late = len(self._graph.consumers[name]) > 1

    def _limit_chain(self, component: Component, fed: list[tuple[str, Edge]]) -> None:
        """Put a queue where a chain of direct calls is too long, long before Python's recursion limit."""
        deep = 0
        for name, edge in fed:
            if not self._graph.channels[name].buffered and edge.queue(name) not in self._inserted:
                above = int(_takes_one_driver(self._graph.channels[name]))
                if ids.input_queue(name) not in self._inserted:
                    above += self._wiring.calls_above(name)
                if above >= LONGEST_CHAIN:
                    self._insert(name, edge, LONG)
                else:
                    deep = max(deep, above)
        self._wiring.depths[component.node.name] = deep + 1

    def _drivers_of(self, component: Component, fed: list[tuple[str, Edge]]) -> set[DriverKey]:
        """The drivers of a component."""
        keys: set[DriverKey] = set()
        if component.spec.iterated and not component.spec.own_driver:
            keys.add(("source", component.node.name))
        for name, edge in fed:
            queue = edge.queue(name)
            keys |= {("queue", queue)} if queue in self._inserted else self._drivers_behind(name)
        return keys

    def _drivers_behind(self, name: str) -> set[DriverKey]:
        """The drivers of the slets behind a channel."""
        if name not in self._behind:
            channel = self._graph.channels[name]
            queue = name if channel.buffered else ids.input_queue(name)
            before: set[DriverKey] = {("queue", queue)}
            keys = before if channel.buffered or queue in self._inserted else self._wiring.pushers(name)
            if _takes_one_driver(channel):
                if self._are_several(keys) and all(kind == "queue" for kind, _ in keys):
                    self._workers.unite(one for _, one in keys)
                elif self._are_several(keys):
                    self._inserted[queue] = f"several drivers push into {name}: {_named(keys)}"
                    keys = before
                self._wiring.drivers[ids.channel_vertex(name)] = keys
            self._behind[name] = keys
        return self._behind[name]

    def _are_several(self, keys: set[DriverKey]) -> bool:
        """Whether two drivers meet: queues that share a worker have one."""
        return len({self._workers[name] if kind == "queue" else (kind, name) for kind, name in keys}) > 1


def _takes_one_driver(channel: Channel) -> bool:
    """Whether only one driver may push through a channel: it keeps items, or assigns them to partitions."""
    return channel.serial or channel.partitioning is not None


def _named(keys: set[DriverKey]) -> str:
    return ", ".join(sorted(f"{kind} {name}" for kind, name in keys))


def check_order(wiring: Wiring) -> None:
    """Raise `WiringError` if what comes to an engine of a durable application may differ after a restart.

    An engine recognizes items that are sent again after a crash by their number: if they came in another order or
    number then, it would lose some items, and take others twice.
    """
    graph = wiring.graph
    if not (engines := [one for one in graph.nodes.values() if isinstance(one.component.tie, DiskJournal)]):
        return
    nodes = {name: replace(vertex.component.node, ports=vertex.ports) for name, vertex in graph.nodes.items()}
    mesh = Mesh("wiring", nodes, {name: channel.asked for name, channel in graph.channels.items()})

    def meets(one: Node | ChannelSpec) -> bool:
        return len(wiring.drivers.get(one.name, ()) if isinstance(one, Node) else wiring.pushers(one.name)) > 1

    for node in (mesh.nodes[one.component.node.name] for one in engines):
        why = f"several streams meet at {node.name}" if meets(node) else None
        for channel in node.inputs().values():
            why = why or varies(mesh, channel, lambda _: True, meets)
        if why is not None:
            raise WiringError(
                f"{node.name} commits by itself, and recognizes items that are sent again after a crash by their "
                f"number; but {why} before it, in another order or number each time; put the engine before that, one "
                f"for each stream, or leave out app.durable()"
            )

"""The assignment of drivers: where drivers would meet in one slet, they share a worker, or a queue is inserted."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, KeysView, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Final, Literal, TypeAlias, TypeVar

from exop.errors import WiringError
from exop.runtime.channels.base import Channel
from exop.runtime.component import Component
from exop.runtime.durable.engine_journal import DiskJournal
from exop.wiring.graph.cycles import find_cycles, inner_places
from exop.wiring.graph.wiring_graph import (
    Edge,
    WiringGraph,
    behind,
    channel_vertex,
    connected,
    edge_queue,
    input_queue,
    possible,
    queue_before,
)

#: Who runs something: a source or an engine, by its node, or the worker of a queue, by the queue's name or place.
DriverKey: TypeAlias = tuple[Literal["source", "engine", "queue"], str]
#: So many slets (and channels that keep something) may call each other; each of them takes up to seven frames.
LONGEST_CHAIN: Final = 100
#: Why a queue stands in a chain that would be longer.
LONG: Final = f"the direct chain is {LONGEST_CHAIN} slets long"
#: The least distance between two places in the order from upstream to downstream; where less is left it is made anew.
NARROW: Final = 1e-6

Value = TypeVar("Value")


@dataclass
class ExecutionPlan:
    """The drivers of a graph. It names components by their nodes, so a successor changes nothing in it.

    Attributes:
        inserted: The places where a queue is needed, and why.
        groups: For each queue (buffered channels by name, inserted ones by place), those that share its worker.
        runs: The drivers of each node, and of each channel that keeps something (`channel:name`).
        depths: For each node, the length of the longest chain of direct calls that ends in it.
        order: How far downstream each node and each channel (`channel:name`) is.
        first: For each queue, the node or channel to which it leads first.
        loops: The nodes of each cycle.
    """

    inserted: dict[str, str] = field(default_factory=dict)
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    runs: dict[str, set[DriverKey]] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    order: dict[str, float] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    loops: list[list[str]] = field(default_factory=list)

    def rank(self, queue: str) -> float:
        """How far downstream a queue is: where the first slet is that its worker runs for it."""
        return self.order[self.first[queue]]

    def served(self, queue: str) -> list[str]:
        """The queues that share the worker of a queue, upstream first."""
        group = self.groups.get(queue, ())
        return sorted(group, key=self.rank) if len(group) > 1 else [*group]


def plan_execution(graph: WiringGraph, standing: Mapping[str, str] | None = None) -> ExecutionPlan:
    """Find the drivers; insert queues and let queues share workers until no two drivers meet.

    Queues that were inserted before are *standing*, with the reason: they may hold items, and stay while their place
    is there. Raises `WiringError` for slets that call each other in a circle, with no queue between them.
    """
    places = graph.ordered()
    execution = _plan_places(graph, places, find_cycles(graph, places), standing or {})
    execution.order = _numbered(places)
    return execution


def _plan_places(
    graph: WiringGraph, places: Collection[str], loops: list[list[str]], standing: Mapping[str, str]
) -> ExecutionPlan:
    """Lay out *places*, from upstream to downstream, which direct calls connect with no others."""
    execution = ExecutionPlan(possible(graph, places, standing), loops=loops)
    workers = _Workers()
    while not _Reach(graph, places, execution, workers).complete():
        pass
    queues = _queues(graph, places, execution)
    known = set(queues)
    for loop in loops:
        workers.unite(known.intersection(inner_places(graph, loop)))
    execution.groups = workers.groups(queues)
    first: dict[str, str] = {}
    for place in filter(execution.runs.__contains__, places):
        for kind, name in execution.runs[place]:
            if kind == "queue":  # a source may have the same name
                first.setdefault(name, place)
    # A queue that leads into further queues only is as far downstream as its channel.
    execution.first = {queue: first.get(queue, behind(queue, graph.nodes)) for queue in queues}
    return execution


class Part:
    """The part of an application in which connections change, from one graph to another.

    Only what direct calls connect with the places of the change is laid out anew. Where there are cycles, or the order
    from upstream to downstream becomes another one, this is all that is connected with them in any way. The *cuts* are
    inserted queues that stay, and why they are there.

    Attributes:
        places: The nodes and channels (`channel:name`) that are laid out anew.
        queues: The places of queues in front of them.
        ranked: The drivers that run them, or begin there.
    """

    def __init__(
        self,
        before: WiringGraph,
        execution: ExecutionPlan,
        after: WiringGraph,
        starts: Collection[str],
        cuts: Mapping[str, str],
    ) -> None:
        self._before, self._after, self._cuts = execution, after, cuts
        graphs = before, after
        self.places = connected(graphs, starts, cuts)
        self._order, self._loops = dict[str, float](), execution.loops
        cycles = {node for loop in execution.loops for node in loop}
        fit = bool(execution.order) and cycles.isdisjoint(self.places)
        for place in self.places if fit else ():
            fit = fit and (place in self._order or self._fit(connected((after,), [place], cuts)))
        if not fit:
            self._begin_anew(connected(graphs, starts))
        self.queues = {queue for one in graphs for place in self.places for queue in one.queues(place)}
        self.ranked: list[DriverKey] = [("queue", queue) for queue in self.queues]
        self.ranked += [("source", place) for place in self.places]

    def _fit(self, places: Collection[str]) -> bool:
        """Put these places, in their order, between those upstream and downstream; `False` if that cannot be."""
        graph, known = self._after.part(places), ChainMap(self._order, self._before.order)
        here = [place for place in graph.ordered() if place in places]
        above = {one for place in here for one in self._after.upstream(place) if one not in places}
        below = {one for place in here for one in self._after.downstream(place) if one not in places}
        top = max((known[one] for one in above if one in known), default=None)
        end = min((known[one] for one in below if one in known), default=(top or 0) + len(here) + 1)
        top = end - len(here) - 1 if top is None else top
        step = (end - top) / (len(here) + 1)
        self._order |= {place: top + step * number for number, place in enumerate(here, 1)}
        return step > NARROW and not find_cycles(graph, [*above, *here])

    def _begin_anew(self, places: KeysView[str]) -> None:
        """Lay out all these places, which are connected with no others."""
        part = self._after.part(places)
        order = part.ordered()
        self.places, self._order = places, _numbered(order)
        kept = (loop for loop in self._loops if loop[0] not in self.places)
        self._loops = [*kept, *find_cycles(part, order)]

    def possible(self, queues: Mapping[str, str]) -> dict[str, str]:
        """Those of these queues whose places are in the part."""
        return possible(self._after, self.places, queues)

    def laid_out(self, standing: Mapping[str, str]) -> ExecutionPlan:
        """Return the execution of the whole application, with these queues, and the cuts, in the part."""
        before, places = self._before, [place for place in self._order if place in self.places]
        loops = [loop for loop in self._loops if loop[0] in self.places]
        part = _plan_places(self._after, places, loops, {**self._cuts, **standing})
        return ExecutionPlan(
            _patched(before.inserted, self.queues, part.inserted),
            _patched(before.groups, self.queues, part.groups),
            _patched(before.runs, self.places, part.runs),
            _patched(before.depths, self.places, part.depths),
            _patched(before.order, self.places, self._order),
            _patched(before.first, self.queues, part.first),
            self._loops,
        )


def _numbered(places: Iterable[str]) -> dict[str, float]:
    return {place: float(number) for number, place in enumerate(places)}


def _patched(before: Mapping[str, Value], gone: Iterable[str], fresh: Mapping[str, Value]) -> dict[str, Value]:
    found = {**before}
    for place in gone:
        found.pop(place, None)
    found.update(fresh)
    return found


class _Workers:
    """The queues that share a worker, as disjoint sets."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def of(self, queue: str) -> str:
        """The queue that stands for all that share the worker of this one."""
        while (above := self._above.get(queue, queue)) != queue:
            self._above[queue] = self._above.get(above, above)
            queue = above
        return queue

    def unite(self, queues: Iterable[str]) -> None:
        """Let these queues, and those that share a worker with one of them, share one."""
        found = [self.of(queue) for queue in queues]
        self._above |= dict.fromkeys(found[1:], found[0] if found else "")

    def groups(self, queues: Iterable[str]) -> dict[str, frozenset[str]]:
        """Return for each queue all that share its worker."""
        together: dict[str, list[str]] = {}
        for queue in queues:
            together.setdefault(self.of(queue), []).append(queue)
        return {queue: group for group in map(frozenset, together.values()) for queue in group}


class _Reach:
    """One walk downstream: it comes to a slet after all of its callers, and separates drivers that meet in it.

    A walk is not complete if it inserts a queue in front of a channel of which it has passed some readers already.
    """

    def __init__(
        self, graph: WiringGraph, places: Collection[str], execution: ExecutionPlan, workers: _Workers
    ) -> None:
        self._graph, self._execution, self._workers = graph, execution, workers
        self._nodes, self._channels = graph.named(places)
        self._inserted = execution.inserted
        self._behind: dict[str, set[DriverKey]] = {}
        self._late = False

    def complete(self) -> bool:
        """Note the drivers of each place, and insert the queues that this takes; `False`: walk again."""
        self._execution.runs = {}
        for component in _in_order(self._graph, self._nodes, self._inserted):
            inputs = self._graph.nodes[component.node.name].inputs
            fed = [(name, edge) for name, edge in inputs if not edge.port.pulled]
            self._split_chain(component, fed)
            keys = self._keys(component, fed)
            if self._apart(keys):
                for name, edge in fed if any(kind != "queue" for kind, _ in keys) else ():
                    if not self._graph.channels[name].buffered:
                        self._insert(name, edge, f"several drivers meet in {component.node.name}: {_named(keys)}")
                keys = self._keys(component, fed)
                self._workers.unite(queue for _, queue in keys)
            self._execution.runs[component.node.name] = keys
            if self._late:
                return False
        for name in self._channels:
            self._runs_behind(name)
        return True

    def _insert(self, name: str, edge: Edge, reason: str) -> None:
        """Put a queue between a channel and a port."""
        place = queue_before(self._graph, name, edge)
        if place not in self._inserted:
            self._inserted[place] = reason
            if place == input_queue(name):
                self._behind.pop(name, None)
                self._late = len(self._graph.consumers[name]) > 1

    def _split_chain(self, component: Component, fed: list[tuple[str, Edge]]) -> None:
        """Put a queue where a chain of direct calls is too long, long before Python's recursion limit."""
        deep = 0
        for name, edge in fed:
            if not self._graph.channels[name].buffered and edge_queue(name, edge) not in self._inserted:
                above = int(_one_driver(self._graph.channels[name]))
                if input_queue(name) not in self._inserted:
                    above += sent_at(self._graph, self._execution, name)
                if above >= LONGEST_CHAIN:
                    self._insert(name, edge, LONG)
                else:
                    deep = max(deep, above)
        self._execution.depths[component.node.name] = deep + 1

    def _keys(self, component: Component, fed: list[tuple[str, Edge]]) -> set[DriverKey]:
        """The drivers of a component."""
        keys: set[DriverKey] = set()
        if component.spec.iterated and not component.spec.own_driver:
            keys.add(("source", component.node.name))
        for name, edge in fed:
            place = edge_queue(name, edge)
            keys |= {("queue", place)} if place in self._inserted else self._runs_behind(name)
        return keys

    def _runs_behind(self, name: str) -> set[DriverKey]:
        """The drivers of the slets behind a channel."""
        channel = self._graph.channels[name]
        if channel.buffered:
            keys: set[DriverKey] = {("queue", name)}
            if _one_driver(channel):
                self._execution.runs[channel_vertex(name)] = keys
            return keys
        if name not in self._behind:
            before: set[DriverKey] = {("queue", input_queue(name))}
            keys = before if input_queue(name) in self._inserted else _pushers(self._graph, self._execution, name)
            if _one_driver(channel) and self._apart(keys):
                if all(kind == "queue" for kind, _ in keys):
                    self._workers.unite(queue for _, queue in keys)
                else:
                    self._inserted[input_queue(name)] = f"several drivers push into {name}: {_named(keys)}"
                    keys = before
            if _one_driver(channel):
                self._execution.runs[channel_vertex(name)] = keys
            self._behind[name] = keys
        return self._behind[name]

    def _apart(self, keys: set[DriverKey]) -> bool:
        """Whether two drivers meet: queues that share a worker have one."""
        owners = {(kind, self._workers.of(name) if kind == "queue" else name) for kind, name in keys}
        return len(owners) > 1


def _one_driver(channel: Channel) -> bool:
    """Whether one driver at a time may pass: there is a content, or items are assigned to partitions."""
    return channel.serial or channel.partitioning is not None


def _pushers(graph: WiringGraph, execution: ExecutionPlan, channel: str) -> set[DriverKey]:
    """The drivers that push into a channel."""
    found: set[DriverKey] = set()
    for component in (edge.component for edge in graph.producers[channel]):
        spec, node = component.spec, component.node.name
        own: set[DriverKey] = {("engine" if spec.own_driver else "source", node)}
        found |= own if spec.own_driver or spec.iterated else execution.runs.get(node, set())
    return found


def sent_at(graph: WiringGraph, execution: ExecutionPlan, channel: str) -> int:
    """How many calls stand above what is pushed into a channel."""
    pushers = (edge.component for edge in graph.producers[channel])
    found = [1 if one.spec.own_driver or one.spec.iterated else execution.depths[one.node.name] for one in pushers]
    return max(found, default=0)


def _named(keys: set[DriverKey]) -> str:
    return ", ".join(sorted(f"{kind} {name}" for kind, name in keys))


def _in_order(graph: WiringGraph, nodes: Iterable[str], inserted: Mapping[str, str]) -> list[Component]:
    """The components of these nodes, each behind its callers."""
    callers = {
        node: [caller for name in graph.direct(node, inserted) for caller in graph.callers(name, inserted)]
        for node in nodes
    }
    try:
        return [graph.nodes[found].component for found in TopologicalSorter(callers).static_order()]
    except CycleError as problem:
        raise WiringError(
            f"the cycle {' -> '.join(problem.args[1])} contains no queue: it would call itself without end; "
            f"join two of its slets through a channel of the kind 'queue'"
        ) from None


def _queues(graph: WiringGraph, places: Collection[str], execution: ExecutionPlan) -> list[str]:
    """The queues that a worker drains; a buffered channel whose only consumer pulls is drained by that one."""
    buffered = (name for name in graph.named(places)[1] if graph.channels[name].buffered)
    pulls = {name: [edge.port.pulled for edge in graph.consumers[name]] for name in buffered}
    return [*(name for name, ports in pulls.items() if ports != [True]), *execution.inserted]


def check_order(graph: WiringGraph, execution: ExecutionPlan) -> None:
    """Raise `WiringError` if the streams of several threads merge before an engine of a durable application.

    An engine recognizes items that are sent again after a crash by their number: if the order of the merge is another
    one then, it would lose some items, and take others twice.
    """
    for node, vertex in graph.nodes.items():
        place = _merge(graph, execution, vertex.component) if isinstance(vertex.component.tie, DiskJournal) else None
        if place is not None:
            raise WiringError(
                f"{node} commits by itself, and recognizes what is sent again after a crash by its number; but several "
                f"threads meet at {place} before it, in an order that is another one each time; put the engine before "
                f"that, one for each stream, or leave out app.durable()"
            )


def _merge(graph: WiringGraph, execution: ExecutionPlan, engine: Component) -> str | None:
    """Return where, before an engine, streams of several drivers meet."""
    todo, seen = [engine], {engine.id}
    while todo:
        component = todo.pop()
        fed, iterated = graph.nodes[component.node.name].inputs, component.spec.iterated
        if len(fed if iterated else execution.runs.get(component.node.name, ())) > 1:
            return component.node.name
        for name, _ in fed:
            if len(_pushers(graph, execution, name)) > 1:
                return f"the channel {name!r}"
            producers = [edge.component for edge in graph.producers[name]]
            # The output of an engine comes from its log, always in the same order; sources begin a stream.
            fresh = {one.id: one for one in producers if not one.spec.own_driver and one.id not in seen}
            seen |= fresh.keys()
            todo += fresh.values()
    return None

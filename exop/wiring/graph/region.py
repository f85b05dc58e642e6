"""The region of a change: the places that it binds anew, and the drivers that stand still; all others run on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from exop.model.slets.ports import node_at
from exop.runtime.channels.queue import Buffered
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.worker import Worker
from exop.runtime.supervision.failure_policy import stranded
from exop.wiring.graph.execution_plan import DriverKey, ExecutionPlan, Part, sent_at
from exop.wiring.graph.wiring_graph import (
    Edge,
    WiringGraph,
    channel_of_endpoint,
    channel_of_queue,
    channel_vertex,
    edge_queue,
    input_queue,
    port_of_endpoint,
)


@dataclass(frozen=True)
class Wiring:
    """The connections of an application, and the drivers that follow from them."""

    graph: WiringGraph = field(default_factory=WiringGraph)
    execution: ExecutionPlan = field(default_factory=ExecutionPlan)


@dataclass(frozen=True)
class Region:
    """The nodes and channels that are bound anew between two wirings, and the drivers that stand still meanwhile.

    Attributes:
        before, after: The connections and drivers before and after the change.
        nodes, channels: The nodes and channels that are compiled: what changes, and what calls it directly.
        moved: The nodes and channels (`channel:name`) that other drivers run.
        queues: The queues that another worker drains, or in another order.
        ranked: The drivers whose place in the order from upstream to downstream may be another one.
        leaner: The same change with fewer inserted queues, the leanest first; chosen if nothing waits in the others.
    """

    before: Wiring
    after: Wiring
    nodes: Collection[str]
    channels: Collection[str]
    moved: Collection[str] = ()
    queues: Collection[str] = ()
    ranked: Collection[DriverKey] = ()
    leaner: tuple[Region, ...] = ()

    @classmethod
    def around(cls, before: Wiring, after: Wiring, nodes: Iterable[str], channels: Iterable[str]) -> Region:
        """These nodes and channels, and what calls them directly, up to the queues, sources and engines.

        At a place where a queue comes or goes, the producers of the channel are bound anew, too.
        """
        ends = {channel_of_queue(place) for place in before.execution.inserted.keys() ^ after.execution.inserted.keys()}
        bound, through = set[str](), {*channels, *ends}
        producers = (one.graph.producers.get(name, ()) for one in (before, after) for name in ends)
        todo = [*nodes, *(edge.component.node.name for edges in producers for edge in edges)]
        for wiring in (before, after):
            todo += (caller for name in through for caller in _callers(wiring, name))
        while todo:
            if (node := todo.pop()) not in bound:
                bound.add(node)
                for wiring in (before, after):
                    for name in wiring.graph.direct(node, wiring.execution.inserted):
                        if name not in through:
                            through.add(name)
                            todo += (caller for one in (before, after) for caller in _callers(one, name))
        return cls(before, after, bound, through)

    def laid_out(self, part: Part) -> Region:
        """The same where a part is laid out anew, with the differences of both executions."""
        before, after = self.before.execution, self.after.execution
        queues = {queue for queue in part.queues if before.served(queue) != after.served(queue)}
        others: set[DriverKey] = {("queue", queue) for queue in queues}
        for node in self.nodes:
            old, new = self.before.graph.nodes.get(node), self.after.graph.nodes.get(node)
            if old is not None and new is not None and old.component is not new.component:
                others |= {("source", node), ("engine", node)}
        none = set[DriverKey]()
        runs = ((place, before.runs.get(place, none), after.runs.get(place, none)) for place in part.places)
        moved = {place for place, was, now in runs if was != now or not others.isdisjoint(now)}
        ranked = [*part.ranked, *(("queue", queue) for queue in queues)]
        return replace(self, moved=moved, queues=queues, ranked=ranked)

    @cached_property
    def graph(self) -> WiringGraph:
        """The connections in this region after the change."""
        return self.after.graph.only(self.nodes, self.channels)

    @cached_property
    def fed(self) -> list[tuple[str, Edge]]:
        """The ports behind queues whose channels are not bound anew, each with its channel."""
        inserted = self.after.execution.inserted
        nodes = self.after.graph.nodes
        inputs = (pair for node in self.nodes if node in nodes for pair in nodes[node].inputs)
        found = ((name, edge) for name, edge in inputs if name not in self.channels)
        return [(name, edge) for name, edge in found if edge.port.pulled or edge_queue(name, edge) in inserted]

    @property
    def undone(self) -> Region:
        """The region of the change back, whichever of the executions was chosen."""
        regions = (self, *self.leaner)
        nodes, channels, moved, queues, ranked = (
            {one for region in regions for one in getattr(region, name)}
            for name in ("nodes", "channels", "moved", "queues", "ranked")
        )
        return Region(self.after, self.before, nodes, channels, moved, queues, ranked)

    def chosen(self, deployment: Deployment, needed: Collection[str]) -> Region:
        """The leanest one that lacks no queue which is *needed*, or holds something."""
        there, queues = self.after.execution.inserted.keys(), deployment.inserted

        def used(place: str) -> bool:
            return place in needed or (place in queues and bool(queues[place].entries))

        return next(
            (one for one in self.leaner if not any(map(used, there - one.after.execution.inserted.keys()))), self
        )

    @cached_property
    def components(self) -> list[Component]:
        """The components in it after the change."""
        nodes = self.after.graph.nodes
        return [nodes[name].component for name in self.nodes if name in nodes]

    def drivers(self, deployment: Deployment) -> list[Driver]:
        """The drivers that stand still while it is bound, from upstream to downstream.

        They run what is bound anew, or what other drivers run before or after the change, or drain its queues.
        """
        components = (deployment.components[node] for node in self.nodes if node in deployment.components)
        found = [driver for one in components for driver in (one.driver, *one.pullers)]
        places = [*self.nodes, *map(channel_vertex, self.channels), *self.moved]
        queues = [*self.queues, *self.channels, *map(input_queue, self.channels)]
        for execution in (self.before.execution, self.after.execution):
            found += [_driver(deployment, *key) for place in places for key in execution.runs.get(place, ())]
            found += [_worker(deployment, queue) for queue in queues if queue in execution.groups]
        found += [driver for one in self.leaner for driver in one.drivers(deployment)]
        return sorted(dict.fromkeys(filter(None, found)), key=lambda driver: driver.rank)


def _callers(wiring: Wiring, channel: str) -> list[str]:
    there = channel in wiring.graph.channels
    return wiring.graph.callers(channel, wiring.execution.inserted) if there else []


def man(deployment: Deployment, region: Region) -> list[Worker]:
    """Give each group of queues that share a worker one, where that changes; nothing is in flight there.

    A worker that has some of the queues already goes on with them. Returns the workers that leave.
    """
    execution = region.after.execution
    before = {queue: worker for queue in region.queues if (worker := deployment.workers.get(queue)) is not None}
    at_work = {queue: worker for worker in before.values() for queue in worker.queues}
    manned: dict[str, Worker] = {}
    taken: set[Worker] = set()
    for group in dict.fromkeys(execution.groups[queue] for queue in region.queues if queue in execution.groups):
        served = [_queue(deployment, name) for name in reversed(execution.served(min(group)))]
        known = [at_work.get(queue) for queue in served] + [before.get(min(group))]
        worker = next((one for one in known if one is not None and one not in taken), None)
        worker = manned[min(group)] = worker or Worker(f"{deployment.name} {min(group)}")
        taken.add(worker)
        worker.serve(tuple(served))
        for queue in served:
            queue.alarm = deployment.tell
    stay = {key: worker for key, worker in deployment.workers.items() if key not in before}
    leaving = [worker for worker in before.values() if worker not in taken]
    for worker in leaving:
        worker.rank = -math.inf
    deployment.workers = {**stay, **manned, **{f"{worker.name} (leaves {id(worker)})": worker for worker in leaving}}
    inform(deployment, region)
    return leaving


def _runner(deployment: Deployment, graph: WiringGraph, execution: ExecutionPlan, place: str) -> Driver | None:
    """Return the driver that runs a place; `None` if the place leads nowhere."""
    name, (node, port) = channel_of_endpoint(place), node_at(port_of_endpoint(place), deployment.components)
    if place.startswith(("into ", "window ")):
        return _first(deployment, execution.runs.get(channel_vertex(name), ()))
    if name:  # a channel that keeps nothing: its producers push through it
        return next((edge.component.runner for edge in graph.producers.get(name, ())), None)
    component = deployment.components.get(node)
    if component is None:
        return None
    entered = component.spec.ports.get(port)
    return component.pusher if entered is not None and entered.direction == "in" else component.runner


def _first(deployment: Deployment, keys: Iterable[DriverKey]) -> Driver | None:
    """Return the driver of the first key; several keys of one place are queues of one worker."""
    return _driver(deployment, *min(keys, default=("source", "")))


def _driver(deployment: Deployment, kind: str, name: str) -> Driver | None:
    if kind == "queue":
        return _worker(deployment, name)
    return deployment.components[name].driver if name in deployment.components else None


def _worker(deployment: Deployment, queue: str) -> Driver | None:
    found = deployment.inserted.get(queue) or deployment.channels.get(queue)
    return found.worker if isinstance(found, Buffered) else None


def _queue(deployment: Deployment, name: str) -> Buffered:
    found = deployment.inserted.get(name) or deployment.channels[name]
    assert isinstance(found, Buffered)
    return found


def inform(deployment: Deployment, region: Region) -> None:
    """Set the drivers of components, and the rank and the listeners of drivers."""
    graph, execution = region.after.graph, region.after.execution
    for vertex in filter(None, map(graph.nodes.get, {*region.nodes, *region.moved})):
        component, node = vertex.component, vertex.component.node.name
        component.pusher = _first(deployment, execution.runs.get(node, ()))
        component.runner = component.driver or component.pusher
    for kind, name in (*region.ranked, *(("source", node) for node in region.nodes)):
        if kind == "queue" and name in execution.groups and (worker := _worker(deployment, name)) is not None:
            # It pushes into the slet behind the queue: it comes before it.
            worker.rank = math.nextafter(min(map(execution.rank, execution.groups[name])), -math.inf)
        elif kind != "queue" and name in graph.nodes:
            one = graph.nodes[name].component
            for driver in filter(None, (one.driver, *one.pullers)):
                driver.rank = execution.order[name]
    deployment.inlets.entries = deployment.places
    deployment.inlets.runner = partial(_runner, deployment, graph, execution)
    for driver in region.drivers(deployment):
        driver.inlets, driver.idle, driver.told = deployment.inlets, deployment.idle, deployment.nudge
        driver.strand = partial(stranded, deployment, driver)


def depth(graph: WiringGraph, execution: ExecutionPlan, place: str) -> float:
    """Return how many direct calls lead to a place from the queue, source or engine where they begin.

    Along direct channels, work at a place is older than work at any place from which items get there.
    """
    if not place:
        return math.inf
    channel = channel_of_endpoint(place)
    if channel in graph.channels:  # its guard, the way into it, one of its windows
        way = ("channel", "into", "window").index(place.partition(" ")[0])
        return (0 if graph.channels[channel].buffered else sent_at(graph, execution, channel)) + 0.4 + 0.2 * way
    node, port = node_at(port_of_endpoint(place), graph.nodes)
    vertex = graph.nodes.get(node)
    if vertex is None:
        return 0
    leaving = next((name for name, edge in vertex.outputs if edge.port.name == port), None)
    return execution.depths[node] if leaving is None else sent_at(graph, execution, leaving) + 0.2

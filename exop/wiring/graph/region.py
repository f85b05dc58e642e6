"""The region of a change: the nodes and channels to bind, and the drivers to park; all other drivers run on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from exop.model.slets.ports import node_at
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.queue import Buffered
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.worker import Worker
from exop.runtime.supervision.failure_policy import suspend_on_defect
from exop.wiring.graph import ids
from exop.wiring.graph.execution_plan import DriverKey, Replanning, Wiring
from exop.wiring.graph.wiring_graph import Edge, WiringGraph, regrouped


@dataclass(frozen=True)
class Region:
    """The nodes and channels to bind between two wirings, and the drivers to park.

    Attributes:
        before, after: The connections and drivers before and after the change.
        nodes, channels: The nodes and channels that are compiled: those that change, and their direct callers.
        moved: The vertices that other drivers run.
        queues: The queues that another worker drains, or in another order.
        ranked: The drivers whose rank from upstream to downstream may change.
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
        """These nodes and channels, and their direct callers, up to the queues, sources and engines.

        Where a queue comes or goes, the producers of the channel are bound anew, too.
        """
        sides = [(one.graph, one.inserted) for one in (before, after)]
        ends = {*map(ids.channel_of_queue, before.inserted.keys() ^ after.inserted.keys())}
        bound, through = set[str](), {*channels, *ends}
        todo = [*nodes, *(edge.node for graph, _ in sides for name in ends for edge in graph.producers.get(name, ()))]
        todo += (caller for graph, queues in sides for name in through for caller in graph.callers(name, queues))
        while todo:
            if (node := todo.pop()) not in bound:
                bound.add(node)
                called = {name for graph, queues in sides for name in graph.direct_inputs(node, queues)} - through
                todo += (caller for graph, queues in sides for name in called for caller in graph.callers(name, queues))
                through |= called
        return cls(before, after, bound, through)

    def replanned(self, part: Replanning) -> Region:
        """The same where the execution of a part is planned anew, with the differences of both plans."""
        before, after = self.before, self.after
        queues = {queue for queue in part.queues if before.served(queue) != after.served(queue)}
        others: set[DriverKey] = {("queue", queue) for queue in queues}
        for node in self.nodes:
            old, new = self.before.graph.nodes.get(node), self.after.graph.nodes.get(node)
            if old is not None and new is not None and old.component is not new.component:
                others |= {("source", node), ("engine", node)}
        none = set[DriverKey]()
        drivers = ((one, before.drivers.get(one, none), after.drivers.get(one, none)) for one in part.vertices)
        moved = {vertex for vertex, was, now in drivers if was != now or not others.isdisjoint(now)}
        ranked: list[DriverKey] = [("queue", queue) for queue in part.queues]
        ranked += [("source", vertex) for vertex in part.vertices]
        return replace(self, moved=moved, queues=queues, ranked=ranked)

    @cached_property
    def regrouped(self) -> dict[str, list[Edge]]:
        """The edges at each channel that share its partitions, if the change alters that."""
        return {name: regrouped(self.before.graph, self.after.graph, name) for name in self.channels}

    @cached_property
    def graph(self) -> WiringGraph:
        """The connections in this region after the change."""
        return self.after.graph.only(self.nodes, self.channels)

    @property
    def undone(self) -> Region:
        """The region of the change back, whichever of the execution plans was chosen."""
        regions, names = (self, *self.leaner), ("nodes", "channels", "moved", "queues", "ranked")
        joined: dict[str, Any] = {name: {one for region in regions for one in getattr(region, name)} for name in names}
        return Region(self.after, self.before, **joined)

    def chosen(self, deployment: Deployment, needed: Collection[str]) -> Region:
        """The leanest one that lacks no queue which is *needed*, or holds something."""
        inserted = self.after.inserted.keys()
        used = {*needed, *(queue for queue, one in deployment.inserted.items() if one.entries)} & inserted
        return next((one for one in self.leaner if used <= one.after.inserted.keys()), self)

    def drivers(self, deployment: Deployment) -> list[Driver]:
        """The drivers to park while it is bound, from upstream to downstream.

        They run what is bound anew, or what other drivers run before or after the change, or drain its queues.
        """
        components = (deployment.components[node] for node in self.nodes if node in deployment.components)
        found = [driver for one in components for driver in (one.driver, *one.pullers)]
        vertices = [*self.nodes, *map(ids.channel_vertex, self.channels), *self.moved]
        queues = [*self.queues, *self.channels, *map(ids.input_queue, self.channels)]
        for wiring in (self.before, self.after):
            found += [_driver(deployment, *key) for vertex in vertices for key in wiring.drivers.get(vertex, ())]
            found += [_driver(deployment, "queue", queue) for queue in queues if queue in wiring.groups]
        found += [driver for one in self.leaner for driver in one.drivers(deployment)]
        return sorted(dict.fromkeys(filter(None, found)), key=lambda driver: driver.rank)


def assign_workers(deployment: Deployment, region: Region) -> list[Worker]:
    """Give each group of queues that share a worker one, where that changes; nothing is in flight there.

    A worker that has some of the queues already keeps them. Returns the workers that leave.
    """
    wiring = region.after
    before = {queue: worker for queue in region.queues if (worker := deployment.workers.get(queue)) is not None}
    serving = {queue: worker for worker in before.values() for queue in worker.queues}
    assigned: dict[str, Worker] = {}
    taken: set[Worker] = set()
    for group in dict.fromkeys(wiring.groups[queue] for queue in region.queues if queue in wiring.groups):
        served = [queue_of(deployment, name) for name in reversed(wiring.served(min(group)))]
        known = [serving.get(queue) for queue in served] + [before.get(min(group))]
        worker = next((one for one in known if one is not None and one not in taken), None)
        worker = assigned[min(group)] = worker or Worker(f"{deployment.name} {min(group)}")
        taken.add(worker)
        worker.serve(tuple(served))
        for queue in served:
            queue.alarm = deployment.notify_waiting
    stay = {key: worker for key, worker in deployment.workers.items() if key not in before}
    leaving = [worker for worker in before.values() if worker not in taken]
    for worker in leaving:
        worker.rank = -math.inf
    deployment.workers = {**stay, **assigned, **{f"{worker.name} (leaves {id(worker)})": worker for worker in leaving}}
    _update_drivers(deployment, region)
    return leaving


def _update_drivers(deployment: Deployment, region: Region) -> None:
    """Set the drivers of components, and the rank and the listeners of drivers."""
    graph, wiring = region.after.graph, region.after
    for vertex in filter(None, map(graph.nodes.get, {*region.nodes, *region.moved})):
        component = vertex.component
        component.pusher = _first(deployment, wiring.drivers.get(component.node.name, ()))
        component.runner = component.driver or component.pusher
        component.before_omission = deployment.await_checkpoint
        for port in component.pulled.values():
            if port.queue is not None and port.driver is None:
                port.queue.taker = component.pusher
    for kind, name in (*region.ranked, *(("source", node) for node in region.nodes)):
        if kind == "queue" and name in wiring.groups and (worker := _driver(deployment, kind, name)) is not None:
            # It pushes into the slet behind the queue: it comes before it.
            worker.rank = math.nextafter(min(map(wiring.ranks.__getitem__, wiring.groups[name])), -math.inf)
        elif kind != "queue" and name in graph.nodes:
            one = graph.nodes[name].component
            for driver in filter(None, (one.driver, *one.pullers)):
                driver.rank = wiring.order[name]
    deployment.inlets.entries = deployment.entries
    deployment.inlets.runner = partial(_runner, deployment, region.after)
    deployment.inlets.pushers = pushers = partial(_pushers, deployment, region.after)
    for driver in region.drivers(deployment):
        driver.inlets, driver.idle, driver.on_caught_up = deployment.inlets, deployment.idle, deployment.nudge
        driver.on_defect = partial(suspend_on_defect, deployment, driver)
        driver.waits_at = None  # if it still has to wait, it checks that when it is opened
        driver.overfilled = [
            one for one in driver.overfilled if not isinstance(one, Buffered) or driver in pushers(one)
        ]


def _runner(deployment: Deployment, wiring: Wiring, endpoint: str) -> Driver | None:
    """Return the driver that runs an endpoint; `None` if the endpoint leads nowhere."""
    name = ids.channel_of_endpoint(endpoint)
    if endpoint.startswith(("into ", "window ")):
        return _first(deployment, wiring.drivers.get(ids.channel_vertex(name), ()))
    if name:  # a channel that keeps nothing: its producers push through it
        return next((edge.component.runner for edge in wiring.graph.producers.get(name, ())), None)
    node, port = node_at(ids.port_of_endpoint(endpoint), deployment.components)
    if (component := deployment.components.get(node)) is None:
        return None
    entered = component.spec.ports.get(port)
    return component.pusher if entered is not None and entered.direction == "in" else component.runner


def _pushers(deployment: Deployment, wiring: Wiring, queue: Buffered, tell: Any = None) -> set[Driver]:
    """Return the drivers that push into a queue; none if the queue was removed, or comes with a change under way.

    With *tell*, also those that push into what feeds it by way of another host, as far as `Outbox.passed_on`.
    Drivers outside the region of a change call this while it is made; those in the region ask anew afterwards.
    """
    name = ids.channel_of_queue(queue.name)
    if queue not in (deployment.inserted.get(queue.name), deployment.channels.get(queue.name)):
        return set()
    before, channel = ids.input_queue(name), wiring.graph.channels.get(name)
    keys = wiring.pushers(name)
    if channel is not None and channel.buffered and channel is not queue:  # the queue is that of one of its ports
        keys = {("queue", name)}
    elif before in wiring.inserted and before != queue.name:
        keys = {("queue", before)}
    found = {driver for key in keys if (driver := _driver(deployment, *key)) is not None}
    for one in map(deployment.channels.get, queue.feeders):
        if tell is not None and isinstance(one, Outbox) and one.passed_on(tell):
            found |= _pushers(deployment, wiring, one)
    return found


def _first(deployment: Deployment, keys: Iterable[DriverKey]) -> Driver | None:
    """Return the driver of the first key; several keys of one vertex are queues of one worker."""
    return _driver(deployment, *min(keys, default=("source", "")))


def _driver(deployment: Deployment, kind: str, name: str) -> Driver | None:
    if kind != "queue":
        component = deployment.components.get(name)
        return None if component is None else component.driver
    found = deployment.inserted.get(name) or deployment.channels.get(name)
    return found.worker if isinstance(found, Buffered) else None


def queue_of(deployment: Deployment, name: str) -> Buffered:
    """Return an inserted queue by its id, or a buffered channel by its name."""
    found = deployment.inserted.get(name) or deployment.channels[name]
    assert isinstance(found, Buffered)
    return found

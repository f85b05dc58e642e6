"""The part of an application that a change binds anew, and the assignment of its drivers; all others go on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from exop.runtime.channels.queue import Buffered
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.worker import Worker
from exop.runtime.failure import stranded
from exop.wiring.circuit import Circuit, Join, before_key, channel_at, channel_key, channel_of, edge_key, port_at
from exop.wiring.layout import DriverKey, Layout, lay_out, sent_at


@dataclass(frozen=True)
class Wiring:
    """The connections of an application, and the drivers that follow from them."""

    circuit: Circuit = field(default_factory=Circuit)
    layout: Layout = field(default_factory=Layout)


@dataclass(frozen=True)
class Region:
    """The nodes and channels that a change binds anew.

    Attributes:
        before, after: The connections of the application before and after the change.
        lean: Those after it without the queues that are not needed any more, if these are empty.
        nodes, channels: The nodes and channels that are bound anew.
        rewired: The connections change, or the drivers may. Otherwise all queues and workers stay as they are, and so
            does what the nodes and channels call.
    """

    before: Wiring
    after: Wiring
    lean: Wiring
    nodes: Collection[str]
    channels: Collection[str]
    rewired: bool = True

    @classmethod
    def callers(cls, before: Wiring, after: Circuit, nodes: Collection[str], channels: Collection[str]) -> Region:
        """These nodes and channels, and what calls them directly, up to the queues, sources and engines.

        The connections are those of before, and each node has the ports that it had.
        """
        wiring, inserted = Wiring(after, before.layout), before.layout.inserted
        bound, through = set[str](), {*channels}
        todo = [*nodes, *(node for name in channels for node in after.callers(name, inserted))]
        while todo:
            if (node := todo.pop()) not in bound:
                bound.add(node)
                fresh = [name for name in after.direct(node, inserted) if name not in through]
                through.update(fresh)
                todo += (caller for name in fresh for caller in after.callers(name, inserted))
        return cls(before, wiring, wiring, bound, through, rewired=False)

    @classmethod
    def parts(
        cls,
        before: Wiring,
        after: Circuit,
        nodes: Collection[str],
        channels: Collection[str],
        standing: Mapping[str, str],
    ) -> Region:
        """The connected parts in which these nodes and channels are, before or after; they are laid out anew."""
        known, nodes, channels = (-1, -1), {*nodes}, {*channels}
        while (len(nodes), len(channels)) > known:  # parts split and merge
            known = len(nodes), len(channels)
            for found in (before.circuit.part(nodes, channels), after.part(nodes, channels)):
                nodes |= found.nodes.keys()
                channels |= found.channels.keys()
        region = cls(before, Wiring(after), Wiring(after), nodes, channels)
        lean = region.laid_out({})
        return replace(region, lean=lean, after=region.laid_out(standing) if standing else lean)

    def laid_out(self, standing: Mapping[str, str]) -> Wiring:
        """The connections with a new layout of this region; queues that stand stay."""
        layout = self.before.layout.patched(self.nodes, self.channels, lay_out(self.circuit, standing))
        return Wiring(self.after.circuit, layout)

    @cached_property
    def circuit(self) -> Circuit:
        """The connections in this region after the change."""
        take = self.after.circuit.part if self.rewired else self.after.circuit.only
        return take(self.nodes, self.channels)

    @cached_property
    def fed(self) -> Mapping[str, tuple[str, Join]]:
        """The ports behind queues whose channels are not bound anew, each with its channel, by place."""
        inserted = self.after.layout.inserted
        inputs = (self.after.circuit.inputs(one) for one in self.components) if not self.rewired else ()
        found = {edge_key(name, join): (name, join) for joins in inputs for name, join in joins}
        return {place: fed for place, fed in found.items() if fed[1].port.pulled or place in inserted}

    @property
    def undone(self) -> Region:
        """The region of the change back."""
        return replace(self, before=self.after, after=self.before, lean=self.before)

    @cached_property
    def components(self) -> list[Component]:
        """The connected components in it after the change."""
        nodes = self.after.circuit.nodes
        return [nodes[name].component for name in self.nodes if name in nodes]

    def queues(self, wiring: Wiring) -> Iterator[str]:
        """The queues in it that a worker drains."""
        places = [*self.fed]
        for name in self.channels:
            joins = wiring.circuit.consumers.get(name, ()) if self.rewired else ()
            places += [name, before_key(name), *(edge_key(name, join) for join in joins)]
        yield from (place for place in places if place in wiring.layout.groups)

    def drivers(self, deployment: Deployment) -> list[Driver]:
        """The drivers that run it, from upstream to downstream."""
        components = [deployment.components[node] for node in self.nodes if node in deployment.components]
        found = [driver for one in components for driver in (one.driver, *one.pullers)]
        found += [_worker(deployment, name) for wiring in (self.before, self.after) for name in self.queues(wiring)]
        return sorted(dict.fromkeys(filter(None, found)), key=lambda driver: driver.rank)


def man(deployment: Deployment, region: Region) -> list[Worker]:
    """Give each group of queues in a region that share a worker one; nothing is in flight there.

    A worker that has some of the queues already goes on with them. Returns the workers that leave.
    """
    layout = region.after.layout
    there = {**region.circuit.channels, **deployment.inserted}
    queues = {name: queue for name, queue in there.items() if isinstance(queue, Buffered)}
    before = {key: worker for key, worker in deployment.workers.items() if channel_of(key) in region.channels}
    at_work = {queue: worker for worker in before.values() for queue in worker.queues}
    manned: dict[str, Worker] = {}
    taken: set[Worker] = set()
    for group in dict.fromkeys(layout.groups[queue] for queue in region.queues(region.after)):
        served = sorted((name for name in group if name in queues), key=layout.queued.__getitem__, reverse=True)
        if not served:
            continue
        known = [at_work.get(queues[name]) for name in served] + [before.get(min(group))]
        worker = next((one for one in known if one is not None and one not in taken), None)
        worker = manned[min(group)] = worker or Worker(f"{deployment.name} {min(group)}")
        worker.rank = layout.queued[served[-1]] - 0.5  # it pushes into the slet behind the queue: it comes before it
        taken.add(worker)
        worker.serve(tuple(queues[name] for name in served))
    stay = {key: worker for key, worker in deployment.workers.items() if key not in before}
    leaving = [worker for worker in before.values() if worker not in taken]
    for worker in leaving:
        worker.rank = -1
    deployment.workers = {**stay, **manned, **{f"{worker.name} (leaves {id(worker)})": worker for worker in leaving}}
    inform(deployment, region, queues.values())
    return leaving


def _runner(deployment: Deployment, circuit: Circuit, layout: Layout, place: str) -> Driver | None:
    """Return the driver that runs a place; `None` if the place leads nowhere."""
    name, (node, _, port) = channel_at(place), port_at(place).rpartition(".")
    if place.startswith(("into ", "window ")):
        return _first(deployment, layout.runs.get(channel_key(name), ()))
    if name:  # a channel that keeps nothing: its producers push through it
        return next((join.component.runner for join in circuit.producers.get(name, ())), None)
    component = deployment.components.get(node)
    if component is None:
        return None
    entered = component.spec.ports.get(port)
    return component.pusher if entered is not None and entered.direction == "in" else component.runner


def _first(deployment: Deployment, keys: Iterable[DriverKey]) -> Driver | None:
    """Return the driver of the first key; several keys of one place are queues of one worker."""
    kind, name = min(keys, default=("", ""))
    if kind == "queue":
        return _worker(deployment, name)
    return deployment.components[name].driver if name in deployment.components else None


def _worker(deployment: Deployment, queue: str) -> Driver | None:
    found = deployment.inserted.get(queue) or deployment.channels.get(queue)
    return found.worker if isinstance(found, Buffered) else None


def inform(deployment: Deployment, region: Region, queues: Iterable[Buffered]) -> None:
    """Set the drivers of components, and the rank and the listeners of drivers."""
    circuit, layout = region.after.circuit, region.after.layout
    for component in region.components:
        for driver in (component.driver, *component.pullers):
            if driver is not None:
                driver.rank = layout.order[component.node.name]
        component.pusher = _first(deployment, layout.runs.get(component.node.name, ()))
        component.runner = component.driver or component.pusher
    deployment.inlets.entries = deployment.places
    deployment.inlets.runner = partial(_runner, deployment, circuit, layout)
    for driver in region.drivers(deployment):
        driver.inlets, driver.idle, driver.told = deployment.inlets, deployment.idle, deployment.nudge
        driver.strand = partial(stranded, deployment, driver)
    for queue in queues:
        queue.alarm = deployment.tell


def depth(circuit: Circuit, layout: Layout, place: str) -> float:
    """Return how many direct calls lead to a place from the queue, source or engine where they begin.

    Along direct channels, work at a place is older than work at any place from which items get there.
    """
    if not place:
        return math.inf
    channel = channel_at(place)
    if channel in circuit.channels:  # its guard, the way into it, one of its windows
        way = ("channel", "into", "window").index(place.partition(" ")[0])
        return sent_at(circuit, layout, channel) + 0.4 + 0.2 * way
    node, _, port = port_at(place).rpartition(".")
    vertex = circuit.nodes.get(node)
    if vertex is None:
        return 0
    leaving = next((name for output, name in circuit.outputs(vertex.component) if output.name == port), None)
    return layout.depths[node] if leaving is None else sent_at(circuit, layout, leaving) + 0.2

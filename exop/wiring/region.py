"""The part of an application that a change binds anew, and the assignment of drivers to it; all others go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
        before: The connections of the application before the change.
        after: The connections after it.
        lean: The same without queues that are needed no more; they must be empty.
        nodes: The nodes that are bound anew.
        channels: The channels that are bound anew.
        rewired: The connections change, or the drivers may. Otherwise what the nodes and channels call is left as it
            is, and so are all queues, workers, and catch-up events.
    """

    before: Wiring
    after: Wiring
    lean: Wiring
    nodes: Collection[str]
    channels: Collection[str]
    rewired: bool = True

    @classmethod
    def callers(cls, before: Wiring, after: Circuit, nodes: Collection[str], channels: Collection[str]) -> Region:
        """What calls these nodes and channels directly, up to the queues, sources and engines where the calls begin.

        The connections are those of before, and each node has the ports that it had.
        """
        wiring, inserted = Wiring(after, before.layout), before.layout.inserted
        todo, bound, through = [*nodes], {*nodes}, {*channels}

        def call(name: str) -> None:
            if not after.channels[name].buffered and before_key(name) not in inserted:
                fresh = {join.component.node.name for join in after.producers[name]} - bound
                todo.extend(fresh)
                bound.update(fresh)

        for name in channels:
            call(name)
        while todo:
            vertex = after.nodes.get(todo.pop())
            for name, join in after.inputs(vertex.component) if vertex is not None else ():
                if not (join.port.pulled or edge_key(name, join) in inserted or name in through):
                    through.add(name)
                    call(name)
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
        """All that is connected with these nodes and channels, before or after; it is laid out anew."""
        known, nodes, channels = (-1, -1), {*nodes}, {*channels}
        while (len(nodes), len(channels)) > known:  # parts come apart, and together
            known = len(nodes), len(channels)
            for found in (before.circuit.part(nodes, channels), after.part(nodes, channels)):
                nodes |= found.nodes.keys()
                channels |= found.channels.keys()
        region = cls(before, Wiring(after), Wiring(after), nodes, channels)
        lean = region.laid_out({})
        return replace(region, lean=lean, after=region.laid_out(standing) if standing else lean)

    def laid_out(self, standing: Mapping[str, str]) -> Wiring:
        """The connections with the drivers of this region found anew; queues that stand stay."""
        layout = self.before.layout.patched(self.nodes, self.channels, lay_out(self.circuit, standing))
        return Wiring(self.after.circuit, layout)

    @cached_property
    def circuit(self) -> Circuit:
        """The connections in this region after the change."""
        take = self.after.circuit.part if self.rewired else self.after.circuit.only
        return take(self.nodes, self.channels)

    @cached_property
    def fed(self) -> Mapping[str, tuple[str, Join]]:
        """The ports that pull, or stand behind an inserted queue, where their channels are not bound anew; by place."""
        inserted = self.after.layout.inserted
        inputs = (self.after.circuit.inputs(one) for one in self.components) if not self.rewired else ()
        found = {edge_key(name, join): (name, join) for joins in inputs for name, join in joins}
        return {place: fed for place, fed in found.items() if fed[1].port.pulled or place in inserted}

    @property
    def undone(self) -> Region:
        """The same region as it was."""
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
            behind = (edge_key(name, join) for join in joins)
            places += [name, before_key(name), *behind]
        yield from (place for place in places if place in wiring.layout.groups)

    def drivers(self, deployment: Deployment) -> list[Driver]:
        """The drivers that run it, from upstream to downstream."""
        found: dict[Driver, None] = {}
        for wiring in (self.before, self.after):
            for name in self.queues(wiring):
                queue = deployment.inserted.get(name) or deployment.channels.get(name)
                if isinstance(queue, Buffered) and queue.worker is not None:
                    found[queue.worker] = None
        components = (deployment.components[node] for node in self.nodes if node in deployment.components)
        for one in components:
            found |= dict.fromkeys(driver for driver in (one.driver, *one.pullers) if driver is not None)
        return sorted(found, key=lambda driver: driver.rank)


def man(deployment: Deployment, region: Region) -> list[Worker]:
    """One worker for each group of queues of a region that share one; called while nothing is in flight there.

    A worker that has some of the queues already goes on with them. Returns the workers that leave.
    """
    layout = region.after.layout
    there = {**region.circuit.channels, **deployment.inserted}
    queues = {name: queue for name, queue in there.items() if isinstance(queue, Buffered)}
    before = {key: worker for key, worker in deployment.workers.items() if _inside(region, key)}
    at_work = {id(queue): worker for worker in before.values() for queue in worker.queues}
    manned: dict[str, Worker] = {}
    taken: set[int] = set()
    for group in dict.fromkeys(layout.groups[queue] for queue in region.queues(region.after)):
        served = sorted((name for name in group if name in queues), key=layout.queued.__getitem__, reverse=True)
        if not served:
            continue
        known = [at_work.get(id(queues[name])) for name in served] + [before.get(min(group))]
        worker = next((one for one in known if one is not None and id(one) not in taken), None)
        worker = manned[min(group)] = worker or Worker(f"{deployment.name} {min(group)}")
        worker.rank = layout.queued[served[-1]] - 0.5  # it pushes into the slet behind the queue: it comes before it
        taken.add(id(worker))
        worker.serve(tuple(queues[name] for name in served))
    leaving = {key: worker for key, worker in before.items() if id(worker) not in taken}
    for worker in leaving.values():
        worker.rank = -1
    stay = {key: worker for key, worker in deployment.workers.items() if key not in before}
    gone = {key if key not in manned else f"{key} (leaves {id(worker)})": worker for key, worker in leaving.items()}
    deployment.workers = {**stay, **manned, **gone}
    inform(deployment, region, queues.values())
    return [*leaving.values()]


def _inside(region: Region, key: str) -> bool:
    return channel_of(key.partition(" (leaves ")[0]) in region.channels


def _runner(deployment: Deployment, circuit: Circuit, layout: Layout) -> Callable[[str], Driver | None]:
    """Return the function that tells who runs a place; `None` for one that leads nowhere."""

    def runner(place: str) -> Driver | None:
        name, port = channel_at(place), port_at(place)
        if place.startswith(("into ", "window ")):
            return _first(deployment, layout.runs.get(channel_key(name), ()))
        if name:  # a channel that keeps nothing: where its producers push
            return next((join.component.runner for join in circuit.producers.get(name, ())), None)
        component = deployment.components.get(port.rpartition(".")[0])
        if component is None:
            return None
        entered = component.spec.ports.get(port.rpartition(".")[2])
        return component.pusher if entered is not None and entered.direction == "in" else component.runner

    return runner


def _first(deployment: Deployment, keys: Iterable[DriverKey]) -> Driver | None:
    """The driver of the first key; several keys of one place are queues of one worker."""
    for kind, name in sorted(keys):
        if kind == "queue":
            queue = deployment.inserted.get(name) or deployment.channels.get(name)
            return queue.worker if isinstance(queue, Buffered) else None
        return deployment.components[name].driver if name in deployment.components else None
    return None


def inform(deployment: Deployment, region: Region, queues: Iterable[Buffered]) -> None:
    """Tell components who runs them, and drivers how far downstream they are and whom to tell what."""
    circuit, layout = region.after.circuit, region.after.layout
    for component in region.components:
        for driver in (component.driver, *component.pullers):
            if driver is not None:
                driver.rank = layout.order[component.node.name]
        component.pusher = _first(deployment, layout.runs.get(component.node.name, ()))
        component.runner = component.driver or component.pusher
    deployment.inlets.entries = deployment.places
    deployment.inlets.runner = _runner(deployment, circuit, layout)
    for driver in region.drivers(deployment):
        driver.inlets, driver.idle, driver.told = deployment.inlets, deployment.idle, deployment.nudge
        driver.strand = partial(stranded, deployment, driver)
    for queue in queues:
        queue.alarm = deployment.tell


def depth(circuit: Circuit, layout: Layout, place: str) -> float:
    """How far a place is from the queue, source or engine where the direct calls begin that lead to it.

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

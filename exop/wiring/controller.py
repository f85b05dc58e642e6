"""The WiringController: binds ports to channels by their `connected-to` property, and keeps them bound (paper §4.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from exop.errors import WiringError
from exop.model.filter import where
from exop.model.items import CONTROL, EndOfStream
from exop.model.meshes.checks import unfit_join
from exop.model.properties import APPLICATION, CONNECTED_TO, KIND, ORIGIN
from exop.model.slets.ports import node_at
from exop.registry import ServiceRegistry
from exop.runtime.channels.base import ControlMerge
from exop.runtime.channels.queue import Buffered, QueueChannel
from exop.runtime.component import Component
from exop.runtime.component_manager import CHANNEL, WIRING, ComponentManager, channel_id
from exop.runtime.dataflow.inlets import Parked
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.pause import PATIENCE, Pause
from exop.runtime.drivers.worker import Worker
from exop.runtime.lifecycle import State
from exop.wiring.changes.drain import Drain
from exop.wiring.graph.binding import Compiler
from exop.wiring.graph.cycles import EndOfCycle
from exop.wiring.graph.execution_plan import LONG, ExecutionPlan, Part, check_order
from exop.wiring.graph.region import Region, Wiring, depth, man
from exop.wiring.graph.wiring_graph import (
    Edge,
    WiringGraph,
    channel_endpoint,
    channel_of_queue,
    channel_vertex,
    edge_queue,
    input_queue,
    queue_before,
    read_graph,
    shifted,
    touched,
)

if TYPE_CHECKING:
    from exop.wiring.sharing import Sharing


#: Moves what waits, given the drivers that are parked; called once, when the connections are not taken back any more.
Complete: TypeAlias = Callable[[Parked], None]


class WiringController:
    """Connects and disconnects ports; compiles the connections of an application into bound calls.

    A port names its channel in its `connected-to` property. With `sharing`, what is wired from then on is checked for
    slets that alter shared items.
    """

    def __init__(self, registry: ServiceRegistry, manager: ComponentManager) -> None:
        self.sharing: Sharing | None = None
        self._registry = registry
        self._manager = manager
        self._bound: WeakKeyDictionary[Deployment, Wiring] = WeakKeyDictionary()
        self._ports = registry.track(None, where({KIND: "port"}))

    def connect(self, component: Component, port: str, channel: str | None) -> None:
        """Connect one port to a channel of its application, its only target from then on; `None` disconnects it."""
        target = None if channel is None else channel_id(component.application, channel)
        self._manager.port(component, port).update({CONNECTED_TO: target})

    def graph(self, application: str) -> WiringGraph:
        """Read the current connections of an application from the registry."""
        ports = [port for port in self._ports.references if port.properties[APPLICATION] == application]
        channels = self._registry.find(CHANNEL, where({APPLICATION: application}))
        # The queues that the wiring itself has inserted are no part of what it is asked to connect.
        return read_graph(ports, [one for one in channels if one.properties.get(ORIGIN) != WIRING])

    def rebind(
        self,
        deployment: Deployment,
        action: Callable[[], None] = lambda: None,
        engines: Iterable[Component] = (),
        timeout: float = PATIENCE,
        nodes: Collection[str] | None = None,
        channels: Collection[str] = (),
    ) -> None:
        """Park the drivers, do *action*, and bind the connections that the registry has by then.

        With *nodes* and *channels*, this parks and binds only what calls these directly, and their connections stay.
        The *engines* put out what they were given before, and go on afterwards. Raises `WiringError` if connected
        ports do not fit, `PlanError` if a driver does not park, or an engine does not put out everything, in time.
        """
        region = self.whole_region(deployment) if nodes is None else self.region(deployment, None, nodes, channels)
        undo: list[Callable[[], object]] = []
        try:
            with Pause(deployment, timeout, drivers=region.drivers(deployment)) as pause:
                Drain(pause, engines, region, lambda _: None, undo).stage()
                pause.close()
                pause.run(action, lambda: self.bind(deployment, region)({*pause.drivers}))
        finally:
            for proceed in undo:
                proceed()
        deployment.settle_workers(timeout)

    def current(self, deployment: Deployment) -> Wiring:
        """Return the connections that are bound now."""
        return self._bound.get(deployment) or Wiring()

    def whole_region(self, deployment: Deployment) -> Region:
        """Read and check all connections of an application, and lay out its drivers; nothing is bound yet."""
        before, after = self.current(deployment).graph, self.graph(deployment.name)
        nodes = {*deployment.components, *before.nodes, *after.nodes}
        return self.region(deployment, after, nodes, {*before.channels, *after.channels})

    def region(
        self, deployment: Deployment, graph: WiringGraph | None, nodes: Collection[str], channels: Collection[str] = ()
    ) -> Region:
        """Return what is to be bound anew when *graph* follows the connections that are bound now, or these stay.

        The *nodes* get another component, settings, or connections; the *channels* come, go, or get other settings.
        Raises `WiringError` if connected ports do not fit, or streams merge before an engine that is durable.
        """
        before = self.current(deployment)
        graph = graph or before.graph
        ends = {name for node in nodes for name in touched(before.graph, graph, node)}
        ends |= {name for name in channels if not (name in before.graph.channels and name in graph.channels)}
        # The condition of a line that is pending on a channel reads the items as its producers type them.
        there = [graph.nodes[node] for node in nodes if node in graph.nodes]
        left = {name for one in there for name, _ in one.outputs if graph.channels[name].asked.pending}
        channels = {*channels, *ends, *left}
        _check_types(graph, {*channels, *(name for one in there for name in one.ports.values())})
        if not ends:
            return Region.around(before, Wiring(graph, before.execution), nodes, channels)
        sides = [side.get(name, ()) for side in (before.graph.producers, graph.producers) for name in ends]
        sides += [[edge for edge in graph.consumers.get(name, ()) if edge.port.pulled] for name in ends]
        sides += [shifted(before.graph, graph, name) for name in ends]
        nodes = {*nodes, *(edge.component.node.name for side in sides for edge in side)}
        # Where a long chain is cut does not matter: these queues stay.
        long = (place for place, reason in deployment.reasons.items() if reason == LONG)
        cuts = {place: LONG for place in long if channel_of_queue(place) not in ends}
        part = Part(before.graph, before.execution, graph, [*nodes, *map(channel_vertex, ends)], cuts)
        *_, last = regions = [
            Region.around(before, Wiring(graph, execution), nodes, channels).laid_out(part)
            for execution in _executions(deployment, part, graph.only((), ends))
        ]
        check_order(graph, last.after.execution)
        return replace(last, leaner=tuple(regions[:-1]))

    def bind(self, deployment: Deployment, region: Region) -> Complete:
        """Compile a region and bind it, while the drivers that run it are parked, or not started yet.

        No item moves before the returned function is called, so binding the former connections undoes everything.
        """
        seeds = _find_seeds(deployment, region.graph)
        region = region.chosen(deployment, {*seeds.planted, *seeds.merged, *(place for _, place in seeds.moved)})
        queues = Compiler(deployment, region, self.sharing).compile()
        self._replace_queues(deployment, region, queues)
        deployment.reasons = region.after.execution.inserted
        leaving = man(deployment, region)
        _watch_loops(deployment, region)
        self._bound[deployment] = region.after
        return partial(_complete, deployment, region, seeds, leaving)

    def _replace_queues(self, deployment: Deployment, region: Region, queues: dict[str, Buffered]) -> None:
        """Register the inserted queues, and discard those that are not needed; one that holds items stays."""
        if region.after.execution is region.before.execution:
            return
        there = dict(deployment.inserted)
        for place, queue in deployment.inserted.items():
            node, _ = node_at(place.rpartition(" -> ")[2], region.before.graph.nodes)
            inside = channel_of_queue(place) in region.channels or node in region.nodes
            if inside and place not in queues and not (queue.entries and node in deployment.components):
                self._manager.destroy_channel(deployment.name, queue)
                del there[place]
        for place in queues.keys() - there.keys():
            self._manager.adopt_channel(deployment.name, queues[place])
            queues[place].alarm = deployment.tell
        deployment.inserted = there | queues

    def close(self) -> None:
        """Stop following the ports."""
        self._ports.close()


def _executions(deployment: Deployment, part: Part, ends: WiringGraph) -> list[ExecutionPlan]:
    """Lay out a part of an application whose connections change at the channels *ends*, the leanest way first.

    The last one has all queues that stand, and those that a newcomer may need: which of them hold or get something is
    known when everything stands still.
    """
    filled = (place for place, queue in deployment.inserted.items() if queue.entries)
    standing = part.possible({**dict.fromkeys(filled, "it holds items"), **deployment.reasons})
    if deployment.started is None:
        return [part.laid_out(standing)]
    newcomers = [
        queue_before(ends, name, edge) for name, edge in _fed(ends) if deployment.joined.get(edge.name) != name
    ]
    newcomers += [input_queue(name) for name in ends.channels if name in deployment.merges]
    late = part.possible(dict.fromkeys(newcomers, "connected while the stream runs"))
    found = [part.laid_out({})]
    for queues in (standing, {**standing, **late}):
        if not queues.keys() <= found[-1].inserted.keys():
            found.append(part.laid_out(queues))
    return found


def _watch_loops(deployment: Deployment, region: Region) -> None:
    """Watch the cycles; those in which nothing has changed keep their watchers."""
    there = (one for one in deployment.loops if isinstance(one, EndOfCycle))
    kept = {one.loop: one for one in there if one.touched.isdisjoint({*region.nodes, *region.channels})}
    fresh = [loop for loop in map(tuple, region.after.execution.loops) if loop not in kept]
    deployment.loops = [*kept.values(), *(EndOfCycle(deployment, region.after.graph, loop) for loop in fresh)]


def _complete(
    deployment: Deployment, region: Region, seeds: Seeds, leaving: Collection[Worker], drivers: Parked
) -> None:
    """Move what waits to where the new connections lead; nothing can fail here."""
    graph, joined = region.graph, deployment.joined
    _open_anew(deployment, graph)
    deployment.inlets.assign(partial(depth, region.after.graph, region.after.execution), leaving, drivers)
    for worker in leaving:
        worker.serve(())
    for name, edge in region.before.graph.edges(region.channels):
        if joined.get(edge.name) == name:
            del joined[edge.name]
    joined |= {edge.name: name for name, edge in graph.edges(graph.channels)}
    queues = {name: queue for name, queue in graph.channels.items() if isinstance(queue, Buffered)}
    seeds.plant(queues | deployment.inserted, deployment.merges)
    for name in deployment.merges.keys() & region.channels:
        deployment.merges[name].forget()


def _check_types(graph: WiringGraph, channels: Iterable[str]) -> None:
    for name in channels:
        for producer, consumer in product(graph.producers.get(name, ()), graph.consumers.get(name, ())):
            reason = unfit_join(type(graph.channels[name]), producer.port.type, consumer.port)
            if reason:
                raise WiringError(f"{producer.name} cannot feed {consumer.name} through {name!r}: {reason}")


@dataclass
class Seeds:
    """Catch-up events, by the queue (the place of an inserted one, or a channel) from which drivers deliver them.

    Attributes:
        planted: For ports that are connected anew, the items that their channel keeps, and the end if that has passed.
        merged: The merges of channels for which a mark has become due, since a producer has left.
        ended: For each channel, the producers that come to it when their stream has ended already.
        moved: The queues whose places are gone, each with the place to which its contents go.
    """

    planted: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    merged: dict[str, ControlMerge] = field(default_factory=dict)
    ended: dict[str, list[str]] = field(default_factory=dict)
    moved: list[tuple[QueueChannel, str]] = field(default_factory=list)

    def plant(self, queues: dict[str, Buffered], merges: dict[str, ControlMerge]) -> None:
        """Put everything in its place: what is moved comes first."""
        for name in self.ended.keys() & merges.keys():
            merges[name].note_ended(self.ended[name])
        for source, place in self.moved:
            entries, dropped = source.capture()["entries"], source.dropped
            queues[place].put_first([(kind, payload) for kind, payload in entries if kind != "control"])
            source.clear()
            source.dropped = dropped  # they wait elsewhere now
        for place, entries in self.planted.items():
            queues[place].restore({"entries": entries})
        for place, merge in self.merged.items():
            queues[place].restore({"entries": [("control", mark) for mark in merge.take_due()]})


def _find_seeds(deployment: Deployment, graph: WiringGraph) -> Seeds:
    """Find what a change of connections makes necessary; nothing is in flight."""
    seeds = Seeds()
    if deployment.started is None:
        return seeds
    for name, edge in _fed(graph):
        if deployment.joined.get(edge.name) != name and (entries := _for_newcomer(deployment, graph, name, edge)):
            seeds.planted.setdefault(queue_before(graph, name, edge), []).extend(entries)
    for name, edges in graph.producers.items():
        known = deployment.joined if name in deployment.merges else {}
        over = [one.name for one in edges if one.component.status is State.ENDED and known.get(one.name) != name]
        seeds.ended[name] = over
        merge = deployment.merges.get(name)
        if edges and merge is not None and merge.due_with([edge.name for edge in edges], over):
            seeds.merged[name if graph.channels[name].buffered else input_queue(name)] = merge
    seeds.moved = [*_homeless(deployment, graph)]
    return seeds


def _fed(graph: WiringGraph) -> Iterator[tuple[str, Edge]]:
    return ((name, edge) for name, edges in graph.consumers.items() for edge in edges)


def _open_anew(deployment: Deployment, graph: WiringGraph) -> None:
    """Forget the progress of the old streams of ports that are connected elsewhere now."""
    moved = [edge for name, edge in _fed(graph) if deployment.joined.get(edge.name, name) != name]
    deployment.inlets.drop_marks([edge.name for edge in moved])
    for edge in moved:
        component, port = edge.component, edge.port.name
        if component.status is not State.ENDED:
            component.ended.discard(port)
            component.merge.open_anew(port)
            if port in component.pulled:
                component.pulled[port].ended = False


def _for_newcomer(deployment: Deployment, graph: WiringGraph, name: str, edge: Edge) -> list[tuple[str, Any]]:
    """The entries (`item`, `batch` or `control`, and the payload) for a port that is connected anew."""
    channel, producers = graph.channels[name], graph.producers[name]
    if edge.port.pulled and channel.pull_mode == "read":
        return []
    kept = () if edge.port.pulled else channel.kept_for(edge.name)
    entries = [("control" if isinstance(one, CONTROL) else "item", one) for one in kept]
    ended = producers and all(producer.component.status is State.ENDED for producer in producers)
    if ended and not _end_comes(deployment, graph, name):
        entries.append(("control", EndOfStream()))
    return entries


def _end_comes(deployment: Deployment, graph: WiringGraph, name: str) -> bool:
    """Whether the end of the stream is still in front of the channel: in a queue, or in flight at a driver."""
    channel, before = graph.channels[name], deployment.inserted.get(input_queue(name))
    queues = [one for one in (channel, before) if isinstance(one, Buffered)]
    if any(("control", EndOfStream()) in queue.capture()["entries"] for queue in queues):
        return True
    places = {f"channel {name}", channel_endpoint(name), *(edge.name for edge in graph.producers[name])}
    return any(isinstance(work.payload, EndOfStream) for place in places for work in deployment.inlets.at(place))


def _homeless(deployment: Deployment, graph: WiringGraph) -> Iterator[tuple[QueueChannel, str]]:
    """The inserted queues that hold something, and whose port is connected elsewhere now."""
    there = {edge_queue(name, edge) for name, edge in _fed(graph)} | {input_queue(name) for name in graph.channels}
    # A port that pulls knows its earlier queues itself.
    edges = {edge.name: (name, edge) for name, edge in _fed(graph) if not edge.port.pulled}
    for place, queue in deployment.inserted.items():
        found = edges.get(place.rpartition(" -> ")[2]) if place not in there else None
        if found is not None and isinstance(queue, QueueChannel) and queue.entries:
            yield queue, queue_before(graph, *found)

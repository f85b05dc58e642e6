"""The WiringController: binds ports to channels by their `connected-to` property, and keeps them bound (paper §4.4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import chain
from weakref import WeakKeyDictionary

from exop.model.filter import where
from exop.model.items import EndOfStream
from exop.model.properties import APPLICATION, KIND, ORIGIN
from exop.model.slets.ports import node_at
from exop.registry import ServiceRegistry
from exop.runtime.channels.queue import Buffered
from exop.runtime.component import Component
from exop.runtime.component_manager import CHANNEL, WIRING, ComponentManager
from exop.runtime.dataflow.inlets import Parked
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.lifecycle import State
from exop.runtime.pause import PATIENCE, Pause
from exop.wiring.changes.drain import Drain
from exop.wiring.graph import ids
from exop.wiring.graph.binding import CatchUp, Compiler, open_anew
from exop.wiring.graph.execution_plan import LONG, Replanning, Wiring, check_order
from exop.wiring.graph.region import Region, assign_workers
from exop.wiring.graph.wiring_graph import WiringGraph, changed_channels, inner_channels, read_graph, regrouped
from exop.wiring.sharing import Sharing


class WiringController:
    """Connects and disconnects ports; compiles the connections of an application into bound calls.

    A port names its channel in its `connected-to` property. The `manager` has made what is connected. With `sharing`,
    all that is bound from then on is checked for slets that alter shared items.
    """

    def __init__(self, registry: ServiceRegistry, manager: ComponentManager) -> None:
        self.sharing: Sharing | None = None
        self._registry = registry
        self.manager = manager
        self._bound: WeakKeyDictionary[Deployment, Wiring] = WeakKeyDictionary()

    def graph(self, application: str) -> WiringGraph:
        """Read the current connections of an application from the registry."""
        ports = self._registry.find(None, where({KIND: "port", APPLICATION: application}))
        channels = self._registry.find(CHANNEL, where({APPLICATION: application}))
        # The queues that the wiring itself has inserted are no channels of the mesh.
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

        With *nodes* and *channels*, this parks and binds only their direct callers, and their connections stay. The
        *engines* emit all their output before, and proceed afterwards.
        """
        region = self.whole_region(deployment) if nodes is None else self.region(deployment, None, nodes, channels)
        undo: list[Callable[[], object]] = []
        try:
            with Pause(deployment, timeout, drivers=region.drivers(deployment)) as pause:
                Drain(pause, engines, region, undo).stage()
                pause.close()
                pause.run(action, lambda: self.bind(deployment, region)({*pause.drivers}))
        finally:
            for proceed in undo:
                proceed()
        deployment.settle_workers(timeout)

    def current(self, deployment: Deployment) -> Wiring:
        """Return the wiring that is bound now."""
        return self._bound.get(deployment) or Wiring()

    def whole_region(self, deployment: Deployment) -> Region:
        """Read all connections of an application, which were checked, and plan its execution; nothing is bound yet."""
        before, after = self.current(deployment).graph, self.graph(deployment.name)
        nodes = {*deployment.components, *before.nodes, *after.nodes}
        return self.region(deployment, after, nodes, {*before.channels, *after.channels})

    def region(
        self, deployment: Deployment, graph: WiringGraph | None, nodes: Collection[str], channels: Collection[str] = ()
    ) -> Region:
        """Return the region to bind when *graph* replaces the connections that are bound now; `None`: these stay.

        The *nodes* get another component, settings, or connections; the *channels* come, go, or get other settings.
        """
        before = self.current(deployment)
        graph = graph or before.graph
        ends = {name for node in nodes for name in changed_channels(before.graph, graph, node)}
        ends |= {name for name in channels if not (name in before.graph.channels and name in graph.channels)}
        # The condition of an update that is pending on a channel reads the items as its producers type them.
        there = [graph.nodes[node] for node in nodes if node in graph.nodes]
        pending = {name for one in there for name, _ in one.outputs if graph.channels[name].asked.pending}
        channels = {*channels, *ends, *pending}
        if not ends:
            return Region.around(before, replace(before, graph=graph), nodes, channels)
        sides = [side.get(name, ()) for side in (before.graph.producers, graph.producers) for name in ends]
        sides += [[edge for edge in graph.consumers.get(name, ()) if edge.port.pulled] for name in ends]
        sides += [regrouped(before.graph, graph, name) for name in ends]
        nodes = {*nodes, *(edge.node for side in sides for edge in side)}
        # Where a long chain is cut does not matter: these queues stay.
        long = (queue for queue, reason in deployment.reasons.items() if reason == LONG)
        kept = {queue: LONG for queue in long if ids.channel_of_queue(queue) not in ends}
        part = Replanning(before, graph, [*nodes, *map(ids.channel_vertex, ends)], kept)
        *_, last = regions = [
            Region.around(before, after, nodes, channels).replanned(part)
            for after in _executions(deployment, part, graph.only((), ends))
        ]
        check_order(last.after)
        return replace(last, leaner=tuple(regions[:-1]))

    def bind(
        self, deployment: Deployment, region: Region, continued: Collection[str] = (), coming: Collection[str] = ()
    ) -> Callable[[Parked], None]:
        """Compile a region and bind it, while the drivers that run it are parked, or not started yet.

        The ports in *continued* have had what their channels keep, on another host; for *coming* see `with_ends`.

        No item moves before the returned function is called, with the parked drivers; binding the former undoes it.
        """
        catch_up = CatchUp.needed(deployment, region, continued, coming) if deployment in self._bound else CatchUp()
        filled = {*catch_up.entries, *catch_up.merges, *(queue for _, queue, _ in catch_up.moved)}
        region = region.chosen(deployment, filled)
        self._replace_queues(deployment, region, Compiler(deployment, region, self.sharing).compile())
        deployment.reasons = region.after.inserted
        leaving = assign_workers(deployment, region)
        touched = {*region.nodes, *region.channels}  # cycles in which nothing has changed keep their watchers
        watchers = (one for one in deployment.loops if isinstance(one, EndOfCycle))
        kept = {one.cycle: one for one in watchers if one.touched.isdisjoint(touched)}
        fresh = [cycle for cycle in map(tuple, region.after.cycles) if cycle not in kept]
        deployment.loops = [*kept.values(), *(EndOfCycle(deployment, region.after.graph, cycle) for cycle in fresh)]
        self._bound[deployment] = region.after

        def complete(drivers: Parked) -> None:
            """Move waiting items to where the new connections lead; nothing can fail here."""
            open_anew(deployment, region.graph, continued)
            deployment.inlets.assign(region.after.depth, leaving, drivers)
            for worker in leaving:
                worker.serve(())
            # Not by the connections before: at a restart from a cut, those that are gone stand in no graph.
            kept = region.after.graph.channels.keys() - region.channels
            joined = {end: name for end, name in deployment.joined.items() if name in kept}
            deployment.joined = joined | region.graph.joined(region.graph.channels)
            catch_up.deliver(deployment)
            for queue in map(region.graph.channels.get, region.graph.consumers):
                if isinstance(queue, Buffered) and queue.left:  # its consumer has ended, and a peer sends the end again
                    queue.leave()
            for name in deployment.merges.keys() & region.channels:
                deployment.merges[name].forget()

        return complete

    def _replace_queues(self, deployment: Deployment, region: Region, queues: dict[str, Buffered]) -> None:
        """Register the inserted queues, and discard those that are not needed; one that holds items stays."""
        if region.after.inserted is region.before.inserted:
            return
        there = dict(deployment.inserted)
        for name, queue in deployment.inserted.items():
            node, _ = node_at(name.rpartition(" -> ")[2], region.before.graph.nodes)
            is_bound = ids.channel_of_queue(name) in region.channels or node in region.nodes
            if is_bound and name not in queues and not (queue.entries and node in deployment.components):
                self.manager.destroy_channel(deployment.name, queue)
                del there[name]
        for name, queue in queues.items():
            if (before := there.get(name)) is queue:
                continue
            if before is not None:  # the port that pulls from it goes on to hold it
                self.manager.destroy_channel(deployment.name, before)
            self.manager.adopt_channel(deployment.name, queue)
            queue.alarm = deployment.notify_waiting
        deployment.inserted = there | queues


def _executions(deployment: Deployment, part: Replanning, changed: WiringGraph) -> list[Wiring]:
    """Plan the execution of a part whose channels in *changed* are connected otherwise, with the fewest queues first.

    The last plan has all queues that stand, and those that ports may need which are newly connected, or pull no more:
    which of them hold or get something is known when the drivers are parked.
    """
    filled = (name for name, queue in deployment.inserted.items() if queue.entries)
    standing = part.insertable({**dict.fromkeys(filled, "it holds items"), **deployment.reasons})
    if deployment.started is None:
        return [part.executed(standing)]
    held = {queue.rpartition(" -> ")[2] for queue in deployment.inserted}  # a port that pulled may have several queues
    fed = [(name, edge) for name, edge in changed.fed if edge.name in held or deployment.joined.get(edge.name) != name]
    late = [changed.queue_before(name, edge) for name, edge in fed]
    late += [ids.input_queue(name) for name in changed.channels if name in deployment.merges]
    found = [part.executed({})]
    for queues in (standing, {**standing, **part.insertable(dict.fromkeys(late, "connected while the stream runs"))}):
        if not queues.keys() <= found[-1].inserted.keys():
            found.append(part.executed(queues))
    return found


class EndOfCycle:
    """Watches one cycle; a driver that has nothing to do calls it, and calls the function that it returns.

    Each member of a cycle waits for the end of the one before it. Once all that feeds the cycle has ended and nothing
    moves inside, the end is sent into its queues; items that its slets emit then do not pass through it again.
    """

    def __init__(self, deployment: Deployment, graph: WiringGraph, cycle: tuple[str, ...]) -> None:
        self._deployment = deployment
        self.cycle = cycle
        self._members = [graph.nodes[name].component for name in cycle]
        fed = [pair for name in cycle for pair in graph.nodes[name].inputs]
        producers = (edge.component for channel, _ in fed for edge in graph.producers[channel])
        self._feeders = {one for one in producers if one.node.name not in cycle}
        # A channel without a producer is filled from another host.
        self._entered = [(edge.component, edge.port.name) for channel, edge in fed if not graph.producers[channel]]
        self._queues = {queue for name in cycle for queue in graph.queues(name)}
        self._queues |= {queue for channel, _ in fed for queue in graph.queues(ids.channel_vertex(channel))}
        self.touched = {*cycle, *(feeder.node.name for feeder in self._feeders), *(channel for channel, _ in fed)}
        queued = (name for name in inner_channels(graph, cycle) if graph.channels[name].buffered)
        pushed = [[edge for edge in graph.producers[name] if edge.node in cycle] for name in queued]
        # An engine sends its end itself, unless the end comes to it through its queue.
        by_slets = [edges for edges in pushed if not any(edge.component.spec.own_driver for edge in edges)]
        self._cut = [*chain.from_iterable(by_slets or pushed)]  # the outputs that push into the queues of the cycle
        self._turn = threading.Lock()
        self._done = False
        self._counts: dict[Driver, int] = {}  # of the drivers of the feeders, when these had ended

    def __call__(self) -> Callable[[], None] | None:
        """Return the function that ends the cycle, if it has come to its end."""
        with self._turn:
            fed = any(feeder.status is not State.ENDED for feeder in self._feeders)
            fed = fed or any(port not in component.ended for component, port in self._entered)
            if self._done or fed or all(member.status is State.ENDED for member in self._members):
                return None
            if not self._is_quiet():  # an engine may come to rest without an item that wakes a driver
                self._deployment.awaits_rest = True
                return None
        return self._end

    def _is_quiet(self) -> bool:
        """Whether nothing waits and no driver is busy: seen twice, with nothing taken in between."""
        inserted, channels = self._deployment.inserted, self._deployment.channels
        queues = [one for name in self._queues if isinstance(one := inserted.get(name) or channels.get(name), Buffered)]
        drivers = {driver for member in self._members for driver in (member.driver, member.runner)}
        feeding = [one.runner for one in self._feeders if one.runner is not None]
        for driver in feeding:
            self._counts.setdefault(driver, driver.count)
        if any(one.closed for one in drivers.union(feeding) if one is not None):  # a change may hold what was under way
            return False
        before = [queue.cursor for queue in queues]
        moving = (driver.busy or driver.filled for driver in drivers - {current_driver()} if driver is not None)
        # A feeder has ended as soon as it sends its end, which may have to wait for room on its way.
        own, counts = current_driver(), self._counts
        fed = (one.filled or (one.busy and one is not own and one.count == counts[one]) for one in feeding)
        resting = (member.resting for member in self._members)
        if any(queue.entries for queue in queues) or any(moving) or any(fed) or any(resting):
            return False
        return before == [queue.cursor for queue in queues] and not any(queue.entries for queue in queues)

    def _end(self) -> None:
        """Send the end, once; another thread may have done so if the driver lost its thread in between."""
        with self._turn:
            done, self._done = self._done, True
        for edge in () if done else self._cut:
            edge.component.to[edge.port.name].control(EndOfStream())

"""The WiringController: binds ports to channels by their `connected-to` property, and keeps them bound (paper §4.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from exop.errors import WiringError
from exop.model.filter import where
from exop.model.ports import mismatch
from exop.model.properties import APPLICATION, CONNECTED_TO, KIND, NAME, ORIGIN
from exop.registry import ServiceRegistry
from exop.runtime.channels.queue import Buffered
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.worker import Worker
from exop.runtime.inlets import Parked
from exop.runtime.manager import CHANNEL, WIRING, ComponentManager, channel_id
from exop.runtime.pause import PATIENCE, Pause
from exop.wiring.circuit import Circuit, channel_of, interchangeable, possible, read_circuit
from exop.wiring.compiler import Compiler
from exop.wiring.drain import Drain
from exop.wiring.layout import Layout, check_order, lay_out
from exop.wiring.loops import EndOfLoop
from exop.wiring.region import Region, Wiring, depth, inform, man
from exop.wiring.seeds import Seeds, find_seeds, open_anew

if TYPE_CHECKING:
    from exop.wiring.sharing import Sharing


#: Moves what waits, given the drivers that are parked; called once, when the connections are not taken back any more.
Complete: TypeAlias = Callable[[Parked], None]


class WiringController:
    """Connects and disconnects ports; compiles the connections of an application into bound calls.

    A port names its channel in its `connected-to` property (connectors are omitted while both are local). A tracker
    follows the ports of all applications with their properties; `settle` compiles what it sees then and binds it, while
    the drivers are parked.

    Attributes:
        sharing: Looks for slets that alter shared items, in what is wired from now on; `None` costs nothing.
    """

    def __init__(self, registry: ServiceRegistry, manager: ComponentManager) -> None:
        self.sharing: Sharing | None = None
        self._registry = registry
        self._manager = manager
        self._bound: WeakKeyDictionary[Deployment, Wiring] = WeakKeyDictionary()
        self._ports = registry.track(None, where({KIND: "port"}))

    def connect(self, component: Component, port: str, channel: str) -> None:
        """Connect one port to a channel of its application; a port has one target at a time."""
        target = channel_id(component.application, channel)
        self._manager.port(component, port).update({CONNECTED_TO: target})

    def disconnect(self, component: Component, port: str) -> None:
        """Connect a port to nothing."""
        self._manager.port(component, port).update({CONNECTED_TO: None})

    def circuit(self, application: str, names: Collection[str] | None = None) -> Circuit:
        """Return the current connections, as the registry has them; with *names*, through these channels."""
        ports = [port for port in self._ports.references if port.properties[APPLICATION] == application]
        channels = self._registry.find(CHANNEL, where({APPLICATION: application}))
        # The queues that the wiring itself has put in are no part of what it was asked to connect.
        asked = [one for one in channels if one.properties.get(ORIGIN) != WIRING]
        return read_circuit(ports, [one for one in asked if names is None or one.properties[NAME] in names])

    def settle(
        self,
        deployment: Deployment,
        action: Callable[[], None] = lambda: None,
        engines: Iterable[Component] = (),
        timeout: float = PATIENCE,
        nodes: Collection[str] | None = None,
        channels: Collection[str] = (),
    ) -> None:
        """Do *action* while all drivers are parked, then bind the connections of the application as they are.

        With *nodes* and *channels*, only what is connected with these is bound, and only its drivers are parked.

        The *engines* have put out what they were given by then; they go on afterwards.

        Raises:
            WiringError: two connected ports whose types do not fit; nothing was done.
            PlanError: a driver did not come to its safe point in time, or an engine did not put out everything.
        """
        region = self.survey(deployment) if nodes is None else self.region(deployment, None, nodes, channels)
        drivers = None if nodes is None else region.drivers(deployment)
        undo: list[Callable[[], object]] = []
        try:
            with Pause(deployment, timeout, drivers=drivers) as pause:
                Drain(pause, engines, region, lambda _: None, undo).stage()
                pause.close()
                pause.run(action, lambda: self.rebind(deployment, region, {*pause.drivers}))
        finally:
            for proceed in undo:
                proceed()
        deployment.settle_workers(timeout)

    def rebind(self, deployment: Deployment, region: Region, drivers: Parked = None) -> None:
        """Bind a region for good: the connections are those of before, the ways between them are not.

        *drivers* are those that are parked.
        """
        self.bind(deployment, region)(drivers)

    def current(self, deployment: Deployment) -> Wiring:
        """Return the connections that are bound now."""
        return self._bound.get(deployment) or Wiring()

    def survey(self, deployment: Deployment) -> Region:
        """Read and check all connections of an application, and lay out its drivers; nothing is bound yet.

        Raises:
            WiringError: two connected ports whose types do not fit, or a merge before an engine that is durable.
        """
        circuit = self.circuit(deployment.name)
        standing = _standing(deployment)
        layout = lay_out(circuit, standing)
        _check(circuit, layout, circuit.channels, circuit.components())
        return Region.whole(self.current(deployment), Wiring(circuit, layout), deployment.components)

    def region(
        self,
        deployment: Deployment,
        circuit: Circuit | None,
        nodes: Collection[str],
        channels: Collection[str] = (),
    ) -> Region:
        """Return what is to be bound anew when *circuit* follows the connections that are bound now, or these stay.

        Args:
            deployment: The application.
            circuit: The connections to be.
            nodes: Where something changes: the component, its settings, or its connections.
            channels: The channels that come, go, or change their settings.

        Raises:
            WiringError: two connected ports whose types do not fit, or a merge before an engine that is durable.
        """
        before = self.current(deployment)
        circuit = circuit or before.circuit
        if all(name in before.circuit.channels and name in circuit.channels for name in channels) and all(
            interchangeable(before.circuit, circuit, node) for node in nodes
        ):
            region = Region.callers(before, circuit, nodes, channels)
            joined = {name for node in nodes for name in circuit.nodes[node].ports.values()}
        else:
            region = Region.parts(before, circuit, nodes, channels, _standing(deployment))
            joined = {*region.channels}
        _check(circuit, region.after.layout, joined, region.components)
        return region

    def bind(self, deployment: Deployment, region: Region) -> Complete:
        """Compile a region and bind it; the drivers that run it are parked, or not started yet.

        No item moves before the returned function is called, so that binding the former connections undoes everything.
        """
        if not region.rewired:
            Compiler(deployment, region, self.sharing).compile()
            inform(deployment, region, ())
            _watch_loops(deployment, region)
            self._bound[deployment] = region.after
            return partial(_assign, deployment, region.after, ())
        part = region.circuit
        seeds = find_seeds(deployment, part)
        there = region.after.layout.inserted
        more = {place for place in seeds.places() if place not in there and place in possible(part)}
        if more:
            standing = {**there, **dict.fromkeys(more, "connected while the stream runs")}
            region = replace(region, after=region.laid_out(standing))
        compiler = Compiler(deployment, region, self.sharing)
        compiler.compile()
        self._replace_queues(deployment, region, compiler.queues)
        deployment.reasons = region.after.layout.inserted
        leaving = man(deployment, region)
        _watch_loops(deployment, region)
        self._bound[deployment] = region.after
        return partial(_complete, deployment, region, seeds, leaving)

    def _replace_queues(self, deployment: Deployment, region: Region, queues: dict[str, Buffered]) -> None:
        """Register the inserted queues, and let go of those that are not needed; one that holds items stays."""
        there = dict(deployment.inserted)
        for place, queue in deployment.inserted.items():
            node = place.rpartition(" -> ")[2].partition(".")[0]
            inside = channel_of(place) in region.channels or node in region.nodes
            if inside and place not in queues and not (queue.entries and node in deployment.components):
                self._manager.destroy_channel(deployment.name, queue)
                del there[place]
        for place, queue in queues.items():
            if place not in there:
                self._manager.adopt_channel(deployment.name, queue)
        deployment.inserted = there | queues

    def close(self) -> None:
        """Stop following the ports."""
        self._ports.close()


def _standing(deployment: Deployment) -> dict[str, str]:
    """The inserted queues that stay while their places are there, and why."""
    filled = [place for place, queue in deployment.inserted.items() if queue.entries]
    return {**dict.fromkeys(filled, "it holds items"), **deployment.reasons}


def _watch_loops(deployment: Deployment, region: Region) -> None:
    """Watch the cycles; what watches those of which nothing has changed stays."""
    circuit = region.after.circuit
    there = [one for one in deployment.loops if isinstance(one, EndOfLoop) and not one.nodes & {*region.nodes}]
    known = {one.loop for one in there}
    fresh = [tuple(loop) for loop in region.after.layout.loops if tuple(loop) not in known]
    deployment.loops = [*there, *(EndOfLoop(deployment, circuit, loop) for loop in fresh)]


def _complete(
    deployment: Deployment, region: Region, seeds: Seeds, leaving: Collection[Worker], drivers: Parked
) -> None:
    """Move what waits to where the new connections lead; nothing can fail here."""
    wiring, circuit, joined = region.after, region.circuit, deployment.joined
    open_anew(deployment, circuit)
    _assign(deployment, wiring, leaving, drivers)
    for worker in leaving:
        worker.serve(())
    for name, join in region.before.circuit.joins(region.channels):
        if joined.get(join.name) == name:
            del joined[join.name]
    joined |= {join.name: name for name, join in circuit.joins(circuit.channels)}
    named = {name: queue for name, queue in circuit.channels.items() if isinstance(queue, Buffered)}
    seeds.plant({**named, **deployment.inserted}, deployment.merges)
    for name in deployment.merges.keys() & region.channels:
        deployment.merges[name].forget()


def _assign(deployment: Deployment, wiring: Wiring, leaving: Collection[Worker], drivers: Parked) -> None:
    deployment.inlets.assign(partial(depth, wiring.circuit, wiring.layout), leaving, drivers)


def _check(circuit: Circuit, layout: Layout, channels: Iterable[str], components: Iterable[Component]) -> None:
    for name in channels:
        if name not in circuit.channels:
            continue
        channel = circuit.channels[name]
        for producer in circuit.producers[name]:
            for consumer in circuit.consumers[name]:
                reason = mismatch(channel.carries(producer.port.type), consumer.port.type)
                if reason:
                    raise WiringError(f"{producer.name} cannot feed {consumer.name} through {name!r}: {reason}")
    check_order(circuit, layout, components)

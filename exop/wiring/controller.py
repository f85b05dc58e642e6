"""The WiringController: binds ports to channels by their `connected-to` property, and keeps them bound (paper §4.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from exop.errors import WiringError
from exop.model.filter import where
from exop.model.ports import mismatch
from exop.model.properties import APPLICATION, CONNECTED_TO, KIND, NAME, ORIGIN
from exop.registry import ServiceRegistry
from exop.runtime.channels.buffered import Buffered
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.worker import Worker
from exop.runtime.manager import CHANNEL, WIRING, ComponentManager, channel_id
from exop.runtime.pause import PATIENCE, Pause
from exop.wiring.circuit import Circuit, read_circuit
from exop.wiring.compiler import Compiler
from exop.wiring.drain import Drain
from exop.wiring.layout import Layout, check_order, lay_out
from exop.wiring.loops import EndOfLoop
from exop.wiring.manning import depth, man
from exop.wiring.places import possible
from exop.wiring.seeds import Seeds, find_seeds, open_anew

if TYPE_CHECKING:
    from exop.wiring.sharing import Sharing


@dataclass(frozen=True)
class Wiring:
    """The connections of an application, and the drivers that follow from them."""

    circuit: Circuit
    layout: Layout

    def lean(self) -> Wiring:
        """The same without inserted queues that are needed no more; they must be empty."""
        return Wiring(self.circuit, lay_out(self.circuit)) if self.layout.inserted else self


@dataclass(frozen=True)
class Bound:
    """Connections that are bound, and what waits in queues and with drivers still where it was.

    Attributes:
        layout: With queues for the catch-up events of newly connected ports.
        complete: Moves what waits; called once, when the connections are not going to be taken back any more.
    """

    layout: Layout
    complete: Callable[[], None]


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
    ) -> None:
        """Do *action* while all drivers are parked, then bind the connections of the application as they are.

        The *engines* have put out what they were given by then; they go on afterwards.

        Raises:
            WiringError: two connected ports whose types do not fit; nothing was done.
            PlanError: a driver did not come to its safe point in time, or an engine did not put out everything.
        """
        wiring = self.survey(deployment)
        undo: list[Callable[[], object]] = []
        try:
            with Pause(deployment, timeout) as pause:
                Drain(pause, engines, wiring, wiring, lambda _: None, undo).stage()
                pause.close()
                pause.run(action, lambda: self.rebind(deployment, wiring))
        finally:
            for proceed in undo:
                proceed()
        deployment.settle_workers(timeout)

    def rebind(self, deployment: Deployment, wiring: Wiring) -> None:
        """Bind what was surveyed for good: the connections are those of before, the ways between them are not."""
        bound = self.bind(deployment, wiring)
        bound.complete()

    def survey(self, deployment: Deployment, channels: Collection[str] | None = None) -> Wiring:
        """Read and check the connections of an application, and lay out its drivers; nothing is bound yet.

        With *channels*, only these are considered: others are about to be added, or removed.

        Raises:
            WiringError: two connected ports whose types do not fit, or a merge before an engine that is durable.
        """
        circuit = self.circuit(deployment.name, channels)
        _check_types(circuit)
        filled = [place for place, queue in deployment.inserted.items() if queue.entries]
        layout = lay_out(circuit, {**dict.fromkeys(filled, "it holds items"), **deployment.reasons})
        check_order(circuit, layout)
        return Wiring(circuit, layout)

    def bind(self, deployment: Deployment, wiring: Wiring) -> Bound:
        """Compile what was surveyed and bind it; the drivers of the application are parked, or not started yet.

        No item moves before `Bound.complete` is called, so that binding the former connections undoes everything.
        """
        circuit, layout = wiring.circuit, wiring.layout
        seeds = find_seeds(deployment, circuit)
        more = {place for place in seeds.places() if place not in layout.inserted and place in possible(circuit)}
        if more:
            layout = lay_out(circuit, {**layout.inserted, **dict.fromkeys(more, "connected while the stream runs")})
        compiler = Compiler(deployment, circuit, layout, self.sharing)
        compiler.compile()
        self._replace_queues(deployment, compiler.queues)
        deployment.reasons = dict(layout.inserted)
        leaving = man(deployment, circuit, layout)
        deployment.loops = [EndOfLoop(deployment, circuit, loop) for loop in layout.loops]
        return Bound(layout, partial(_complete, deployment, Wiring(circuit, layout), seeds, leaving))

    def _replace_queues(self, deployment: Deployment, queues: dict[str, Buffered]) -> None:
        """Register the inserted queues, and let go of those that are not needed; one that holds items stays."""
        for place, queue in deployment.inserted.items():
            if place not in queues:
                if queue.entries and place.rpartition(" -> ")[2].partition(".")[0] in deployment.components:
                    queues = {**queues, place: queue}
                else:
                    self._manager.destroy_channel(deployment.name, queue)
        for queue in queues.values():
            self._manager.adopt_channel(deployment.name, queue)
        deployment.inserted = queues

    def close(self) -> None:
        """Stop following the ports."""
        self._ports.close()


def _complete(deployment: Deployment, wiring: Wiring, seeds: Seeds, leaving: Collection[Worker]) -> None:
    """Move what waits to where the new connections lead; nothing can fail here."""
    circuit = wiring.circuit
    open_anew(deployment, circuit)
    deployment.inlets.assign(partial(depth, circuit, wiring.layout), leaving)
    ends = (circuit.consumers, circuit.producers)
    deployment.joined = {(name, join.name) for end in ends for name, joins in end.items() for join in joins}
    for worker in leaving:
        worker.serve(())
    named = {name: channel for name, channel in circuit.channels.items() if isinstance(channel, Buffered)}
    seeds.plant({**named, **deployment.inserted}, deployment.merges)


def _check_types(circuit: Circuit) -> None:
    for name, channel in circuit.channels.items():
        for producer in circuit.producers[name]:
            for consumer in circuit.consumers[name]:
                reason = mismatch(channel.carries(producer.port.type), consumer.port.type)
                if reason:
                    raise WiringError(f"{producer.name} cannot feed {consumer.name} through {name!r}: {reason}")

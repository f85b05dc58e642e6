"""The part of an application that a change binds anew, and the drivers that run it: all others go on meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from exop.runtime.channels.queue import Buffered
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import Driver
from exop.wiring.circuit import Circuit, Join
from exop.wiring.layout import Layout, lay_out
from exop.wiring.places import before_key, edge_key


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
    def whole(cls, before: Wiring, after: Wiring, nodes: Collection[str]) -> Region:
        """Everything; *nodes* are all of the application, also those that are connected with nothing."""
        channels = before.circuit.channels.keys() | after.circuit.channels.keys()
        return cls(before, after, after, {*nodes, *before.circuit.nodes, *after.circuit.nodes}, channels)

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
        part = lay_out(self.circuit, standing)
        return Wiring(self.after.circuit, self.before.layout.without(self.nodes, self.channels).joined(part))

    @cached_property
    def circuit(self) -> Circuit:
        """The connections in this region after the change."""
        circuit = self.after.circuit
        if self.rewired:
            return circuit.part(self.nodes, self.channels)
        return Circuit(
            {name: circuit.channels[name] for name in self.channels},
            {name: circuit.producers[name] for name in self.channels},
            {name: circuit.consumers[name] for name in self.channels},
            {node: circuit.nodes[node] for node in self.nodes if node in circuit.nodes},
        )

    def fed(self) -> Iterator[tuple[str, Join]]:
        """The ports that pull, or stand behind an inserted queue, where their channels are not bound anew."""
        circuit, inserted = self.after.circuit, self.after.layout.inserted
        for component in () if self.rewired else self.components():
            for name, join in circuit.inputs(component):
                if join.port.pulled or edge_key(name, join) in inserted:
                    yield name, join

    @property
    def undone(self) -> Region:
        """The same region as it was."""
        return replace(self, before=self.after, after=self.before, lean=self.before)

    def components(self) -> Iterator[Component]:
        """The connected components in it after the change."""
        nodes = self.after.circuit.nodes
        yield from (nodes[name].component for name in self.nodes if name in nodes)

    def queues(self, wiring: Wiring) -> Iterator[str]:
        """The queues in it that a worker drains."""
        places = [edge_key(name, join) for name, join in self.fed()]
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

"""What is connected to what, read from the `connected-to` properties of the ports in the registry."""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from exop.model.ports import PortSpec
from exop.model.properties import CONNECTED_TO, INSTANCE
from exop.registry import ServiceReference
from exop.runtime.channel import Channel
from exop.runtime.component import Component
from exop.runtime.manager import LivePort


@dataclass(frozen=True)
class Join:
    """One port of a component at a channel."""

    component: Component
    port: PortSpec

    @cached_property
    def name(self) -> str:
        """`node.port`."""
        return f"{self.component.node.name}.{self.port.name}"


@dataclass(frozen=True)
class Vertex:
    """A component with the channel of each of its connected ports.

    `rank` is its place among the components: the ports at a channel stand in this order.
    """

    component: Component
    ports: Mapping[str, str]
    rank: int


@dataclass
class Circuit:
    """The ports at each channel, and the channels of each component, by the names of channels and nodes."""

    channels: dict[str, Channel] = field(default_factory=dict)
    producers: dict[str, list[Join]] = field(default_factory=dict)
    consumers: dict[str, list[Join]] = field(default_factory=dict)
    nodes: dict[str, Vertex] = field(default_factory=dict)

    def components(self) -> list[Component]:
        """Every component that has a connected port."""
        return [vertex.component for vertex in self.nodes.values()]

    def outputs(self, component: Component) -> list[tuple[PortSpec, str]]:
        """The channel of each connected output port."""
        ports = self._ports(component)
        return [(port, ports[port.name]) for port in component.spec.outputs if port.name in ports]

    def inputs(self, component: Component) -> list[tuple[str, Join]]:
        """The channels that feed a component, each with the port it feeds."""
        ports = self._ports(component)
        return [(ports[port.name], Join(component, port)) for port in component.spec.inputs if port.name in ports]

    def _ports(self, component: Component) -> Mapping[str, str]:
        vertex = self.nodes.get(component.node.name)
        return vertex.ports if vertex is not None and vertex.component is component else {}

    def open(self, channel: Channel) -> None:
        """Add a channel to which nothing is connected yet."""
        self.channels[channel.name] = channel
        self.producers[channel.name] = []
        self.consumers[channel.name] = []

    def connect(self, component: Component, ports: Mapping[str, str]) -> None:
        """Add a component and connect its ports to channels; one that follows another at its node has its rank."""
        name = component.node.name
        rank = self.nodes[name].rank if name in self.nodes else self._last() + 1
        self.nodes[name] = Vertex(component, dict(ports), rank)
        for port in (*component.spec.inputs, *component.spec.outputs):
            if port.name in ports:
                side = self.consumers if port.direction == "in" else self.producers
                insort_right(side[ports[port.name]], Join(component, port), key=self._rank)

    def _last(self) -> int:
        return next(reversed(self.nodes.values())).rank if self.nodes else 0

    def _rank(self, join: Join) -> int:
        return self.nodes[join.component.node.name].rank


def read_circuit(ports: Iterable[ServiceReference], channels: Iterable[ServiceReference]) -> Circuit:
    """Resolve `connected-to`: from each port to its channel; both in the order of their registration."""
    circuit = Circuit()
    by_id: dict[object, str] = {}
    for reference in channels:
        channel: Channel = reference.service
        by_id[reference.properties[INSTANCE]] = channel.name
        circuit.open(channel)
    connected: dict[str, tuple[Component, dict[str, str]]] = {}
    for reference in sorted(ports, key=lambda one: one.id):
        name = by_id.get(reference.properties.get(CONNECTED_TO))
        if name is not None:
            live: LivePort = reference.service
            connected.setdefault(live.component.id, (live.component, {}))[1][live.spec.name] = name
    for component, found in connected.values():
        circuit.connect(component, found)
    return circuit

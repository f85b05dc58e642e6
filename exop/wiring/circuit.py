"""What is connected to what, read from the `connected-to` properties of the ports in the registry."""

from __future__ import annotations

from collections.abc import Iterable
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


@dataclass
class Circuit:
    """The ports at each channel, by the channel's name; all in the order in which they were registered."""

    channels: dict[str, Channel] = field(default_factory=dict)
    producers: dict[str, list[Join]] = field(default_factory=dict)
    consumers: dict[str, list[Join]] = field(default_factory=dict)
    leaving: dict[tuple[str, str], str] = field(default_factory=dict)

    def components(self) -> list[Component]:
        """Every component that has a connected port."""
        found: dict[str, Component] = {}
        for joins in (*self.producers.values(), *self.consumers.values()):
            for join in joins:
                found.setdefault(join.component.id, join.component)
        return list(found.values())

    def outputs(self, component: Component) -> list[tuple[PortSpec, str]]:
        """The channel of each connected output port."""
        ports = [(port, self.leaving.get((component.id, port.name))) for port in component.spec.outputs]
        return [(port, channel) for port, channel in ports if channel is not None]

    def inputs(self, component: Component) -> list[tuple[str, Join]]:
        """The channels that feed a component, each with the port it feeds."""
        joins = [(channel, join) for channel, found in self.consumers.items() for join in found]
        return [(channel, join) for channel, join in joins if join.component is component]


def read_circuit(ports: Iterable[ServiceReference], channels: Iterable[ServiceReference]) -> Circuit:
    """Resolve `connected-to`: from each port to its channel."""
    circuit = Circuit()
    by_id: dict[object, str] = {}
    for reference in channels:
        channel: Channel = reference.service
        by_id[reference.properties[INSTANCE]] = channel.name
        circuit.channels[channel.name] = channel
        circuit.producers[channel.name] = []
        circuit.consumers[channel.name] = []
    for reference in sorted(ports, key=lambda one: one.id):
        name = by_id.get(reference.properties.get(CONNECTED_TO))
        if name is None:
            continue
        live: LivePort = reference.service
        join = Join(live.component, live.spec)
        if live.spec.direction == "in":
            circuit.consumers[name].append(join)
        else:
            circuit.producers[name].append(join)
            circuit.leaving[live.component.id, live.spec.name] = name
    return circuit

"""Preview of the queues that the wiring would insert: opens, registers and starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exop.model.checks import check, check_durable
from exop.model.mesh import Mesh
from exop.runtime.channel import Channel
from exop.runtime.channels.buffered import Buffered
from exop.runtime.component import Component
from exop.runtime.manager import make_channel
from exop.wiring.channels import check_channels
from exop.wiring.circuit import Circuit
from exop.wiring.layout import lay_out
from exop.wiring.places import edge_key

PULLS = "its consumer pulls"


def preview(mesh: Mesh, kinds: Mapping[str, type[Channel]]) -> dict[str, str]:
    """Check a mesh and return the queues that the wiring would insert: the reasons by place.

    Raises:
        MeshError, PlanError: the mesh cannot be.
    """
    check(mesh, kinds)
    check_durable(mesh, has_state=True)
    check_channels(mesh, kinds)
    return queues(mesh, kinds)


def queues(mesh: Mesh, kinds: Mapping[str, type[Channel]]) -> dict[str, str]:
    """The queues that the wiring would insert into a mesh that was checked: the reasons by place."""
    circuit = _circuit(mesh, kinds)
    inserted = dict(lay_out(circuit).inserted)
    for name, joins in circuit.consumers.items():
        for join in joins:
            if join.port.pulled and _needs_queue(circuit.channels[name], len(joins)):
                inserted.setdefault(edge_key(name, join), PULLS)
    return inserted


def _needs_queue(channel: Channel, consumers: int) -> bool:
    """A port that takes items needs a queue of its own, unless it is alone at one."""
    alone = isinstance(channel, Buffered) and consumers == 1
    return channel.pull_mode == "take" and not alone


def _circuit(mesh: Mesh, kinds: Mapping[str, type[Channel]]) -> Circuit:
    """Return the connections to be: the components are made, but neither opened nor registered."""

    def unchanged(_: Any) -> None:
        """Ignore the event: a component that never runs has no listeners."""

    circuit = Circuit()
    for spec in mesh.channels.values():
        circuit.open(make_channel(kinds, spec))
    for node in mesh.nodes.values():
        circuit.connect(Component(node.name, mesh.name, node, unchanged), node.ports)
    return circuit

"""Long chains of direct calls are parted by queues, long before Python's recursion limit."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from exop.errors import WiringError
from exop.runtime.component import Component
from exop.wiring.circuit import Circuit, Join
from exop.wiring.places import before_key, edge_key, in_front_of

#: So many slets (and channels that keep something) may call each other; each of them takes up to seven frames.
LONGEST_CHAIN = 100


def split_chains(circuit: Circuit, inserted: dict[str, str]) -> None:
    """Add to *inserted* the places of the queues that keep every chain of direct calls short.

    Raises:
        WiringError: slets that call each other in a circle, with no queue between them.
    """
    depths: dict[str, int] = {}
    for component in _in_order(circuit, inserted):
        deep = 0
        for channel, join in _direct_inputs(circuit, inserted, component):
            above = _depth_of(circuit, inserted, depths, channel)
            if above >= LONGEST_CHAIN:
                inserted[in_front_of(circuit, channel, join)] = f"the direct chain is {LONGEST_CHAIN} slets long"
            else:
                deep = max(deep, above)
        depths[component.id] = 1 if component.spec.own_driver or component.spec.iterated else deep + 1


def _depth_of(circuit: Circuit, inserted: dict[str, str], depths: dict[str, int], channel: str) -> int:
    """How many calls stand above what *channel* delivers to."""
    own = int(circuit.channels[channel].serial)
    if before_key(channel) in inserted:
        return own
    return own + max((depths[join.component.id] for join in circuit.producers[channel]), default=0)


def _direct_inputs(circuit: Circuit, inserted: dict[str, str], component: Component) -> list[tuple[str, Join]]:
    """The channels that reach a component by a call."""
    return [
        (channel, join)
        for channel, join in circuit.inputs(component)
        if not (circuit.channels[channel].buffered or join.port.pulled or edge_key(channel, join) in inserted)
    ]


def _in_order(circuit: Circuit, inserted: dict[str, str]) -> list[Component]:
    """The components, each one behind those that call it."""
    components = {component.id: component for component in circuit.components()}
    callers = {
        component.id: [
            join.component.id
            for channel, _ in _direct_inputs(circuit, inserted, component)
            if before_key(channel) not in inserted
            for join in circuit.producers[channel]
        ]
        for component in components.values()
    }
    try:
        return [components[found] for found in TopologicalSorter(callers).static_order()]
    except CycleError as problem:
        path = " -> ".join(components[found].node.name for found in problem.args[1])
        raise WiringError(
            f"the cycle {path} contains no queue: it would call itself without end; "
            f"join two of its slets through a channel of the kind 'queue'"
        ) from None

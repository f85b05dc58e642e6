"""Whether what an engine is given comes in the same order again after a crash: it is recognized by its number."""

from __future__ import annotations

from exop.errors import WiringError
from exop.runtime.component import Component
from exop.wiring.circuit import Circuit
from exop.wiring.layout import Layout
from exop.wiring.reach import DriverKey


def check_order(circuit: Circuit, layout: Layout) -> None:
    """Refuse to give to an engine in a durable application what streams of several threads are merged into.

    What is sent again after a crash would be merged otherwise; some items would be lost in it, and some doubled.

    Raises:
        WiringError: so it would be.
    """
    for component in circuit.components():
        if component.tie is not None and component.tie.durable:
            place = _merge(circuit, layout, component)
            if place is not None:
                raise WiringError(
                    f"{component.node.name} commits by itself, and recognizes what is sent again after a crash by its "
                    f"number; but several threads meet at {place} before it, in an order that is another one each "
                    f"time; put the engine before that, one for each stream, or leave out app.durable()"
                )


def _merge(circuit: Circuit, layout: Layout, engine: Component) -> str | None:
    """Where, before an engine, streams of several drivers meet; `None`: nowhere."""
    todo, seen = [engine], {engine.id}
    while todo:
        component = todo.pop()
        if len(layout.runs.get(component.id, ())) > 1 and not component.spec.iterated:
            return component.node.name
        fed = circuit.inputs(component)
        if component.spec.iterated and len(fed) > 1:
            return component.node.name
        for name, _ in fed:
            producers = [join.component for join in circuit.producers[name]]
            if len(set[DriverKey]().union(*(_drivers(layout, one) for one in producers))) > 1:
                return f"the channel {name!r}"
            for one in producers:
                # What an engine puts out comes from its log, always in the same order; sources begin a stream.
                if not one.spec.own_driver and one.id not in seen:
                    seen.add(one.id)
                    todo.append(one)
    return None


def _drivers(layout: Layout, component: Component) -> set[DriverKey]:
    """The drivers that push what a component puts out."""
    if component.spec.own_driver:
        return {("engine", component.id)}
    if component.spec.iterated:
        return {("source", component.id)}
    return layout.runs.get(component.id, set())

"""Making what a component consists of, from the specification of its slet."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from exop.model.ports import PortSpec
from exop.model.signature import OUT
from exop.model.spec import SletSpec
from exop.runtime.drivers.base import Driver
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.drivers.source import Broken, SourceDriver
from exop.runtime.failure import source_broken
from exop.runtime.ports import BufferedOutput, DrivenOutput, PulledInput
from exop.runtime.tied.live import LiveTie
from exop.runtime.tied.places import EnginePlaces

if TYPE_CHECKING:
    from exop.runtime.component import Component


#: In which order copies of mementos were made.
_MOMENTS = itertools.count()


def make_parts(component: Component, engines: EnginePlaces | None) -> None:
    """Make the instance of a component, its ports, its driver, and its tie; with *engines* it is durable."""
    spec, name = component.spec, f"{component.application}.{component.node.name}"
    if spec.own_driver:
        component.driver = EngineDriver(name, component.end_outputs)
    elif spec.iterated:
        flush = component.flush_outputs if any(buffers(spec, port) for port in spec.outputs) else None
        how = Iteration(component.iterate, partial(source_broken, component), component.finish, flush)
        component.driver = source_driver(spec, name, how)
    for port in spec.outputs:
        if isinstance(component.driver, EngineDriver):
            ended = component.port_ended
            component.outputs[port.name] = DrivenOutput(port, component.driver, component.failed, ended)
        elif buffers(spec, port):
            component.outputs[port.name] = BufferedOutput(port, component.failed)
    for port in spec.inputs:
        if port.pulled:
            component.pulled[port.name] = _pulled_input(component, port, f"{component.node.name}.{port.name}")
    component.tie = tie_of(component, engines)
    if spec.is_class:
        component.instance = spec.factory(**component.node.private_settings(), **_injected(component))
    component.bind_slet()


def _injected(component: Component) -> dict[str, Any]:
    """Return the arguments of an instance besides its settings: the ports that it names, its memento, its tie."""
    spec = component.spec
    declared = typing.get_type_hints(spec.factory, include_extras=True)
    ports: dict[str, Any] = {**component.outputs, **component.pulled}
    fields = {key: port for key, port in ports.items() if key in declared}
    if spec.state:
        fields[spec.state[0]] = component.state
    if spec.tie:
        fields[spec.tie] = component.tie
    return fields


def _pulled_input(component: Component, port: PortSpec, name: str) -> PulledInput:
    """An engine pulls by a driver for this port alone; a slet that is pushed to does not wait when it pulls."""
    if component.spec.own_driver:
        puller = Driver(f"{component.application}.{name}")
        puller.partner = component.driver
        component.pullers.append(puller)
        return PulledInput(port, name, puller, component.pulled_mark, own=True)
    driver = component.driver if component.spec.iterated else None
    made = PulledInput(port, name, driver, component.pulled_mark)
    if component.spec.atomic and component.spec.iterated:
        # The state is looked up each time: a successor takes over another one.
        made.before = lambda: None if component.state is None else (next(_MOMENTS), component.state.copied())
    return made


@dataclass(frozen=True)
class Iteration:
    """The iteration of a slet: its iterator, and the calls when it raises, when it ends, and between two items.

    `flush` is `None` if the slet pushes nothing beside what it yields.
    """

    iterate: Callable[[], Iterator[Any]]
    broken: Broken
    finish: Callable[[], None]
    flush: Callable[[], None] | None


def source_driver(spec: SletSpec, name: str, how: Iteration) -> SourceDriver:
    """The driver of a slet that is iterated."""
    yields = next((port.type for port in spec.outputs if port.name == OUT), None)
    mixed = yields is not None and (yields.punctuation or yields.end)
    batches = yields is not None and yields.form != "item"
    return SourceDriver(
        name,
        how.iterate,
        how.broken,
        how.finish,
        flush=how.flush,
        form="batches" if batches else "mixed" if mixed else "items",
        pulls=any(port.pulled for port in spec.inputs),
    )


def buffers(spec: SletSpec, port: PortSpec) -> bool:
    """An output by which the slet pushes, beside (or instead of) what it returns."""
    return port.name != OUT or OUT in getattr(spec.factory, "__dataclass_fields__", ())


def tie_of(component: Component, engines: EnginePlaces | None) -> LiveTie | None:
    """Return the tie of a slet with its own driver, if it asks for one; with *engines* it is backed by logs on disk."""
    spec = component.spec
    if spec.tie is None or not isinstance(component.driver, EngineDriver):
        return None
    forms = {port.name: port.type.form for port in spec.inputs if not port.pulled}
    if engines is None:
        return LiveTie(forms)
    # Imported lazily: only durable applications need the logs.
    from exop.runtime.tied.durable import DurableTie

    folder = partial(engines.folder, component.application, component.node.name)
    return DurableTie(folder, forms, component.outputs, component.driver)

"""`open`: an instance of a class slet, entered, with its ports and memento."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from exop.errors import SletError
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OutputPorts
from exop.model.slets.slet import Slet, spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.dataflow.binding import families
from exop.runtime.durable.engine_journal import LiveTie
from exop.testing.ports import CollectingOutput, CollectingOutputs, GivenInput

S = TypeVar("S", bound=Slet)


@contextmanager
def open(slet: type[S], /, **given: Any) -> Iterator[S]:  # noqa: A001 (it opens a slet)
    """Make an instance of a `Slet` class with its ports and memento, enter it, and exit it at the end of the block.

    Output ports collect what is pushed (see `collected`). *given* are the settings, converted and checked as anywhere;
    a memento under the name of its field; for each input port that the slet pulls its items, or a channel; for a family
    the names of its members (further outputs come with the first push), with what is pulled by name.

    Raises:
        SletError: it is no class slet.
        UnknownName, SettingError: a setting that there is not, or does not fit.
    """
    spec = spec_of(slet)
    if not spec.is_class:
        raise SletError(slet=spec.name, what="class slet", problem="it is a function", cure="call it, or use feed()")
    memento = given.pop(spec.state[0], None) if spec.state else None
    with entered(spec, memento, given) as instance:
        yield instance


@contextmanager
def entered(spec: SletSpec, memento: Memento | None, given: dict[str, Any]) -> Iterator[Any]:
    """An instance of any class slet with this memento (a new one if `None`), while the block runs."""
    instance = _instance(spec, memento, given)
    instance.__enter__()
    try:
        yield instance
    finally:
        instance.__exit__(None, None, None)


def _instance(spec: SletSpec, memento: Memento | None, given: dict[str, Any]) -> Any:
    spec = spec.asked(spec.name, given)
    spec = spec.connected([f"{one.family}.{name}" for one in spec.families for name in given.get(one.family, ())])
    ports: dict[str, Any] = {port.name: CollectingOutput() for port in spec.outputs}
    for port in (one for one in spec.inputs if one.pulled):
        ends = given.get(port.family, ())
        ports[port.name] = GivenInput(port.name, ends[port.member] if port.member else ends)
    members = families(spec, ports)
    fields = ports | {
        name: CollectingOutputs(one) if type(one) is OutputPorts else one for name, one in members.items()
    }
    if spec.state:
        fields[spec.state[0]] = memento if memento is not None else spec.state[1]()
    if spec.tie:
        fields[spec.tie] = LiveTie({port.name: port.type.form for port in spec.inputs})
    connected = {*fields, *(one.family for one in spec.families)}
    settings = spec.configured(spec.name, {name: value for name, value in given.items() if name not in connected})
    declared = getattr(spec.factory, "__dataclass_fields__", fields)
    instance = spec.factory(**settings, **{name: value for name, value in fields.items() if name in declared})
    if spec.specialises or spec.families:
        instance.outputs = {port.name: ports[port.name] for port in spec.outputs}
        instance.inputs = tuple(port.name for port in spec.inputs)
    return instance


def outputs_of(instance: Any, spec: SletSpec) -> dict[str, CollectingOutput]:
    """The ports by which an instance pushes, by name, with the members of its families."""
    found = {port.name: getattr(instance, port.name, None) for port in spec.outputs}
    found |= getattr(instance, "outputs", {})
    for family in (one.family for one in spec.families if one.direction == "out"):
        found |= {f"{family}.{member}": port for member, port in getattr(instance, family).items()}
    return {name: port for name, port in found.items() if isinstance(port, CollectingOutput)}

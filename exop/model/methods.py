"""The fields and methods of a `Slet` class: which of them are ports, settings and state."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from dataclasses import dataclass, field
from typing import Any

from exop.errors import SletError
from exop.model.annotations import (
    annotation_of,
    check_generator,
    hints_of,
    is_memento,
    kind_of,
    only_state,
    read_input,
    read_output,
    read_result,
)
from exop.model.memento import Memento
from exop.model.ports import InputPort, InputPorts, OutputPort, OutputPorts, PortSpec, PortType
from exop.model.spec import Result, Setting
from exop.model.tie import Tie


@dataclass
class Fields:
    """The kinds of a class's fields."""

    inputs: list[PortSpec] = field(default_factory=list)
    outputs: dict[str, PortType] = field(default_factory=dict)
    families: list[PortSpec] = field(default_factory=list)
    settings: dict[str, Setting] = field(default_factory=dict)
    state: tuple[str, type[Memento]] | None = None
    tie: str | None = None


def read_fields(cls: Any) -> Fields:
    """Sort the fields: ports by their type, the memento, the tie, settings; those with `init=False` are its own.

    Raises:
        SletError: a field without a type that can be resolved, a second memento, a private setting.
    """
    name, hints, found = cls.__qualname__, hints_of(cls, cls.__qualname__), Fields()
    for entry in dataclasses.fields(cls):
        annotation = annotation_of(name, entry.name, hints)
        if kind_of(annotation) is OutputPort:
            found.outputs[entry.name] = read_output(name, annotation)
        elif kind_of(annotation) is InputPort:
            found.inputs.append(read_input(name, entry.name, annotation))
        elif kind_of(annotation) is OutputPorts:
            found.families.append(PortSpec(f"{entry.name}.*", "out", read_output(name, annotation)))
        elif kind_of(annotation) is InputPorts:
            found.inputs.append(PortSpec(f"{entry.name}.*", "in", read_output(name, annotation), pulled=True))
        elif kind_of(annotation) is Tie:
            found.tie = entry.name
        elif is_memento(annotation):
            found.state = only_state(name, found.state, entry.name, annotation)
        elif entry.init:
            found.settings[entry.name] = _setting(name, entry, annotation)
    return found


def read_methods(cls: type) -> list[tuple[PortSpec, Result, PortType | None]]:
    """The methods marked `@input_port`, in the order in which they are written: port, shape of result, what leaves.

    Raises:
        SletError: one that is no input port.
    """
    found = []
    for attribute in dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base)):
        method = inspect.getattr_static(cls, attribute, None)
        if not getattr(method, "__input_port__", False):
            continue
        place = f"{cls.__qualname__}.{attribute}"
        if not inspect.isfunction(method) or inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise SletError(
                slet=place, problem="an input port is a plain method", cure="write `def port(self, item: T)`"
            )
        hints = hints_of(method, place)
        parameters = list(inspect.signature(method).parameters.values())[1:]
        positional = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}
        if len(parameters) not in (1, 2) or not positional.issuperset(one.kind for one in parameters):
            raise SletError(slet=place, problem="an input port takes one item", cure="write `def port(self, item: T)`")
        named = len(parameters) == 2
        if named and annotation_of(place, parameters[0].name, hints) is not str:
            cure = "write `def port(self, item: T)`, or `def port(self, member: str, item: T)` for a family of ports"
            raise SletError(slet=place, problem="an input port takes one item", cure=cure)
        result, output = read_result(place, hints)
        check_generator(place, method, result)
        annotation = annotation_of(place, parameters[-1].name, hints)
        port = f"{attribute}.*" if named else attribute
        found.append((read_input(place, port, annotation, attribute), result, output))
    return found


def join_outputs(name: str, leaving: list[PortType]) -> PortType:
    """Return the type of `out` when several methods return something.

    Raises:
        SletError: items leave by one method and batches or other columns by another.
    """
    first = leaving[0]
    if any(one.form != first.form or not _same_columns(one, first) for one in leaving):
        forms = ", ".join(dict.fromkeys(f"{one} as {one.form}" for one in leaving))
        cure = "let all return the same, or push one kind by an OutputPort of its own"
        raise SletError(slet=name, problem=f"its methods return several forms ({forms})", cure=cure)
    items = tuple(dict.fromkeys(one.item for one in leaving))
    return dataclasses.replace(
        first,
        item=items[0] if len(items) == 1 else typing.Union[items],  # noqa: UP007 (built at run time)
        punctuation=any(one.punctuation for one in leaving),
        end=any(one.end for one in leaving),
    )


def _same_columns(one: PortType, other: PortType) -> bool:
    return one.schema is None or other.schema is None or bool(one.schema.equals(other.schema))


def _setting(name: str, entry: dataclasses.Field[Any], annotation: Any) -> Setting:
    if entry.name.startswith("_"):
        cure = f"set it in __enter__ without naming it in the class, or write `{entry.name}: T = field(init=False)`"
        raise SletError(slet=name, problem=f"the private field {entry.name!r} would be a setting", cure=cure)
    if entry.default is not dataclasses.MISSING:
        return Setting(entry.name, annotation, entry.default)
    if entry.default_factory is not dataclasses.MISSING:
        return Setting(entry.name, annotation, entry.default_factory())
    return Setting(entry.name, annotation, required=True)

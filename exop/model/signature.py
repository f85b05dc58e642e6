"""Reading a slet's ports, settings and state from the signature of a function or a class."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from exop.errors import SletError
from exop.model.annotations import (
    annotation_of,
    check_generator,
    hints_of,
    is_memento,
    kind_of,
    only_state,
    read_input,
    read_result,
    read_setting,
    read_settings,
)
from exop.model.memento import Memento
from exop.model.methods import join_outputs, read_fields, read_methods
from exop.model.ports import OUT, InputPort, InputPorts, OutputPort, OutputPorts, PortSpec
from exop.model.spec import Result, Setting, SletSpec

__all__ = ["OUT", "read_class", "read_function", "read_settings"]

#: Names that `Application.add` reserves: no port and no setting may have them.
_TAKEN: Final = {OUT: "by the output port of the results", "on_error": "by the policy for items that fail"}


def read_function(function: Callable[..., Any]) -> SletSpec:
    """Read a function's signature.

    Raises:
        SletError: it is no slet; the message says what to write.
    """
    name = getattr(function, "__qualname__", repr(function))
    _check_function(function, name)
    hints = hints_of(function, name)
    ports: list[PortSpec] = []
    settings: dict[str, Setting] = {}
    state: tuple[str, type[Memento]] | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            problem = f"{stars}{parameter.name} names no port"
            raise SletError(slet=name, problem=problem, cure="name every parameter")
        annotation = annotation_of(name, parameter.name, hints)
        if is_memento(annotation):
            state = only_state(name, state, parameter.name, annotation)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            _check_setting(name, parameter.name, annotation)
            settings[parameter.name] = read_setting(parameter.name, annotation, parameter.default)
        else:
            ports.append(_positional(name, parameter, annotation, state))
    if len(ports) > 1:
        found = ", ".join(port.name for port in ports)
        raise SletError(
            slet=name,
            problem=f"a function has one input, here are {len(ports)} ({found})",
            cure="put `*, ` before the settings, or write a Slet class with an @input_port method per input",
        )
    result, output = read_result(name, hints)
    iterated = not ports or ports[0].pulled
    if iterated:
        _check_iterated(name, ports, result)
    else:
        check_generator(name, function, result)
    return _checked(
        SletSpec(
            name=function.__name__,
            factory=function,
            inputs=tuple(ports),
            outputs=(PortSpec(OUT, "out", output),) if output is not None else (),
            settings=settings,
            state=state,
            results={ports[0].name if ports and not iterated else "": result},
            iterated=iterated,
        )
    )


def read_class(cls: type, *, own_driver: bool) -> SletSpec | None:
    """Read a `Slet` class; `None` for an abstract base, which has no port yet.

    Raises:
        SletError: it is no slet; the message says what to write.
    """
    name = cls.__qualname__
    fields = read_fields(cls)
    methods = read_methods(cls)
    inputs = [*fields.inputs, *(port for port, _, _ in methods)]
    families = (*fields.families, *(port for port in inputs if port.member))
    results: dict[str, Result] = {port.name: result for port, result, _ in methods}
    leaving = [output for _, _, output in methods if output is not None]
    iterated = callable(getattr(cls, "__iter__", None))
    if own_driver:
        _check_own_driver(name, iterated, results)
    if iterated:
        results[""], output = read_result(f"{name}.__iter__", hints_of(cls.__iter__, f"{name}.__iter__"))  # type: ignore[attr-defined]
        _check_iterated(name, inputs, results[""])
        leaving += [output] if output is not None else []
    outputs = dict(fields.outputs)
    if leaving:
        outputs.setdefault(OUT, join_outputs(name, leaving))
    if not inputs and not outputs and not families and not iterated:
        return None
    return _checked(
        SletSpec(
            name=cls.__name__.lower(),
            factory=cls,
            inputs=tuple(port for port in inputs if not port.member),
            outputs=tuple(PortSpec(port, "out", carried) for port, carried in outputs.items()),
            families=families,
            settings=fields.settings,
            state=fields.state,
            tie=fields.tie,
            results=results,
            is_class=True,
            own_driver=own_driver,
            iterated=iterated,
        )
    )


def _check_function(function: Any, name: str) -> None:
    if isinstance(function, type):
        raise SletError(slet=name, problem="a class is marked by its base", cure=f"write `class {name}(Slet):`")
    if isinstance(function, functools.partial) or not hasattr(function, "__annotations__"):
        problem = f"a {type(function).__name__} has no signature of its own"
        raise SletError(slet=name, problem=problem, cure="write a function; what differs is a setting")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        cure = "write `def`; what waits for something is a Slet class with own_driver=True"
        raise SletError(slet=name, problem="an `async def` is never awaited", cure=cure)


def _positional(
    name: str, parameter: inspect.Parameter, annotation: Any, state: tuple[str, type[Memento]] | None
) -> PortSpec:
    """The input port that a positional parameter is."""
    if parameter.default is not parameter.empty:
        cure = f"put `*, ` before {parameter.name} to make it a setting"
        raise SletError(slet=name, problem=f"the input {parameter.name!r} has a default", cure=cure)
    if state is not None:
        cure = f"write ({parameter.name}, {state[0]})"
        raise SletError(slet=name, problem=f"the memento {state[0]!r} stands before the input", cure=cure)
    if kind_of(annotation) in (OutputPort, OutputPorts, InputPorts):
        _check_setting(name, parameter.name, annotation)
    return read_input(name, parameter.name, annotation)


def _check_setting(name: str, parameter: str, annotation: Any) -> None:
    if kind_of(annotation) in (InputPort, OutputPort, InputPorts, OutputPorts):
        cure = "return the results; for more ports write a Slet class with a field for each"
        raise SletError(slet=name, problem=f"{parameter!r} is a port, not a setting", cure=cure)


def _check_iterated(name: str, inputs: list[PortSpec], result: Result) -> None:
    """Check that a slet that is iterated is a source, or pulls all its inputs."""
    pushed = [port.name for port in inputs if not port.pulled]
    if pushed:
        problem = f"it is iterated, and items are pushed into {', '.join(pushed)}: two drivers would meet in it"
        raise SletError(slet=name, problem=problem, cure="pull them too (fields typed InputPort[T]), or drop __iter__")
    if result not in ("many", "none"):
        raise SletError(slet=name, problem="a slet without a pushed input is a source", cure="return an Iterator[T]")
    if result == "none" and not inputs:
        raise SletError(slet=name, problem="nothing enters and nothing leaves", cure="give it an input, or yield items")


def _check_own_driver(name: str, iterated: bool, results: dict[str, Result]) -> None:
    if iterated:
        cure = "drop __iter__, or own_driver=True"
        raise SletError(slet=name, problem="it has a driver of its own, and is iterated as well", cure=cure)
    for port, result in results.items():
        if result != "none":
            cure = "return None and push by an output port from the slet's own thread"
            problem = f"it has a driver of its own, so {port} only hands over: what it returns goes nowhere"
            raise SletError(slet=name, problem=problem, cure=cure)


def _checked(spec: SletSpec) -> SletSpec:
    inputs = {port.family for port in (*spec.inputs, *spec.families)}
    for name, by_whom in _TAKEN.items():
        further = {port.name for port in spec.outputs} - {OUT}
        if name in spec.settings or name in inputs or name in further:
            raise SletError(slet=spec.name, problem=f"the name {name!r} is taken {by_whom}", cure="choose another")
    both = (inputs | {port.name for port in spec.outputs}) & set(spec.settings)
    if both:
        raise SletError(slet=spec.name, problem=f"{sorted(both)} are ports and settings", cure="rename one of them")
    return dataclasses.replace(spec, settings=dict(spec.settings))

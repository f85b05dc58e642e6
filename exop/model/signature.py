"""Reading a slet's ports, settings and state from the signature of a function or a class."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any

from exop.errors import SletError
from exop.model.memento import Memento
from exop.model.ports import InputPort, OutputPort, PortSpec, PortType, port_type, union_members
from exop.model.spec import Result, Setting, SletSpec

ITERATORS = (collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator)
OUT = "out"


def read_function(function: Callable[..., Any]) -> SletSpec:
    """Read a function's signature.

    Raises:
        SletError: it is no slet; the message says what to write.
    """
    name = getattr(function, "__qualname__", repr(function))
    hints = _hints(function, name)
    ports: list[PortSpec] = []
    settings: dict[str, Setting] = {}
    state: tuple[str, type[Memento]] | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise SletError(slet=name, problem=f"*{parameter.name} names no port", cure="name every parameter")
        annotation = _annotation(name, parameter.name, hints)
        if _is_memento(annotation):
            state = _only_state(name, state, parameter.name, annotation)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            settings[parameter.name] = _setting(parameter.name, annotation, parameter.default)
        elif parameter.default is not parameter.empty:
            raise SletError(
                slet=name,
                problem=f"the input {parameter.name!r} has a default",
                cure=f"put `*, ` before {parameter.name} to make it a setting",
            )
        else:
            ports.append(_input(parameter.name, annotation, None))
    if len(ports) > 1:
        found = ", ".join(port.name for port in ports)
        raise SletError(
            slet=name,
            problem=f"a function has one input, here are {len(ports)} ({found})",
            cure="put `*, ` before the settings, or write a Slet class with an @input_port method per input",
        )
    if "return" not in hints:
        raise SletError(slet=name, problem="it says not what it returns", cure="annotate it, with `-> None` for a sink")
    result, output = read_result(hints["return"])
    iterated = not ports or ports[0].pulled
    if iterated and result not in ("many", "none"):
        raise SletError(slet=name, problem="a slet without a pushed input is a source", cure="return an Iterator[T]")
    spec = SletSpec(
        name=function.__name__,
        factory=function,
        inputs=tuple(ports),
        outputs=(PortSpec(OUT, "out", output),) if output is not None else (),
        settings=settings,
        state=state,
        results={ports[0].name if ports and not iterated else "": result},
        iterated=iterated,
    )
    return _checked(spec)


def read_class(cls: type, *, own_driver: bool) -> SletSpec | None:
    """Read a `Slet` class; `None` for an abstract base, which has no port yet.

    Raises:
        SletError: it is no slet; the message says what to write.
    """
    name = cls.__qualname__
    hints = _hints(cls, name)
    inputs: list[PortSpec] = []
    outputs: dict[str, PortType] = {}
    settings: dict[str, Setting] = {}
    state: tuple[str, type[Memento]] | None = None
    for entry in dataclasses.fields(cls):
        annotation = _annotation(name, entry.name, hints)
        origin = typing.get_origin(annotation) or annotation
        if origin is OutputPort:
            outputs[entry.name] = port_type((typing.get_args(annotation) or (Any,))[0])
        elif origin is InputPort:
            inputs.append(_input(entry.name, annotation, None))
        elif _is_memento(annotation):
            state = _only_state(name, state, entry.name, annotation)
        elif entry.init:
            settings[entry.name] = _field_setting(entry, annotation)
    results, methods = _methods(cls, name)
    inputs += [port for port, _ in methods.values()]
    leaving = [output for _, output in methods.values() if output is not None]
    iterated = callable(getattr(cls, "__iter__", None))
    if iterated:
        results[""], output = read_result(_hints(cls.__iter__, f"{name}.__iter__").get("return"))  # type: ignore[attr-defined]
        leaving += [output] if output is not None else []
    if leaving:
        outputs.setdefault(OUT, _joined(leaving))
    if not inputs and not outputs and not iterated:
        return None
    spec = SletSpec(
        name=cls.__name__.lower(),
        factory=cls,
        inputs=tuple(inputs),
        outputs=tuple(PortSpec(port, "out", carried) for port, carried in outputs.items()),
        settings=settings,
        state=state,
        results=results,
        is_class=True,
        own_driver=own_driver,
        iterated=iterated,
    )
    return _checked(spec)


def read_result(annotation: Any) -> tuple[Result, PortType | None]:
    """The shape of a result and what leaves, from a return annotation."""
    if annotation in (None, type(None), typing.NoReturn, typing.Never):
        return "none", None
    if typing.get_origin(annotation) in ITERATORS or annotation in ITERATORS:
        (item, *_) = typing.get_args(annotation) or (Any,)
        if item in (type(None), typing.Never):
            return "none", None
        return "many", port_type(item)
    if type(None) in union_members(annotation):
        return "optional", port_type(annotation)
    return "one", port_type(annotation)


def read_settings(function: Callable[..., Any]) -> dict[str, Setting]:
    """The keyword-only parameters of a plain function (an application builder) as settings.

    Raises:
        SletError: one has no type, or it takes something else; the message says what to write.
    """
    name = getattr(function, "__qualname__", repr(function))
    hints = _hints(function, name)
    settings = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            cure = "put `*, ` before the first parameter, so that all of them are given by name"
            raise SletError(slet=name, problem=f"{parameter.name!r} is not keyword-only", cure=cure)
        settings[parameter.name] = _setting(parameter.name, _annotation(name, parameter.name, hints), parameter.default)
    return settings


def _methods(cls: type, name: str) -> tuple[dict[str, Result], dict[str, tuple[PortSpec, PortType | None]]]:
    results: dict[str, Result] = {}
    found: dict[str, tuple[PortSpec, PortType | None]] = {}
    for attribute in dir(cls):
        method = inspect.getattr_static(cls, attribute, None)
        if not getattr(method, "__input_port__", False) or not callable(method):
            continue
        place = f"{name}.{attribute}"
        hints = _hints(method, place)
        _, *parameters = inspect.signature(method).parameters.values()
        if len(parameters) != 1:
            raise SletError(slet=place, problem="an input port takes one item", cure="write `def port(self, item: T)`")
        if "return" not in hints:
            raise SletError(
                slet=place, problem="it says not what it returns", cure="annotate it, `-> None` for nothing"
            )
        results[attribute], output = read_result(hints["return"])
        found[attribute] = (_input(attribute, _annotation(place, parameters[0].name, hints), attribute), output)
    return results, found


def _joined(leaving: list[PortType]) -> PortType:
    """What leaves by `out` when several methods return something."""
    first = leaving[0]
    flags: dict[str, Any] = {
        "punctuation": any(one.punctuation for one in leaving),
        "end": any(one.end for one in leaving),
    }
    if all((one.item, one.form) == (first.item, first.form) for one in leaving):
        return dataclasses.replace(first, **flags)
    items = tuple(dict.fromkeys(one.item for one in leaving))
    return PortType(typing.Union[items], **flags)  # noqa: UP007 (built at run time)


def _input(name: str, annotation: Any, method: str | None) -> PortSpec:
    if (typing.get_origin(annotation) or annotation) is InputPort:
        return PortSpec(name, "in", port_type((typing.get_args(annotation) or (Any,))[0]), pulled=True)
    return PortSpec(name, "in", port_type(annotation), method=method)


def _setting(name: str, annotation: Any, default: Any) -> Setting:
    missing = default is inspect.Parameter.empty
    return Setting(name, annotation, None if missing else default, required=missing)


def _field_setting(entry: dataclasses.Field[Any], annotation: Any) -> Setting:
    if entry.default is not dataclasses.MISSING:
        return Setting(entry.name, annotation, entry.default)
    if entry.default_factory is not dataclasses.MISSING:
        return Setting(entry.name, annotation, entry.default_factory())
    return Setting(entry.name, annotation, required=True)


def _only_state(
    slet: str, known: tuple[str, type[Memento]] | None, name: str, annotation: type[Memento]
) -> tuple[str, type[Memento]]:
    if known is not None:
        raise SletError(slet=slet, problem=f"it has two mementos, {known[0]} and {name}", cure="put both in one class")
    return name, annotation


def _is_memento(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Memento)


def _annotation(slet: str, parameter: str, hints: dict[str, Any]) -> Any:
    if parameter not in hints:
        raise SletError(
            slet=slet,
            problem=f"the parameter {parameter!r} has no type",
            cure=f"write `{parameter}: T`: it types the port",
        )
    return hints[parameter]


def _hints(thing: Any, name: str) -> dict[str, Any]:
    known = {"InputPort": InputPort, "OutputPort": OutputPort}
    try:
        return typing.get_type_hints(thing, localns=known if isinstance(thing, type) else None, include_extras=True)
    except NameError as problem:
        raise SletError(
            slet=name,
            problem=f"the annotation {problem.name!r} cannot be resolved at run time",
            cure="import it outside `if TYPE_CHECKING:`, and define the type at the module's top level",
        ) from None
    except TypeError as problem:
        raise SletError(
            slet=name, problem=f"an annotation is no type ({problem})", cure="use a class or typing"
        ) from None


def _checked(spec: SletSpec) -> SletSpec:
    if OUT in spec.settings or any(port.name == OUT for port in spec.inputs):
        raise SletError(slet=spec.name, problem=f"the name {OUT!r} is taken by the output port", cure="choose another")
    both = set(spec.ports) & set(spec.settings)
    if both:
        raise SletError(slet=spec.name, problem=f"{sorted(both)} are ports and settings", cure="rename one of them")
    return spec

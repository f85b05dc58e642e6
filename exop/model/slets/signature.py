"""Reading of a slet's ports, settings and state from the signature of a function or a class.

Only this module reads the annotations of slets; `types` interprets them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from exop.errors import SletError
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, InputPort, InputPorts, OutputPort, OutputPorts, PortSpec, PortType, port_type
from exop.model.slets.spec import Result, Setting, SletSpec
from exop.model.slets.tie import Tie
from exop.model.types.description import type_of, unalias

_ITERATORS: Final = (collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator)
_ASYNC: Final = (collections.abc.AsyncIterator, collections.abc.AsyncGenerator, collections.abc.AsyncIterable)
_NOTHING: Final = (None, type(None), typing.NoReturn, typing.Never)
_PORTS: Final = (InputPort, OutputPort, InputPorts, OutputPorts)
#: Names that `Mesh.configure` and `Mesh.replace` reserve: no setting may have them.
_OPTIONS: Final = ("when", "close_windows", "lose_state", "rebuild")
#: Names that `Application.add` reserves: no port and no setting may have them.
_TAKEN: Final = {OUT: "by the output port of the results", "on_error": "by the policy for items that fail"}


@dataclass
class _Found:
    """The parts of a slet found in the parameters of a function or the fields of a class."""

    name: str
    inputs: list[PortSpec] = field(default_factory=list)
    outputs: dict[str, PortType] = field(default_factory=dict)
    families: list[PortSpec] = field(default_factory=list)
    settings: dict[str, Setting] = field(default_factory=dict)
    state: tuple[str, type[Memento]] | None = None
    tie: str | None = None

    def keeps(self, name: str, annotation: Any) -> bool:
        """Whether a parameter or field is the state, which is then recorded."""
        if not (isinstance(annotation, type) and issubclass(annotation, Memento)):
            return False
        if self.state is not None:
            raise wrong(self.name, f"it has two mementos, {self.state[0]} and {name}", "put both in one class")
        self.state = name, annotation
        return True


def read_function(function: Callable[..., Any]) -> SletSpec:
    """Read a function's signature."""
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, type):
        raise wrong(name, "a class derives from Slet", f"write `class {name}(Slet):`")
    if isinstance(function, functools.partial) or not hasattr(function, "__annotations__"):
        problem = f"a {type(function).__name__} has no signature of its own"
        raise wrong(name, problem, "write a function, with a setting for what differs")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        cure = "write `def`; what waits for something is a Slet class with own_driver=True"
        raise wrong(name, "an `async def` is never awaited", cure)
    hints, found = _hints_of(function, name), _Found(name)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise wrong(name, f"{stars}{parameter.name} names no port", "name every parameter")
        if found.keeps(parameter.name, annotation := _annotation_of(name, parameter.name, hints)):
            continue
        is_setting = parameter.kind is parameter.KEYWORD_ONLY
        if not is_setting and parameter.default is not parameter.empty:
            cure = f"put `*, ` before {parameter.name} to make it a setting"
            raise wrong(name, f"the input {parameter.name!r} has a default", cure)
        if not is_setting and found.state is not None:
            problem = f"the memento {found.state[0]!r} is before the input"
            raise wrong(name, problem, f"write ({parameter.name}, {found.state[0]})")
        if _kind_of(annotation) in _PORTS and (is_setting or _kind_of(annotation) is not InputPort):
            cure = "return the results; for more ports write a Slet class with a field for each"
            raise wrong(name, f"{parameter.name!r} is a port, not a setting", cure)
        if is_setting:
            found.settings[parameter.name] = _read_setting(parameter.name, annotation, parameter.default)
        else:
            found.inputs.append(_read_input(name, parameter.name, annotation))
    if len(ports := found.inputs) > 1:
        problem = f"a function has one input, here are {len(ports)} ({', '.join(port.name for port in ports)})"
        cure = "put `*, ` before the settings, or write a Slet class with an @input_port method per input"
        raise wrong(name, problem, cure)
    result, output = _read_result(name, hints)
    if iterated := not ports or ports[0].pulled:
        _check_iterated(name, ports, result)
    else:
        _check_generator(name, function, result)
    if output is not None:
        found.outputs[OUT] = output
    return _spec(found, function, {ports[0].name if ports and not iterated else "": result}, iterated=iterated)


def read_class(cls: type, *, own_driver: bool) -> SletSpec | None:
    """Read a `Slet` class; `None` for an abstract base without ports."""
    name, found = cls.__qualname__, _read_fields(cls)
    methods = list(_read_methods(cls))
    found.inputs += [port for port, _, _ in methods]
    found.families += [port for port in found.inputs if port.member]
    results: dict[str, Result] = {port.name: result for port, result, _ in methods}
    leaving = [output for _, _, output in methods if output is not None]
    if (iterated := callable(getattr(cls, "__iter__", None))) and own_driver:
        raise wrong(name, "it has its own driver, and is iterated as well", "drop __iter__, or own_driver=True")
    if own_driver and (port := next((port for port, result in results.items() if result != "none"), None)) is not None:
        problem = f"it has its own driver, so the result of {port} is never sent"
        raise wrong(name, problem, "return None and push by an output port from the slet's own thread")
    if iterated:
        results[""], output = _read_result(f"{name}.__iter__", _hints_of(cls.__iter__, f"{name}.__iter__"))  # type: ignore[attr-defined]
        _check_iterated(name, found.inputs, results[""])
        leaving += [output] if output is not None else []
    if leaving:
        declared = [found.outputs[OUT]] if OUT in found.outputs else []
        found.outputs[OUT] = _join_outputs(name, [*declared, *leaving])
    if not (found.inputs or found.outputs or found.families or iterated):
        return None
    return _spec(found, cls, results, is_class=True, own_driver=own_driver, iterated=iterated)


def _spec(found: _Found, factory: Callable[..., Any], results: dict[str, Result], **traits: Any) -> SletSpec:
    name = factory.__name__.lower() if isinstance(factory, type) else factory.__name__
    inputs, outputs = {port.family for port in (*found.inputs, *found.families)}, set(found.outputs)
    for taken, by_whom in _TAKEN.items():
        if taken in found.settings or taken in inputs or taken in outputs - {OUT}:
            raise wrong(name, f"the name {taken!r} is taken {by_whom}", "choose another")
    if options := found.settings.keys() & {*_OPTIONS}:
        taken = ", ".join(sorted(options))
        raise wrong(name, f"a setting cannot be called {taken}, like an option of a change", "choose another name")
    if both := (inputs | outputs) & set(found.settings):
        raise wrong(name, f"{sorted(both)} are ports and settings", "rename one of them")
    return SletSpec(
        name=name,
        factory=factory,
        inputs=tuple(port for port in found.inputs if not port.member),
        outputs=tuple(PortSpec(port, "out", carried) for port, carried in found.outputs.items()),
        families=tuple(found.families),
        settings=found.settings,
        state=found.state,
        tie=found.tie,
        results=results,
        **traits,
    )


def _check_iterated(name: str, inputs: list[PortSpec], result: Result) -> None:
    """Check that an iterated slet is a source, or pulls all its inputs."""
    if pushed := [port.name for port in inputs if not port.pulled]:
        problem = f"it is iterated, and items are pushed into {', '.join(pushed)}: two threads would run it"
        raise wrong(name, problem, "pull them too (fields typed InputPort[T]), or drop __iter__")
    if result not in ("many", "none"):
        raise wrong(name, "a slet without a pushed input is a source", "return an Iterator[T]")
    if result == "none" and not inputs:
        raise wrong(name, "it has no input and no output", "give it an input, or yield items")


def _check_generator(slet: str, function: Callable[..., Any], result: Result) -> None:
    """Refuse a generator whose annotation declares one result: it would be sent as an item itself."""
    if inspect.isgeneratorfunction(function) and result != "many":
        cure = "write `-> Iterator[T]`, with the type that it yields for T; or drop the yield"
        raise wrong(slet, "it yields, but its annotation declares one result", cure)


def _read_fields(cls: Any) -> _Found:
    """Read the fields: ports, memento, tie and settings; fields with `init=False` belong to the class."""
    name, hints, found = cls.__qualname__, _hints_of(cls, cls.__qualname__), _Found(cls.__qualname__)
    for entry in dataclasses.fields(cls):
        annotation = _annotation_of(name, entry.name, hints)
        if (kind := _kind_of(annotation)) in _PORTS:
            carried = _read_port(name, _argument(annotation))
            port = f"{entry.name}.*" if kind in (InputPorts, OutputPorts) else entry.name
            if kind in (InputPort, InputPorts):
                found.inputs.append(PortSpec(port, "in", carried, pulled=True))
            elif kind is OutputPorts:
                found.families.append(PortSpec(port, "out", carried))
            else:
                found.outputs[port] = carried
        elif kind is Tie:
            found.tie = entry.name
        elif not found.keeps(entry.name, annotation) and entry.init:
            if entry.name.startswith("_"):
                cure = "set it in __enter__ without naming it in the class, or write "
                cure += f"`{entry.name}: T = field(init=False)`"
                raise wrong(name, f"the private field {entry.name!r} would be a setting", cure)
            made = entry.default_factory
            default = entry.default if made is dataclasses.MISSING else made()
            found.settings[entry.name] = _read_setting(entry.name, annotation, default)
    return found


def _read_methods(cls: type) -> Iterator[tuple[PortSpec, Result, PortType | None]]:
    """Read the methods marked `@input_port`, in the order of the source: port, shape of the result, output type."""
    for attribute in dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base)):
        if not getattr(method := inspect.getattr_static(cls, attribute, None), "__input_port__", False):
            continue
        place, cure = f"{cls.__qualname__}.{attribute}", "write `def port(self, item: T)`"
        if not inspect.isfunction(method) or inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise wrong(place, "an input port is a plain method", cure)
        hints, parameters = _hints_of(method, place), list(inspect.signature(method).parameters.values())[1:]
        positional = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}
        if len(parameters) not in (1, 2) or not positional.issuperset(one.kind for one in parameters):
            raise wrong(place, "an input port takes one item", cure)
        if (named := len(parameters) == 2) and _annotation_of(place, parameters[0].name, hints) is not str:
            cure += ", or `def port(self, member: str, item: T)` for a family of ports"
            raise wrong(place, "an input port takes one item", cure)
        result, output = _read_result(place, hints)
        _check_generator(place, method, result)
        annotation = _annotation_of(place, parameters[-1].name, hints)
        yield _read_input(place, f"{attribute}.*" if named else attribute, annotation, attribute), result, output


def _join_outputs(name: str, leaving: list[PortType]) -> PortType:
    """The type of `out` if several methods return something: items of one form, columns of one schema."""
    first, schemas = leaving[0], [one.schema for one in leaving if one.schema is not None]
    if len({one.form for one in leaving}) > 1 or not all(schemas[0].equals(one) for one in schemas):
        forms = ", ".join(dict.fromkeys(f"{one} as {one.form}" for one in leaving))
        cure = "let all return the same, or push one kind by a separate OutputPort"
        raise wrong(name, f"its methods return several forms ({forms})", cure)
    items = tuple(dict.fromkeys(one.item for one in leaving))
    return dataclasses.replace(
        first,
        schema=first.schema if len(schemas) == len(leaving) else None,
        item=items[0] if len(items) == 1 else typing.Union[items],  # noqa: UP007 (built at run time)
        punctuation=any(one.punctuation for one in leaving),
        end=any(one.end for one in leaving),
    )


def _read_result(slet: str, hints: dict[str, Any]) -> tuple[Result, PortType | None]:
    """Read the shape of a result, and the type of the output, from a return annotation."""
    if "return" not in hints:
        raise wrong(slet, "it has no return annotation", "write one, `-> None` for a sink")
    if (annotation := unalias(hints["return"])) in _NOTHING:
        return "none", None
    if _kind_of(annotation) in _ASYNC:
        raise wrong(slet, "the platform does not drive an asynchronous iterator", "return Iterator[T]")
    if _kind_of(annotation) in _ITERATORS:
        if (item := unalias(_argument(annotation))) in _NOTHING:
            return "none", None
        return "many", dataclasses.replace(_read_port(slet, item), pauses=type_of(item).takes_none)
    found = type_of(annotation)
    if any(member.cls in _ITERATORS for member in found.members):
        raise wrong(slet, "an iterator is one of several results", "return Iterator[T]; an empty one has no result")
    return ("optional" if found.takes_none else "one"), _read_port(slet, annotation)


def _read_input(slet: str, name: str, annotation: Any, method: str | None = None) -> PortSpec:
    """Read an input port; the slet pulls from one annotated `InputPort`."""
    if _kind_of(annotation) is InputPort:
        return PortSpec(name, "in", _read_port(slet, _argument(annotation)), pulled=True)
    return PortSpec(name, "in", _read_port(slet, annotation), method=method)


def _read_port(slet: str, annotation: Any) -> PortType:
    if _kind_of(annotation) in _PORTS:
        raise wrong(slet, f"a port carries no port ({annotation})", "write the type of the items")
    try:
        return port_type(annotation)
    except TypeError as problem:
        raise wrong(slet, str(problem), "give each its own port") from None


def _read_setting(name: str, annotation: Any, default: Any) -> Setting:
    missing = default is inspect.Parameter.empty or default is dataclasses.MISSING
    return Setting(name, annotation, None if missing else default, required=missing)


def read_settings(thing: Callable[..., Any]) -> dict[str, Setting]:
    """Read the keyword-only parameters of an application builder or a channel kind as settings."""
    name, maker, found = getattr(thing, "__qualname__", repr(thing)), thing, dict[str, Setting]()
    if isinstance(thing, type):
        maker = next(vars(base)["__init__"] for base in thing.__mro__ if "__init__" in vars(base))  # also inherited
    try:
        hints = _hints_of(maker, name)
        for parameter in inspect.signature(thing).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                annotation = _annotation_of(name, parameter.name, hints)
                found[parameter.name] = _read_setting(parameter.name, annotation, parameter.default)
            elif maker is thing:
                cure = "put `*, ` before the first parameter, so that all of them are given by name"
                raise wrong(name, f"{parameter.name!r} is not keyword-only", cure)
    except SletError as problem:
        what = "application builder" if maker is thing else "channel kind"
        raise SletError(**{**problem.facts, "what": what}) from None
    return found


def _hints_of(thing: Any, name: str) -> dict[str, Any]:
    """Resolve the annotations of a function or class; *name* is named in errors."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except NameError as problem:
        cure = "import it outside `if TYPE_CHECKING:`, and define the type at the module's top level"
        raise wrong(name, f"the annotation {problem.name!r} cannot be resolved at run time", cure) from None
    except (TypeError, AttributeError, SyntaxError) as problem:
        cure = "write a class, or a type from typing or collections.abc"
        raise wrong(name, f"an annotation is no type ({problem})", cure) from None


def _annotation_of(slet: str, parameter: str, hints: dict[str, Any]) -> Any:
    if parameter not in hints:
        raise wrong(slet, f"the parameter {parameter!r} has no type", f"write `{parameter}: T`")
    return unalias(hints[parameter])


def _kind_of(annotation: Any) -> Any:
    """The class of an annotation, without its arguments."""
    return typing.get_origin(annotation) or annotation


def _argument(annotation: Any) -> Any:
    return (typing.get_args(annotation) or (Any,))[0]


def wrong(slet: str, problem: str, cure: str) -> SletError:
    """The error for a signature that is not that of a slet."""
    return SletError(slet=slet, problem=problem, cure=cure)

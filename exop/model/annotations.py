"""Annotations, read at run time: the ports, state, settings and results that they declare."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from exop.errors import SletError
from exop.model.memento import Memento
from exop.model.ports import InputPort, InputPorts, OutputPort, OutputPorts, PortSpec, PortType, port_type
from exop.model.settings import Setting
from exop.model.spec import Result
from exop.model.types.description import type_of, unalias

ITERATORS = (collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator)
_NOTHING = (None, type(None), typing.NoReturn, typing.Never)
_ASYNC = (collections.abc.AsyncIterator, collections.abc.AsyncGenerator, collections.abc.AsyncIterable)


def hints_of(thing: Any, name: str) -> dict[str, Any]:
    """The annotations of a function or class, resolved. *name* is named in errors.

    Raises:
        SletError: one cannot be resolved at run time, or is no type.
    """
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except NameError as problem:
        raise SletError(
            slet=name,
            problem=f"the annotation {problem.name!r} cannot be resolved at run time",
            cure="import it outside `if TYPE_CHECKING:`, and define the type at the module's top level",
        ) from None
    except (TypeError, AttributeError, SyntaxError) as problem:
        cure = "write a class, or a type from typing or collections.abc"
        raise SletError(slet=name, problem=f"an annotation is no type ({problem})", cure=cure) from None


def annotation_of(slet: str, parameter: str, hints: dict[str, Any]) -> Any:
    """The type of one parameter or field.

    Raises:
        SletError: it has none.
    """
    if parameter not in hints:
        cure = f"write `{parameter}: T`"
        raise SletError(slet=slet, problem=f"the parameter {parameter!r} has no type", cure=cure)
    return unalias(hints[parameter])


def kind_of(annotation: Any) -> Any:
    """The class of an annotation, without its arguments."""
    return typing.get_origin(annotation) or annotation


def is_memento(annotation: Any) -> bool:
    """Tell whether a parameter of this type is the slet's state."""
    return isinstance(annotation, type) and issubclass(annotation, Memento)


def only_state(
    slet: str, known: tuple[str, type[Memento]] | None, name: str, annotation: type[Memento]
) -> tuple[str, type[Memento]]:
    """The state that a slet has; it has one.

    Raises:
        SletError: it has another one already.
    """
    if known is not None:
        raise SletError(slet=slet, problem=f"it has two mementos, {known[0]} and {name}", cure="put both in one class")
    return name, annotation


def read_input(slet: str, name: str, annotation: Any, method: str | None = None) -> PortSpec:
    """An input port: one that its slet pulls when it is typed `InputPort`."""
    if kind_of(annotation) is InputPort:
        return PortSpec(name, "in", read_port(slet, _argument(annotation)), pulled=True)
    return PortSpec(name, "in", read_port(slet, annotation), method=method)


def read_output(slet: str, annotation: Any) -> PortType:
    """Return the type of the items that leave by a field typed `OutputPort[T]`."""
    return read_port(slet, _argument(annotation))


def read_result(slet: str, hints: dict[str, Any]) -> tuple[Result, PortType | None]:
    """The shape of a result and what leaves, from a return annotation.

    Raises:
        SletError: there is none, or one that no slet can have.
    """
    if "return" not in hints:
        cure = "annotate it, with `-> None` for a sink"
        raise SletError(slet=slet, problem="it says not what it returns", cure=cure)
    annotation = unalias(hints["return"])
    if annotation in _NOTHING:
        return "none", None
    if kind_of(annotation) in _ASYNC:
        raise SletError(
            slet=slet, problem="the platform does not drive an asynchronous iterator", cure="return Iterator[T]"
        )
    if kind_of(annotation) in ITERATORS:
        item = unalias(_argument(annotation))
        if item in _NOTHING:
            return "none", None
        return "many", replace(read_port(slet, item), pauses=type_of(item).takes_none)
    found = type_of(annotation)
    if any(member.cls in ITERATORS for member in found.members):
        cure = "return Iterator[T]: one that is empty says the same as None"
        raise SletError(slet=slet, problem="an iterator is one of several results", cure=cure)
    return ("optional" if found.takes_none else "one"), read_port(slet, annotation)


def check_generator(slet: str, function: Callable[..., Any], result: Result) -> None:
    """Look whether what yields says so: called for its result, it would do nothing and give a generator away.

    Raises:
        SletError: it is a generator, and its annotation says otherwise.
    """
    if inspect.isgeneratorfunction(function) and result != "many":
        cure = "write `-> Iterator[T]`, T being what it yields; or drop the yield"
        raise SletError(slet=slet, problem="it yields, but its annotation declares one result", cure=cure)


def read_settings(thing: Callable[..., Any]) -> dict[str, Setting]:
    """The keyword-only parameters of a plain function (an application builder), or of a channel kind, as settings.

    Raises:
        SletError: one has no type, or a function takes something else; the message says what to write.
    """
    try:
        return dict(_keyword_only(thing))
    except SletError as problem:
        what = "channel kind" if isinstance(thing, type) else "application builder"
        raise SletError(**{**problem.facts, "what": what}) from None


def _keyword_only(thing: Callable[..., Any]) -> Iterator[tuple[str, Setting]]:
    name = getattr(thing, "__qualname__", repr(thing))
    hints = hints_of(_maker(thing) if isinstance(thing, type) else thing, name)
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            annotation = annotation_of(name, parameter.name, hints)
            yield parameter.name, read_setting(parameter.name, annotation, parameter.default)
        elif not isinstance(thing, type):
            cure = "put `*, ` before the first parameter, so that all of them are given by name"
            raise SletError(slet=name, problem=f"{parameter.name!r} is not keyword-only", cure=cure)


def _maker(kind: type) -> Any:
    """Return the `__init__` of a class, its own or inherited."""
    return next(vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base))


def read_setting(name: str, annotation: Any, default: Any) -> Setting:
    """The setting that a keyword-only parameter is."""
    missing = default is inspect.Parameter.empty
    return Setting(name, annotation, None if missing else default, required=missing)


def read_port(slet: str, annotation: Any) -> PortType:
    """Return the type of the items that a port carries.

    Raises:
        SletError: nothing that a port can carry.
    """
    if kind_of(annotation) in (InputPort, OutputPort, InputPorts, OutputPorts):
        raise SletError(slet=slet, problem=f"a port carries no port ({annotation})", cure="write the type of the items")
    try:
        return port_type(annotation)
    except TypeError as problem:
        raise SletError(slet=slet, problem=str(problem), cure="give each its own port") from None


def _argument(annotation: Any) -> Any:
    return (typing.get_args(annotation) or (Any,))[0]

"""What a platform can be asked: a table of small typed functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints, overload

import msgspec

from exop.remoting.limits import DEFAULT_LIMITS

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__exop_operation__"


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operation is asked with: sub-class it, one frozen class per operation.

    >>> class Describe(Request, frozen=True):
    ...     node: str
    """


class NoRequest(Request, frozen=True):
    """The request of an operation that needs to know nothing."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a platform can be asked.

    The handler runs in a thread of the connection, several at a time, and is short: an answer that is long comes in
    pages (`paging`), a result that takes time is asked for again. It never calls the peer.
    """

    name: str
    request: type[Request]
    handler: Callable[[Any], object]
    doc: str = ""
    reply: Any = Any
    max_request: int = DEFAULT_LIMITS.request
    """Bytes of its request; unpacked it may be up to 70 times as much."""


@dataclass(frozen=True, slots=True)
class _Marked:
    name: str | None
    max_request: int


@overload
def operation(function: F, /) -> F: ...


@overload
def operation(*, name: str | None = None, max_request: int = ...) -> Callable[[F], F]: ...


def operation(
    function: F | None = None, /, *, name: str | None = None, max_request: int = DEFAULT_LIMITS.request
) -> F | Callable[[F], F]:
    """Mark a function or method as an operation: its name, request and reply are read from the signature.

    The function stays what it was. `operations` collects the marked ones.

    >>> class Greet(Request, frozen=True):
    ...     whom: str
    >>> @operation
    ... def greet(request: Greet) -> str:
    ...     '''Say hello.'''
    ...     return f"hello {request.whom}"
    >>> operations(greet)["greet"].doc
    'Say hello.'

    Raises:
        TypeError: the parameter is no `Request`; told here, at the line that makes the mistake.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, _Marked(name, max_request))
        if "." not in function.__qualname__.rpartition("<locals>.")[2]:
            _read(function)
        return function

    return mark if function is None else mark(function)


def operations(*sources: object) -> dict[str, Operation]:
    """Collect the operations of functions, or of objects whose methods are marked (bound to that object).

    Raises:
        ValueError: two operations have one name.
    """
    table: dict[str, Operation] = {}
    for source in sources:
        for function in _marked(source):
            found = _read(function)
            if found.name in table:
                raise ValueError(f"two operations are called {found.name!r}")
            table[found.name] = found
    return table


def _marked(source: object) -> Iterator[Callable[..., Any]]:
    if callable(source) and hasattr(source, _MARK):
        yield source
        return
    for name, member in inspect.getmembers_static(type(source)):
        if hasattr(member, _MARK):
            yield getattr(source, name)


def _read(function: Callable[..., Any]) -> Operation:
    """Make the operation of a marked function out of its signature."""
    marked: _Marked = getattr(function, _MARK)
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        request: Any = NoRequest
    else:
        request = hints.get(parameters[0].name)
    if len(parameters) > 1 or not (isinstance(request, type) and issubclass(request, Request)):
        raise TypeError(
            f"{function.__qualname__} is no operation: it takes one parameter, annotated with a sub-class of "
            "exop.remoting.Request, or none"
        )
    return Operation(
        name=marked.name or function.__name__,
        request=request,
        handler=function if parameters else lambda _: function(),
        doc=inspect.getdoc(function) or "",
        reply=hints.get("return", Any),
        max_request=marked.max_request,
    )

"""Operations: small typed functions that a peer may call, each with the role that it needs.

Imports no library: the platform marks its methods with `operation`, and the first peer has the request types made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, get_args, get_type_hints, overload

from exop.remoting.transport.limits import DEFAULT_LIMITS
from exop.remoting.transport.sockets import Peer

if TYPE_CHECKING:
    from exop.remoting.transport.codec import Request

F = TypeVar("F", bound=Callable[..., Any])
#: `observe` reads; `operate` changes applications; `admin` changes the platform and the code on it.
Role: TypeAlias = Literal["observe", "operate", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
#: The peer that calls the operation which runs in this context.
PEER: Final[ContextVar[Peer | None]] = ContextVar("PEER", default=None)
#: Seconds that a client waits for an operation that opens slets or imports code.
LONG: Final = 120.0
#: The operations that change nothing, and so can be repeated after an error: also those with the role `observe`.
READING: Final = {"ping", "discover", "wait", "read_chunk", "send_chunk", "import_memento"}
READING.update(("plan", "plan_edits", "plan_reverse", "plan_topology"))
#: The cure of an error for one of them.
REPEAT: Final = "look at the process there, or repeat it"
_MARK: Final = "__exop_operation__"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a platform.

    The handler runs in the thread of a connection, and is short: a long list is sent in pages (`codec.page`), and the
    peer asks again for a result that takes time. It never calls the peer.

    Attributes:
        max_request: The maximum size of a request in bytes; a decoded request may be up to 70 times as large.
        role: The role that a peer needs; `None` if any identified peer may call it.
        long: Whether the operation may take long; a peer then starts the operation, and asks for the outcome.
        patience: The seconds that a client waits for the answer, instead of the usual time.
        on_refusal: Called with the name, the request and the reason when a call is refused because of the peer's role.
            Returns the application that the request names, or an empty string.
    """

    name: str
    request: type[Request]
    handler: Callable[[Any], object]
    doc: str = ""
    reply: Any = Any
    max_request: int = DEFAULT_LIMITS.request
    role: Role | None = "admin"
    long: bool = False
    patience: float | None = None
    on_refusal: Callable[[str, Any, str], str] | None = None


@overload
def operation(function: F, /) -> F: ...


@overload
def operation(
    *,
    name: str | None = None,
    role: Role | None = "admin",
    max_request: int = ...,
    long: bool = False,
    patience: float | None = None,
) -> Callable[[F], F]: ...


def operation(function: F | None = None, /, **marks: Any) -> F | Callable[[F], F]:
    """Mark a function or method as an operation: name, request, reply and help come from its signature.

    The function itself does not change; its parameters are the fields of the request. A parameter annotated with a
    sub-class of `exop.remoting.Request` is the whole request. `operations` collects the marked functions.

    >>> @operation(role="observe")
    ... def greet(whom: str) -> str:
    ...     '''Say hello.'''
    ...     return f"hello {whom}"
    >>> operations(greet)["greet"].doc
    'Say hello.'

    Raises:
        TypeError: a parameter has no annotation.
    """

    def mark(function: F) -> F:
        parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
        if bare := [one.name for one in parameters if one.annotation is one.empty or one.kind is one.VAR_KEYWORD]:
            raise TypeError(f"{function.__qualname__} is no operation: annotate its parameter {bare[0]!r} with a type")
        setattr(function, _MARK, marks)
        if marks.get("role") == "observe":
            READING.add(marks.get("name") or function.__name__)
        return function

    return mark if function is None else mark(function)


def unanswered(operation: str) -> dict[str, str]:
    """Return the facts of an error for a call without an answer."""
    return {"operation": operation} | ({"cure": f"nothing was changed; {REPEAT}"} if operation in READING else {})


def operations(
    *sources: object, wire: Mapping[str, Any] | None = None, around: Callable[..., object] | None = None
) -> dict[str, Operation]:
    """Collect the operations of functions, or of objects whose methods are marked (bound to that object).

    *wire* has the wire types, by the names in the annotations that they replace; *around* is called with the operation,
    the function and its arguments, instead of the function.

    Raises:
        ValueError: two operations have one name.
    """
    table: dict[str, Operation] = {}
    for source in sources:
        for marked, function in marked_operations(source):
            if (found := operation_of(marked, function, wire, around)).name in table:
                raise ValueError(f"two operations are called {found.name!r}")
            table[found.name] = found
    return table


def marked_operations(source: object) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Yield the operations of a function, class or object, each as it was marked, and as *source* carries it out."""
    if callable(source) and hasattr(source, _MARK):
        yield source, source
        return
    kind = source if isinstance(source, type) else type(source)
    members = (member for one in reversed(kind.__mro__) for member in vars(one).items())
    marked = {name: member for name, member in members if hasattr(member, _MARK)}
    for name in sorted(marked):
        yield marked[name], getattr(source, name)


def operation_of(
    marked: Callable[..., Any],
    function: Callable[..., Any],
    wire: Mapping[str, Any] | None = None,
    around: Callable[..., object] | None = None,
) -> Operation:
    """Make the operation that *function* carries out from the signature of the *marked* function."""
    request, reply, whole, doc = _request_of(marked, frozenset((wire or {}).items()))
    marks = dict(getattr(marked, _MARK))
    name = marks.pop("name", None) or marked.__name__

    def handler(request: Any) -> object:
        given = {whole: request} if whole else {one: getattr(request, one) for one in request.__struct_fields__}
        return function(**given) if around is None else around(found, function, given)

    found = Operation(name, request, handler, doc, reply, **marks)
    return found


@cache
def _request_of(marked: Callable[..., Any], wire: frozenset[tuple[str, Any]]) -> tuple[Any, Any, str | None, str]:
    """Return the types of the request and the reply, the parameter that is the whole request, and the documentation.

    Made once: of each further platform in a process, it would take a third of the start.
    """
    # Imported lazily: only a connection needs msgspec.
    import msgspec

    from exop.remoting.transport.codec import NoRequest, Request

    hints, doc = get_type_hints(marked, localns=dict(wire), include_extras=True), inspect.getdoc(marked) or ""
    parameters = [one for one in inspect.signature(marked).parameters.values() if one.name != "self"]
    for one in parameters:
        if isinstance(kind := hints[one.name], type) and issubclass(kind, Request):
            return kind, hints.get("return", Any), one.name, doc
    fields = [(one.name, hints[one.name], *(() if one.default is one.empty else (one.default,))) for one in parameters]
    name = getattr(marked, _MARK).get("name") or marked.__name__
    request = msgspec.defstruct(name, fields, bases=(Request,), frozen=True, kw_only=True) if fields else NoRequest
    return request, hints.get("return", Any), None, doc

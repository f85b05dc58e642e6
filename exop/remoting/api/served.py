"""The serving side of the management interface: long work is begun, plans wait, long bytes travel in pieces."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

import msgspec

from exop.errors import PlanError
from exop.model.meshes.mesh import Mesh
from exop.remoting.api.management import Management
from exop.remoting.api.tasks import Tasks
from exop.remoting.api.transfers import INLINE, LARGEST_REQUEST, PIECE, Pieces
from exop.remoting.api.wire_types import WIRE, Begun, Changed, Kept, Planned, Proof, Topology, proven
from exop.remoting.transport.operation import LONG, Operation, operation, operations
from exop.remoting.transport.paging import Page, PageRequest, page

if TYPE_CHECKING:
    from exop.wiring.changes.plan import Plan

T = TypeVar("T")
#: The numbers of plans that wait at a time, and of those that hold mementos, which may be large; the oldest makes room.
MOST_PLANS: Final = 32
MOST_HEAVY: Final = 2
#: Seconds that the drivers have to come to their safe points; 10 where it is left out.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class ServicesRequest(PageRequest, frozen=True, kw_only=True):
    """Services that a filter fits."""

    filter: str = ""


class Served:
    """The operations of one platform, as its peers call them."""

    def __init__(self, platform: Management[Plan]) -> None:
        self._platform = platform
        self._pieces = Pieces()
        self._plans: Shelf[Plan] = Shelf("plan", MOST_PLANS)
        self._heavy: Shelf[Plan] = Shelf("plan", MOST_HEAVY)
        self._tasks: Tasks[object] = Tasks("change")

    def table(self) -> dict[str, Operation]:
        """The operations by name."""
        return operations(self._platform, wire=WIRE, around=self._answer) | operations(self, around=self._called)

    def _answer(self, operation: Operation, function: Callable[..., Any], given: dict[str, Any]) -> object:
        """Call an operation of the platform with values that have crossed, and return what can cross."""
        opened = {name: self._opened(value) for name, value in given.items()}
        return self._called(operation, lambda: self._closed(function(**opened), operation.reply), {})

    def _called(self, operation: Operation, function: Callable[..., Any], given: dict[str, Any]) -> object:
        """Call a function, or begin to: what may take long is asked for by `outcome`."""
        return self.outcome(self._tasks.begin(lambda: function(**given))) if operation.long else function(**given)

    def _opened(self, value: Any) -> Any:
        if isinstance(value, Kept):
            return self._pieces.take(value.number)
        return value.read(self._platform, self._opened) if isinstance(value, Topology) else value

    def _closed(self, value: Any, kind: Any = None) -> Any:
        from exop.wiring.changes.plan import Plan

        if isinstance(value, bytes) and len(value) > INLINE:
            return Kept(self._pieces.put(value), len(value))
        if isinstance(value, tuple):
            return tuple(self._closed(one) for one in value)
        if isinstance(value, Plan):
            heavy = any(node.memento is not None for node in value.after.nodes.values())
            return Planned.of((self._heavy if heavy else self._plans).put(value), value)
        if isinstance(value, Mesh):
            return self._changed(value) if kind is Changed else Topology.of(value)
        return value

    def _changed(self, made: Mesh) -> Changed:
        last = self._platform.status(made.name)["last_change"]
        paused = last["paused_ms"] if last is not None and last["revision"] == made.revision else None
        return Changed(made.name, made.revision, paused)

    @operation(role="operate", patience=LONG, long=True)
    def carry_out(
        self,
        plan: str,
        timeout: Seconds | None = None,
        pause: Seconds | None = None,
        stall: bool = False,
        proof: Proof | None = None,
    ) -> Changed:
        """Make a change that was planned."""
        shelf = self._heavy if plan in self._heavy else self._plans
        return self._changed(proven(shelf.take(plan), proof).apply(timeout=timeout, pause=pause, stall=stall))

    @operation(role="operate")
    def outcome(self, number: str) -> Begun[Any]:
        """Return the result of what was begun; none while it is under way."""
        return Begun(number, self._tasks.result(number))

    @operation(role="observe")
    def services(self, request: ServicesRequest) -> Page[dict[str, Any]]:
        """The services in the registry, with their properties, by id."""
        return page(self._platform.services(request.filter), request, key=lambda row: f"{row['id']:012d}")

    @operation(role="observe")
    def read_piece(self, number: str, offset: Annotated[int, msgspec.Meta(ge=0)]) -> bytes:
        """One piece of bytes that are kept; the last one is given out once."""
        return self._pieces.read(number, offset)

    @operation(role="operate", max_request=LARGEST_REQUEST)
    def send_piece(self, number: str, data: Annotated[bytes, msgspec.Meta(max_length=PIECE)]) -> str:
        """Keep one more piece of bytes; returns the number under which."""
        return self._pieces.put(data, number)


class Shelf(Generic[T]):
    """Values that wait to be asked for by their number; bounded, the oldest makes room."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._held: dict[str, T] = {}
        self._lock = threading.Lock()

    def put(self, one: T) -> str:
        """Keep it, and return its number."""
        number = secrets.token_hex(8)
        with self._lock:
            self._held[number] = one
            while len(self._held) > self._most:
                del self._held[next(iter(self._held))]
        return number

    def __contains__(self, number: str) -> bool:
        with self._lock:
            return number in self._held

    def take(self, number: str) -> T:
        """Give it out, once.

        Raises:
            PlanError: there is none of this number (any more).
        """
        with self._lock:
            if number not in self._held:
                raise PlanError(f"the platform has no {self._what} {number!r} (any more); make it again")
            return self._held.pop(number)

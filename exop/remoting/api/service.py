"""The service behind the control connection: management operations whose plans, results and bytes cross by number."""

from __future__ import annotations

import contextvars
import secrets
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from exop.errors import PlanError, PlatformBusy
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.topology import name_in
from exop.remoting.api import wire_types as wire
from exop.remoting.api.management import STOP, Management
from exop.remoting.transport.codec import Page, PageRequest, page
from exop.remoting.transport.limits import MIB
from exop.remoting.transport.operation import LONG, Operation, operation, operations
from exop.runtime.history import calling_platform

if TYPE_CHECKING:
    from exop.wiring.changes.plan import Plan

T = TypeVar("T")
#: The plans that the platform keeps, and those with mementos, which may be large; the oldest makes room.
MOST_PLANS: Final = 32
MOST_HEAVY_PLANS: Final = 2
#: The values in chunks that the platform keeps, and the bytes of all of them; the oldest makes room.
MOST_CHUNKED: Final = 256
ALL_CHUNKED: Final = 128 * MIB
#: The tasks that run at a time, and the results that wait to be fetched; the oldest result makes room.
RUNNING: Final = 8
ENDED: Final = 32
#: Seconds that a call, and its connection, waits for the end of a task before the client asks again.
PATIENCE: Final = 0.25
#: Seconds that the drivers have to come to their safe points; 10 if omitted.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Numbered(dict[str, T]):
    """Values that clients refer to by number. While *is_full* holds, the oldest one that *may_go* makes room.

    Looking up a number that is not there raises `PlanError` with the text *missing*.
    """

    def __init__(
        self, missing: str, is_full: Callable[[Collection[T]], bool], may_go: Callable[[T], bool] = lambda _: True
    ) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self._missing, self._is_full, self._may_go = missing, is_full, may_go

    def __missing__(self, number: str) -> T:
        raise PlanError(self._missing.format(number))

    def put(self, value: T, number: str = "") -> str:
        """Keep a value, under a new number if none is given; return the number."""
        number = number or secrets.token_hex(8)
        with self.lock:
            self[number] = value
            while self._is_full((removable := {key: one for key, one in self.items() if self._may_go(one)}).values()):
                del self[next(iter(removable))]
        return number

    def take(self, number: str) -> T:
        """Remove the value under a number, and return it."""
        with self.lock:
            value = self[number]
            del self[number]
            return value


class Tasks(Numbered[Future[Any]]):
    """Long work: one call begins it, others ask for its result, and no thread of a connection waits for it."""

    def __init__(self) -> None:
        missing = "the platform carries out nothing of the number {!r} (any more)"
        super().__init__(missing, lambda ended: len(ended) >= ENDED, Future.done)

    def begin(self, work: Callable[[], object]) -> str:
        """Begin *work* in a thread of its own; return its number."""
        future: Future[Any] = Future()
        with self.lock:
            if (running := sum(not one.done() for one in self.values())) >= RUNNING:
                raise PlatformBusy(operation="task", problem=f"{running} others are under way")
            number = self.put(future)

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 (it is raised where the result is fetched)
                future.set_exception(error)

        threading.Thread(target=contextvars.copy_context().run, args=(run,), name="exop change", daemon=True).start()
        return number


class ServicesRequest(PageRequest, frozen=True, kw_only=True):
    """Services that a filter fits."""

    filter: str = ""


class ManagementService:
    """The operations of one platform, as its peers call them."""

    def __init__(self, platform: Management[Plan]) -> None:
        self._platform = platform
        self._chunked = Numbered[bytearray](
            "the platform keeps nothing under the number {!r} (any more); send it again",
            lambda values: len(values) > MOST_CHUNKED or sum(map(len, values)) > ALL_CHUNKED,
        )
        missing = "the platform has no plan {!r} (any more); make it again"
        self._plans: Numbered[Plan] = Numbered(missing, lambda plans: len(plans) > MOST_PLANS)
        self._heavy_plans: Numbered[Plan] = Numbered(missing, lambda plans: len(plans) > MOST_HEAVY_PLANS)
        self._tasks, self._readings = Tasks(), Tasks()  # a peer that only reads takes no room from others

    def table(self) -> dict[str, Operation]:
        """The operations by name."""
        table = operations(self._platform, wire=wire.WIRE, around=self._answer) | operations(self, around=self._called)
        return {name: replace(one, handler=self._audited(one), on_refusal=self._refused) for name, one in table.items()}

    def _audited(self, one: Operation) -> Callable[[Any], object]:
        """Return the handler of an operation, which counts calls of other platforms, unless they only read.

        Of operations without a role, which decide themselves what a peer may do, it counts refused calls only.
        """

        def handler(request: Any) -> object:
            if not calling_platform():
                return one.handler(request)
            application, history = _application_in(request), self._platform._applications.history
            with history.audited(application, one.name, refusals_only=one.role is None):
                return one.handler(request)

        return one.handler if one.role == "observe" else handler

    def _refused(self, operation: str, request: Any, reason: str) -> str:
        """Count a refused call in the history of the application that the request names; return its name."""
        application = _application_in(request)
        self._platform._applications.history.counted(application, operation, reason)
        return application

    def _answer(self, operation: Operation, function: Callable[..., Any], given: dict[str, Any]) -> object:
        """Call an operation of the platform with received values, and return a value that can be sent."""
        given = {name: self._from_wire(value) for name, value in given.items()}
        return self._called(operation, lambda: self._to_wire(function(**given), operation.reply), {})

    def _called(self, operation: Operation, function: Callable[..., Any], given: dict[str, Any]) -> object:
        """Call a function; if it may take long, begin it as a task, whose result `outcome` returns."""
        if not operation.long:
            return function(**given)
        tasks = self._readings if operation.role == "observe" else self._tasks
        return self._outcome(tasks, tasks.begin(lambda: function(**given)))

    def _from_wire(self, value: Any) -> Any:
        if isinstance(value, wire.Chunked):
            return bytes(self._chunked.take(value.number))
        return value.read(self._platform, self._from_wire) if isinstance(value, wire.Topology) else value

    def _to_wire(self, value: Any, kind: Any = None) -> Any:
        if isinstance(value, bytes) and len(value) > wire.INLINE:
            return wire.Chunked(self.send_chunk("", value), len(value))
        if isinstance(value, tuple):
            return tuple(self._to_wire(one) for one in value)
        if kind is wire.Planned:
            heavy = any(node.memento is not None for node in value.after.nodes.values())
            return wire.Planned.of((self._heavy_plans if heavy else self._plans).put(value), value)
        if isinstance(value, Mesh):
            return self._changed(value) if kind is wire.Changed else wire.Topology.of(value)
        return value

    def _changed(self, made: Mesh) -> wire.Changed:
        last = self._platform.status(made.name)["last_change"]
        paused = last["paused_ms"] if last is not None and last["revision"] == made.revision else None
        return wire.Changed(made.name, made.revision, paused)

    @operation(role="operate", patience=LONG, long=True)
    def carry_out(
        self,
        plan: str,
        timeout: Seconds | None = None,
        pause: Seconds | None = None,
        stall: bool = False,
        proof: wire.Proof | None = None,
    ) -> wire.Changed:
        """Carry out a plan."""
        plans = self._heavy_plans if plan in self._heavy_plans else self._plans
        return self._changed(wire.proven(plans.take(plan), proof).apply(timeout=timeout, pause=pause, stall=stall))

    @operation(role="operate", patience=STOP)
    def wait(self, application: str) -> bool:
        """Return whether an application has finished; then, its end is stored. A client asks again and again."""
        return self._platform.wait(application, 0.0)

    @operation(role="observe")
    def outcome(self, number: str) -> wire.Begun[Any]:
        """Return the result of a task; none while it runs."""
        return self._outcome(self._readings if number in self._readings else self._tasks, number)

    def _outcome(self, tasks: Tasks, number: str) -> wire.Begun[Any]:
        try:
            tasks[number].exception(PATIENCE)
        except TimeoutError:
            return wire.Begun(number)
        return wire.Begun(number, ended=True, result=tasks.take(number).result())

    @operation(role="observe")
    def services(self, request: ServicesRequest) -> Page[dict[str, Any]]:
        """The services in the registry, with their properties, by id."""
        return page(self._platform.services(request.filter), request, key=lambda row: f"{row['id']:012d}")

    @operation(role=None)
    def read_chunk(self, number: str, offset: Annotated[int, msgspec.Meta(ge=0)]) -> bytes:
        """Return one chunk of a value that the platform keeps; the last one removes the value.

        Its number, which only the receiver of the value knows, is the permission.
        """
        with self._chunked.lock:
            if offset + wire.CHUNK >= len(value := self._chunked[number]):
                self._chunked.take(number)
            return bytes(value[offset : offset + wire.CHUNK])

    @operation(role="operate", max_request=wire.CHUNK + 10_000)
    def send_chunk(self, number: str, data: Annotated[bytes, msgspec.Meta(max_length=wire.CHUNK)]) -> str:
        """Keep one more chunk of a value; return its number."""
        with self._chunked.lock:
            value = self._chunked[number] if number else bytearray()
            wire.check_size(len(value) + len(data))
            value += data
            return self._chunked.put(value, number)


def _application_in(request: Any) -> str:
    """Return the name of the application that a request concerns, or an empty string."""
    toml = getattr(getattr(request, "mesh", request), "toml", "")
    found = name_in(toml) if toml else getattr(request, "application", None)
    return found if isinstance(found, str) else ""

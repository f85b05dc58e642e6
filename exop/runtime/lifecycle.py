"""The life cycle of a component: its states, and the hooks of its slet: open, quiesce, flush, close."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sized
from enum import StrEnum
from types import FunctionType
from typing import Any, Final

from exop.errors import ComponentFailed, LifecycleError
from exop.logs import logger
from exop.model.meshes.mesh import Node
from exop.model.slets.memento import Memento
from exop.model.slets.slet import Slet
from exop.model.slets.spec import SletSpec
from exop.model.values.depth import deep_place
from exop.runtime.dataflow.entry import Unwind
from exop.runtime.drivers.base import Driver
from exop.runtime.durable.engine_journal import EngineJournal
from exop.runtime.supervision.budget import CLOSING, OPENING, Opened, Owner, UserCall, UserCalls
from exop.safe_repr import RAISED, error_text, message, safe_repr

#: Seconds to wait until one slet's `metrics()` returns.
PATIENCE: Final = 0.1
#: Limits of the metrics of one slet in the status: their number, characters of each, levels of nesting.
_FIGURES: Final = 200
_LENGTH: Final = 500
_LEVELS: Final = 8


class State(StrEnum):
    """The state of a component in its life cycle (paper §2.4)."""

    CREATED = "created"
    OPENING = "opening"
    READY = "ready"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    FAILED = "failed"
    ENDED = "ended"
    STOPPED = "stopped"
    DESTROYED = "destroyed"


class Event(StrEnum):
    """An event in the life cycle of a component."""

    OPEN = "open"
    OPENED = "opened"
    START = "start"
    SUSPEND = "suspend"
    RESUME = "resume"
    FAIL = "fail"
    END = "end"
    STOP = "stop"
    DESTROY = "destroy"


_S, _E = State, Event

#: The state after an event; a missing pair is not allowed.
TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (before, event): after
    for event, states, after in (
        (_E.OPEN, [_S.CREATED], _S.OPENING),
        (_E.OPENED, [_S.OPENING], _S.READY),
        (_E.START, [_S.READY], _S.ACTIVE),
        (_E.SUSPEND, [_S.READY, _S.ACTIVE], _S.SUSPENDED),
        (_E.RESUME, [_S.SUSPENDED, _S.FAILED], _S.ACTIVE),
        (_E.FAIL, [_S.OPENING], _S.STOPPED),  # the slet never was open: there is nothing to close or to resume
        # An engine continues to run while its component is suspended.
        (_E.FAIL, [_S.READY, _S.ACTIVE, _S.SUSPENDED, _S.FAILED, _S.ENDED], _S.FAILED),
        (_E.END, [_S.ACTIVE, _S.SUSPENDED], _S.ENDED),
        (_E.STOP, [_S.READY, _S.ACTIVE, _S.SUSPENDED, _S.FAILED, _S.ENDED], _S.STOPPED),
        (_E.DESTROY, [_S.CREATED, _S.STOPPED], _S.DESTROYED),
    )
    for before in states
}


def refused(component: str, state: State, event: Event, allowed: str = "") -> LifecycleError:
    """Return the error for an event that is not allowed: by default, which ones the state of the component allows."""
    allowed = allowed or ", ".join(other for other in Event if (state, other) in TRANSITIONS) or "nothing"
    return LifecycleError(component=component, state=str(state), event=str(event), allowed=allowed)


class Lifecycle(Owner):
    """The life cycle of a component, and the calls that make its slet open, flush, report metrics and close.

    Attributes:
        id: Unique in the platform; a replacement has another one.
        name: The application and the node: `app.node`.
        driver: The driver of an α-slet, of a slet that pulls, or of an engine; other slets have none.
        tie: The connection of an engine with the platform; other slets have none.
        user: Calls the slet's own code, with a time limit.
        muted: Whether notifications of state changes are deferred until `announce`.
        entered: The monotonic time at which its opening began; 0 before.
        stuck: A call without an item has failed; the slet accepts no items until it is resumed or replaced.
        closed: The slet was closed before its successor opened; if that failed, another instance is to replace it.
    """

    __slots__ = ("_changed", "_going_on", "_turn", "node", "spec", "status", "user")

    # Defaults that most slets never change are class attributes, so that thousands of idle slets need little memory.
    instance: Any = None
    driver: Driver | None = None
    tie: EngineJournal | None = None
    error: BaseException | None = None
    committing: UserCall[Any] | None = None
    _asking: UserCall[None] | None = None
    _figures: Mapping[str, Any] = {}
    muted = stuck = closed = _open = _shut = False
    entered = 0.0
    _stopped_by: object = None

    def __init__(
        self, component_id: str, application: str, node: Node, changed: Callable[[Any], None], user: UserCalls
    ) -> None:
        super().__init__(application, node.name, component_id)
        self.node = node
        self.spec = node.slet
        self.user = user
        self.status = State.CREATED
        self._changed = changed
        self._turn, self._going_on = threading.RLock(), threading.Lock()

    def allows(self, event: Event) -> bool:
        """Whether the state allows an event."""
        return (self.status, event) in TRANSITIONS

    def on(self, event: Event) -> None:
        """Apply a life-cycle event; `LifecycleError` if the state does not allow it."""
        with self._turn:
            if (state := TRANSITIONS.get((self.status, event))) is None:
                raise refused(self.name, self.status, event)
            self.become(state)

    def become(self, state: State) -> None:
        """Enter a state; the driver of a slet that is suspended parks."""
        self.status = state
        if self.driver is not None and self.shut is not self._shut:
            self._shut = self.shut
            (self.driver.close if self.shut else self.driver.open)()
        self.notify()

    @property
    def shut(self) -> bool:
        """Whether the slet is suspended, or a call without an item has failed."""
        return self.status is State.SUSPENDED or (self.stuck and self.status is State.FAILED)

    @property
    def held(self) -> bool:
        """Whether the slet accepts no items: it is suspended, will be suspended when it starts, or is closed."""
        waiting = self.node.suspended and self.status in (State.CREATED, State.OPENING, State.READY)
        return waiting or self.shut or self.status is State.STOPPED

    def notify(self) -> None:
        """Notify listeners that a visible property has changed, unless the component is muted."""
        if not self.muted:
            self._changed(self)

    def announce(self) -> None:
        """Send the notifications that were deferred while the component was muted."""
        self.muted = False
        self._changed(self)

    @property
    def opens(self) -> bool:
        """Whether opening the component runs code of the slet, or reads from disk."""
        return self.tie is not None or opens(self.spec)

    def enter(self, seconds: float | None = None) -> None:
        """Open the slet within *seconds* (`OPENING` by default); when this returns, the slet is ready.

        Raises:
            ComponentFailed: the slet raised, or did not open in time; if it opens later, it is closed at once.
        """
        self.entered = begin = time.monotonic()
        self.muted = not self.opens  # with nothing to open, one notification is enough
        self.on(Event.OPEN)
        computed = 0.0
        try:
            if self.tie is not None:
                self.tie.open()
            if opens(self.spec):
                limit = OPENING if seconds is None else seconds
                computed = self.user.run(self, "opening", self._enter, limit, self._close, interruptible=True)
            self._open = self.instance is not None
            with self._turn:
                if self.error is not None:  # an engine has reported an error meanwhile
                    raise self.error
                self.on(Event.OPENED)
        except BaseException as error:
            self.error = error
            self.on(Event.FAIL)
            if isinstance(error, ComponentFailed) or not isinstance(error, RAISED):
                raise
            problem = message(error) or error_text(error)
            raise ComponentFailed(node=self.node.name, phase="opening", problem=problem) from error
        finally:
            if self.muted:
                self.announce()
        self.user.opened[self.spec.identity] = Opened(time.monotonic() - begin, computed)

    def _enter(self) -> float:
        """Open the slet; return the seconds of CPU time that this took."""
        begin = time.thread_time()
        self.instance.__enter__()
        self._open = True
        self.instance.ready()
        return time.thread_time() - begin

    def begin_exit(self) -> UserCall[None] | None:
        """Start to close the slet; return the running call of its close function, or `None` if it has none."""
        if self.allows(Event.STOP):
            self.on(Event.STOP)
        if self._open and overrides(type(self.instance), "__exit__"):
            return self.user.begin(self, "closing", self._close)
        self._open = False
        return None

    def end_exit(self, closing: UserCall[None] | None, seconds: float) -> None:
        """Wait up to *seconds* for the call that `begin_exit` returned, or raise `ComponentFailed`."""
        try:
            if closing is not None:
                closing.result(seconds)
        finally:
            if self.tie is not None:
                self.tie.close()

    def exit(self, seconds: float = CLOSING) -> None:
        """Close the slet, if it is open, within *seconds*; it also counts as closed after a `ComponentFailed`."""
        self.end_exit(self.begin_exit(), seconds)

    def close_early(self, seconds: float) -> None:
        """Close the slet while its component stays in its place, with its driver parked."""
        self.closed = True

        def close() -> None:
            if self.driver is not None:
                self.driver.let_go()
            if self.tie is not None:
                self.tie.retire()
            self._close()

        try:
            self.user.run(self, "closing", close, seconds)
        except RAISED as error:  # whether what it owns is free is seen when the successor opens
            logger("exop.runtime").error("a slet does not close", node=self.id, error=error_text(error))

    def _close(self) -> None:
        """Close the slet; convert `SystemExit` and the like into an ordinary error."""
        with self._turn:
            opened, self._open = self._open, False
        try:
            if opened:
                self.instance.__exit__(None, None, None)
        except (Exception, Unwind):
            raise
        except BaseException as error:
            raise ComponentFailed(node=self.node.name, phase="closing", problem=error_text(error)) from error

    def flush(self, seconds: float = CLOSING) -> None:
        """Make the slet write its buffered output within *seconds*, or raise `ComponentFailed`."""
        try:
            if callable(flush := getattr(self.instance, "flush", None)) and not self.closed:
                self.user.run(self, "flushing", flush, seconds)
        except RAISED as error:
            problem = error.problem if isinstance(error, ComponentFailed) else error_text(error)
            problem += "; its buffered output is not written: fix the cause and try again, replace the slet with "
            problem += "lose_state=True (--lose-state), which drops this output"
            problem += "" if hasattr(self.instance, "commit_checkpoint") else ", or remove it"
            raise ComponentFailed(node=self.node.name, phase="flushing", problem=problem) from error

    def settle(self, seconds: float) -> None:
        """Wait up to *seconds* for the slet to commit a checkpoint; after that, abandon the commit."""
        if (call := self.committing) is not None and not call.wait(seconds):  # a checkpoint may end meanwhile
            call.abandon()

    def stopping(self, *, then_proceed: bool = False) -> Callable[[], None]:
        """Return a call that makes an engine emit the results of all its input; any thread may make this call.

        If `proceed` is called before, the returned call does nothing; if `proceed` is called during it, the slet
        proceeds at its end. If *then_proceed*, the slet proceeds in any case, unless `stopping` was called once more.
        """
        self._stopped_by = stop = object()

        def quiesce() -> None:
            if self._going_on.acquire(timeout=CLOSING):  # an earlier call may return late
                self._going_on.release()
            if self._stopped_by is not stop:
                return
            try:
                if self.instance is not None:
                    self.instance.quiesce()
                if self.tie is not None:
                    self.tie.settle()
            finally:
                with self._going_on:
                    if self._open and (self._stopped_by is None or (then_proceed and self._stopped_by is stop)):
                        self._go_on()

        return quiesce

    def inside(self) -> int | None:
        """Return the number of items inside an engine: 0 if it answers at once, `None` if it does not tell."""
        if not overrides(type(self.instance), "resting"):
            return None if overrides(type(self.instance), "quiesce") else 0
        return int(self.instance.resting())

    def proceed(self) -> None:
        """Make an engine that was stopped and not replaced continue."""
        self._stopped_by = None
        if not self.closed:
            self.user.run(self, "going on", self._go_on, CLOSING)

    def _go_on(self) -> None:
        if self.tie is not None:
            self.tie.release()
        if self.instance is not None and overrides(type(self.instance), "proceed"):
            self.instance.proceed()

    def own_figures(self) -> dict[str, Any]:
        """Return the latest result of the slet's `metrics()`, with a note if the call raises or does not return."""
        if self.instance is None or not overrides(type(self.instance), "metrics"):
            return {}
        with self._turn:
            if (asking := self._asking) is None or asking.over:
                asking = self._asking = self.user.begin(self, "reporting figures", self._ask_figures)
        if not asking.wait(PATIENCE):
            return {**self._figures, "metrics()": f"has not answered for {asking.seconds:.1f} s"}
        return dict(self._figures)

    def _ask_figures(self) -> None:
        try:
            found = list(self.instance.metrics().items())
            figures = {_text(name): _bounded(value) for name, value in found[:_FIGURES]}
            if len(found) > _FIGURES:
                figures["metrics()"] = f"has {len(found)} figures; {_FIGURES} are shown"
            self._figures = figures
        except BaseException as problem:  # noqa: BLE001 (no error of a slet may affect the caller)
            self._figures = {"metrics()": f"raised {safe_repr(problem)}"}


def overrides(cls: Callable[..., Any], *names: str) -> bool:
    """Whether a slet's class overrides one of these methods."""
    return any(getattr(cls, name, None) is not getattr(Slet, name) for name in names)


def opens(spec: SletSpec) -> bool:
    """Whether opening the slet runs its code."""
    return spec.is_class and overrides(spec.factory, "__enter__", "ready")


def imports_to_open(spec: SletSpec) -> list[str]:
    """List the modules not imported yet that `__enter__` imports."""
    # Imported lazily: only plans that open a class need it.
    import dis
    from importlib.util import resolve_name

    if not isinstance(function := getattr(spec.factory, "__enter__", None), FunctionType):
        return []
    instructions, package = list(dis.get_instructions(function)), function.__globals__.get("__package__") or ""
    imports = [place for place, one in enumerate(instructions) if one.opname == "IMPORT_NAME"]
    names = ["." * instructions[place - 2].argval + instructions[place].argval for place in imports]
    full = [resolve_name(name, package) for name in names if package or not name.startswith(".")]
    return [name for name in dict.fromkeys(full) if name not in sys.modules]


def makes_freely(kind: type[Memento]) -> bool:
    """Whether an instance is made without running code of the memento's author."""
    factories = [one.default_factory for one in dataclasses.fields(kind)]  # type: ignore[arg-type]
    builtin = all(one is dataclasses.MISSING or getattr(one, "__module__", "") == "builtins" for one in factories)
    return builtin and not hasattr(kind, "__post_init__")


def sets_freely(cls: type, names: Iterable[str]) -> bool:
    """Return whether setting these attributes calls no code of the class (`__setattr__`, data descriptors)."""
    return not overrides(cls, "__setattr__") and not any(hasattr(getattr(cls, one, None), "__set__") for one in names)


def _bounded(value: Any) -> Any:
    """Return the value, or an abbreviated string if it is too long or nested too deeply for the status."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sized) and len(value) > _FIGURES:
        return f"a {type(value).__name__} of {len(value)} values"
    text = safe_repr(value, _LENGTH)
    return value if len(text) < _LENGTH and deep_place(value, _LEVELS) is None else text


def _text(value: Any) -> str:
    text = message(value)
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}…"

"""Opening and closing slets, and flushing what they buffer: their own code, each call within a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from exop.errors import ComponentFailed
from exop.logs import logger
from exop.model.lifecycle import Event, Lifecycle, State
from exop.model.mesh import Node
from exop.model.slet import Slet
from exop.runtime.budget import CLOSING, UserCall, UserCalls
from exop.runtime.tied.live import LiveTie
from exop.runtime.unwind import Unwind
from exop.shown import RAISED, described

if TYPE_CHECKING:
    from exop.runtime.component import Component

#: Seconds for which a slet that is slow to close keeps those downstream of it from closing.
HOLDING = 0.5
#: Seconds that slets have to close, though the time for leaving has passed.
LEAST = 0.2
#: Seconds between two calls of `make_visible` while items come.
VISIBLE_WITHIN = 1.0
#: Seconds for which one such call keeps the others.
HASTE = 0.05


class Hooks:
    """The half of a component that calls the hooks of its slet, each within a time; its attributes stand there."""

    id: str
    application: str
    node: Node
    instance: Any
    tie: LiveTie | None
    user: UserCalls
    lifecycle: Lifecycle
    error: BaseException | None
    entered: float
    computed: float
    committing: UserCall[Any] | None = None
    _open: bool
    _stopped_by: object = None
    _turn: threading.RLock
    _going_on: threading.Lock

    def on(self, event: Event) -> None:
        """Take a life-cycle event."""
        raise NotImplementedError

    def enter(self, seconds: float | None = None) -> None:
        """Open the slet within so many seconds; it is ready when this returns.

        Raises:
            ComponentFailed: it has not opened in time; should it do so later, it is closed at once.
        """
        self.entered = time.monotonic()
        self.on(Event.OPEN)
        try:
            if self.tie is not None:
                self.tie.open()
            if self._defines("__enter__") or self._defines("ready"):
                self.user.run(self, "opening", self._enter, seconds, self._close, interruptible=True)
            self._open = self.instance is not None
            with self._turn:
                if self.error is not None:  # an engine has reported meanwhile that it broke
                    raise self.error
                self.on(Event.OPENED)
        except BaseException as error:
            self.error = error
            self.on(Event.FAIL)
            raise

    @property
    def opens(self) -> bool:
        """Whether opening it calls its own code, or reads the disk."""
        return self.tie is not None or self._defines("__enter__") or self._defines("ready")

    def _enter(self) -> None:
        begin = time.thread_time()
        self.instance.__enter__()
        self._open = True
        self.instance.ready()
        self.computed = time.thread_time() - begin

    def begin_exit(self) -> UserCall[None] | None:
        """Begin to close the slet; the call that does so, if it has something to close and is open."""
        if Event.STOP in self.lifecycle.allowed():
            self.on(Event.STOP)
        if self._open and self._defines("__exit__"):
            return self.user.begin(self, "closing", self._close)
        self._open = False
        return None

    def end_exit(self, closing: UserCall[None] | None, seconds: float | None) -> None:
        """Wait until what `begin_exit` has begun has ended, for so many seconds.

        Raises:
            ComponentFailed: it has not.
        """
        try:
            if closing is not None:
                closing.result(seconds)
        finally:
            if self.tie is not None:
                self.tie.close()

    def exit(self, seconds: float | None = CLOSING) -> None:
        """Close the slet, if it is open, within so many seconds.

        Raises:
            ComponentFailed: it has not closed in time; it counts as closed all the same.
        """
        self.end_exit(self.begin_exit(), seconds)

    def _close(self) -> None:
        """Close the slet; `SystemExit` and the like become an ordinary error."""
        with self._turn:
            opened, self._open = self._open, False
        try:
            if opened:
                self.instance.__exit__(None, None, None)
        except (Exception, Unwind):
            raise
        except BaseException as error:
            raise ComponentFailed(node=self.node.name, phase="closing", problem=described(error)) from error

    def _defines(self, name: str) -> bool:
        """Whether the slet's class has a method of its own of this name."""
        return self.instance is not None and getattr(type(self.instance), name) is not getattr(Slet, name)

    def flush(self, seconds: float = CLOSING) -> None:
        """Let a slet that buffers what it writes hand that on, within so many seconds: its memento is taken next.

        Raises:
            ComponentFailed: it raised, or has not done so in time.
        """
        flush = getattr(self.instance, "flush", None)
        if not callable(flush):
            return
        try:
            self.user.run(self, "flushing", flush, seconds)
        except ComponentFailed as error:
            raise self._unflushed(error.problem) from error
        except RAISED as error:
            raise self._unflushed(described(error)) from error

    def _unflushed(self, problem: str) -> ComponentFailed:
        cure = (
            "what it has buffered is not handed on: mend the cause and repeat, replace it with lose_state=True (which "
            "goes on without that), or remove it"
        )
        return ComponentFailed(node=self.node.name, phase="flushing", problem=f"{problem}; {cure}")

    def settle(self, seconds: float) -> None:
        """Wait until it has committed the checkpoint that it commits, for so many seconds; then that is given up."""
        if self.committing is not None and not self.committing.wait(seconds):
            self.committing.abandon()

    def stopping(self, *, then_proceed: bool = False) -> Callable[[], None]:
        """Return what lets a slet with a driver of its own put out what it was given, to be called in any thread.

        `proceed` overtakes that: it does nothing if it begins later, and lets the slet go on if it returns later.
        With *then_proceed* it lets the slet go on in any case, unless that is about to stop once more.
        """
        self._stopped_by = stop = object()

        def quiesce() -> None:
            if self._going_on.acquire(timeout=CLOSING):  # behind an earlier one that returns late
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
                    told_on = self._stopped_by is None or (then_proceed and self._stopped_by is stop)
                    if told_on and self._open:
                        self._go_on()

        return quiesce

    def proceed(self) -> None:
        """Let it go on: it was not replaced after all."""
        self._stopped_by = None
        self.user.run(self, "going on", self._go_on, CLOSING)

    def _go_on(self) -> None:
        if self.tie is not None:
            self.tie.release()
        if self._defines("proceed"):
            self.instance.proceed()


def close_all(components: Iterable[Component], timeout: float) -> bool:
    """Close components one after the other; return whether all have closed within so many seconds.

    Raises:
        KeyboardInterrupt: in the main thread, where it may be the user's; all are closed by then.
    """
    deadline = time.monotonic() + max(timeout, LEAST)
    closing: list[tuple[Component, UserCall[None] | None]] = []
    interrupts: list[KeyboardInterrupt] = []

    def attempt(component: Component, work: Callable[[], object]) -> None:
        try:
            work()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the others are closed all the same)
            component.error = error
            node, problem = component.node.name, described(error)
            logger("exop.runtime").error("closing failed", node=node, component=component.id, error=problem)
            interrupts.extend([error] if isinstance(error, KeyboardInterrupt) else [])

    def begin(component: Component) -> None:
        call = component.begin_exit()
        closing.append((component, call))
        if call is not None:
            call.wait(min(HOLDING, max(0.0, deadline - time.monotonic())))

    def end(component: Component, call: UserCall[None] | None) -> None:
        component.end_exit(call, max(0.0, deadline - time.monotonic()))

    for component in components:
        attempt(component, partial(begin, component))
    for component, call in closing:
        attempt(component, partial(end, component, call))
    for interrupt in interrupts:
        raise interrupt
    return all(call is None or call.over for _, call in closing)


def shows(component: Component) -> bool:
    """Whether the slet buffers what it writes, and makes it visible when it is called."""
    return callable(getattr(type(component.instance), "make_visible", None))


class Visibility:
    """Calls `make_visible()` of the slets that define it: when their stream rests, and every second while items come.

    One thread of the process looks at all slets, beside the stream, so that items cost nothing more. A call
    that hangs holds up nothing else: the next one of that slet waits for its end.

    Args:
        clock: Tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, int, float, UserCall[None] | None]] = {}
        self._failing: dict[str, str] = {}

    def look(self, components: Iterable[Component]) -> None:
        """Look at all slets once; called about every 50 ms."""
        now, seen = self._clock(), {}
        for component in components:
            if not shows(component):
                continue
            runner = component.runner
            done = runner.count + runner.rows if runner is not None else 0
            before, visible, since, call = self._seen.get(component.id, (done, 0, now, None))
            if (call is None or call.over) and ((done == before != visible) or now - since >= VISIBLE_WITHIN):
                call = component.user.begin(component, "making output visible", partial(self._call, component))
                call.wait(HASTE)
                visible, since = done, now
            seen[component.id] = done, visible, since, call
        self._seen = seen

    def _call(self, component: Component) -> None:
        """Call the hook; an error is logged when it begins, and the next item or checkpoint meets it anyway."""
        try:
            component.instance.make_visible()
        except BaseException as error:  # noqa: BLE001 (whatever a slet raises: it ends this call only)
            problem = described(error)
            running = component.status in (State.ACTIVE, State.SUSPENDED, State.FAILED)
            if running and self._failing.get(component.id) != problem:
                self._failing[component.id] = problem
                logger("exop.runtime").warning("output is not visible yet", node=component.id, problem=problem)
        else:
            self._failing.pop(component.id, None)

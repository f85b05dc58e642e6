"""User code under a budget: called in a daemon thread of its own, and abandoned when its deadline has passed.

The platform never waits longer for a slet than it says. Python cannot end a thread, so an abandoned call goes on until
it returns by itself: `status()` and `exop ps` show it, and its result is dropped.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from exop.errors import ComponentFailed
from exop.logs import logger
from exop.runtime.interrupts import asked_to_give_up, check_interrupt, woken
from exop.shown import RAISED, described, stack_of

if TYPE_CHECKING:
    from exop.runtime.closing import Hooks

T = TypeVar("T")

#: Seconds that a slet may take to open, where the change or deployment says nothing else.
OPENING: Final = 600.0
#: Seconds that a slet may take to close, likewise.
CLOSING: Final = 10.0
#: A call that takes longer than so many seconds is shown by `status()`, though it has time left.
NOTICED: Final = 1.0

#: The call that the current thread is.
_LOCAL = threading.local()

#: Packages whose frames lead to the user's code, and are not shown as part of it.
_OURS: Final = ("exop.runtime.", "exop.wiring.", "exop.model.")


class UserCall(Generic[T]):
    """One call of user code.

    Attributes:
        component: The component that is called.
        phase: What the platform does with it, as a present participle: `opening`, `committing a checkpoint`.
        abandoned: The platform does not wait for it any more.
    """

    def __init__(
        self,
        calls: set[UserCall[Any]],
        component: Hooks,
        phase: str,
        work: Callable[[], T],
        late: Callable[[], object] | None = None,
        news: Callable[[], object] | None = None,
    ) -> None:
        self.component = component
        self.phase = phase
        self.abandoned = False
        self._calls = calls
        self._work = work
        self._late = late
        self._told = news
        self._found: T
        self._error: BaseException | None = None
        self._over = False
        self._reason = ""
        self._news = threading.Condition()
        self._begin = time.monotonic()
        self._context = contextvars.copy_context()
        name = f"exop {component.lifecycle.component} {phase}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        calls.add(self)
        try:
            self._thread.start()
        except BaseException:
            calls.discard(self)
            raise

    @property
    def over(self) -> bool:
        """The call has returned, or raised."""
        return self._over

    @property
    def seconds(self) -> float:
        """The time since the call began."""
        return time.monotonic() - self._begin

    def wait(self, seconds: float | None, *, interruptible: bool = False) -> bool:
        """Wait until the call has returned, at most so many seconds; return whether it has.

        With *interruptible*, an interrupt that asks the calling change to give up ends the wait.
        """
        with woken(self._wake), self._news:
            self._news.wait_for(lambda: self._over or self.abandoned or (interruptible and asked_to_give_up()), seconds)
            return self._over

    def result(self, seconds: float | None, *, interruptible: bool = False) -> T:
        """Return what the call returns; abandon it when *seconds* have passed.

        Raises:
            ComponentFailed: it has not returned in time.
            BaseException: what the call has raised.
            KeyboardInterrupt: an interrupt asks the change to give up.
        """
        try:
            done = self.wait(seconds, interruptible=interruptible)
            if interruptible and not done:
                check_interrupt()
        except BaseException:
            self.abandon()
            raise
        if self.abandoned or (not done and self.abandon()):
            gone = self._reason or f"it has not returned within {round(self.seconds, 1):g} s and is given up"
            raise ComponentFailed(
                node=self.component.node.name,
                phase=self.phase,
                problem=f"{gone}; its thread is shown by `exop ps` until it returns{self.whereabouts()}",
            )
        if self._error is not None:
            raise self._error
        return self._found

    def abandon(self, reason: str = "") -> bool:
        """Give the call up: its result is dropped. Returns `False` if it has returned before."""
        with self._news:
            if self._over or self.abandoned:
                return self.abandoned
            self.abandoned, self._reason = True, reason
            self._news.notify_all()
        name = self.component.lifecycle.component
        cure = "its thread goes on until the call returns: end what it waits for"
        stack = self.stack()
        log = logger("exop.runtime")
        log.warning(
            f"{name}: {self.phase} is given up", node=name, seconds=round(self.seconds, 1), stack=stack, cure=cure
        )
        return True

    def whereabouts(self) -> str:
        """Return the position of the call, for a message."""
        stack = self.stack().rstrip()
        return f"\n{self.component.node.name} is at\n{stack}" if stack else ""

    def stack(self) -> str:
        """Return the stack of the user's code, as Python prints it."""
        frames = []
        ident = self._thread.ident
        frame: FrameType | None = sys._current_frames().get(ident) if ident is not None else None
        while frame is not None and frame.f_code is not UserCall._run.__code__:
            frames.append((frame, frame.f_lineno))
            frame = frame.f_back
        while frames and frames[-1][0].f_globals.get("__name__", "").startswith(_OURS):
            frames.pop()
        return stack_of(frames)

    def _run(self) -> None:
        _LOCAL.call = self
        try:
            self._found = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread that waits)
            self._error = error
        with self._news:
            self._over = not self.abandoned
            self._news.notify_all()
        if self.abandoned:
            self._end_late()
        self._calls.discard(self)
        self._wake(over=True)
        if self._told is not None:
            self._told()

    def _wake(self, *, over: bool = False) -> None:
        with self._news:
            self._over = self._over or over
            self._news.notify_all()

    def _end_late(self) -> None:
        name = self.component.lifecycle.component
        try:
            if self._late is not None:
                self._late()
        except RAISED as error:
            logger("exop.runtime").warning(f"{name}: {self.phase} has ended late", node=name, error=described(error))
        else:
            logger("exop.runtime").info(f"{name}: {self.phase} has ended late", node=name)


def turn_to(component: Hooks, phase: str) -> bool:
    """Attribute the call that the calling thread is to this component of the same application from now on.

    Returns `False` if the thread is no such call.

    Raises:
        ComponentFailed: the call was given up.
    """
    around: UserCall[Any] | None = getattr(_LOCAL, "call", None)
    if around is None or around.component.application != component.application:
        return False
    if around.abandoned:
        raise ComponentFailed(node=component.node.name, phase=phase, problem="it was given up before")
    around.component, around.phase = component, phase
    return True


class UserCalls:
    """The calls of user code that are under way on one platform."""

    def __init__(self) -> None:
        self._calls: set[UserCall[Any]] = set()

    def begin(
        self,
        component: Hooks,
        phase: str,
        work: Callable[[], T],
        late: Callable[[], object] | None = None,
        news: Callable[[], object] | None = None,
    ) -> UserCall[T]:
        """Call *work*, which runs code of the component's slet.

        *late* follows it if it was given up meanwhile; *news* is called when it is over.
        """
        return UserCall(self._calls, component, phase, work, late, news)

    def run(
        self,
        component: Hooks,
        phase: str,
        work: Callable[[], T],
        seconds: float | None,
        late: Callable[[], object] | None = None,
        *,
        interruptible: bool = False,
    ) -> T:
        """The same, and return its result. Inside of a call for the same application, the time of that one counts.

        Raises:
            ComponentFailed: it has not returned within so many seconds.
        """
        if turn_to(component, phase):
            return work()
        return self.begin(component, phase, work, late).result(seconds, interruptible=interruptible)

    def abandoned(self, *components: Hooks) -> list[UserCall[Any]]:
        """Return the calls of these components that were given up and have not returned."""
        return [one for one in self._calls.copy() if one.abandoned and one.component in components]

    def give_up(self, application: str | None = None, phase: str | None = None, reason: str | None = None) -> None:
        """Abandon the calls of an application, or of all; with *phase* those in that phase."""
        for one in self._calls.copy():
            if application in (None, one.component.application) and phase in (None, one.phase):
                one.abandon(reason or f"it is given up, because {one.component.application} is removed")

    def plain(self, application: str | None = None) -> list[dict[str, Any]]:
        """Return the calls that were given up, or take long, as plain data; of one application, or of all."""
        return [
            {
                "application": one.component.application,
                "node": one.component.node.name,
                "component": one.component.id,
                "phase": one.phase,
                "seconds": round(one.seconds, 1),
                "given_up": one.abandoned,
                "stack": one.stack(),
            }
            for one in self._shown(application)
        ]

    def _shown(self, application: str | None) -> Iterator[UserCall[Any]]:
        for one in sorted(self._calls.copy(), key=lambda call: -call.seconds):
            if (one.abandoned or one.seconds >= NOTICED) and application in (None, one.component.application):
                yield one

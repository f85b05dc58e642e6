"""User code under a budget: called in a daemon thread of its own, and abandoned when its deadline has passed.

Python cannot end a thread, so an abandoned call goes on until it returns by itself: `status()` and `exop ps` show it,
and its result is dropped.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from exop.errors import ComponentFailed
from exop.logs import logger
from exop.runtime.supervision.interrupts import asked_to_give_up, check_interrupt, woken
from exop.safe_repr import RAISED, described, stack_of

T = TypeVar("T")

#: Seconds that a slet may take to open, where the change or deployment says nothing else.
OPENING: Final = 600.0
#: Seconds that it may take to take its settings: the stream stands still meanwhile.
SETTING: Final = 1.0
#: Seconds that a slet may take to close, where the change or deployment says nothing else.
CLOSING: Final = 10.0
#: A call that takes longer than so many seconds is shown by `status()`, though it has time left.
NOTICED: Final = 1.0

#: The call that the current thread is.
_LOCAL = threading.local()

#: Packages whose frames lead to the user's code, and are not shown as part of it.
_OURS: Final = ("exop.runtime.", "exop.wiring.", "exop.model.")


class Owner:
    """The owner of user code: a component, or a channel."""

    def __init__(self, application: str, title: str, identifier: str) -> None:
        self.id = identifier
        self.application = application
        self.title = title
        self.name = f"{application}.{title}"


class UserCall(Generic[T]):
    """One call of user code. *late* follows it in its thread if it was abandoned; *news* is called when it is over.

    Attributes:
        phase: The purpose of the call, as a present participle: `opening`, `committing a checkpoint`.
        abandoned: The platform does not wait for it any more.
        over: The call has returned, or raised.
    """

    def __init__(
        self,
        calls: set[UserCall[Any]],
        component: Owner,
        phase: str,
        work: Callable[[], T],
        late: Callable[[], object],
        news: Callable[[], object],
    ) -> None:
        self.component = component
        self.phase = phase
        self.abandoned = self.over = False
        self._calls = calls
        self._work, self._late, self._news = work, late, news
        self._found: T
        self._error: BaseException | None = None
        self._reason = ""
        self._changed = threading.Condition()
        self._begin = time.monotonic()
        self._context = contextvars.copy_context()
        name = f"exop {component.name} {phase}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        calls.add(self)
        try:
            self._thread.start()
        except BaseException:
            calls.discard(self)
            raise

    @property
    def seconds(self) -> float:
        """The time since the call began."""
        return time.monotonic() - self._begin

    def wait(self, seconds: float | None, *, interruptible: bool = False) -> bool:
        """Wait for so many seconds until the call has returned; return whether it has.

        With *interruptible*, an interrupt that asks the calling change to give up ends the wait.
        """
        with woken(self._wake) if interruptible else nullcontext(), self._changed:
            self._changed.wait_for(
                lambda: self.over or self.abandoned or (interruptible and asked_to_give_up()), seconds
            )
            return self.over

    def result(self, seconds: float | None, *, interruptible: bool = False) -> T:
        """Return the result of the call; abandon it when *seconds* have passed.

        Raises:
            ComponentFailed: it has not returned in time.
            BaseException: the exception that the call has raised.
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
                node=self.component.title,
                phase=self.phase,
                problem=f"{gone}; its thread is shown by `exop ps` until it returns{self.whereabouts()}",
            )
        if self._error is not None:
            raise self._error
        return self._found

    def abandon(self, reason: str = "") -> bool:
        """Give the call up: its result is dropped. Returns `False` if it has returned before."""
        with self._changed:
            if self.over or self.abandoned:
                return self.abandoned
            self.abandoned, self._reason = True, reason
            self._changed.notify_all()
        name = self.component.name
        cure = "its thread goes on until the call returns: end what it waits for"
        facts = {"node": name, "seconds": round(self.seconds, 1), "stack": self.stack(), "cure": cure}
        logger("exop.runtime").warning(f"{name}: {self.phase} is given up", **facts)
        return True

    def whereabouts(self) -> str:
        """Return the position of the call, for a message."""
        stack = self.stack().rstrip()
        return f"\n{self.component.title} is at\n{stack}" if stack else ""

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
        with self._changed:
            self.over = not self.abandoned
        if self.abandoned:
            self._end_late()
        self._calls.discard(self)
        self.over = True
        self._wake()
        self._news()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _end_late(self) -> None:
        name = self.component.name
        try:
            self._late()
        except RAISED as error:
            logger("exop.runtime").warning(f"{name}: {self.phase} has ended late", node=name, error=described(error))
        else:
            logger("exop.runtime").info(f"{name}: {self.phase} has ended late", node=name)


def current_call() -> UserCall[Any] | None:
    """Return the call of user code that the calling thread makes, if it makes one."""
    return getattr(_LOCAL, "call", None)


def turn_to(component: Owner, phase: str) -> bool:
    """Attribute the call that the calling thread makes to this component; `False` if it makes none for its application.

    Raises:
        ComponentFailed: the call was given up.
    """
    around = current_call()
    if around is None or around.component.application != component.application:
        return False
    if around.abandoned:
        raise ComponentFailed(node=component.title, phase=phase, problem="it was given up before")
    around.component, around.phase = component, phase
    return True


@dataclass(frozen=True)
class Opened:
    """The duration of an opening, and how much of that its thread has computed, in seconds."""

    seconds: float
    computing: float


class UserCalls:
    """The calls of user code that are under way on one platform."""

    def __init__(self) -> None:
        #: The last opening of each slet, by its identity.
        self.opened: dict[str, Opened] = {}
        self._calls: set[UserCall[Any]] = set()

    def begin(
        self,
        component: Owner,
        phase: str,
        work: Callable[[], T],
        late: Callable[[], object] = bool,
        news: Callable[[], object] = bool,
    ) -> UserCall[T]:
        """Call *work*, which runs code of the component's slet; *late* and *news* as for `UserCall`."""
        return UserCall(self._calls, component, phase, work, late, news)

    def run(
        self,
        component: Owner,
        phase: str,
        work: Callable[[], T],
        seconds: float | None,
        late: Callable[[], object] = bool,
        *,
        interruptible: bool = False,
    ) -> T:
        """The same, and return its result. Inside of a call for the same application, the time of that one counts."""
        if turn_to(component, phase):
            return work()
        return self.begin(component, phase, work, late).result(seconds, interruptible=interruptible)

    def abandoned(self, *components: Owner) -> list[UserCall[Any]]:
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
                "node": one.component.title,
                "component": one.component.id,
                "phase": one.phase,
                "seconds": round(one.seconds, 1),
                "given_up": one.abandoned,
                "stack": one.stack(),
            }
            for one in sorted(self._calls.copy(), key=lambda call: -call.seconds)
            if (one.abandoned or one.seconds >= NOTICED) and application in (None, one.component.application)
        ]

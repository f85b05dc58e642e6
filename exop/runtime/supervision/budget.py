"""Time limits of user code: each call runs in its own daemon thread, and is abandoned at its deadline.

Python cannot end a thread: an abandoned call continues until it returns, and its result is dropped. `status()` and
`exop ps` show abandoned calls.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Generic, TypeVar

from exop.errors import ComponentFailed
from exop.logs import logger
from exop.runtime.supervision.interrupts import check_interrupt, interrupted, woken
from exop.safe_repr import RAISED, error_text
from exop.stacks import frames_within, stack_of

T = TypeVar("T")

#: Seconds that a slet may take to open and to close, unless the change or deployment gives another limit.
OPENING: Final = 600.0
CLOSING: Final = 10.0
#: Seconds that a slet may take to change its settings, while the stream is paused.
SETTING: Final = 1.0

#: The call that runs in the current thread.
_LOCAL = threading.local()

#: A wait is divided into parts of so many seconds. If the whole process stands still, this uses up only one of them.
_PART: Final = 1.0


class Owner:
    """The owner of user code: a component, or a channel."""

    def __init__(self, application: str, title: str, identifier: str) -> None:
        self.id = identifier
        self.application = application
        self.title = title
        self.name = f"{application}.{title}"


@dataclass(eq=False)
class UserCall(Generic[T]):
    """One call of user code. If it is abandoned, its thread calls *late* after it; *news* is called at the end.

    Attributes:
        calls: All calls in progress, of which this one is part until it ends.
        phase: The purpose of the call, as a present participle: `opening`, `committing a checkpoint`.
        abandoned, over: Whether the platform no longer waits for the call; whether the call has returned or raised.
    """

    calls: set[UserCall[Any]]
    component: Owner
    phase: str
    work: Callable[[], T]
    late: Callable[[], object]
    news: Callable[[], object]

    def __post_init__(self) -> None:
        self.abandoned = self.over = False
        self._found: T
        self._error: BaseException | None = None
        self._reason = ""
        self._changed = threading.Condition()
        self._begin = time.monotonic()
        self._context = contextvars.copy_context()
        self._thread = threading.Thread(target=self._run, name=f"exop {self.component.name} {self.phase}", daemon=True)
        self.calls.add(self)
        try:
            self._thread.start()
        except BaseException:
            self.calls.discard(self)
            raise

    @property
    def seconds(self) -> float:
        """The time since the call began."""
        return time.monotonic() - self._begin

    def wait(self, seconds: float | None, *, interruptible: bool = False) -> bool:
        """Wait up to *seconds* for the call; return whether it has ended. An interrupt ends an *interruptible* wait.

        Time for which the whole process stands still (SIGSTOP) does not count: the call had no chance to go on.
        """

        def done() -> bool:
            return self.over or self.abandoned or (interruptible and interrupted())

        left = inf if seconds is None else seconds
        with woken(self._wake) if interruptible else nullcontext(), self._changed:
            while not self._changed.wait_for(done, min(left, _PART)) and left > 0:
                left -= _PART
            return self.over

    def result(self, seconds: float | None, *, interruptible: bool = False) -> T:
        """Return the result of the call; abandon it when *seconds* have passed."""
        try:
            if not (done := self.wait(seconds, interruptible=interruptible)) and interruptible:
                check_interrupt()
        except BaseException:
            self.abandon("its application was interrupted")
            raise
        if self.abandoned or (not done and self.abandon()):
            gone = self._reason or f"it has not returned within {round(self.seconds, 1):g} s and is given up"
            problem = f"{gone}; its thread is shown by `exop ps` until it returns{self.whereabouts()}"
            raise ComponentFailed(node=self.component.title, phase=self.phase, problem=problem)
        if self._error is not None:
            raise self._error
        return self._found

    def abandon(self, reason: str = "") -> bool:
        """Abandon the call and drop its result. Return `False` if the call is already over."""
        with self._changed:
            if self.over or self.abandoned:
                return self.abandoned
            self.abandoned, self._reason = True, reason
            self._changed.notify_all()
        text = f"{self.component.name}: {self.phase} is given up: {reason or 'it takes too long'}"
        log = logger("exop.runtime").bind(node=self.component.name, seconds=round(self.seconds, 1))
        if reason:  # it was asked for, which is no error
            log.info(text)
        else:
            log.warning(text, stack=self.stack(), cure="release what it waits for: the end of the call ends its thread")
        return True

    def whereabouts(self) -> str:
        """Describe the position of the call, for a message."""
        return f"\n{self.component.title} is at\n{stack}" if (stack := self.stack().rstrip()) else ""

    def stack(self) -> str:
        """Return the stack of the user's code, as Python prints it."""
        return stack_of(frames_within(self._thread.ident, UserCall._run.__code__))

    def _run(self) -> None:
        _LOCAL.call = self
        try:
            self._found = self._context.run(self.work)
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread that waits)
            self._error = error
        with self._changed:
            self.over = not self.abandoned
        if self.abandoned:
            self._run_late()
        self.calls.discard(self)
        self.over = True
        self._wake()
        self.news()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run_late(self) -> None:
        name, log = self.component.name, logger("exop.runtime")
        text = f"{name}: {self.phase}, which was given up, has returned"
        try:
            self.late()
        except RAISED as error:
            log.warning(f"{text}, and its clean-up failed", node=name, error=error_text(error))
        else:
            log.info(text, node=name)


def current_call() -> UserCall[Any] | None:
    """Return the call of user code that runs in the calling thread, if any."""
    return getattr(_LOCAL, "call", None)


@dataclass(frozen=True)
class Opened:
    """The duration of an opening, and the CPU time of its thread, in seconds."""

    seconds: float
    computing: float


class UserCalls:
    """The calls of user code in progress on one platform."""

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
        """Begin to call *work*, which runs code of the component's slet; *late* and *news* as for `UserCall`."""
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
        """Call *work* and return its result; inside a call for the same application, the limit of that call applies."""
        if (around := current_call()) is not None and around.component.application == component.application:
            if around.abandoned:
                problem = "the call around it was given up before"
                raise ComponentFailed(node=component.title, phase=phase, problem=problem)
            around.component, around.phase = component, phase
            return work()
        return self.begin(component, phase, work, late).result(seconds, interruptible=interruptible)

    def abandoned(self, *components: Owner) -> list[UserCall[Any]]:
        """Return the abandoned calls of these components that have not returned."""
        return [one for one in self._calls.copy() if one.abandoned and one.component in components]

    def abandon(self, application: str | None = None, phase: str | None = None, reason: str | None = None) -> None:
        """Abandon the calls of an application, or of all; if *phase* is given, only those in this phase.

        Without *phase*, the application is being removed: the method waits for a call that is about to return.
        """
        for one in self._calls.copy():
            asked = application in (None, one.component.application) and phase in (None, one.phase)
            if asked and not (phase is None and one.wait(0.05)):
                one.abandon(reason or f"{one.component.application} is removed, or stops")

    def plain(self, application: str | None = None) -> list[dict[str, Any]]:
        """Return abandoned calls, and those of a second or more, of one application or of all, as plain data."""
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
            if (one.abandoned or one.seconds >= 1) and application in (None, one.component.application)
        ]

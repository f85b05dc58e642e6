"""A participant of a change: one application whose change a coordinator carries out in steps.

    new ─ prepare ─ prepared ─ stage ─ staged ─ cut ─ held ─ commit ─ committed
      └────────────────┴─────────────────┴─────────────┴─ abort ─ aborted

Until `commit`, every step can be undone, and the old mesh runs on after `abort`. The coordinator ends every hold, by a
decision or at its deadline. Every call may be repeated: a step that is done already does nothing.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from functools import partial, wraps
from typing import Final, TypeVar

from exop.errors import PlanError

One = TypeVar("One", bound="Participant")


class Phase(StrEnum):
    """The state of a participant."""

    NEW = "new"
    PREPARED = "prepared"
    STAGED = "staged"
    HELD = "held"
    COMMITTED = "committed"
    ABORTED = "aborted"


#: The phases of a change that is made, in their order.
_COURSE: Final = (Phase.NEW, Phase.PREPARED, Phase.STAGED, Phase.HELD, Phase.COMMITTED)


class Participant(ABC):
    """One application in a change, named *name* in messages; any thread may call each step.

    Attributes:
        phase: Its state.
        error: The reason why it was aborted.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = Phase.NEW
        self.error: BaseException | None = None
        self._turn = threading.RLock()
        self._finished = False

    @property
    def made(self) -> bool:
        """The new mesh runs."""
        return self.phase is Phase.COMMITTED

    def finish(self) -> None:
        """Let the old slets leave and the new ones begin; does nothing unless the change is made."""
        with self._turn:
            if self.made and not self._finished:
                self._finished = True
                self._finish()

    def abort(self, error: BaseException | None = None) -> None:
        """Undo everything in reverse: the old mesh runs on. Failures of that are noted on *error*.

        Raises `PlanError` if the change is committed.
        """
        with self._turn:
            if self.made:
                raise PlanError(f"the change of {self.name} is made; going back is another change")
            if self.phase is not Phase.ABORTED:
                self._give_up(error or PlanError(f"the change of {self.name} was aborted"))

    def _take(self, start: Phase, action: Callable[[], None], end: Phase) -> None:
        with self._turn:
            if self.phase is Phase.ABORTED:
                raise PlanError(f"the change of {self.name} was given up: {self.error}") from self.error
            if _COURSE.index(self.phase) >= _COURSE.index(end):
                return
            if self.phase is not start:
                raise PlanError(f"the change of {self.name} is {self.phase}, and not {start} as this step requires")
            try:
                action()
            except BaseException as error:
                if not self.made:
                    self._give_up(error)
                raise
            self.phase = end

    def _give_up(self, error: BaseException) -> None:
        self.phase, self.error = Phase.ABORTED, error
        self._undo_all(error)

    @abstractmethod
    def _finish(self) -> None:
        """Do `finish`."""

    @abstractmethod
    def _undo_all(self, error: BaseException) -> None:
        """Undo all steps; raises nothing."""


def transition(start: Phase, end: Phase) -> Callable[[Callable[[One], None]], Callable[[One], None]]:
    """Make a method lead from one phase to another: it runs once, and all is undone if it fails."""

    def wrapped(method: Callable[[One], None]) -> Callable[[One], None]:
        @wraps(method)
        def take(self: One) -> None:
            self._take(start, partial(method, self), end)

        return take

    return wrapped

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

from exop.errors import PlanError


class Phase(StrEnum):
    """The state of a participant; the later ones are greater."""

    NEW = "new"
    PREPARED = "prepared"
    STAGED = "staged"
    HELD = "held"
    COMMITTED = "committed"
    ABORTED = "aborted"


#: The phases in the order in which a change that is made passes through them.
_COURSE = (Phase.NEW, Phase.PREPARED, Phase.STAGED, Phase.HELD, Phase.COMMITTED)


class Participant(ABC):
    """Takes one application through a change; any thread may call each step.

    Args:
        name: Names the application in messages.

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

    def prepare(self) -> None:
        """Make and open the successors while the old slets work; this may take minutes.

        Raises:
            PlanError: something could not be made or opened; everything is as it was.
        """
        self._step(Phase.NEW, self._prepare, Phase.PREPARED)

    def stage(self) -> None:
        """Connect the successors, and empty the queues that go; the stream runs, and waits upstream of those only.

        Raises:
            PlanError: something could not be emptied in time; everything is as it was.
        """
        self._step(Phase.PREPARED, self._stage, Phase.STAGED)

    def cut(self, *, then_commit: bool = False) -> None:
        """Park the drivers, hand over and bind; they stay parked, and control comes back to the caller.

        With *then_commit* the change is committed in the same pause, by the driver that parks last: the shortest one.

        Raises:
            PlanError: a driver did not park in time, or a state could not be handed over; everything is as it was.
        """
        if then_commit:
            self._step(Phase.STAGED, self._cut_and_commit, Phase.COMMITTED)
        else:
            self._step(Phase.STAGED, self._hold, Phase.HELD)

    def commit(self) -> None:
        """Let everything go on in the new mesh; nothing can fail here.

        Raises:
            PlanError: it was aborted before.
        """
        self._step(Phase.HELD, self._commit, Phase.COMMITTED)

    def finish(self) -> None:
        """Let the old slets leave and the new ones begin: the new mesh runs."""
        with self._turn:
            if self.made and not self._finished:
                self._finished = True
                self._finish()

    def abort(self, error: BaseException | None = None) -> None:
        """Undo what was done, in reverse: the old mesh runs on. An undo step that fails is noted on *error*.

        Raises:
            PlanError: it is committed.
        """
        with self._turn:
            if self.made:
                raise PlanError(f"the change of {self.name} is made; going back is another change")
            if self.phase is not Phase.ABORTED:
                self._give_up(error or PlanError(f"the change of {self.name} was aborted"))

    def _step(self, start: Phase, action: Callable[[], None], end: Phase) -> None:
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
    def _prepare(self) -> None:
        """Do `prepare`."""

    @abstractmethod
    def _stage(self) -> None:
        """Do `stage`."""

    @abstractmethod
    def _hold(self) -> None:
        """Do `cut`; the drivers stay parked."""

    @abstractmethod
    def _cut_and_commit(self) -> None:
        """Do `cut`, and `commit` at once."""

    @abstractmethod
    def _commit(self) -> None:
        """Do `commit`."""

    @abstractmethod
    def _finish(self) -> None:
        """Do `finish`."""

    @abstractmethod
    def _undo_all(self, error: BaseException) -> None:
        """Undo what was done since `prepare`; may raise nothing."""

"""The participants of a plan: each does the steps of one change, in a thread of its own, and reports them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import Any

from exop.errors import ExopError, PlanError, StateError, told
from exop.hosts.protocol.messages import Did, Do, Restart
from exop.logs import logger
from exop.runtime.supervision.interrupts import delegated, held
from exop.wiring.changes.change import Change
from exop.wiring.changes.executor import Changes


class Participant(threading.Thread):
    """Does the steps of one change in their order, and reports each.

    User code that does not return delays only this thread: the deadline of the plan passes, and the others go on.

    Attributes:
        given: The steps to do; `None` when the platform is closed.
        change: The change, once it is known.
        error: The first error of a step, or of closing the old slets.
        undone: The reason given to the change when it is undone, which notes its problems there.
        restart: After the cut, what a restart of the platform begins with if the plan is committed.
    """

    def __init__(
        self, plan: str, application: str, changes: Changes, report: Callable[[Did], None], change: Change | None = None
    ) -> None:
        super().__init__(target=delegated(self._do_all), name=f"exop {application} change", daemon=True)
        self.plan = plan
        self.application = application
        self.change = change
        self.given: SimpleQueue[Do | None] = SimpleQueue()
        self.error: BaseException | None = None
        self.undone = PlanError("the changes are not made together")
        self.restart: Restart | None = None
        self._changes = changes
        self._report = report

    def give(self, do: Do) -> None:
        """Do a step after those given before."""
        self.given.put(do)

    def leave(self, timeout: float) -> None:
        """Undo the change because the platform is closed: its drivers do not go on. Wait *timeout* seconds for that."""
        self.given.put(None)
        self.join(timeout)

    def _do_all(self) -> None:
        """Do the given steps until the change is made or undone; then close the old slets."""
        step = ""
        with ExitStack() as turn:
            while step not in ("commit", "abort"):
                if (do := self.given.get()) is None:
                    self._undo_at_close()
                    return
                step, handed, problem = do.step, None, ""
                try:
                    handed = self._do(do, turn)
                except BaseException as error:  # noqa: BLE001 (the caller of the plan gets it, or its text)
                    if step == "commit":
                        self._note(error)
                    self.error = self.error or error
                    problem = told(error) if isinstance(error, ExopError) else f"{step}: {told(error)}"
                if step == "abort":  # the report lets the next plan begin
                    self._end(turn, made=False)
                self._report(Did(self.plan, step, handed, problem, self.restart if step == "cut" else None))
            if step == "commit":
                self._end(turn, made=True)

    def _end(self, turn: ExitStack, *, made: bool) -> None:
        try:
            self._finish(turn, made=made)
        except BaseException as error:  # noqa: BLE001 (the change is made or undone)
            self._note(error)

    def _surely(self, work: Callable[[], object]) -> None:
        """Do a part of what follows the decision: again, until the disk takes it; of other errors, only log them."""
        while True:
            try:
                work()
                return
            except BaseException as error:
                self._note(error)
                if not isinstance(error, StateError):
                    return
                with suppress(Empty):
                    self.given.get(timeout=1.0)
                    raise  # the platform is closed: a restart makes the change out of the vote

    def _note(self, error: BaseException) -> None:
        if str(error) != str(self.error):
            problem = f"the change is decided, and a part of what follows it has failed: {told(error)}"
            logger("exop.hosts").error(problem, application=self.application, exc_info=error)
        self.error = self.error or error

    def _undo_at_close(self) -> None:
        if self.change is not None:
            for driver in self.change.deployment.drivers():
                driver.halt()
            self.change.abort(self.undone)

    def _do(self, do: Do, turn: ExitStack) -> Any:
        """Do one step; return the data that a cut hands over."""
        if (change := self.change) is None:
            return None
        match do.step:
            case "prepare":
                change.prepare()
            case "hold":
                self._reserve(change, turn)
                turn.enter_context(held(change.deployment.changing))
                self._changes.check_there(change)
                change.stage()
            case "cut":
                change.cut()
            case "commit":
                change.commit()
            case "abort":
                self._changes.undo(change, self.undone)
        return None

    def _reserve(self, change: Change, turn: ExitStack) -> None:
        """Reserve the checkpoints of the application for the change, if it needs that."""
        self._changes.reserve(change, turn)

    def _finish(self, turn: ExitStack, *, made: bool) -> None:
        """Stop the old slets and start the new ones, if the change is *made*."""
        if made and self.change is not None:
            self.change.finish()

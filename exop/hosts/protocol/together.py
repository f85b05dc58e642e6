"""Changing several applications of this process: all of them, or none.

The steps and participants are those of a plan over several hosts, but no message is lost here, and nobody restarts: the
applications end with the process, and the next platform starts the stored meshes. Each change has a thread for its
steps, so that a hanging one does not delay the others: at the deadline they continue unchanged. The commit point is the
transaction that stores all meshes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from queue import Empty, SimpleQueue

from exop.errors import PlanError
from exop.hosts.protocol.messages import Did, Do, ParticipantStep
from exop.hosts.protocol.participant import Participant
from exop.model.meshes.mesh import Mesh
from exop.runtime.pause import ANSWERING
from exop.runtime.supervision.interrupts import check_interrupt, uninterrupted, woken
from exop.safe_repr import add_note
from exop.wiring import Applications
from exop.wiring.changes.change import Change
from exop.wiring.changes.executor import changing
from exop.wiring.changes.plan import Plan


@uninterrupted
def change_together(applications: Applications, plans: Sequence[Plan]) -> list[Mesh]:
    """Make one planned change in each of several applications, all or none; return the meshes that run afterwards.

    Raises:
        StaleMesh: one of the applications was changed after its plan was made.
        PlanError: one of them could not be made; all applications are as before.
        StateError: the new meshes could not be stored, and all applications are as before; or only the record that the
            changes are made could not be stored.
        Exception: the changes are made, and an old slet or a channel could not be closed.
    """
    changes, names = applications.changes, [plan.after.name for plan in plans]
    if len(plans) == 1:
        return [plans[0].apply()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PlanError(f"{', '.join(twice)} has two plans in one change; make one plan of both edits")
    with ExitStack() as turn:
        for plan in filter(None, plans):
            applications.check_whole(plan.after.name)
            turn.enter_context(applications.history.recorded(plan.after.name, "change", steps=plan.summary))
        runs = turn.enter_context(changes.followed(plans))
        turn.enter_context(changes.turns_of(*names, runs=runs))
        turn.enter_context(changing(*names))
        made = [*filter(None, (changes.change(one, runs.get(one.after.name)) for one in plans))]
        problems = _Together(made, applications).carry_out() if made else []
        problems += [changes.made(change) for change in made]
        meshes = [applications.get(name).mesh for name in names]
    for change in made:
        changes.close(change)
    for problem in filter(None, problems):
        raise problem
    return meshes


class _Together:
    """Leads the changes to their common outcome; the plan of each participant has the name of its application."""

    def __init__(self, changes: Collection[Change], applications: Applications) -> None:
        self._applications = applications
        self._changes = changes
        self._hold = min(change.timeout for change in changes) + ANSWERING
        self._mail: SimpleQueue[Did | None] = SimpleQueue()
        self._threads = [Participant(one.name, one.name, applications.changes, self._mail.put, one) for one in changes]
        self._error: BaseException | None = None

    def carry_out(self) -> list[BaseException | None]:
        """Make all changes, or raise; return the errors at closing their old slets."""
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self._give("abort")
            raise
        try:
            with woken(lambda: self._mail.put(None)):
                refusal = self._decide()
        except BaseException as error:  # noqa: BLE001 (it is raised when the changes are undone)
            refusal, self._error = ("", ""), error
        self._give("abort" if refusal is not None else "commit")
        until = time.monotonic() + self._hold
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()) if refusal is not None else None)
        if refusal is not None:
            raise self._failure(*refusal)
        return [thread.error for thread in self._threads]

    def _decide(self) -> tuple[str, str] | None:
        """Let all get ready, and store the changes; or return the problem, and the application that has it."""
        steps: tuple[ParticipantStep, ...] = ("prepare", "hold", "cut")
        until: float | None = None
        for step in steps:
            if step == "hold":  # the streams run until then
                until = time.monotonic() + self._hold
            self._give(step)
            missing = dict.fromkeys(thread.plan for thread in self._threads)
            while missing:
                left = None if until is None else max(0.0, until - time.monotonic())
                check_interrupt()
                try:
                    did = self._mail.get(timeout=left)
                except Empty:
                    return f"no answer to {step} from {', '.join(missing)} within {self._hold:g} s", ""
                if did is not None and did.problem:
                    return did.problem, did.plan
                if did is not None:
                    del missing[did.plan]
        for change in self._changes:
            self._applications.changes.check_there(change)
        if (store := self._applications.store) is not None:  # one transaction: this commits the changes
            store.update(*(change.stored for change in self._changes))
        return None

    def _give(self, step: ParticipantStep) -> None:
        for thread in self._threads:
            thread.give(Do(thread.plan, step))

    def _failure(self, problem: str, culprit: str) -> BaseException:
        """Return the error of the application that refused or was too late: the reason why nothing was changed."""
        order = sorted(self._threads, key=lambda thread: thread.application != culprit)
        errors = [error for error in (self._error, *(thread.error for thread in order)) if error is not None]
        failure = errors[0] if errors else PlanError(f"{problem}; everything runs on as before")
        if late := ", ".join(thread.application for thread in self._threads if thread.is_alive()):
            add_note(failure, f"{late} is still in a step; it is undone when that returns")
        for thread in order:
            for note in getattr(thread.undone, "__notes__", ()):
                add_note(failure, note)
        return failure

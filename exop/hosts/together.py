"""Changing several applications of this process: all of them, or none.

The coordinator and the members are those of a plan over several hosts; here their messages stay in the process, and the
participants are the changes of the applications. Each participant has a thread for its steps, so one that hangs delays
no other: at the deadline the others go on as they were. The commit point is the transaction that stores all meshes. The
members keep no journals: when the process ends, so do its applications, and the stored meshes are what is started next.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from exop.errors import PlanError
from exop.hosts.coordinator import Coordinator
from exop.hosts.member import Member
from exop.hosts.messages import Action, Committed, Did, Do, Ended, Fragment, Message, NotRecorded, Record, Send, Step
from exop.model.mesh import Mesh
from exop.runtime.interrupts import acquire, asked_to_give_up, check_interrupt, delegated, uninterrupted, woken
from exop.shown import add_note, described
from exop.wiring import Applications
from exop.wiring.change import Change
from exop.wiring.changes import changing
from exop.wiring.plan import Plan

#: The name of the home among the members; no application has it.
HOME: Final = ""
#: The one plan that the machines of a call know.
PLAN: Final = "change"


@uninterrupted
def change_together(applications: Applications, plans: Sequence[Plan]) -> list[Mesh]:
    """Make changes of different applications as they are, all or nothing; returns the meshes that run then.

    Raises:
        StaleMesh: one of the applications was changed after its plan was made.
        PlanError: one of them could not be made; everything is as it was, in all of them.
        StateError: they could not be stored, and everything is as it was; or not the note that they are made.
    """
    changes, names = applications.changes, [plan.after.name for plan in plans]
    if len(plans) == 1:
        return [changes.carry_out(plans[0])]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PlanError(f"{', '.join(twice)} has two plans in one change; make one plan of both edits")
    with changes.turns_of(*names), changing(*names):
        found = [changes.change(plan, changes.beside.companions(plan)) for plan in plans]
        made = {change.name: change for change in found if change is not None}
        if made:
            _Together(made, applications).carry_out()
        unstored = [changes.made(change) for change in made.values()]
        meshes = [applications.get(name).mesh for name in names]
    for change in made.values():
        changes.close(change)
    for problem in filter(None, unstored):
        raise problem
    return meshes


class _Together:
    """Carries out the actions of the state machines of one plan, and reports the results to them."""

    def __init__(self, changes: Mapping[str, Change], applications: Applications) -> None:
        self._changes = changes
        self._applications = applications
        self._hold = min(change.timeout for change in changes.values())
        self._mail: SimpleQueue[tuple[str, Message] | None] = SimpleQueue()
        self._home = Coordinator(HOME, resend=math.inf)
        self._members = {name: Member(name, resend=math.inf) for name in changes}
        self._threads = {
            name: _Steps(one, applications.changes.check_there, self._report) for name, one in changes.items()
        }
        self._ended: Ended | None = None
        self._error: BaseException | None = None
        self._until = math.inf

    def carry_out(self) -> None:
        """Make all changes; returns when all of them are made.

        Raises:
            PlanError: one could not be made, and everything is as it was.
        """
        for thread in self._threads.values():
            thread.start()
        fragments = {name: Fragment(fences=(name,)) for name in self._changes}
        with woken(lambda: self._mail.put(None)):
            now = time.monotonic()
            self._act(HOME, self._home.begin(PLAN, fragments, now, prepare=math.inf, hold=self._hold))
            while time.monotonic() < self._until and not self._over():
                self._go_on()
        for name, thread in self._threads.items():
            if self._members[name].plan is None:  # else a step hangs; its undoing is next, whenever it returns
                thread.join()
        if self._ended is None or not self._ended.commit:
            raise self._failure()

    def _over(self) -> bool:
        return self._ended is not None and all(member.plan is None for member in self._members.values())

    def _go_on(self) -> None:
        """Give one machine its next message, or let time pass."""
        self._check_interrupt()
        machines: dict[str, Coordinator | Member] = {HOME: self._home, **self._members}
        due = min([self._until, *(machine.due for machine in machines.values() if machine.due is not None)])
        try:
            mail = self._mail.get(timeout=None if due == math.inf else max(0.0, due - time.monotonic()))
        except Empty:
            for name, machine in machines.items():
                self._act(name, machine.timeout(time.monotonic()))
        else:
            if mail is not None:
                to, message = mail
                self._act(to, machines[to].receive(message, time.monotonic()))

    def _check_interrupt(self) -> None:
        if self._ended is None and asked_to_give_up():
            try:
                check_interrupt()
            except KeyboardInterrupt as interrupt:
                self._error = interrupt
                self._act(HOME, self._home.give_up(PLAN, "it was interrupted"))

    def _act(self, name: str, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._mail.put((action.to, action.message))
                case Do():
                    self._threads[name].given.put(action.step)
                case Record(entry=Committed()):
                    try:
                        self._commit()
                    except BaseException as error:  # noqa: BLE001 (it is raised when the changes are undone)
                        self._error = error
                        problem = NotRecorded(PLAN, described(error))
                        self._act(HOME, self._home.receive(problem, time.monotonic()))
                        return
                case Ended():
                    self._ended = action
                    if not action.commit:
                        self._until = time.monotonic() + self._hold

    def _commit(self) -> None:
        """Store what all of the applications become, in one transaction."""
        store = self._applications.store
        for change in self._changes.values():
            self._applications.changes.check_there(change)
        if store is not None:
            store.update(*(change.target for change in self._changes.values()))

    def _report(self, name: str, step: Step, problem: str) -> None:
        self._mail.put((name, Did(PLAN, step, problem=problem)))

    def _failure(self) -> BaseException:
        """The reason why nothing was changed: the error of the member that said no, or of one that was too late."""
        reasons = self._ended.reasons if self._ended is not None else {}
        order = sorted(self._threads.values(), key=lambda thread: thread.change.name not in reasons)
        errors = [error for error in (self._error, *(thread.error for thread in order)) if error is not None]
        late = [name for name, member in self._members.items() if member.plan is not None]
        text = "; ".join(reasons.values())
        failure = errors[0] if errors else PlanError(f"{text}; everything runs on as it was")
        if late:
            add_note(failure, f"{', '.join(late)} is still in a step; it is undone when that returns")
        for thread in order:
            for note in getattr(thread.undone, "__notes__", ()):
                add_note(failure, note)
        return failure


class _Steps(threading.Thread):
    """Does the steps of one change in their order, and reports each.

    Attributes:
        given: The steps to do.
        error: The first error of a step.
        undone: Given to the change as the reason of its undoing; notes what went wrong with that.
    """

    def __init__(
        self, change: Change, check_there: Callable[[Change], None], report: Callable[[str, Step, str], None]
    ) -> None:
        super().__init__(name=f"exop {change.name} change", daemon=True)
        self.change = change
        self.given: SimpleQueue[Step] = SimpleQueue()
        self.error: BaseException | None = None
        self.undone = PlanError("it is not made together with the others")
        self._check_there = check_there
        self._report = report
        self._held = False
        self._work = delegated(self._do_all)

    def run(self) -> None:
        """Do the given steps until the change is made or undone; then let the old slets leave."""
        self._work()

    def _do_all(self) -> None:
        try:
            step: Step = "prepare"
            while step not in ("commit", "abort"):
                step = self.given.get()
                self._report(self.change.name, step, self._done(lambda step=step: self._do(step)))  # type: ignore[misc]
            self._done(self.change.finish)
        finally:
            if self._held:
                self.change.deployment.changing.release()

    def _done(self, work: Callable[[], None]) -> str:
        """Do *work*; returns what went wrong."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread of the caller)
            self.error = self.error or error
            return described(error)
        return ""

    def _do(self, step: Step) -> None:
        match step:
            case "prepare":
                self.change.prepare()
            case "hold":
                acquire(self.change.deployment.changing)
                self._held = True
                self._check_there(self.change)
                self.change.stage()
            case "cut":
                self.change.cut()
            case "commit":
                self.change.commit()
            case "abort":
                self.change.abort(self.undone)

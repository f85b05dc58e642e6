"""Changing several applications of this process: all of them, or none.

The coordinator and the members are those of a plan over several hosts; here their messages stay in the process, and the
participants are the changes of the applications. Each change has a thread for its steps, so that a hanging one does not
delay the others: at the deadline they continue unchanged. The commit point is the transaction that stores all meshes.
The members keep no journals: the applications end with the process, and the next platform starts the stored meshes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from exop.errors import PlanError
from exop.hosts.protocol.coordinator import Coordinator
from exop.hosts.protocol.member import Member
from exop.hosts.protocol.messages import Action, Committed, Did, Do, Ended, Fragment, NotRecorded, Record, Refuse, Send
from exop.hosts.protocol.participant import Participant
from exop.model.meshes.mesh import Mesh
from exop.runtime.supervision.interrupts import check_interrupt, uninterrupted, woken
from exop.safe_repr import add_note, error_text
from exop.wiring import Applications
from exop.wiring.changes.change import Change
from exop.wiring.changes.executor import changing
from exop.wiring.changes.plan import Plan

#: The name of the home among the members; no application has it.
HOME: Final = ""
#: The identifier of the only plan of a call.
PLAN: Final = "change"


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
        return [changes.carry_out(plans[0])]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PlanError(f"{', '.join(twice)} has two plans in one change; make one plan of both edits")
    problems: list[BaseException | None] = []
    with changes.followed(plans) as runs, changes.turns_of(*names, runs=runs), changing(*names):
        found = [changes.change(one, runs.get(one.after.name)) for one in plans]
        made = {change.name: change for change in found if change is not None}
        if made:
            problems += _Together(made, applications).carry_out()
        problems += [changes.made(change) for change in made.values()]
        meshes = [applications.get(name).mesh for name in names]
    for change in made.values():
        changes.close(change)
    for problem in filter(None, problems):
        raise problem
    return meshes


class _Together:
    """Carries out the actions of the state machines of one plan, and passes the results back to them."""

    def __init__(self, changes: Mapping[str, Change], applications: Applications) -> None:
        self._applications = applications
        self._changes = changes
        self._hold = min(change.timeout for change in changes.values())
        self._mail: SimpleQueue[Send | None] = SimpleQueue()
        self._home = Coordinator(HOME, resend=math.inf)
        self._machines: dict[str, Coordinator | Member] = {name: Member(name, resend=math.inf) for name in changes}
        self._machines[HOME] = self._home
        self._threads = {
            name: Participant(PLAN, name, applications.changes, self._reporter(name), one)
            for name, one in changes.items()
        }
        self._ended: Ended | None = None
        self._error: BaseException | None = None

    def _reporter(self, name: str) -> Callable[[Did], None]:
        return lambda did: self._mail.put(Send(name, did))

    def carry_out(self) -> list[BaseException | None]:
        """Make all changes, or raise; return the errors at closing their old slets."""
        threads = self._threads.values()
        try:
            for thread in threads:
                thread.start()
        except BaseException:
            for thread in threads:
                thread.give(Do(PLAN, "abort"))
            raise
        fragments = {name: Fragment(fences=(name,)) for name in self._threads}
        begin = self._home.begin(PLAN, fragments, time.monotonic(), prepare=math.inf, hold=self._hold)
        with woken(lambda: self._mail.put(None)):
            self._act(HOME, begin)
            while self._ended is None or not self._mail.empty():  # the decision has reached all then
                self._go_on()
        until = time.monotonic() + self._hold
        for thread in threads:
            thread.join(None if self._ended.commit else max(0.0, until - time.monotonic()))
        if not self._ended.commit:
            raise self._failure(self._ended.reasons)
        return [thread.error for thread in threads]

    def _go_on(self) -> None:
        """Pass the next message to its state machine, or let time pass."""
        if self._ended is None:
            try:
                check_interrupt()
            except KeyboardInterrupt as interrupt:
                self._error = interrupt
                self._act(HOME, self._home.receive(Refuse(PLAN, HOME, "it was interrupted"), time.monotonic()))
        due = min((one.due for one in self._machines.values() if one.due is not None), default=math.inf)
        try:
            mail = self._mail.get(timeout=None if due == math.inf else max(0.0, due - time.monotonic()))
        except Empty:
            for name, machine in self._machines.items():
                self._act(name, machine.timeout(time.monotonic()))
        else:
            if mail is not None:
                self._act(mail.to, self._machines[mail.to].receive(mail.message, time.monotonic()))

    def _act(self, name: str, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._mail.put(action)
                case Do():
                    self._threads[name].give(action)
                case Record(entry=Committed()):
                    try:
                        self._commit()
                    except BaseException as error:  # noqa: BLE001 (it is raised when the changes are undone)
                        self._error = error
                        problem = NotRecorded(PLAN, error_text(error))
                        self._act(HOME, self._home.receive(problem, time.monotonic()))
                        return
                case Ended():
                    self._ended = action

    def _commit(self) -> None:
        """Store the new meshes of all applications, in one transaction."""
        store, changes = self._applications.store, self._changes.values()
        for change in changes:
            self._applications.changes.check_there(change)
        if store is not None:
            store.update(*(change.target for change in changes))

    def _failure(self, reasons: Mapping[str, str]) -> BaseException:
        """Return the error of a member that refused or was too late: the reason why nothing was changed."""
        order = sorted(self._threads.values(), key=lambda thread: thread.application not in reasons)
        errors = [error for error in (self._error, *(thread.error for thread in order)) if error is not None]
        failure = errors[0] if errors else PlanError(f"{'; '.join(reasons.values())}; everything runs on as before")
        if late := ", ".join(name for name, thread in self._threads.items() if thread.is_alive()):
            add_note(failure, f"{late} is still in a step; it is undone when that returns")
        for thread in order:
            for note in getattr(thread.undone, "__notes__", ()):
                add_note(failure, note)
        return failure

"""Carries out plans, one at a time for each application; an `upgrade` of state is first tried on a copy."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exop.errors import ExopError, PlanError, StateError
from exop.logs import logger
from exop.model.meshes.diff import MARKS, Difference, marks_on, without_marks
from exop.model.meshes.mesh import Mesh, Node
from exop.model.meshes.nodes import NOTHING
from exop.model.meshes.shadow import check_catching_up
from exop.model.slets.handover import hand_over
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.base import current_driver
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.lifecycle import State
from exop.runtime.pause import PATIENCE
from exop.runtime.supervision.interrupts import Request, delegated, held
from exop.safe_repr import add_note, error_text
from exop.wiring.changes.change import Change
from exop.wiring.changes.conditional_updates import renewed
from exop.wiring.changes.partitions import check_pause
from exop.wiring.changes.plan import Plan, Step
from exop.wiring.changes.successors import LONGER, capture, discard, taken
from exop.wiring.controller import WiringController
from exop.wiring.shadow.follower import Followers, Standby
from exop.wiring.shadow.shadows import Shadows
from exop.wiring.shadow.trial import MakeTrial, Trials

if TYPE_CHECKING:
    from exop.runtime.durable.checkpointer import Checkpointer
    from exop.wiring.applications import Applications

#: How to make a change that stops the stream for longer than the allowed pause.
CURE: Final = (
    "allow it (apply(stall=True), --allow-stall), or a longer pause (apply(pause=…), --pause), or replace it with "
    "lose_state=True (--lose-state)"
)
#: What a plan says of each of the `closed_sinks`.
COMMITS: Final = "commits what it holds: a checkpoint is taken while all drivers are parked"
#: The applications that the current call is changing.
_CHANGING: Final[ContextVar[tuple[str, ...]]] = ContextVar("_CHANGING", default=())


class Changes:
    """Carries out the changes of one platform's applications.

    `turns` has the lock of each application, which serializes its changes; `shadows` the slets that run beside it.
    """

    def __init__(self, wiring: WiringController, running: Applications) -> None:
        self.turns: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self.shadows = Shadows(wiring, self.turns.__getitem__)
        self._wiring = wiring
        self._running = running

    def carry_out(self, plan: Plan) -> Mesh:
        """Make a change; for the errors see `Plan.apply`."""
        name, shadow = plan.after.name, plan.shadow
        self._running.check_whole(name)
        proof: dict[str, Any] = {} if shadow is None else {"proof": {"items": shadow.items, "seconds": shadow.seconds}}
        record = self._running.history.recorded(name, "change", steps=plan.summary, **proof) if plan else nullcontext()
        with record, self.followed([plan]) as runs, ExitStack() as turn:
            turn.enter_context(self.turns_of(name, runs=runs))
            return self._make(name, self.change(plan, runs.get(name)), turn, runs)

    @contextmanager
    def followed(self, plans: Sequence[Plan], away: Mapping[str, MakeTrial] = NOTHING) -> Iterator[dict[str, Trials]]:
        """Let successors that are on trial, or need long to make their states, run beside the old slets.

        Yields the runs by application; until the block ends, these applications accept no other change. *away* makes
        the trials of nodes whose successors are on other hosts.
        """
        runs: dict[str, Trials] = {}
        slow = [self._slow(plan) for plan in plans]
        with ExitStack() as ends:
            for plan, nodes in zip(plans, slow, strict=True):
                if not (nodes or away or plan.shadow is not None) or not plan:
                    continue
                name = plan.after.name
                with self.turns_of(name):
                    if (running := self._running.get(name)).finished.is_set():
                        raise finished(name)
                    beside = self.shadows.running(running, renewed(plan, running.update_log), nodes, away)
                    runs[name] = ends.enter_context(beside)
            with changing(*runs):
                for run in runs.values():
                    run.prove()
                for run in runs.values():
                    run.come_near()
            yield runs

    def _slow(self, plan: Plan) -> list[str]:
        """Return the nodes whose successors have to catch up beside the old slets; raise `PlanError` for a stall."""
        self._check_caller(plan.after.name)
        if (running := self._running.deployed.get(plan.after.name)) is None:
            return []
        if plan.moves and not plan.stall:
            check_pause(plan.moves, running.components, plan.pause)
        found = []
        try:
            for node, tried, reason in _tried(plan, running):
                if not reason:
                    found.append(node)
                elif not plan.stall:
                    raise PlanError(f"{_stall(plan, node, tried, reason)}; nothing has happened; {CURE}")
        except ExopError:
            renewed(plan, running.update_log)  # another change may have replaced the component that it was tried on
            raise
        return found

    def notes(self, plan: Plan) -> Iterator[str]:
        """Describe the hand-overs of states that take longer than the allowed pause."""
        running = self._running.deployed.get(plan.after.name)
        if running is None or running.mesh.revision != plan.before.revision:
            return  # another mesh runs, perhaps that of this plan
        if (taker := self._running.checkpoints.taker(running)) is not None:
            trouble = taker.figures.trouble
            end = f"; warning: the last one failed, and if this one does, nothing is changed: {trouble}" * bool(trouble)
            for node in closed_sinks(plan, {node: one.instance for node, one in running.components.items()}):
                yield f"{node} {COMMITS}{end}"
        try:
            for node, tried, reason in _tried(plan, running):
                if reason:
                    yield f"warning: {_stall(plan, node, tried, reason)}; {CURE}"
                else:
                    yield (
                        f"{tried} of {node} takes about {plan.took[node]:.2g} s, as tried on a copy: the successor "
                        f"catches up beside the old slet, and the stream does not stop for it"
                    )
        except ExopError as problem:
            yield f"warning: the change will be refused: {problem}"

    def rollback(self, application: str, node: str, planned: Callable[[Mesh], Plan]) -> Mesh:
        """Let a predecessor that was kept take over again, with its own current state."""
        with self.turns_of(application):
            plan, kept = self.shadows.rollback_plan(node, self._running.get(application).mesh, planned)
            return self._make(application, self.change(plan, back=kept))

    @contextmanager
    def turn(self, application: str) -> Iterator[None]:
        """Hold the turn of an application, so that no other thread changes it."""
        self._check_caller(application)
        with held(self.turns[application]):
            yield

    def _check_caller(self, application: str) -> None:
        if names := _CHANGING.get():
            raise PlanError(
                f"{application} cannot be changed from within the change of {', '.join(names)}, which waits for this "
                f"call; do it when that change is over, or in a thread that it does not wait for"
            )
        driver, running = current_driver(), self._running.deployed.get(application)
        if driver is not None and running is not None and driver in running.drivers():
            raise PlanError(f"a slet of {application!r} cannot change its own application; do it from another thread")

    @contextmanager
    def turns_of(self, *applications: str, runs: Mapping[str, Trials] | None = None) -> Iterator[None]:
        """Hold the turns of applications, in one order for all callers, which prevents deadlocks."""
        with ExitStack() as turns:
            for name in sorted(applications):
                turns.enter_context(self.turn(name))
                self.shadows.check_free(name, (runs or {}).get(name))
            yield

    def change(
        self, plan: Plan, run: Trials | None = None, back: Standby | None = None, others: Followers | None = None
    ) -> Change | None:
        """Return the change of a plan, in the caller's turn; `None` if there is nothing to do.

        *others* are followers of leaders on other hosts.
        """
        if (running := self._running.deployed.get(plan.after.name)) is None:
            raise _removed(plan.after.name)
        plan = renewed(plan, running.update_log)
        if running.finished.is_set():
            raise finished(plan.after.name)
        if not plan:
            return None
        found = self.shadows.followers(plan, run, back)
        if others is not None:
            found = Followers({**found.ready, **others.ready}, {**found.keep, **others.keep}, staying=others.staying)
        after = without_marks(plan.after, plan.changes).at(plan.before.revision + 1)
        return Change(running, self._wiring, dataclasses.replace(plan, after=after), found)

    def reserve(self, change: Change, turn: ExitStack, *, always: bool = False) -> Checkpointer | None:
        """Let only a change, which parks all drivers, take checkpoints until the end of *turn*; return by what.

        Unless *always*, this does nothing if the change closes no sink that holds output for the next checkpoint. In
        the cut of one that does, the sinks commit a checkpoint, before anything is changed.
        """
        running, plan = change.deployment, change.plan
        made = {node: one.instance for node, one in running.components.items() if node not in change.departing}
        closed = closed_sinks(plan, made)
        taker = self._running.checkpoints.taker(running, plan.after if always else None)
        if taker is None or not (closed or always):
            return None
        turn.enter_context(taker.reserved())
        change.parks_all = True
        change.pause.outside |= {driver for driver in running.drivers() if isinstance(driver, SourceDriver)}
        if closed:
            change.before_cut.insert(0, partial(_settle, taker, plan, [running.components[node] for node in closed]))
        return taker

    def open_beside(self, running: Deployment, node: Node, timeout: float | None) -> Component:
        """Make and open a component beside those of the mesh."""
        component = self._wiring.manager.create(running.name, node, running.changed, timeout=timeout)
        try:
            component.enter(timeout)
        except BaseException:
            discard(running, self._wiring.manager, component)
            raise
        return component

    def check_there(self, change: Change) -> None:
        """Raise `PlanError` if the application was removed or changed, or has lost items, while this was prepared."""
        if self._running.deployed.get(change.name) is not change.deployment:
            raise _removed(change.name)
        if (defect := change.deployment.defect) is not None:
            raise PlanError(f"a former change of {change.name} has crashed: {defect}")
        renewed(change.plan, change.deployment.update_log)

    def made(self, change: Change, *, is_part: bool = False) -> StateError | None:
        """Keep or close the predecessors of a committed change, and store it; return the error of the latter.

        The history has no entry for a change that *is part* of another one there.
        """
        running, plan = change.deployment, change.plan
        failpoint("change-made")
        self.shadows.made(running, change.plan, change.followers)
        unstored = self._running.changed(running) if change.plan else None  # one that reopens a slet changes no mesh
        facts = {} if plan.shadow is None else {"proof": self.shadows.status(plan.after.name).get("shadow")}
        if plan.before.nodes:  # else nothing ran here that could be paused
            running.last_change = running.mesh.revision, change.pause.seconds
            facts["paused_ms"] = round(change.pause.seconds * 1e3, 3)
        if not is_part:
            self._running.history.changed(plan.before, plan.after, steps=plan.summary, **facts)
        return unstored

    def reopen(self, running: Deployment, old: Component, timeout: float = PATIENCE) -> None:
        """Let another instance, with the same state, take the place of a slet that is closed and has no successor."""
        # The state that an earlier change gave up, gave or rebuilt is that of then.
        node = dataclasses.replace(old.node, **MARKS[Node])
        step = Step("replace", node.name, "by itself", node, node, hand_over(node, node))
        plan = Plan(running.mesh, running.mesh, (step,), Difference(), timeout=timeout)
        self._make(running.name, Change(running, self._wiring, plan))

    def undo(self, change: Change, error: BaseException) -> None:
        """Abort a change, and reopen the slets that it has closed; note on *error* how that went."""
        change.abort(error)
        for old in (one for one in change.successors.closed if one.status is State.FAILED):
            name, told = f"{change.name}.{old.node.name}", "is open again, with its state"
            try:  # also after an interrupt, which was for the change
                delegated(partial(self.reopen, change.deployment, old, change.timeout), Request())()
            except Exception as failure:  # noqa: BLE001 (whatever it is, the slet waits for a repair)
                old.failed(failure)
                cure = f"mend that and open it: `exop resume {name}` (platform.resume), or replace it"
                told = f"does not open again: {error_text(failure)}; {cure}"
                logger("exop.wiring").error("a slet does not open again", node=name, error=told)
            add_note(error, f"{name} was closed for its successor, and {told}")

    def close(self, change: Change) -> None:
        """Take a checkpoint if another mesh runs, and close the components that a committed change has replaced."""
        if change.plan and self._running.deployed.get(change.name) is change.deployment:  # others may have followed
            self._running.checkpoints.changed(change.deployment)  # first: other hosts, and engines, wait for it
        change.close()

    def _make(
        self, name: str, change: Change | None, turn: ExitStack | None = None, runs: Mapping[str, Trials] | None = None
    ) -> Mesh:
        """Make one change in its *turn*, which is released while slets open; the driver that parks last commits it."""
        if change is not None:
            slow = turn if change.plan.opens else None
            try:
                if slow is not None:
                    slow.close()
                with changing(name):
                    change.prepare()
                if slow is not None:
                    slow.enter_context(self.turns_of(name, runs=runs))
                with ExitStack() as alone, changing(name):
                    self.reserve(change, alone)  # first: a checkpoint that is being taken needs the next lock
                    alone.enter_context(change.deployment.changing)
                    self.check_there(change)
                    try:
                        change.stage()
                        change.make()
                    finally:
                        change.finish()
            except BaseException as error:
                if change.made:
                    self.made(change)
                    change.close()
                else:
                    self.undo(change, error)
                raise
            problem = self.made(change)
            if turn is not None:
                turn.close()
            self.close(change)
            if problem is not None:
                raise problem
        return self._running.get(name).mesh


@contextmanager
def changing(*applications: str) -> Iterator[None]:
    """Refuse changes by code that a change of these applications calls, as long as the block runs."""
    token = _CHANGING.set(applications)
    try:
        yield
    finally:
        _CHANGING.reset(token)


def finished(application: str) -> PlanError:
    """Return the error for a change of an application that has finished."""
    cure = "to run it again, `exop apply APP`, or apply a mesh that is newly built, or mesh.at(0)"
    return PlanError(f"{application} has finished: there is nothing to change any more; {cure}")


def _tried(plan: Plan, running: Deployment) -> Iterator[tuple[str, str, str]]:
    """Try the hand-overs of states on copies, while the stream runs.

    Yields those that take longer than the allowed pause: the node, the code that is called, and the reason if the
    successor cannot catch up beside the old slet.
    """
    for step in plan.steps:
        old = running.components.get(step.node)
        if step.state is None or step.state.calls is None or old is None or old.state is None:
            continue
        if plan.shadow is not None and not plan.shadow.diverted(step.node):
            continue  # it makes its state during its trial
        if plan.took.get(step.node, 0.0) <= plan.pause:
            with changing(running.name):
                copy, took = capture(running, step.node, plan.patience), LONGER
                for _ in range(3):  # the machine may be busy
                    begin = time.perf_counter()
                    taken(step.state, old, copy, plan.patience, interruptible=True)
                    if not plan.pause < (took := time.perf_counter() - begin) < LONGER:
                        break
            plan.took[step.node] = took
        if plan.took[step.node] > plan.pause:
            yield step.node, step.state.calls, _obstacle(plan, step, old)


def _obstacle(plan: Plan, step: Step, old: Component) -> str:
    """Return the reason, if there is one, why a successor cannot catch up beside the old slet."""
    if plan.shadow is not None:
        return f"{step.node}: the one on trial does not take over, since its settings are diverted"
    if old.status is not State.ACTIVE:
        return f"{step.node} is {old.status}: its successor cannot catch up beside it"
    try:
        check_catching_up(plan.after, plan.before.nodes[step.node], plan.after.nodes[step.node])
    except PlanError as reason:
        return str(reason)
    return ""


def _stall(plan: Plan, node: str, tried: str, reason: str) -> str:
    tried = f"{tried} of {node}, as tried on a copy"
    return f"the change stops the stream for about {plan.took[node]:.2g} s: {tried} ({reason})"


def closed_sinks(plan: Plan, slets: Mapping[str, Any]) -> list[str]:
    """Return the sinks that emit output with checkpoints, and would lose it, since no successor takes it over.

    *slets* has the slet of each node, or its class where it runs on another host.
    """
    sinks = [node for node, one in slets.items() if hasattr(one, "commit_checkpoint")]
    if plan.before.durable is not None and plan.after.durable is None:
        return sinks
    closing = {node.name for node in plan.changes.removed}
    closing |= {step.node for step in plan.replacements if step.after is not None and marks_on(step.after)}
    return [node for node in sinks if node in closing]


def _settle(taker: Checkpointer, plan: Plan, sinks: list[Component]) -> None:
    """Let sinks that are closed commit what they hold, in the cut; raise `PlanError` if that is impossible."""
    sinks = [one for one in sinks if taker.may_hold(one)]
    try:
        if sinks:
            taker.settle(sinks, plan.patience)
    except ExopError as problem:
        names = ", ".join(one.node.name for one in sinks)
        text = f"{names} cannot commit the output that is held for the next checkpoint: {problem}"
        given_up = {step.node for step in plan.steps if step.after is not None and step.after.lose_state}
        if not given_up >= {one.node.name for one in sinks}:
            cure = f"replace {names} by stock:write_lines with another path and lose_state=True (--lose-state)"
            raise PlanError(f"{text}; repair that, or give this output up: {cure}") from problem
        logger("exop.wiring").error(f"{text}; it is lost with the state", application=plan.after.name)


def _removed(application: str) -> PlanError:
    return PlanError(f"{application} was removed: there is nothing to change")

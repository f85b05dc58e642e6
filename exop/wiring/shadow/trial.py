"""Trials: successors that run as followers of their predecessors until they take over, compared or only catching up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from exop.errors import ExopError, PlanError, ShadowFailed, counted
from exop.model.items import Punctuation
from exop.model.meshes.shadow import Shadow
from exop.model.slets.memento import Memento
from exop.model.slets.spec import Role
from exop.runtime.channels.base import LOWEST
from exop.runtime.component import Component
from exop.runtime.conditional_updates import PendingUpdates
from exop.runtime.deployment import Deployment
from exop.runtime.lifecycle import State
from exop.runtime.supervision.interrupts import check_interrupt
from exop.safe_repr import add_note, safe_repr
from exop.wiring.changes.conditional_updates import followed_updates
from exop.wiring.changes.plan import Plan, Step
from exop.wiring.changes.successors import copied, enter_beside, taken
from exop.wiring.controller import WiringController
from exop.wiring.shadow.comparison import Comparison, Deviation, same
from exop.wiring.shadow.follower import CAPACITY, NEAR, Follower, set_progress
from exop.wiring.shadow.taps import Fault, SletCall

#: Seconds between two checks that the old slets still run.
GLANCE: Final = 0.05
#: The maximum number of items that wait in memory while the state of a successor is made.
MOST: Final = 1_000_000
#: The phase of the calls of `compare` and `__eq__` that a change waits for.
COMPARING: Final = "being compared"
#: Why nothing can run beside a slet that is not active.
IDLE: Final = "nothing can be compared; repair or resume it, or make the change without a trial"


class Trial(Follower):
    """A successor that makes its state from a copy while the stream runs, and follows until it takes over.

    With a *shadow* it is compared with its predecessor; if its effects are `diverted`, a new one takes over afterwards.
    Without a shadow it only catches up.
    """

    def __init__(self, step: Step, old: Component, new: Component, shadow: Shadow | None) -> None:
        self.step = step
        self.shadow = shadow
        self.in_step = in_step = not (old.spec.own_driver or new.spec.own_driver)
        self.diverted = shadow is not None and bool(shadow.diverted(step.node))
        ports = [port.name for port in new.spec.outputs if port.name in new.node.ports]
        self.comparison = Comparison(ports, shadow.compare if shadow is not None else None, in_step=in_step)
        self._upgrades = step.state is not None and step.state.calls is not None
        self._copy: Callable[[], Memento | None] = lambda: None
        self._begun: float | None = None
        compared = self.comparison if shadow is not None else None
        super().__init__(old, new, compared, copies=shadow is None or shadow.copy)
        self.capacity = MOST

    def begin_following(self, seconds: float) -> None:
        """Copy the state within *seconds*, and record the items that come from now on; everything is parked."""
        old, self.seconds = self.leader, seconds
        if old.state is not None:
            self._copy = copied(old, seconds, exactly=not self._upgrades)
        set_progress(self.component, old.merge.capture(), old.ended)
        self.tap.attach()

    def make_state(self) -> None:
        """Make the state from the copy within the time limit, and begin with the items that have come since."""
        if self.step.state is not None:
            state = taken(self.step.state, self.component, self._copy(), self.seconds, interruptible=True)
            if state is not None:
                self.component.adopt(state)
        self._copy = lambda: None
        self.attach()
        self.component.begin()
        # The leader waits for a successor on trial only if making the state has left it far behind.
        self.throttling = self.shadow is None or (self._upgrades and self.lag > CAPACITY // 2)
        if not self.throttling:
            self.limit(CAPACITY)
        self._begun = time.monotonic()
        self.start()

    def done(self, call: SletCall, error: Fault | None, took: float) -> None:
        """Compare the outcomes of both slets for a call."""
        if self.shadow is None:
            super().done(call, error, took)
            return
        comparison = self.comparison
        if self.in_step and not call.control:
            comparison.times["old"].append(call.took)
            comparison.times["new"].append(took)
        if call.error is not None or error is not None:
            comparison.compare_errors(call.item, call.port.name, Fault.of(call.error), error)
        if self.in_step and (not self.calls or self.items % 32 == 0):  # many at a time
            comparison.match()
        if comparison.found:
            self.on_progress()

    def _wait_for_room(self) -> None:
        """Stop following at once if the state is still being made, or the slet is too slow: waiting does not help."""
        if self.lag >= self.capacity:
            problem = f"it is {counted(self.lag, 'item')} behind" if self.capacity == MOST else self._slow()
            if problem is not None:
                self.give_up(problem)
        super()._wait_for_room()

    def _slow(self) -> str | None:
        """Return the reason if it is too slow; the time of an engine per item is not known."""
        return self.comparison.slow(self.shadow.slower) if self.shadow is not None and self.in_step else None

    def _unproven(self) -> str | None:
        """Return the reason if no output was compared, unless it is a sink or the shadow allows that."""
        shadow, sink = self.shadow, self.component.spec.role is Role.OMEGA
        if shadow is None or self.comparison.compared or shadow.allow_no_output or sink:
            return None
        return (
            "no output was compared, because neither has put out anything; give it more time or more items, or allow "
            "it for a slet that may put out nothing: Shadow(allow_no_output=True) (--allow-no-output)"
        )

    def unfinished(self, *, over: bool = True) -> str | None:
        """Return why the trial is not finished; one that is to last for a time is so when its time is *over*."""
        if self.shadow is None:
            return None
        came, asked = self.items, self.shadow.items
        if came < (asked or 1) or not (over or asked):
            wanted = f"{came} of {counted(asked, 'item')}" if asked else "not one item"
            return f"within {self.shadow.limit:g} s came {wanted}; give it more time, or ask for fewer items"
        # An engine may put out everything when it is quiesced, at the end of its trial.
        return self._unproven() if self.in_step else None

    def obstacle(self) -> str | None:
        """Return the reason, as far as it is known, why the successor cannot take over."""
        old, new = self.leader, self.component
        if not self.in_step:  # the driver of the new one compares those in step
            self._compare()
        if (found := self.comparison.problem()) is not None:
            return found
        if old.status is State.ENDED or old.ended >= {port.name for port in old.spec.inputs}:
            return "the stream has ended"
        if old.status is not State.ACTIVE:
            return f"the old one is {old.status}: {IDLE}"
        broke = new.status is State.FAILED
        return f"the new one broke: {type(new.error).__name__}: {new.error}" if broke else self.lost

    def check(self) -> None:
        """Compare what is left; refuse if it is not equal, too slow, or unproven."""
        if self.shadow is not None:
            self._compare(last=True)
        if (problem := self.obstacle() or self._slow() or self._unproven()) is not None:
            raise self.failed(problem)

    def _compare(self, *, last: bool = False) -> None:
        """Compare the outputs so far; the *last* time all that are left, and the mementos of sinks."""
        old, new = self.leader, self.component

        def compare() -> None:
            self.comparison.match(last=last)
            sink = last and new.spec.role is Role.OMEGA and type(old.state) is type(new.state)
            if sink and not same(old.state, new.state):
                texts = (safe_repr(state, 200) for state in (old.state, new.state))
                self.comparison.note(Deviation("memento", self.items, "memento", *texts))

        new.user.run(new, COMPARING, compare, self.seconds, interruptible=not last)

    def unsent(self) -> list[tuple[str, Punctuation]]:
        """Return the successor's punctuations that its predecessor, an engine, has not sent yet."""
        found = []
        for port, streams in self.comparison.ports.items() if not self.in_step else ():
            old, new = streams.last.get("old"), streams.last.get("new")
            sent = old.time if isinstance(old, Punctuation) else LOWEST
            if isinstance(new, Punctuation) and new.time > sent:
                found.append((port, new))
        return found

    def failed(self, problem: str) -> ExopError:
        """Return the error with the reason why the successor does not take over."""
        if self.shadow is None:
            return PlanError(
                f"the successor of {self.step.node} cannot catch up beside it: {problem}; nothing has happened; allow "
                f"the hand-over a longer pause (apply(pause=…), --pause)"
            )
        report = self.plain()
        found = f" (after {counted(report['items'], 'item')} in {report['seconds']:g} s)"
        found += "".join(f"\n  {one}" for one in self.comparison.differences)
        return ShadowFailed(node=self.step.node, problem=problem, found=found, report=report)

    def plain(self) -> dict[str, Any]:
        """Return the progress of a trial as plain data."""
        if self.shadow is None:
            return {}
        return {
            "slet": self.component.spec.identity,
            "items": self.items,
            "asked": self.shadow.items,
            "seconds": round(0.0 if self._begun is None else time.monotonic() - self._begun, 3),
            "limit": self.shadow.limit,
            "held_s": round(self.held, 3),
            **self.comparison.plain(),
        }


#: Makes the trial of a node whose successor is on another host, of its step and its component here.
MakeTrial: TypeAlias = Callable[[Step, Component], Trial]


@dataclass(eq=False)
class Trials:
    """The trials of one plan: of all successors if it has a shadow, else of those of *slow*, which have to catch up.

    The application goes on meanwhile, and accepts no other change. *away* makes the trials of successors elsewhere.
    """

    deployment: Deployment
    wiring: WiringController
    plan: Plan
    slow: Collection[str]
    away: Mapping[str, MakeTrial] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    aborted: str | None = None
    over: threading.Event = field(default_factory=threading.Event)
    _progress: threading.Event = field(default_factory=threading.Event)

    def prove(self) -> None:
        """Return when all successors have caught up, and those with a shadow are proven."""
        shadow = self.plan.shadow
        for step in self.plan.steps:
            if step.verb == "replace" and (shadow is not None or step.node in self.slow):
                self._open(step)
            elif step.verb == "remove" and step.node in self.away:
                self.trials.append(self.away[step.node](step, self._active(step.node)))
        engines = [trial.leader for trial in self.trials if trial.leader.spec.own_driver]
        nodes = [trial.leader.node.name for trial in self.trials]
        with self.deployment.changing:
            self.wiring.rebind(self.deployment, self._begin, engines, nodes=nodes)
        for trial in self.trials:
            trial.make_state()
        for trial in self.trials:
            if trial.throttling:
                self._catch_up(trial)
                if shadow is not None:
                    trial.limit(CAPACITY)
        limit = shadow.limit if shadow is not None else 0.0
        if not self._reached(lambda: not any(one.unfinished(over=False) for one in self.trials), self.trials, limit):
            for trial in self.trials:
                if problem := trial.unfinished():
                    raise trial.failed(problem)

    def come_near(self) -> None:
        """Keep the followers near from now on, since the stream stands still until they have come to rest."""
        for trial in self.trials:
            begun = trial.items
            trial.limit(NEAR)

            def near(trial: Trial = trial, begun: int = begun) -> bool:
                return not trial.lag or (begun != trial.items and trial.lag <= trial.near)

            if not self._reached(near, [trial], trial.patience):
                raise trial.failed(trial.too_slow())

    def abort(self, reason: str, timeout: float) -> None:
        """End the trials, and the calls that make states or compare, and wait until that is done."""
        self.aborted, end = reason, time.monotonic() + timeout
        self._progress.set()
        while not self.over.is_set() and time.monotonic() < end:
            for phase in ("taking over the state", COMPARING):  # again and again: a call may be about to begin
                self.wiring.manager.user.abandon(self.deployment.name, phase, reason)
            self.over.wait(GLANCE)

    def end(self, error: BaseException | None = None) -> None:
        """Close the successors that have not taken over; failures of that are noted on *error*."""
        try:
            for trial in self.trials:
                if (problem := trial.leave(self.deployment, self.wiring)) and error is not None:
                    add_note(error, f"and when the successor was closed: {problem}")
        finally:
            self.over.set()

    def status(self) -> dict[str, Any]:
        """Return the progress, by node, as plain data."""
        return {trial.step.node: plain for trial in self.trials if (plain := trial.plain())}

    def __str__(self) -> str:
        head = f"{self.plan.after.name} is being changed: a successor"
        if self.plan.shadow is None:
            return f"{head} catches up beside {', '.join(self.slow)}"
        done = ", ".join(f"{trial.step.node}: {counted(trial.items, 'item')} so far" for trial in self.trials)
        return f"{head} is on trial for {self.plan.shadow} ({done or 'it opens'})"

    def _open(self, step: Step) -> None:
        """Make and open a successor, with its effects diverted if the shadow says so."""
        shadow, old, node = self.plan.shadow, self._active(step.node), step.after
        assert node is not None
        if shadow is not None and (diverted := shadow.diverted(step.node)):
            node = node.with_settings(diverted)
        changed, timeout = self.deployment.changed, self.plan.timeout
        new = self.wiring.manager.create(self.deployment.name, node, changed, timeout=timeout)
        self.trials.append(Trial(step, old, new, shadow))
        enter_beside(new, timeout)

    def _active(self, node: str) -> Component:
        """Return the old slet of a node; raise `PlanError` unless it is active."""
        if (old := self.deployment.components[node]).status is not State.ACTIVE:
            raise PlanError(f"{node} is {old.status}: {IDLE}")
        return old

    def _begin(self) -> None:
        """Attach the trials, with the settings of this moment; everything is parked."""
        since = self.plan.before.revision
        for trial in self.trials:
            component, trial.since = trial.component, since
            trial.on_progress = self._progress.set
            if component is not trial.leader:  # otherwise the successor is on another host
                if (node := followed_updates(component, since, self.deployment)) is not component.node:
                    component.configure(node)
                if node.pending:
                    component.updates = PendingUpdates(component, self.deployment.update_log)
            trial.begin_following(self.plan.patience)

    def _catch_up(self, trial: Trial) -> None:
        """Wait until the follower is near, for as long as it comes nearer within each time-out of the plan."""
        left = trial.lag
        while not self._reached(lambda: trial.lag <= 2 * NEAR, [trial], self.plan.patience):
            if trial.lag >= left:
                raise trial.failed(f"it is {counted(trial.lag, 'item')} behind, and comes no nearer")
            left = trial.lag

    def _reached(self, ready: Callable[[], bool], trials: Iterable[Trial], seconds: float) -> bool:
        """Wait until *ready()* holds, while the *trials* may take over; return `False` after *seconds*."""
        end = time.monotonic() + seconds
        while not ready():
            for trial in trials:
                if (problem := trial.obstacle()) is not None:
                    raise trial.failed(problem)
            if (left := end - time.monotonic()) <= 0:
                return False
            self._progress.wait(min(left, GLANCE))
            self._progress.clear()
            check_interrupt()
            if self.aborted is not None or self.deployment.finished.is_set():
                raise PlanError(f"{self.plan.after.name}: {self.aborted or 'it has finished'}; nothing was changed")
        return True

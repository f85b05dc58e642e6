"""The successors of one plan that run beside the mesh, until they take over or one of them cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Any, Self

from exop.errors import PlanError
from exop.model.lifecycle import State
from exop.runtime.deployment import Deployment
from exop.runtime.interrupts import check_interrupt
from exop.runtime.lines import NodeWatch
from exop.runtime.manager import ComponentManager
from exop.shown import described
from exop.wiring.controller import WiringController
from exop.wiring.lines import fired_beside
from exop.wiring.plan import Plan, Step
from exop.wiring.shadow.allowed import replacements
from exop.wiring.shadow.behind import untie
from exop.wiring.shadow.follower import CAPACITY, NEAR, PATIENCE
from exop.wiring.shadow.trial import CatchingUp, Trial, on_trial
from exop.wiring.successors import discard

#: Seconds between two looks whether the old slets still run.
GLANCE = 0.05


class Run:
    """Runs the successors of one plan beside the mesh: on trial, where the plan has a shadow, else those of *slow*.

    Used once, as a context; at its end it closes those that have not taken over. The application goes on meanwhile, and
    accepts no other change.
    """

    def __init__(
        self,
        deployment: Deployment,
        manager: ComponentManager,
        wiring: WiringController,
        plan: Plan,
        slow: Collection[str] = (),
    ) -> None:
        self.deployment = deployment
        self.plan = plan
        self.trials: list[CatchingUp] = []
        self.aborted: str | None = None
        self.over = threading.Event()
        self._manager = manager
        self._wiring = wiring
        self._slow = slow
        self._news = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for trial in self.trials:
                self._end(trial, error)
        finally:
            self.over.set()

    def prove(self) -> None:
        """Return when all successors have caught up, and those on trial are proven.

        Raises:
            ShadowFailed: one is not proven, or not in time.
            ComponentFailed: one could not be opened, or its state was not made in time.
            PlanError: one cannot catch up; or the run was given up, or the application has finished.
        """
        shadow = self.plan.shadow
        for step in replacements(self.plan):
            if shadow is not None or step.node in self._slow:
                self._open(step)
        self._tie()
        for trial in self.trials:
            trial.make(self.plan.patience)
        for trial in self.trials:
            if trial.follower.slowing:
                self._catch_up(trial)
                if shadow is not None:
                    trial.follower.limit(CAPACITY)
        limit = shadow.limit if shadow is not None else 0.0
        if not self._holds(lambda: all(trial.enough() for trial in self.trials), self.trials, limit):
            for trial in self.trials:
                if (problem := trial.lacks()) is not None:
                    raise trial.failed(problem)

    def come_near(self) -> None:
        """Keep the followers near from now on: the stream stands still until they have come to rest.

        Raises:
            ExopError: one does not move.
        """
        for trial in self.trials:
            follower, begun = trial.follower, trial.follower.items
            trial.hasten()

            def near(follower: Any = follower, begun: int = begun) -> bool:
                return not follower.behind or (follower.items != begun and follower.behind <= NEAR)

            if not self._holds(near, [trial], PATIENCE):
                behind = f"it was {follower.behind} items behind"
                raise trial.failed(f"too slow: {behind}, and did not catch up within {PATIENCE:g} s")

    def abort(self, reason: str, timeout: float) -> None:
        """Give up, also the states that are being made, and wait until that is done."""
        self.aborted = reason
        self._manager.user.give_up(self.deployment.name, "taking over the state", reason)
        self._tell()
        self.over.wait(timeout)

    def status(self) -> dict[str, Any]:
        """Return the progress, by node, as plain data."""
        return {trial.step.node: plain for trial in self.trials if (plain := trial.plain())}

    def __str__(self) -> str:
        head = f"{self.plan.after.name} is being changed: a successor"
        if self.plan.shadow is None:
            return f"{head} catches up beside {', '.join(self._slow)}"
        done = ", ".join(f"{trial.step.node}: {trial.follower.items} items so far" for trial in self.trials)
        return f"{head} is on trial for {self.plan.shadow} ({done or 'it opens'})"

    def _open(self, step: Step) -> None:
        shadow, old = self.plan.shadow, self.deployment.components[step.node]
        if old.status is not State.ACTIVE:
            raise PlanError(
                f"{step.node} is {old.status}: nothing can be compared; repair or resume it, or replace it as it is"
            )
        step = step if shadow is None else on_trial(step, shadow)
        assert step.after is not None
        changed, timeout = self.deployment.changed, self.plan.timeout
        new = self._manager.create(self.deployment.name, step.after, changed, timeout=timeout)
        trial = CatchingUp(step, old, new) if shadow is None else Trial(step, old, new, shadow)
        trial.follower.news = self._tell
        self.trials.append(trial)
        new.enter(self.plan.timeout)

    def _tie(self) -> None:
        """Let all begin behind their leaders, in one pause."""
        engines = [trial.leader for trial in self.trials if trial.leader.spec.own_driver]
        nodes = [trial.leader.node.name for trial in self.trials]
        with self.deployment.changing:
            self._wiring.settle(self.deployment, self._begin, engines, nodes=nodes)

    def _begin(self) -> None:
        """Begin with the settings of this moment, and look at each item from now on; everything is parked."""
        since, ledger = self.plan.before.revision, self.deployment.ledger
        for trial in self.trials:
            component, trial.since = trial.component, since
            node = fired_beside(component, since, self.deployment)
            if node is not component.node:
                component.configure(node)
            if node.pending:
                component.watch = NodeWatch(component, ledger)
            trial.begin()

    def _catch_up(self, trial: CatchingUp) -> None:
        """Wait until the follower is near, for as long as it comes nearer.

        Raises:
            PlanError: it has not come nearer within the plan's time-out.
        """
        follower, left = trial.follower, trial.follower.behind
        while not self._holds(lambda: follower.behind <= 2 * NEAR, [trial], self.plan.patience):
            if follower.behind >= left:
                raise trial.failed(f"it is {follower.behind} items behind, and comes no nearer")
            left = follower.behind

    def _holds(self, ready: Callable[[], bool], trials: Iterable[CatchingUp], seconds: float) -> bool:
        """Wait for *ready*; `False` after so many seconds.

        Raises:
            ExopError: one of the *trials* cannot take over; or as `prove`.
        """
        end = time.monotonic() + seconds
        while not ready():
            for trial in trials:
                if (problem := trial.problem()) is not None:
                    raise trial.failed(problem)
            left = end - time.monotonic()
            if left <= 0:
                return False
            with self._news:
                self._news.wait(min(left, GLANCE))
            check_interrupt()
            if self.aborted is not None or self.deployment.finished.is_set():
                raise PlanError(f"{self.plan.after.name}: {self.aborted or 'it has finished'}; nothing was changed")
        return True

    def _end(self, trial: CatchingUp, error: BaseException | None) -> None:
        """Untie the follower; close it unless it has taken over."""
        trial.stop()
        untie(self.deployment, self._wiring, trial)
        if self.deployment.components.get(trial.step.node) is not trial.component:
            try:
                discard(self.deployment, self._manager, trial.component)
            except Exception as problem:  # noqa: BLE001 (whatever a slet does when it closes)
                if error is not None:
                    error.add_note(f"and when the successor was closed: {described(problem)}")

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

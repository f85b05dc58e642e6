"""A change on trial: the successors of a plan run beside the mesh until they are proven, or one of them is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from exop.errors import PlanError
from exop.model.lifecycle import State
from exop.model.shadow import Shadow
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.interrupts import check_interrupt
from exop.runtime.lines import NodeWatch
from exop.runtime.manager import ComponentManager
from exop.shown import described
from exop.wiring.controller import WiringController
from exop.wiring.lines import fired_beside
from exop.wiring.plan import Plan, Step
from exop.wiring.shadow.allowed import replacements
from exop.wiring.shadow.behind import Candidate, untie
from exop.wiring.shadow.follower import NEAR, PATIENCE
from exop.wiring.shadow.trial import NO_OUTPUT, Trial, on_trial
from exop.wiring.standby import discard

#: So often it is looked whether the old ones still run, in seconds.
GLANCE = 0.05

T = TypeVar("T", bound=Candidate)


class Run(Generic[T]):
    """The successors of one plan that run beside the mesh until they take over; what has not at its end is closed.

    Used once, as a context. The application goes on meanwhile, and accepts no other change.
    """

    def __init__(self, deployment: Deployment, manager: ComponentManager, wiring: WiringController, plan: Plan) -> None:
        self.deployment = deployment
        self.plan = plan
        self.trials: list[T] = []
        self.aborted: str | None = None
        self.over = threading.Event()
        self._manager = manager
        self._wiring = wiring
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
        """Return when all successors may take over.

        Raises:
            ExopError: one may not.
        """
        raise NotImplementedError

    def abort(self, reason: str, timeout: float) -> None:
        """Give it up, and wait until that is done."""
        self.aborted = reason
        self._tell()
        self.over.wait(timeout)

    def status(self) -> dict[str, Any]:
        """Return the progress, by node, as plain data."""
        return {}

    def _open(self, step: Step, made: Callable[[Step, Component, Component], T]) -> None:
        assert step.after is not None
        old = self.deployment.components[step.node]
        if old.status is not State.ACTIVE:
            problem = (
                f"{step.node} is {old.status}: nothing can be compared; repair or resume it, or replace it as it is"
            )
            raise PlanError(problem)
        new = self._manager.create(self.deployment.name, step.after, self.deployment.changed)
        trial = made(step, old, new)
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
        """Everything is parked: begin with the settings of this moment, and look at each item from now on."""
        since, ledger = self.plan.before.revision, self.deployment.ledger
        for trial in self.trials:
            component, trial.since = trial.component, since
            node = fired_beside(component, since, self.deployment)
            if node is not component.node:
                component.configure(node)
            if node.pending:
                component.watch = NodeWatch(component, ledger)
            trial.begin()

    def _see_near(self, trial: T) -> None:
        """Let the end be near, and see that the follower moves: the stream will stand still until it has come to rest.

        Raises:
            ShadowFailed: it does not.
        """
        follower, begun = trial.follower, trial.follower.items
        trial.hasten()

        def near() -> bool:
            return not follower.behind or (follower.items != begun and follower.behind <= NEAR)

        if not self._holds(near, [trial], PATIENCE):
            behind = f"it was {follower.behind} items behind"
            raise trial.failed(f"too slow: {behind}, and did not catch up within {PATIENCE:g} s")

    def _holds(self, ready: Callable[[], bool], trials: Iterable[T], seconds: float) -> bool:
        """Wait for *ready*; `False` after so many seconds.

        Raises:
            ShadowFailed: one of the *trials* cannot take over.
            PlanError: the proof was given up, or the application has finished.
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

    def _end(self, trial: T, error: BaseException | None) -> None:
        """Untie what was tied; close what has not taken over."""
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


class Proof(Run[Trial]):
    """The trials of one plan."""

    def __init__(self, deployment: Deployment, manager: ComponentManager, wiring: WiringController, plan: Plan) -> None:
        assert plan.shadow is not None
        super().__init__(deployment, manager, wiring, plan)
        self.shadow: Shadow = plan.shadow

    def prove(self) -> None:
        """Return when all successors are proven.

        Raises:
            ShadowFailed: one is not, or not in time.
            ComponentFailed: one could not be opened.
            PlanError: it was given up: the application is removed.
        """
        for step in replacements(self.plan):
            self._open(on_trial(step, self.shadow), lambda at, old, new: Trial(at, old, new, self.shadow))
        self._tie()
        for trial in self.trials:
            trial.start()
        self._wait()
        for trial in self.trials:
            self._see_near(trial)

    def status(self) -> dict[str, Any]:
        """Return the progress, by node, as plain data."""
        return {trial.step.node: trial.plain() for trial in self.trials}

    def __str__(self) -> str:
        done = ", ".join(f"{trial.step.node}: {trial.follower.items} items so far" for trial in self.trials)
        return (
            f"{self.plan.after.name} is being changed: a successor is on trial for {self.shadow} ({done or 'it opens'})"
        )

    def _wait(self) -> None:
        """Wait until enough was compared, or something is wrong, or time is up."""
        if not self._holds(self._enough, self.trials, self.shadow.limit):
            self._too_late()

    def _enough(self) -> bool:
        asked = self.shadow.items
        return asked is not None and all(
            # An engine may put out everything when it is quiesced, at the end of its trial.
            trial.follower.items >= asked and not (trial.in_step and trial.unproven)
            for trial in self.trials
        )

    def _too_late(self) -> None:
        """Time is up: that was the end that was asked for, unless too little has come."""
        asked = self.shadow.items or 1
        for trial in self.trials:
            if trial.follower.items < asked:
                came = trial.follower.items
                wanted = f"of {asked} items" if self.shadow.items else "not one item"
                problem = f"{came} {wanted}" if self.shadow.items else wanted
                cure = "give it more time, or ask for fewer items"
                raise trial.failed(f"within {self.shadow.limit:g} s came {problem}; {cure}")
            if trial.in_step and trial.unproven:
                raise trial.failed(NO_OUTPUT)

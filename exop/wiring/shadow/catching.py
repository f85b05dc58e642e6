"""A successor whose state takes long to make: it starts from a copy, and catches up beside its predecessor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exop.errors import PlanError
from exop.model.lifecycle import State
from exop.model.memento import Memento
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.manager import ComponentManager
from exop.runtime.pause import PATIENCE
from exop.shown import class_of, message
from exop.wiring.controller import WiringController
from exop.wiring.plan import Plan, Step
from exop.wiring.shadow.behind import Candidate, as_far
from exop.wiring.shadow.calls import Call
from exop.wiring.shadow.follower import NEAR
from exop.wiring.shadow.proof import Run
from exop.wiring.shadow.taps import FollowerTap, with_tap
from exop.wiring.successors import copied, taken

#: So many items may come while the state is made; they are kept in memory.
MOST = 1_000_000


class Catching(Candidate):
    """Ties one successor to its predecessor: what comes while its state is made is kept for it.

    Args:
        step: The replacement.
        old: The component that runs.
        new: The one that is to take its place; it is open.
    """

    def __init__(self, step: Step, old: Component, new: Component) -> None:
        super().__init__(old, new, compared=False)
        self.step = step
        self.follower.capacity = MOST
        self._copy: Callable[[], Memento] | None = None

    def begin(self) -> None:
        """Copy the state, and keep what comes from now on; everything is parked."""
        self._copy = copied(self.leader, PATIENCE)
        as_far(self.component, self.leader)
        self.leader.tap = with_tap(self.leader.tap, self.tap)

    def make(self, seconds: float) -> None:
        """Make the state out of the copy, within so many seconds, and begin to work off what has come since.

        Raises:
            ComponentFailed: the user's code that makes it has not returned in time.
        """
        assert self.step.state is not None
        assert self._copy is not None
        state, self._copy = taken(self.step.state, self.component, self._copy(), seconds), None
        if state is not None:
            self.component.adopt(state)
        self.follower.attach()
        self.component.begin()
        self.follower.slowing = True
        self.follower.start()

    def done(self, call: Call, tap: FollowerTap) -> None:
        """One that raises where its predecessor did not has lost an item: it cannot take over."""
        if tap.error is not None and call.error is None and self.component.node.policy not in ("skip", "dead-letter"):
            self.follower.give_up(f"it raised {class_of(tap.error)} for item {call.item}: {message(tap.error)}")

    def full(self) -> str | None:
        """The stream does not wait for it while its state is made."""
        return f"it is {self.follower.behind} items behind" if self.follower.capacity == MOST else None

    def hasten(self) -> None:
        """The end is near: the stream waits for it."""
        self.follower.slowing = False
        super().hasten()

    def problem(self) -> str | None:
        """Return why it cannot take over, as far as is known."""
        if self.follower.problem is None and self.leader.status is not State.ACTIVE:
            return f"the old one is {self.leader.status}"
        return self.follower.problem

    def check(self) -> None:
        """Look whether it has followed to the last item.

        Raises:
            PlanError: it has not.
        """
        if (problem := self.problem()) is not None:
            raise self.failed(problem)

    def failed(self, problem: str) -> PlanError:
        """Return the error with the reason why it does not take over."""
        return PlanError(
            f"the successor of {self.step.node} cannot catch up beside it: {problem}; nothing has happened; "
            f"let the hand-over stop the stream (apply(stall=True), --allow-stall)"
        )


class CatchUp(Run[Catching]):
    """The successors of one plan that catch up beside the mesh; used as a proof is."""

    def __init__(
        self,
        deployment: Deployment,
        manager: ComponentManager,
        wiring: WiringController,
        plan: Plan,
        nodes: Sequence[str],
    ) -> None:
        super().__init__(deployment, manager, wiring, plan)
        self._nodes = nodes

    def prove(self) -> None:
        """Return when all have caught up.

        Raises:
            ComponentFailed: one could not be opened, or its state was not made in time.
            PlanError: one cannot follow, or not in time; or the application is removed.
        """
        seconds = PATIENCE if self.plan.timeout is None else self.plan.timeout
        for step in self.plan.steps:
            if step.node in self._nodes:
                self._open(step, Catching)
        self._tie()
        for trial in self.trials:
            trial.make(seconds)
        for trial in self.trials:
            self._catch_up(trial, seconds)
            self._see_near(trial)

    def _catch_up(self, trial: Catching, seconds: float) -> None:
        """Wait until the follower is near, as long as it comes nearer.

        Raises:
            PlanError: it has not come nearer for so many seconds.
        """
        follower, left = trial.follower, trial.follower.behind
        while not self._holds(lambda: follower.behind <= 2 * NEAR, [trial], seconds):
            if follower.behind >= left:
                raise trial.failed(f"it is {follower.behind} items behind, and comes no nearer")
            left = follower.behind

    def abort(self, reason: str, timeout: float) -> None:
        """Give it up, also the state that is being made, and wait until that is done."""
        self.aborted = reason
        self._manager.user.give_up(self.deployment.name, "taking over the state", reason)
        super().abort(reason, timeout)

    def __str__(self) -> str:
        nodes = ", ".join(self._nodes)
        return f"{self.plan.after.name} is being changed: a successor catches up beside {nodes}"

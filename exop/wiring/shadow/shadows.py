"""The trials and standbys that run beside the applications of one platform."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from exop.errors import NotNow, PlanError
from exop.logs import logger
from exop.model.meshes.mesh import Mesh
from exop.model.slets.handover import HandOver
from exop.runtime.deployment import Deployment
from exop.wiring.changes.plan import Plan
from exop.wiring.controller import WiringController
from exop.wiring.shadow.follower import Follower, Followers, Standby
from exop.wiring.shadow.trial import MakeTrial, Trials

#: Seconds to wait for the end of aborted trials.
ABORTING: Final = 10.0


class Shadows:
    """Keeps account of the trials and standbys; *turn* returns the lock of an application."""

    def __init__(self, wiring: WiringController, turn: Callable[[str], threading.RLock]) -> None:
        self._wiring = wiring
        self._turn = turn
        self._trials: dict[str, Trials] = {}
        self._kept: dict[tuple[str, str], tuple[Deployment, Standby]] = {}
        self._last: dict[str, dict[str, Any]] = {}

    def check_free(self, application: str, trials: Trials | None = None) -> None:
        """Refuse to change an application while successors are on trial, unless these are *trials*."""
        if (running := self._trials.get(application)) is not None and running is not trials:
            cure = f"`exop rollback --abandon {application}` (platform.abandon_proof)"
            raise NotNow(f"{running}; wait until that is over, or give it up: {cure}")

    @contextmanager
    def running(
        self, deployment: Deployment, plan: Plan, slow: Collection[str], away: Mapping[str, MakeTrial]
    ) -> Iterator[Trials]:
        """Refuse other changes while the trials of a plan run; close the successors that have not taken over."""
        name = deployment.name
        trials = self._trials[name] = Trials(deployment, self._wiring, plan, slow, away)
        try:
            with ExitStack() as ends:
                ends.push(lambda _, error, __: trials.end(error))
                yield trials
        finally:
            if plan.shadow is not None:
                self._last[name] = trials.status()
            if self._trials.get(name) is trials:
                del self._trials[name]

    def followers(self, plan: Plan, trials: Trials | None = None, back: Standby | None = None) -> Followers:
        """Return the followers that take over in this change, and the makers of the standbys that it keeps."""
        found = trials.trials if trials is not None else []
        ready: dict[str, Follower] = {trial.step.node: trial for trial in found if not trial.diverted}
        if back is not None:
            ready[back.node.name] = back
        standby = partial(Standby.beside, seconds=plan.patience, over=self.expire)
        kept = [step.node for step in plan.replacements] if plan.keep is not None else []
        return Followers(ready, {node: partial(standby, shares=node not in ready) for node in kept})

    def made(self, deployment: Deployment, plan: Plan, followers: Followers) -> None:
        """Close the standbys that a change has ended, and start those that it keeps."""
        for node in _ended(plan) | followers.ready.keys():
            self._end(deployment.name, node)
        for node, standby in followers.kept.items():
            standby.since = plan.before.revision
            self.keep(deployment, node, standby, plan.keep or 0.0)

    def keep(self, deployment: Deployment, node: str, standby: Standby, seconds: float) -> None:
        """Let a standby run on for some time."""
        self._kept[deployment.name, node] = deployment, standby
        standby.run_on(seconds)

    def standby(self, application: str, node: str) -> Standby:
        """Return the standby of a node; raise `PlanError` if it has none."""
        if (kept := self._kept.get((application, node))) is None:
            raise no_standby(application, node)
        return kept[1]

    def notes(self, plan: Plan) -> Iterator[str]:
        """Describe the standbys that a plan ends."""
        for node in _ended(plan) & self._kept_of(plan.after.name).keys():
            yield f"{node}: the predecessor that is kept as a standby is closed: no rollback to it any more"

    def rollback_plan(self, node: str, mesh: Mesh, plan: Callable[[Mesh], Plan]) -> tuple[Plan, Standby]:
        """Return the plan by which a standby takes over again, and that standby."""
        mesh.node(node)  # an unknown name is refused as such
        standby = self.standby(mesh.name, node)
        made = plan(mesh.edited({node: replace(standby.node, lose_state=True)}))
        own = HandOver("its own, current state", lambda memento: memento)
        steps = (replace(one, state=own) if one.node == node and one.state is not None else one for one in made.steps)
        return replace(made, steps=tuple(steps)), standby

    def abandon(self, application: str, reason: str) -> bool:
        """Abort the trials of an application, and wait until that is done; return whether there were any."""
        if (trials := self._trials.get(application)) is not None:
            trials.abort(reason, ABORTING)
        return trials is not None

    def stop(self, application: str) -> None:
        """End the trials and standbys of an application that is removed."""
        self.abandon(application, "it is removed")
        turn = self._turn(application)
        acquired = turn.acquire(timeout=ABORTING)  # a standby whose time is up may be about to leave
        try:
            for node in self._kept_of(application):
                self._end(application, node)
            self._last.pop(application, None)
        finally:
            if acquired:
                turn.release()

    def status(self, application: str) -> dict[str, Any]:
        """Return plain data: the trials (`shadow`), the result of the last ones (`proof`), the standbys (`kept`)."""
        trials = self._trials.get(application)
        found = {
            "shadow": trials.status() if trials is not None else {},
            "proof": self._last.get(application),
            "kept": {node: one.plain() for node, one in self._kept_of(application).items() if not one.is_remote},
        }
        return {name: value for name, value in found.items() if value}

    def _kept_of(self, application: str) -> dict[str, Standby]:
        return {node: standby for (name, node), (_, standby) in self._kept.copy().items() if name == application}

    def expire(self, standby: Standby) -> None:
        """Close a standby whose time is up, or that has stopped following."""
        key = standby.component.application, standby.node.name
        with self._turn(key[0]):
            if self._kept.get(key, (None, None))[1] is not standby:
                return
            if standby.lost is not None:
                logger("exop.wiring").warning("a predecessor is not kept any longer", node=key, why=standby.lost)
            self._end(*key)

    def _end(self, application: str, node: str) -> None:
        """Close the standby of a node, if there is one."""
        if (found := self._kept.pop((application, node), None)) is not None:
            self.leave(*found)

    def leave(self, deployment: Deployment, follower: Follower) -> None:
        """End a follower, and close its component unless it has taken its leader's place."""
        if problem := follower.leave(deployment, self._wiring):
            logger("exop.wiring").error("a follower did not close", node=follower.component.id, error=problem)


def no_standby(application: str, node: str) -> PlanError:
    """Return the error for a rollback of a node without a standby."""
    return PlanError(
        f"{application}.{node} has no predecessor that runs on as a standby: a change keeps one on request "
        f"(plan.apply(keep=60), exop replace … --keep 60s), for that time; replace it back instead"
    )


def _ended(plan: Plan) -> set[str]:
    """Return the nodes whose standbys a plan ends: it changes them, or moves their partitions."""
    shared = {node for move in plan.moves for node in move.before}
    return shared | {one.node for one in plan.steps if one.verb in ("replace", "remove", "configure", "arm", "cancel")}

"""All that runs beside the meshes of one platform: successors on trial, and predecessors that are kept."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from exop.errors import PlanError, UnknownName
from exop.logs import logger
from exop.model.handover import HandOver
from exop.model.mesh import Mesh
from exop.runtime.deployment import Deployment
from exop.runtime.manager import ComponentManager
from exop.runtime.pause import PATIENCE
from exop.shown import described
from exop.wiring.controller import WiringController
from exop.wiring.plan import Plan
from exop.wiring.shadow.allowed import replacements
from exop.wiring.shadow.behind import Keeping, Kept, untie
from exop.wiring.shadow.proof import Run
from exop.wiring.successors import Companions, discard

#: How long a proof that is given up is waited for, in seconds.
LEAVING = 10.0
#: Changes of a node that end the following: its kept predecessor does not follow it any further.
ENDING = ("replace", "remove", "configure", "arm")


class Beside:
    """Keeps account of what runs beside the applications; asked by those who change them.

    Args:
        manager: Makes and destroys components.
        wiring: Binds them.
        turn: Gives the lock under which an application is changed.
    """

    def __init__(
        self, manager: ComponentManager, wiring: WiringController, turn: Callable[[str], threading.RLock]
    ) -> None:
        self._manager = manager
        self._wiring = wiring
        self._turn = turn
        self._proofs: dict[str, Run] = {}
        self._kept: dict[tuple[str, str], tuple[Deployment, Kept]] = {}
        self._last: dict[str, dict[str, Any]] = {}

    def check_free(self, application: str, proof: Run | None = None) -> None:
        """Refuse to change an application while a successor is on trial there.

        Raises:
            PlanError: it is, and not by *proof*.
        """
        running = self._proofs.get(application)
        if running is not None and running is not proof:
            raise PlanError(
                f"{running}; wait until that is over, or give it up: `exop rollback --abandon {application}` "
                f"(platform.abandon_proof)"
            )

    def begin(self, deployment: Deployment, plan: Plan, slow: Collection[str]) -> Run:
        """Begin to prove a plan, or to let the successors of *slow* nodes catch up: no other change until `over`."""
        proof = self._proofs[deployment.name] = Run(deployment, self._manager, self._wiring, plan, slow)
        return proof

    def over(self, proof: Run) -> None:
        """A proof is over."""
        application = proof.plan.after.name
        if proof.plan.shadow is not None:
            self._last[application] = proof.status()
        if self._proofs.get(application) is proof:
            del self._proofs[application]

    def companions(self, plan: Plan, proof: Run | None = None, back: Kept | None = None) -> Companions:
        """Return the successors that take a place in this change, and the predecessors that run on."""
        found = Companions()
        for trial in proof.trials if proof is not None else ():
            if not trial.diverted:
                found.ready[trial.step.node] = trial
        if back is not None:
            found.ready[back.node.name] = back
        for step in replacements(plan) if plan.keep is not None else ():
            seconds = PATIENCE if plan.timeout is None else plan.timeout
            found.keepers[step.node] = Keeping(self._expire, shares=step.node not in found.ready, seconds=seconds)
        return found

    def made(self, deployment: Deployment, plan: Plan, companions: Companions) -> None:
        """A change is made: those that are kept begin to follow, and those that it has ended are closed."""
        for step in plan.steps:
            if step.verb in ENDING:
                self._end(deployment.name, step.node)
        for keeper in companions.keepers.values():
            if keeper.kept is not None and plan.keep is not None:
                self._kept[deployment.name, keeper.kept.node.name] = deployment, keeper.kept
                keeper.kept.since = plan.before.revision
                keeper.kept.start(plan.keep)

    def kept(self, application: str, node: str) -> Kept:
        """The predecessor that runs behind a node.

        Raises:
            PlanError: there is none.
        """
        found = self._kept.get((application, node))
        if found is None:
            raise PlanError(
                f"{application}.{node} has no predecessor that runs behind it: a change keeps one on request "
                f"(plan.apply(keep=60), exop replace … --keep 60s), for that time; replace it back instead"
            )
        return found[1]

    def notes(self, plan: Plan) -> Iterator[str]:
        """The predecessors that a plan ends, in words."""
        ended = {step.node for step in plan.steps if step.verb in ENDING}
        for node, _ in self._kept_of(plan.after.name):
            if node in ended:
                yield f"{node}: the predecessor that is kept behind it is closed: no rollback to it any more"

    def rollback_plan(self, application: str, node: str, mesh: Mesh, plan: Callable[[Mesh], Plan]) -> tuple[Plan, Kept]:
        """The plan by which a predecessor takes over again.

        Raises:
            UnknownName: there is no such node.
            PlanError: no predecessor was kept.
        """
        if node not in mesh.nodes:
            raise UnknownName(place=f"the application {application!r}", kind="node", name=node, known=mesh.nodes)
        kept = self.kept(application, node)
        made = plan(kept.back(mesh))
        own = HandOver("its own, current state", lambda memento: memento)
        steps = tuple(
            dataclasses.replace(step, state=own) if step.node == node and step.state is not None else step
            for step in made.steps
        )
        return dataclasses.replace(made, steps=steps), kept

    def abandon(self, application: str, reason: str) -> bool:
        """Give up the proof that is under way, and wait until that is done; returns whether there was one."""
        proof = self._proofs.get(application)
        if proof is not None:
            proof.abort(reason, LEAVING)
        return proof is not None

    def stop(self, application: str) -> None:
        """The application is removed: nothing runs beside it any more."""
        self.abandon(application, "it is removed")
        turn = self._turn(application)
        taken = turn.acquire(timeout=LEAVING)  # a predecessor whose time is up may be about to leave
        try:
            for name, node in list(self._kept):
                if name == application:
                    self._end(name, node)
            self._last.pop(application, None)
        finally:
            if taken:
                turn.release()

    def status(self, application: str) -> dict[str, Any]:
        """Return the slets beside an application as plain data: `shadow` (on trial), `proof` (the last one), `kept`."""
        proof = self._proofs.get(application)
        kept = {node: one.plain() for node, one in self._kept_of(application)}
        found = {
            "shadow": proof.status() if proof is not None else {},
            "proof": self._last.get(application),
            "kept": kept,
        }
        return {name: value for name, value in found.items() if value}

    def _kept_of(self, application: str) -> Iterator[tuple[str, Kept]]:
        for (name, node), (_, kept) in list(self._kept.items()):
            if name == application:
                yield node, kept

    def _expire(self, kept: Kept) -> None:
        """Its time is up, or it cannot follow: called by its timer."""
        key = kept.component.application, kept.node.name
        with self._turn(key[0]):
            if self._kept.get(key, (None, None))[1] is not kept:
                return
            if kept.follower.problem is not None:
                logger("exop.wiring").warning(
                    "a predecessor is not kept any longer", node=key, why=kept.follower.problem
                )
            self._end(*key)

    def _end(self, application: str, node: str) -> None:
        """Close a predecessor that is kept, if there is one."""
        found = self._kept.pop((application, node), None)
        if found is None:
            return
        deployment, kept = found
        kept.end()
        if deployment.components.get(node) is kept.component:  # it has taken over again
            return
        untie(deployment, self._wiring, kept)
        try:
            discard(deployment, self._manager, kept.component)
        except Exception as error:  # noqa: BLE001 (whatever a slet does when it closes)
            logger("exop.wiring").error(
                "a predecessor did not close", node=f"{application}.{node}", error=described(error)
            )

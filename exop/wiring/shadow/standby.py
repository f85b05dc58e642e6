"""Predecessors that run on behind their successors, and the account of all components beside one platform's meshes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from exop.errors import PlanError, UnknownName
from exop.logs import logger
from exop.model.meshes.mesh import Mesh, Node
from exop.model.slets.handover import HandOver
from exop.model.slets.memento import Memento
from exop.runtime.component import Component
from exop.runtime.component_manager import ComponentManager
from exop.runtime.deployment import Deployment
from exop.runtime.lifecycle import State
from exop.runtime.supervision.failure_state import DeadLetters
from exop.wiring.changes.plan import Plan
from exop.wiring.changes.successors import leave
from exop.wiring.controller import WiringController
from exop.wiring.shadow.checks import replacements
from exop.wiring.shadow.follower import Companions, Follower, Undo, as_far
from exop.wiring.shadow.trial import Run

#: Seconds to wait for the end of a run that is given up.
LEAVING: Final = 10.0
#: Changes of a node after which its kept predecessor cannot follow it any further.
ENDING: Final = ("replace", "remove", "configure", "arm")


class Standby(Follower):
    """A predecessor behind its successor: it gets the same items, and its outputs are dropped. Everything is parked.

    If the successor *shares* its state by reference, it gets a copy, which may take *seconds*. *over* is called, in a
    thread of its own, when its time is up, or it cannot follow any more.
    """

    def __init__(
        self,
        predecessor: Component,
        successor: Component,
        undo: list[Undo],
        *,
        shares: bool,
        seconds: float,
        over: Callable[[Standby], None],
    ) -> None:
        if predecessor.status is not State.ACTIVE:
            problem = f"{successor.node.name} is {predecessor.status}: it cannot run on behind its successor"
            raise PlanError(f"{problem}; make the change without keeping it")
        super().__init__(successor, predecessor)
        self.until = 0.0
        self._over = over
        self._ended = threading.Event()
        merge, ended, dead = predecessor.merge, predecessor.ended, predecessor.trouble.dead
        before = predecessor.tap  # that of its own predecessor, perhaps

        def drop() -> None:
            predecessor.merge, predecessor.ended, predecessor.trouble.dead = merge, ended, dead
            predecessor.tap = before
            self.tap.untie()

        undo.append(drop)
        as_far(predecessor, predecessor)
        predecessor.trouble.dead = DeadLetters()
        if shares and predecessor.state is not None:
            copy = predecessor.state.copied
            predecessor.adopt(predecessor.user.run(predecessor, "taking the memento", copy, seconds))
        self.tap.tie()
        self.attach()

    @property
    def node(self) -> Node:
        """The node with which it takes over: its own settings, connected and suspended as the successor is."""
        now = self.leader.node
        return replace(self.component.node, ports=now.ports, suspended=now.suspended)

    def run_on(self, seconds: float) -> None:
        """Run on for so many seconds."""
        self.until = time.time() + seconds
        self.component.proceed()  # to be replaced, it has put out everything
        self.start()
        threading.Thread(target=self._wait, args=(seconds,), name=f"exop {self.name} until", daemon=True).start()

    def _wait(self, seconds: float) -> None:
        self._ended.wait(seconds)
        self._over(self)

    def give_up(self, problem: str) -> None:
        """Follow no more."""
        super().give_up(problem)
        self._ended.set()

    def take_over(self, undo: list[Undo]) -> Memento | None:
        """Come back to where the successor is connected now, and as it is suspended."""
        state = super().take_over(undo)
        self.component.node = self.node
        return state

    def check(self) -> None:
        """Refuse if it has not followed to the last item."""
        if self.lost is not None or self.component.status is not State.ACTIVE:
            why = self.lost or f"it is {self.component.status}"
            raise PlanError(f"the predecessor of {self.node.name} cannot take over again: {why}; replace it back")

    def plain(self) -> dict[str, Any]:
        """Return its status as plain data."""
        return {
            "slet": self.component.spec.identity,
            "until": time.strftime("%H:%M:%S", time.localtime(self.until)),
            "left_s": round(max(0.0, self.until - time.time()), 1),
            "behind": self.behind,
            "items": self.items,
            "problem": self.lost,
        }


class Shadows:
    """Keeps account of the components that run beside the applications; *turn* returns the lock of an application."""

    def __init__(
        self, manager: ComponentManager, wiring: WiringController, turn: Callable[[str], threading.RLock]
    ) -> None:
        self._manager = manager
        self._wiring = wiring
        self._turn = turn
        self._runs: dict[str, Run] = {}
        self._kept: dict[tuple[str, str], tuple[Deployment, Standby]] = {}
        self._last: dict[str, dict[str, Any]] = {}

    def check_free(self, application: str, run: Run | None = None) -> None:
        """Refuse to change an application while successors run beside it, unless they are those of *run*."""
        running = self._runs.get(application)
        if running is not None and running is not run:
            raise PlanError(
                f"{running}; wait until that is over, or give it up: `exop rollback --abandon {application}` "
                f"(platform.abandon_proof)"
            )

    @contextmanager
    def running(self, deployment: Deployment, plan: Plan, slow: Collection[str]) -> Iterator[Run]:
        """Refuse other changes while successors run beside an application; close those that have not taken over."""
        name = deployment.name
        run = self._runs[name] = Run(deployment, self._manager, self._wiring, plan, slow)
        try:
            yield run
        except BaseException as error:
            run.end(error)
            raise
        else:
            run.end()
        finally:
            if plan.shadow is not None:
                self._last[name] = run.status()
            if self._runs.get(name) is run:
                del self._runs[name]

    def companions(self, plan: Plan, run: Run | None = None, back: Standby | None = None) -> Companions:
        """Return the successors that take a place in this change, and the predecessors that run on."""
        trials = run.trials if run is not None else []
        ready: dict[str, Follower] = {trial.step.node: trial for trial in trials if not trial.diverted}
        if back is not None:
            ready[back.node.name] = back
        if plan.keep is None:
            return Companions(ready)
        keep = partial(Standby, seconds=plan.patience, over=self._expire)
        return Companions(ready, {one.node: partial(keep, shares=one.node not in ready) for one in replacements(plan)})

    def made(self, deployment: Deployment, plan: Plan, companions: Companions) -> None:
        """Close the predecessors that a change has ended, and let those begin to follow that it keeps."""
        for node in _ended(plan):
            self._end(deployment.name, node)
        for node, kept in companions.kept.items():
            self._kept[deployment.name, node] = deployment, kept
            kept.since = plan.before.revision
            kept.run_on(plan.keep or 0.0)

    def notes(self, plan: Plan) -> Iterator[str]:
        """Describe the predecessors that a plan ends."""
        for node in _ended(plan) & self._kept_of(plan.after.name).keys():
            yield f"{node}: the predecessor that is kept behind it is closed: no rollback to it any more"

    def rollback_plan(self, node: str, mesh: Mesh, plan: Callable[[Mesh], Plan]) -> tuple[Plan, Standby]:
        """Return the plan by which a predecessor takes over again, and that predecessor."""
        application = mesh.name
        if node not in mesh.nodes:
            raise UnknownName(place=f"the application {application!r}", kind="node", name=node, known=mesh.nodes)
        _, kept = self._kept.get((application, node), (None, None))
        if kept is None:
            raise PlanError(
                f"{application}.{node} has no predecessor that runs behind it: a change keeps one on request "
                f"(plan.apply(keep=60), exop replace … --keep 60s), for that time; replace it back instead"
            )
        made = plan(mesh.edited({node: replace(kept.node, lose_state=True)}))
        own = HandOver("its own, current state", lambda memento: memento)
        steps = (replace(one, state=own) if one.node == node and one.state is not None else one for one in made.steps)
        return replace(made, steps=tuple(steps)), kept

    def abandon(self, application: str, reason: str) -> bool:
        """Give up the run that is under way, and wait until that is done; returns whether there was one."""
        run = self._runs.get(application)
        if run is not None:
            run.abort(reason, LEAVING)
        return run is not None

    def stop(self, application: str) -> None:
        """Let nothing run beside an application any more: it is removed."""
        self.abandon(application, "it is removed")
        turn = self._turn(application)
        taken = turn.acquire(timeout=LEAVING)  # a predecessor whose time is up may be about to leave
        try:
            for node in self._kept_of(application):
                self._end(application, node)
            self._last.pop(application, None)
        finally:
            if taken:
                turn.release()

    def status(self, application: str) -> dict[str, Any]:
        """Return the slets beside an application as plain data: `shadow` (on trial), `proof` (the last one), `kept`."""
        run = self._runs.get(application)
        found = {
            "shadow": run.status() if run is not None else {},
            "proof": self._last.get(application),
            "kept": {node: one.plain() for node, one in self._kept_of(application).items()},
        }
        return {name: value for name, value in found.items() if value}

    def _kept_of(self, application: str) -> dict[str, Standby]:
        return {node: kept for (name, node), (_, kept) in self._kept.copy().items() if name == application}

    def _expire(self, kept: Standby) -> None:
        """Close a predecessor whose time is up, or that cannot follow."""
        key = kept.component.application, kept.node.name
        with self._turn(key[0]):
            if self._kept.get(key, (None, None))[1] is not kept:
                return
            if kept.lost is not None:
                logger("exop.wiring").warning("a predecessor is not kept any longer", node=key, why=kept.lost)
            self._end(*key)

    def _end(self, application: str, node: str) -> None:
        """Close a predecessor that is kept, if there is one."""
        found = self._kept.pop((application, node), None)
        if found is None:
            return
        deployment, kept = found
        if problem := leave(kept, deployment, self._manager, self._wiring):
            logger("exop.wiring").error("a predecessor did not close", node=f"{application}.{node}", error=problem)


def _ended(plan: Plan) -> set[str]:
    """The nodes whose predecessors are kept no longer: another change came, or their partitions have moved."""
    shared = {node for move in plan.moves for node in move.before}
    return shared | {step.node for step in plan.steps if step.verb in ENDING}

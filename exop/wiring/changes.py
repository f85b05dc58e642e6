"""Carrying out plans, one at a time for each application: as they are, or proven before."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

from exop.errors import StateError
from exop.model.mesh import Mesh
from exop.runtime.deployment import Deployment
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.interrupts import held, uninterrupted
from exop.runtime.manager import ComponentManager
from exop.wiring.controller import WiringController
from exop.wiring.lines import renewed
from exop.wiring.plan import Plan
from exop.wiring.shadow.beside import Beside
from exop.wiring.standby import Companions
from exop.wiring.together import Together, finished


class Running(Protocol):
    """The source of running applications."""

    def get(self, application: str) -> Deployment:
        """The running form of an application."""

    @property
    def deployed(self) -> Mapping[str, Deployment]:
        """The applications that are deployed; others may be taken away at any time."""

    @property
    def has_state(self) -> bool:
        """There is a state directory."""

    def changed(self, deployment: Deployment) -> StateError | None:
        """A change is made. Returns what kept it from being stored."""


class Changes:
    """Changes what runs.

    Attributes:
        turns: The lock of each application: its appliers are served one after the other.
        beside: What runs beside the applications.
    """

    def __init__(self, manager: ComponentManager, wiring: WiringController, running: Running) -> None:
        self.turns: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self.beside = Beside(manager, wiring, self.turns.__getitem__)
        self._manager = manager
        self._wiring = wiring
        self._running = running

    def carry_out(self, plan: Plan) -> Mesh:
        """Make a change; one with a proof refuses other changes until it is done.

        Raises:
            StaleMesh: the application was changed after the plan was made.
            PlanError: it could not be made, and everything is as it was.
        """
        if plan.shadow is None or not plan:
            return self.together([plan])[0]
        with held(self.turns[plan.after.name]):
            self.beside.check_free(plan.after.name)
            running = self._to_change(plan)
            plan = renewed(plan, running)
            proof = self.beside.begin(running, plan)
        try:
            with proof:
                proof.prove()
                with held(self.turns[plan.after.name]):
                    return self._make([plan], {plan.after.name: self.beside.companions(plan, proof)})[0]
        finally:
            self.beside.over(proof)

    @uninterrupted
    def together(self, plans: Sequence[Plan]) -> list[Mesh]:
        """Make changes of different applications as they are, all or nothing; returns the meshes that run then.

        Raises:
            StaleMesh: one of the applications was changed after its plan was made.
            PlanError: one of them could not be made; everything is as it was, in all of them.
        """
        with ExitStack() as turns:
            for name in sorted(plan.after.name for plan in plans):
                turns.enter_context(held(self.turns[name]))
                self.beside.check_free(name)
            return self._make(plans, {plan.after.name: self.beside.companions(plan) for plan in plans})

    def rollback(self, application: str, node: str, planned: Callable[[Mesh], Plan]) -> Mesh:
        """Let a predecessor that was kept take over again, with its own, current state.

        Raises:
            UnknownName: no such application, or node.
            PlanError: none was kept; or the change could not be made, and everything is as it was.
        """
        with held(self.turns[application]):
            mesh = self._running.get(application).mesh
            plan, kept = self.beside.rollback_plan(application, node, mesh, planned)
            self.beside.check_free(application)
            return self._make([plan], {application: self.beside.companions(plan, back=kept)})[0]

    def _to_change(self, plan: Plan) -> Deployment:
        """Return the application that a plan changes, if it is still there."""
        name = plan.after.name
        running = self._running.get(name)
        if running.finished.is_set():
            raise finished(name)
        return running

    def _make(self, plans: Sequence[Plan], companions: Mapping[str, Companions]) -> list[Mesh]:
        """Make changes, in one's turn."""
        state = self._running.has_state
        together = Together(self._manager, self._wiring, self._running.deployed, has_state=state, beside=companions)
        unstored: list[StateError | None] = []
        for change in together.carry_out(plans):
            running = change.deployment
            running.last_change = running.mesh.revision, change.paused
            failpoint("change-made")
            self.beside.made(running, change.plan, change.beside)
            unstored.append(self._running.changed(running))
        for problem in filter(None, unstored):
            raise problem
        return [self._running.get(plan.after.name).mesh for plan in plans]

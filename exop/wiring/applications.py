"""The applications of one platform: deployed, changed, waited for and removed; one change at a time."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from exop.errors import ExopError, LifecycleError, StateError
from exop.logs import logger
from exop.model.meshes.checks import check, check_durable, resolved
from exop.model.meshes.mesh import Mesh
from exop.model.slets.handover import tried
from exop.runtime.catalog import Catalog
from exop.runtime.deployment import Deployment
from exop.runtime.lifecycle import Event, refused
from exop.wiring.changes.channels import check_channels
from exop.wiring.changes.conditional_updates import caught_up, pending_again
from exop.wiring.changes.executor import Changes, finished
from exop.wiring.changes.plan import Plan, Step, make_plan, remarks_on
from exop.wiring.changes.rebuild import check_rebuilds
from exop.wiring.controller import WiringController
from exop.wiring.deployments import LEAVING, Deployments

if TYPE_CHECKING:
    from exop.runtime.durable.snapshot import Snapshot
    from exop.runtime.durable.store import StoredApplication


class Applications(Deployments):
    """The applications of a platform. Concurrent changes of one application are made one after the other."""

    def __init__(self, host: str, catalog: Catalog, wiring: WiringController) -> None:
        super().__init__(host, wiring)
        self.changes = Changes(wiring, self)
        self._catalog = catalog

    def plan(self, mesh: Mesh) -> Plan:
        """Check what `apply` would do, and return its plan; nothing has happened yet."""
        running = self.get(mesh.name)
        now, mesh = caught_up(mesh, mesh.revision, running)
        mesh = resolved(mesh, self._catalog.slets, durable=self.store is not None, running=now)
        plan = make_plan(now, mesh)
        if mesh.nodes or mesh.name not in self.fragments:
            check(mesh, self._manager.kinds, plan.changes, home=self._host)
        check_channels(mesh, self._manager.kinds, plan.changes)
        check_durable(mesh, has_state=True, nodes=None if now.durable is None else plan.changes.nodes)
        self.check_hosts((*plan.changes.nodes, *plan.changes.channels))
        check_rebuilds(plan, running)
        plan = dataclasses.replace(plan, steps=tuple(_tried(step, running) for step in plan.steps))
        remarks = remarks_on(running, self._manager.kinds, self._manager.user.opened)
        told = tuple(self.changes.shadows.notes(plan))

        def noted(plan: Plan) -> tuple[str, ...]:
            return *remarks(plan), *told, *self.changes.notes(plan)

        return dataclasses.replace(plan, remarks=noted, carry_out=self.changes.carry_out)

    def apply(
        self, mesh: Mesh, timeout: float | None = None, pause: float | None = None, *, stall: bool = False
    ) -> Mesh:
        """Deploy a new application, or change the one that runs; return the mesh with its revision."""
        if not self._runs(mesh.name):
            with self.changes.turn(mesh.name):
                if not self._runs(mesh.name):
                    with self.history.recorded(mesh.name, "deploy", new=True):
                        return self._begin(mesh, timeout)
        return self.plan(mesh).apply(timeout=timeout, pause=pause, stall=stall)

    def _begin(self, mesh: Mesh, timeout: float | None) -> Mesh:
        """Deploy an application that does not run."""
        known = self.deployed.get(mesh.name)
        if known is not None and mesh.revision:
            raise finished(mesh.name)
        mesh = resolved(mesh, self._catalog.slets, durable=self.store is not None)
        check_durable(mesh, has_state=self.store is not None)
        if mesh.name in self.lost and self.store is not None and self.store.checkpoints.has(mesh.name):
            raise self._down(f"the checkpoint of {mesh.name!r} is kept, because it could not be restored", mesh.name)
        mesh = mesh.at(max(mesh.revision, known.mesh.revision if known is not None else 0) + 1)
        self.checkpoints.stop(mesh.name)
        if self.store is not None:  # first: if it cannot be stored, the finished one stays
            self.store.save(mesh, active=True, anew=True)
        try:
            if known is not None:
                self.undeploy(known)
            deployment = self._start(mesh, ready=self.checkpoints.begin, timeout=timeout)
        except BaseException:
            self.checkpoints.stop(mesh.name)
            self.deployed.pop(mesh.name, None)
            self._set_inactive(mesh.name)
            raise
        self.checkpoints.start(deployment)
        self.history.changed(Mesh(mesh.name), mesh)
        return mesh

    def open_fragment(self, mesh: Mesh) -> Deployment:
        """Deploy an application without nodes, into which a plan over several hosts places those of this platform."""
        known = self.deployed.get(mesh.name)
        if known is not None:
            self.undeploy(known)
        self.checkpoints.stop(mesh.name)
        self.fragments.add(mesh.name)
        return self._start(mesh.at(known.mesh.revision if known is not None else 0))

    def recover(self, mesh: Mesh, snapshot: Snapshot, stored: StoredApplication) -> str:
        """Start an application from its last checkpoint, which is of *mesh*; if that fails, the checkpoint is kept.

        A change that was stored after the checkpoint is made again. Returns a description of its outcome.
        """
        edited, problem = mesh, None
        if stored.revision > snapshot.revision:
            try:
                edited = pending_again(mesh, Mesh.from_toml(stored.topology, self._catalog.slets))
            except ExopError as error:
                problem = error
        again = edited != mesh
        revision = max(snapshot.revision, stored.revision - 1) if again else snapshot.revision
        if again or problem is not None:
            self._unmade.add(mesh.name)
        try:
            with self.changes.turn(mesh.name):
                running = resolved(mesh.at(revision), self._catalog.slets, durable=True)
                check_durable(running, has_state=True)
                deployment = self._start(running, snapshot, ready=self.checkpoints.tell)
                self._note(deployment)  # it is stored already, unless by another release; a change made again stays
                self.checkpoints.start(deployment)
            if again:
                self.plan(edited.at(revision)).apply(stall=True)
        except ExopError as error:
            if mesh.name not in self.deployed:
                raise
            problem = error
        finally:
            self._unmade.discard(mesh.name)
        if problem is None:
            return f", with the change to revision {stored.revision} that was made after it" if again else ""
        facts = {"application": mesh.name, "revision": stored.revision, "error": str(problem)}
        logger("exop.wiring").error("a stored change could not be made again", **facts)
        return f"; the change to revision {stored.revision} that was made after it could not be made again: {problem}"

    def resume(self, application: str, node: str) -> None:
        """Let items into a suspended or failed node again, beginning with the one that it is suspended on."""
        deployment = self.get(application)
        if deployment.mesh.node(node).suspended:
            self.plan(deployment.mesh.resume(node)).apply()
            return
        with deployment.changing:
            component = deployment.components[node]
            if not component.allows(Event.RESUME):
                raise refused(component.name, component.status, Event.RESUME)
            if component.tie is not None and component.tie.failure is not None:
                cure = "a replacement or a changed setting (`exop configure`), which starts its engine again"
                facts = {"component": component.name, "state": str(component.status), "event": str(Event.RESUME)}
                raise LifecycleError(**facts, allowed=cure) from component.tie.failure
            component.resume()

    def remove(self, application: str, timeout: float = 5.0) -> bool:
        """Stop an application, or forget one that is down; return whether all its threads have ended in time."""
        self._check_open(application)
        self.changes.shadows.stop(application)
        with self._turn:
            if application in self.lost and self.store is not None:
                self.store.forget(application)
                self._manager.forget(application)
                del self.lost[application]
                return True
            deployment = self.get(application)
            if self.store is not None:  # first: if it cannot be forgotten, it runs on
                self.store.set_active(application, active=False)
        self.checkpoints.last(deployment, timeout, removed=True)
        problem: StateError | None = None
        with self._turn:
            if self.deployed.get(application) is not deployment:  # another thread removes it
                return deployment.wait(timeout)
            del self.deployed[application]
            self.history.forget(application)
            try:
                if self.store is not None:
                    self.store.forget(application)
            except StateError as error:
                problem = error
        try:
            left = self.undeploy(deployment, timeout)
        finally:
            self._manager.forget(application)
        if problem is not None:
            raise problem
        return left

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished; `False` when *timeout* seconds were not enough."""
        begin = time.monotonic()
        if application in self._manager.opening:
            turn = self.changes.turns[application]
            if not turn.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                return False
            turn.release()
        left = None if timeout is None else timeout - (time.monotonic() - begin)
        done = self.get(application).wait(left)
        if done and self.store is not None and self.checkpoints.end_is_stored(application):
            self._set_inactive(application)
        return done

    def close(self) -> None:
        """Undeploy everything, after a last checkpoint of each durable application; all of them stay stored."""
        for application in self.names():
            self.changes.shadows.stop(application)
        with self._turn:
            self._closings += 1
        self._manager.user.abandon(phase="opening")
        for deployment in list(self.deployed.values()):
            self.checkpoints.last(deployment, LEAVING)
        with self._turn:
            deployments = list(self.deployed.values())
            self.deployed.clear()
        with ExitStack() as all_of_them:  # all are closed, also if one is interrupted
            for deployment in reversed(deployments):
                all_of_them.callback(self.undeploy, deployment, LEAVING)


def _tried(step: Step, running: Deployment) -> Step:
    """Let an engine try on a copy whether it can take over the internal state of the running component."""
    if step.state is None or step.before is None or step.after is None or step.node not in running.components:
        return step
    predecessor = running.components[step.node].instance
    return dataclasses.replace(step, state=tried(step.state, step.before, step.after, predecessor))

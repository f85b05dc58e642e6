"""The applications of one platform: deployed, changed, waited for and removed; one change at a time."""

from __future__ import annotations

import dataclasses
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from exop.errors import ExopError, PlanError, StateError, StillOpening, UnknownName
from exop.logs import logger
from exop.model.meshes.checks import check, check_durable
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.resolve import resolved
from exop.runtime.catalog import Catalog
from exop.runtime.component_manager import ComponentManager
from exop.runtime.deployment import Deployment
from exop.runtime.history import History
from exop.runtime.lifecycle import Event, refused
from exop.wiring.changes.channels import check_channels
from exop.wiring.changes.conditional_updates import UpdateFollowUp, caught_up, pending_again
from exop.wiring.changes.executor import Changes, finished
from exop.wiring.changes.plan import Plan, make_plan
from exop.wiring.changes.rebuild import check_rebuilds
from exop.wiring.changes.remarks import notes
from exop.wiring.controller import WiringController
from exop.wiring.deployer import Deployer
from exop.wiring.durability import LEAVING, Durability

if TYPE_CHECKING:
    from exop.runtime.durable.snapshot import Snapshot
    from exop.runtime.durable.store import Store, StoredApplication


class Applications:
    """The applications of a platform, by name. Concurrent changes of one application are made one after the other.

    `lost` has the errors of applications that could not be started again; their checkpoints are kept.
    """

    def __init__(self, host: str, catalog: Catalog, manager: ComponentManager, wiring: WiringController) -> None:
        self.deployed: dict[str, Deployment] = {}
        self.lost: dict[str, ExopError] = {}
        self.store: Store | None = None
        self.checkpoints = Durability(wiring)
        self.history = History(lambda name: name in self.deployed or name in self.lost)
        self.changes = Changes(manager, wiring, self)
        self._host = host
        self._catalog = catalog
        self._manager = manager
        self._wiring = wiring
        self._deployer = Deployer(manager, wiring, host)
        self._unmade: set[str] = set()
        self._turn = threading.RLock()
        self._closings = 0

    def keep_in(self, store: Store | None) -> None:
        """Keep the applications, their checkpoints, channels and engines there from now on; `None`: nowhere."""
        self.store = self.checkpoints.store = self.history.store = store
        if store is not None:
            self._manager.home, self._manager.engines = store.directory / "channels", store.engines

    def names(self) -> list[str]:
        """The applications that are deployed."""
        return sorted(self.deployed)

    def get(self, application: str) -> Deployment:
        """The running form of an application.

        Raises `UnknownName` or `StillOpening` if it does not run here, or not yet, `StateError` if it is down.
        """
        self._check_open(application)
        if (found := self.deployed.get(application)) is not None:
            return found
        if application in self.lost:
            raise self._down(
                f"the application {application!r} is down, because it could not be started again", application
            )
        place = f"the platform {self._host!r}"
        raise UnknownName(place=place, kind="application", name=application, known=self.names())

    def _down(self, fact: str, application: str) -> StateError:
        return StateError(
            f"{fact} ({self.lost[application]}); mend that, and try again by `exop resume {application}`, or give it "
            f"up by `exop remove {application}`"
        )

    def _check_open(self, application: str) -> None:
        """Raise `StillOpening` while the slets of an application are being opened."""
        if (deployment := self._manager.opening.get(application)) is not None:
            facts = deployment.opening_progress()
            waiting = "".join(f", {node} since {seconds:.0f} s" for node, seconds in facts["waiting"].items())
            opened, total = facts["opened"], facts["total"]
            raise StillOpening(application=application, host=self._host, opened=opened, total=total, waiting=waiting)

    def plan(self, mesh: Mesh) -> Plan:
        """Check what `apply` would do, and return its plan; nothing has happened yet."""
        running = self.get(mesh.name)
        now, mesh = caught_up(mesh, mesh.revision, running)
        mesh = resolved(mesh, self._catalog.slets, durable=self.store is not None, running=now)
        plan = make_plan(now, mesh)
        check(mesh, self._manager.kinds, plan.changes)
        check_channels(mesh, self._manager.kinds, plan.changes)
        check_durable(mesh, has_state=True, nodes=None if now.durable is None else plan.changes.nodes)
        self._deployer.check_hosts(plan.changes.nodes)
        check_rebuilds(plan, running)
        remarks = notes(running, self._manager.kinds, self._manager.user.opened)
        told = tuple(self.changes.shadows.notes(plan))

        def noted(plan: Plan) -> tuple[str, ...]:
            return *remarks(plan), *told, *self.changes.notes(plan)

        return dataclasses.replace(plan, remarks=noted, carry_out=self.changes.carry_out)

    def apply(
        self, mesh: Mesh, timeout: float | None = None, pause: float | None = None, *, stall: bool = False
    ) -> Mesh:
        """Deploy a new application, or change the one that runs; return the mesh with its revision."""
        if self._runs(mesh.name):
            return self.plan(mesh).apply(timeout=timeout, pause=pause, stall=stall)
        with self.changes.turn(mesh.name):
            if self._runs(mesh.name):
                return self.plan(mesh).apply(timeout=timeout, pause=pause, stall=stall)
            with self.history.recorded(mesh.name, "deploy", new=True):
                return self._begin(mesh, timeout)

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
        if self.store is not None:  # first: where it cannot be stored, one that has finished stays as it was
            self.store.save(mesh, active=True, anew=True)
        try:
            if known is not None:
                self._deployer.undeploy(known)
            deployment = self._deploy(mesh, ready=self.checkpoints.begin, timeout=timeout)
        except BaseException:
            self.checkpoints.stop(mesh.name)
            self.deployed.pop(mesh.name, None)
            self._set_inactive(mesh.name)
            raise
        self.checkpoints.start(deployment)
        self.history.changed(Mesh(mesh.name), mesh)
        return mesh

    def _runs(self, application: str) -> bool:
        known = self.deployed.get(application)
        return known is not None and not known.finished.is_set()

    def recover(self, mesh: Mesh, snapshot: Snapshot, stored: StoredApplication) -> str:
        """Let an application go on from its last checkpoint, which is of *mesh*; the checkpoint is kept if it cannot.

        A change that was stored after the checkpoint is made again. Returns its outcome in words.
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
            self._go_on(mesh.at(revision), snapshot)
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

    def _go_on(self, mesh: Mesh, snapshot: Snapshot) -> None:
        """Deploy *mesh* with the contents of a checkpoint; a stored change that is to be made again stays."""
        with self.changes.turn(mesh.name):
            mesh = resolved(mesh, self._catalog.slets, durable=True)
            check_durable(mesh, has_state=True)
            deployment = self._deploy(mesh, snapshot, ready=self.checkpoints.tell)
            self._note(deployment)  # it is stored already, unless another release has written it
            self.checkpoints.start(deployment)

    def resume(self, application: str, node: str) -> None:
        """Let items into a suspended or failed node again, beginning with the item that it is suspended on."""
        deployment = self.get(application)
        if deployment.mesh.node(node).suspended:
            self.plan(deployment.mesh.resume(node)).apply()
            return
        with deployment.changing:
            component = deployment.components[node]
            if not component.allows(Event.RESUME):
                raise refused(component.name, component.status, Event.RESUME)
            component.resume()

    def remove(self, application: str, timeout: float = 5.0) -> bool:
        """Stop an application, or give up one that is down; return whether all its threads have left in time."""
        self._check_open(application)
        self.changes.shadows.stop(application)
        with self._turn:
            if application in self.lost and self.store is not None:
                self.store.forget(application)
                self._manager.forget(application)
                del self.lost[application]
                return True
            deployment = self.get(application)
            if self.store is not None:  # first: where it cannot be forgotten, it runs on as it was
                self.store.set_active(application, active=False)
        self.checkpoints.last(deployment, timeout, removed=True)
        problem: StateError | None = None
        with self._turn:
            if self.deployed.get(application) is not deployment:  # another thread removes it, too
                return deployment.wait(timeout)
            del self.deployed[application]
            self.history.forget(application)
            try:
                if self.store is not None:
                    self.store.forget(application)
            except StateError as error:
                problem = error
        try:
            left = self._undeploy(deployment, timeout)
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
        """Undeploy everything, with a last checkpoint of each durable application; all of them stay stored."""
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
        with ExitStack() as all_of_them:  # an interrupt of one does not keep the others from being closed
            for deployment in reversed(deployments):
                all_of_them.callback(self._undeploy, deployment, LEAVING)

    def _undeploy(self, deployment: Deployment, timeout: float) -> bool:
        with deployment.changing:
            return self._deployer.undeploy(deployment, timeout)

    def changed(self, deployment: Deployment) -> StateError | None:
        """Store a change that is made; return the error if that is impossible now."""
        self._unmade.discard(deployment.name)
        unwritten = self._note(deployment)
        deployment.check_finished()
        return unwritten and StateError(
            f"{deployment.name}: the change is made and runs, but it is not stored ({unwritten}); it will be with "
            f"the next change, or when the platform is closed: make room there"
        )

    def settled(self, deployment: Deployment) -> None:
        """Take a checkpoint of a change that is made and stored; others may follow meanwhile."""
        if self.deployed.get(deployment.name) is deployment:
            self.checkpoints.changed(deployment)

    def _deploy(self, mesh: Mesh, snapshot: Snapshot | None = None, **how: Any) -> Deployment:
        """Deploy a mesh and take charge of it; its end is noted even if no caller waits for it."""
        closings = self._closings
        deployment = self._deployer.deploy(mesh, snapshot, **how)
        with self._turn:
            if self._closings != closings:
                self._manager.opening.pop(deployment.name, None)
                self._deployer.undeploy(deployment)
                raise PlanError(f"the platform was closed while {deployment.name} was opened")
            self.deployed[deployment.name] = deployment
            self._manager.opening.pop(deployment.name, None)

        def note_end() -> None:  # a durable application goes on at its end with the next platform
            if deployment.mesh.durable is None:
                self._set_inactive(deployment.name)

        deployment.over = note_end
        UpdateFollowUp(deployment, self._wiring, self._note)
        deployment.check_finished()
        self.lost.pop(mesh.name, None)
        return deployment

    def _set_inactive(self, application: str) -> None:
        """Keep the next platform from starting an application; an error of the store is only logged."""
        try:
            if self.store is not None:
                self.store.set_active(application, active=False)
        except StateError as problem:
            logger("exop.wiring").error("the end was not stored", application=application, error=str(problem))

    def _note(self, deployment: Deployment) -> StateError | None:
        """Store the mesh after a change or a conditional update; return the error if that is impossible."""
        with self._turn:
            here = self.deployed.get(deployment.name) is deployment and deployment.name not in self._unmade
            problem = self.store.note(deployment.mesh) if here and self.store is not None else None
        if problem is not None:
            logger("exop.wiring").error("the change was not stored", application=deployment.name, error=str(problem))
        return problem

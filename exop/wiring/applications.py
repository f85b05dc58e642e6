"""The applications of one platform: deployed, changed, waited for and removed; one change at a time."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

from exop.errors import PlanError, StaleMesh, UnknownName
from exop.model.checks import check
from exop.model.lifecycle import Event
from exop.model.mesh import Mesh
from exop.model.resolve import resolved
from exop.runtime.catalog import Catalog
from exop.runtime.deployment import Deployment
from exop.runtime.manager import ComponentManager
from exop.wiring.change import Change
from exop.wiring.controller import WiringController
from exop.wiring.deployer import Deployer
from exop.wiring.plan import Plan, make_plan, without_marks

if TYPE_CHECKING:
    from exop.runtime.store import Store


class Applications:
    """What runs on a platform, by name. Appliers are served one after the other.

    Attributes:
        store: Where applications are remembered; `None` while there is no state directory.
    """

    def __init__(self, host: str, catalog: Catalog, manager: ComponentManager, wiring: WiringController) -> None:
        self.store: Store | None = None
        self._host = host
        self._catalog = catalog
        self._manager = manager
        self._wiring = wiring
        self._deployer = Deployer(manager, wiring, host)
        self._running: dict[str, Deployment] = {}
        self._turn = threading.RLock()

    def names(self) -> list[str]:
        """The applications that are deployed."""
        return sorted(self._running)

    def get(self, application: str) -> Deployment:
        """The running form of an application.

        Raises:
            UnknownName: no such application runs here.
        """
        found = self._running.get(application)
        if found is None:
            place = f"the platform {self._host!r}"
            raise UnknownName(place=place, kind="application", name=application, known=self.names())
        return found

    def plan(self, mesh: Mesh) -> Plan:
        """What `apply` would do; nothing has happened yet.

        Raises:
            UnknownName: no such application runs here.
            StaleMesh: the mesh is not of the revision that runs.
            MeshError, PlanError: it cannot be made so.
        """
        with self._turn:
            running = self.get(mesh.name)
            if mesh.revision != running.mesh.revision:
                raise StaleMesh(application=mesh.name, revision=mesh.revision, current=running.mesh.revision)
            mesh = resolved(mesh, self._catalog.slets, durable=self.store is not None)
            check(mesh, self._manager.kinds)
            plan = make_plan(running.mesh, mesh)
            return dataclasses.replace(plan, carry_out=self._carry_out)

    def apply(self, mesh: Mesh) -> Mesh:
        """Make *mesh* what runs: deploy a new application, or change the one that runs. Returns it with its revision.

        Raises:
            MeshError: the mesh cannot be; nothing has happened.
            PlanError: it could not be made to run; everything is as it was.
            StaleMesh: somebody else has applied another revision meanwhile.
        """
        with self._turn:
            known = self._running.get(mesh.name)
            if known is not None and not known.finished.is_set():
                return self.plan(mesh).apply()
            mesh = resolved(mesh, self._catalog.slets, durable=self.store is not None)
            if known is not None:
                self._deployer.undeploy(known)
            mesh = mesh.at(max(mesh.revision, known.mesh.revision if known else 0) + 1)
            self._remember(mesh)
            try:
                self._running[mesh.name] = self._deployer.deploy(mesh)
            except BaseException:
                self._running.pop(mesh.name, None)
                if self.store is not None:
                    self.store.set_active(mesh.name, active=False)
                raise
            return mesh

    def resume(self, application: str, node: str) -> None:
        """Let items into a suspended or failed node again; the item that it is suspended on is tried first.

        Raises:
            UnknownName: no such application, or node.
            LifecycleError: it is not suspended.
        """
        with self._turn:
            deployment = self.get(application)
            if deployment.mesh.node(node).suspended:
                self.apply(deployment.mesh.resume(node))
                return
            component = deployment.components[node]
            component.lifecycle.on(Event.RESUME)  # raises unless it is suspended
            self._manager.resume(component)

    def remove(self, application: str, timeout: float = 5.0) -> bool:
        """Stop an application at its safe points and undeploy it; tells whether all its threads have left in time.

        Raises:
            UnknownName: no such application runs here.
        """
        with self._turn:
            deployment = self.get(application)
            del self._running[application]
            if self.store is not None:
                self.store.forget(application)
            return self._deployer.undeploy(deployment, timeout)

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished; `False` when *timeout* seconds were not enough.

        Raises:
            ComponentFailed: a slet is suspended on an item, or an engine broke, and nobody has repaired it.
        """
        done = self.get(application).wait(timeout)
        if done and self.store is not None:
            self.store.set_active(application, active=False)
        return done

    def close(self) -> None:
        """Undeploy everything; what the store says of it stays."""
        with self._turn:
            for deployment in self._running.values():
                self._deployer.undeploy(deployment)
            self._running.clear()

    def _carry_out(self, plan: Plan) -> Mesh:
        with self._turn:
            running = self.get(plan.after.name)
            if running.mesh.revision != plan.before.revision:
                raise StaleMesh(
                    application=plan.after.name, revision=plan.before.revision, current=running.mesh.revision
                )
            if running.finished.is_set():
                raise PlanError(f"{plan.after.name} has finished meanwhile: there is nothing to change any more")
            after = without_marks(plan.after).at(plan.before.revision + 1)
            Change(running, self._manager, self._wiring, dataclasses.replace(plan, after=after)).carry_out()
            self._remember(after)
            return after

    def _remember(self, mesh: Mesh) -> None:
        if self.store is not None:
            self.store.save(mesh, mesh.to_toml(), active=True)

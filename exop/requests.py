"""The requests to the applications of a platform."""

from __future__ import annotations

from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING

from exop.errors import PlanError
from exop.model.memento import Memento
from exop.model.mesh import Mesh
from exop.runtime.deployment import Deployment
from exop.runtime.failure import retry_dead_letters
from exop.runtime.interrupts import uninterrupted
from exop.runtime.trouble import FailedItem, kept_item
from exop.wiring.plan import Plan, check_seconds
from exop.wiring.successors import capture

if TYPE_CHECKING:
    from exop.wiring.applications import Applications


class Requests:
    """The half of `Platform` that concerns its applications.

    Each method raises `UnknownName` if the platform does not run the application, or the mesh has no such node.
    """

    _applications: Applications

    def _check_running(self) -> None:
        """Raise `PlanError` unless the platform was started, and is not closed."""
        raise NotImplementedError

    def plan(self, mesh: Mesh) -> Plan:
        """Plan `apply` for a running application; print the plan, or `apply()` it. Nothing happens yet.

        Raises:
            StaleMesh: the mesh is not of the revision that runs.
            MeshError, PlanError: it cannot be made so.
        """
        self._check_running()
        _check_mesh("plan", mesh)
        return self._applications.plan(mesh)

    def apply(
        self, mesh: Mesh, *, timeout: float | None = None, pause: float | None = None, stall: bool = False
    ) -> Mesh:
        """Deploy *mesh* as a new application, or change the running one to it; return it with its revision.

        A change is given up when the drivers need longer than *timeout* seconds (10 by default) to come to their safe
        points: a slet that hangs does not hold up the others. *pause* and *stall* as for `Plan.apply`.

        Raises:
            MeshError: the mesh cannot be, or *timeout* is no number of seconds; nothing has happened.
            PlanError: it could not be made to run; everything is as it was.
            StaleMesh: another change was applied meanwhile.
        """
        self._check_running()
        _check_mesh("apply", mesh)
        check_seconds("apply", timeout)
        check_seconds("apply", pause, setting="pause")
        return uninterrupted(self._applications.apply)(mesh, timeout, pause, stall=stall)

    def mesh(self, application: str) -> Mesh:
        """The mesh of a running application, as it is now."""
        return self.deployment(application).mesh

    def applications(self) -> list[str]:
        """The names of the applications that are deployed."""
        return self._applications.names()

    def deployment(self, application: str) -> Deployment:
        """The running form of an application."""
        return self._applications.get(application)

    @uninterrupted
    def resume(self, application: str, node: str) -> None:
        """Let items into a suspended or failed node again; the item that it is suspended on is tried first.

        Raises:
            LifecycleError: it is not suspended.
        """
        self._applications.resume(application, node)

    def kept_item(self, application: str, node: str) -> FailedItem | None:
        """The item that a node is suspended on, with its memento, settings and traceback; `None` if it is not.

        `to_bytes()` of it is a file for `exop.testing.replay`.
        """
        return kept_item(self.deployment(application).component(node))

    def dead_letters(self, application: str, node: str) -> list[FailedItem]:
        """The items of a node that were set aside (`on_error="dead-letter"`), the oldest first."""
        return list(self.deployment(application).component(node).trouble.dead)

    @uninterrupted
    def retry_dead_letters(self, application: str, node: str) -> int:
        """Have all dead letters of a node tried again, in order, behind the items under way; return their number.

        Raises:
            PlanError: the stream has ended there.
        """
        return retry_dead_letters(self.deployment(application), node)

    @uninterrupted
    def rollback(self, application: str, node: str) -> Mesh:
        """Let the predecessor of a node, kept by `plan.apply(keep=…)`, take over again with its own, current state.

        Raises:
            PlanError: none was kept; or it could not be made, and everything is as it was.
        """
        return self._applications.changes.rollback(application, node, self._applications.plan)

    @uninterrupted
    def abandon_proof(self, application: str) -> bool:
        """Give up the proof of a change: the old slets stay; `False` if none is under way."""
        self.deployment(application)
        return self._applications.changes.shadows.abandon(application, "it was given up")

    @uninterrupted
    def checkpoint(self, application: str) -> None:
        """Take a checkpoint of a durable application now; it is written when this returns.

        Raises:
            CheckpointError: it is not durable, or a driver does not come to a safe point.
            NotStorable, StateError: it cannot be stored, or not be written; the one before it stands.
        """
        self._applications.checkpoints.take(self._applications.get(application))

    def end(self, application: str) -> None:
        """Ask the sources of an application to end; the items under way are still processed."""
        self.deployment(application).end_sources()

    @uninterrupted
    def remove(self, application: str, timeout: float = 5.0) -> bool:
        """Stop an application at its safe points and undeploy it; returns whether all its threads have left in time."""
        check_seconds("remove", timeout, -TIMEOUT_MAX)
        return self._applications.remove(application, timeout)

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished; `False` when *timeout* seconds were not enough.

        Raises:
            ComponentFailed: a slet is suspended on an item, or an engine broke, and it has not been repaired.
        """
        check_seconds("wait", timeout, -TIMEOUT_MAX)  # what is left of a time may be less than nothing
        return self._applications.wait(application, timeout)

    @uninterrupted
    def memento(self, application: str, node: str) -> Memento:
        """A copy of a node's state as it is now, between two items.

        Raises:
            MeshError: its slet keeps no memento.
            PlanError: a driver did not come to a safe point in time.
        """
        return capture(self.deployment(application), node)

    def restore(self, application: str, node: str, memento: Memento) -> Mesh:
        """Let a node go on from another state; a change like any other. Returns the mesh that runs then.

        Raises:
            MeshError: its slet keeps no memento, or one of another class.
            StoredStateError: a value in it is not of its field's type.
            PlanError: the change could not be made; everything is as it was.
        """
        return self.apply(self.mesh(application).restore(node, memento))


def _check_mesh(place: str, given: object) -> None:
    """Raise `PlanError` if *given* is no mesh."""
    if not isinstance(given, Mesh):
        found = f"{given!r:.80} ({type(given).__name__})"
        raise PlanError(f"{place} takes a mesh, as app.build() or platform.mesh(name) returns it, not {found}")

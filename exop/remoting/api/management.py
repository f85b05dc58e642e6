"""The management interface: the operations on a running platform, each defined once.

`Platform` inherits and carries out the operations. The server's table of operations and the methods of
`RemotePlatform` are derived from their signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast

from exop.errors import PlanError
from exop.model.meshes.mesh import Mesh
from exop.model.slets.memento import Memento
from exop.remoting.transport.limits import MIB
from exop.remoting.transport.operation import LONG, operation
from exop.runtime.history import recorded

# The methods import lazily what carries an operation out: a client only needs the signatures.
if TYPE_CHECKING:
    from exop.registry import ServiceRegistry
    from exop.remoting.api.edits import Edits
    from exop.remoting.api.wire_types import ProofLike
    from exop.runtime.catalog import Catalog
    from exop.runtime.deployment import Deployment
    from exop.runtime.supervision.failure_state import FailedItem
    from exop.wiring.applications import Applications
    from exop.wiring.changes.plan import Plan

P = ParamSpec("P")
T = TypeVar("T")
AnyPlan = TypeVar("AnyPlan")
#: The mesh that runs after a change; only its revision and the pause cross.
Made: TypeAlias = Mesh
#: The number of dead letters that are listed.
LISTED: Final = 100
#: Seconds that a client waits where drivers come to their safe points.
STOP: Final = 60.0
#: Bytes of a request with a topology.
TOPOLOGY: Final = MIB


class Management(Generic[AnyPlan]):
    """The operations on a platform.

    Each method raises `UnknownName` if the platform does not run the application, or the mesh has no such node.
    """

    name: str
    state: Path | None
    registry: ServiceRegistry
    catalog: Catalog
    _applications: Applications

    def _check_running(self) -> None:
        """Raise `PlanError` unless the platform was started, and is not closed."""
        raise NotImplementedError

    def _planned(self, mesh: Mesh) -> AnyPlan:
        """Plan that *mesh* runs."""
        raise NotImplementedError

    @operation(role="observe")
    def status(self, application: str | None = None) -> dict[str, Any]:
        """Return the status as plain data: of the platform, or of one application with its components and channels."""
        raise NotImplementedError

    @operation(role="observe")
    def metrics(self, application: str | None = None, *, quantiles: bool = False) -> dict[str, Any]:
        """The figures of the components and channels of one application, or of all, by name.

        They are cheap; *quantiles* of times cost more, and come with the slet and the ports of each node.
        """
        raise NotImplementedError

    @operation(role="observe")
    def applications(self) -> list[str]:
        """The names of the applications that are deployed."""
        return self._applications.names()

    def deployment(self, application: str) -> Deployment:
        """The running form of an application."""
        return self._applications.get(application)

    @operation(role="observe")
    def mesh(self, application: str) -> Mesh:
        """The mesh of a running application, as it is now; slets without code here are in it as descriptions."""
        return self.deployment(application).mesh

    @operation(role="observe")
    def topology(self, application: str) -> str:
        """The mesh of a running application, as TOML."""
        return self.mesh(application).to_toml()

    @operation(role="observe")
    def described(self, application: str) -> dict[str, Any]:
        """The descriptions of the slets of a running application, by identity.

        If the ports of a slet depend on settings, its description has the ports of all its nodes.
        """
        from exop.model.slets.described import describe

        found: dict[str, dict[str, Any]] = {}
        for slet in (node.slet for node in self.mesh(application).nodes.values()):
            if slet.identity not in found:
                found[slet.identity] = describe(slet)
            elif slet.specialises:
                ports = found[slet.identity]["ports"]
                known = {port["port"] for port in ports}
                ports += [port for port in describe(slet)["ports"] if port["port"] not in known]
        return found

    @operation(role="observe")
    def slet_summaries(self) -> list[dict[str, Any]]:
        """The slets that applications can use: role, first line of the docstring, ports and settings."""
        from exop.model.slets.described import summary

        return [summary(spec) for spec in self.catalog.slets.values()]

    def services(self, query: str = "") -> Iterable[dict[str, Any]]:
        """The services that match a filter: `id`, `interfaces`, `properties`."""
        from exop.model.filter import as_filter

        for one in self.registry.find(None, as_filter(query or None)):
            properties = {
                key: list(value) if isinstance(value, tuple) else value for key, value in one.properties.items()
            }
            yield {"id": one.id, "interfaces": list(one.interfaces), "properties": properties}

    def memento(self, application: str, node: str) -> Memento:
        """A copy of a node's state as it is now, between two items.

        Raises:
            MeshError: its slet keeps no memento.
            PlanError: a driver did not reach a safe point in time.
        """
        from exop.wiring.changes.successors import capture

        return _uninterrupted(capture, self.deployment(application), node)

    @operation(role="observe", patience=STOP)
    def export_memento(
        self, application: str, node: str, form: Literal["json", "msgpack", "shown"] | None = None
    ) -> tuple[str, bytes]:
        """A node's state as the content of a file, and its form: `json` if that can hold it, else `msgpack`.

        `shown` is JSON for people, which cannot be imported.
        """
        from exop.model.slets.stored_memento import export_memento, json_document
        from exop.safe_repr import json_text

        memento, place = self.memento(application, node), f"{application}.{node}"
        if form == "shown":
            return "json", json_text(json_document(memento, place)[0]).encode()
        return export_memento(memento, place, form)

    def kept_item(self, application: str, node: str) -> FailedItem | None:
        """The item that a node is suspended on, with its memento, settings and traceback; `None` if it is not.

        `to_bytes()` of it is a file for `exop.testing.replay`.
        """
        from exop.runtime.supervision.failure_policy import kept_item

        return kept_item(self.deployment(application).component(node))

    def dead_letters(self, application: str, node: str) -> list[FailedItem]:
        """The items that a node has set aside (`on_error="dead-letter"`), the oldest first."""
        return list(self.deployment(application).component(node).trouble.dead)

    @operation(role="observe")
    def failed_items(self, application: str, node: str) -> dict[str, Any]:
        """The kept item and the first dead letters of a node, as text, and their number."""
        from exop.model.slets.spec import DEAD
        from exop.runtime.supervision.failure_policy import kept_item

        component = self.deployment(application).component(node)
        kept, dead = kept_item(component), component.trouble.dead
        return {
            "kept": kept.summary() if kept is not None else None,
            "dead_letters": [letter.summary() for letter in list(dead)[:LISTED]],
            "count": len(dead),
            "dropped": dead.dropped,
            "channel": component.node.ports[DEAD] if component.aside is not None else None,
        }

    @operation(role="observe")
    def export_item(self, application: str, node: str, dead_letter: int | None = None) -> bytes:
        """The kept item of a node, or one of its dead letters, as the content of a file for `exop.testing.replay`.

        Raises:
            NoSuchItem: there is no such item.
            NotStorable: it is of a type that cannot be stored.
        """
        from exop.runtime.supervision.failure_policy import failed_item

        return failed_item(self.deployment(application).component(node), dead_letter).to_bytes()

    @operation(role="observe")
    def history(self, application: str = "") -> list[dict[str, Any]]:
        """The operations on an application, the oldest first: who, what, revisions, proof, pause, outcome.

        Without a name, those on the platform itself: on its bundles.
        """
        found = self._applications.history.of(application)
        if application and not found:
            self.deployment(application)  # raises `UnknownName` with the known names
        return found

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished; return `False` after *timeout* seconds.

        Raises:
            ComponentFailed: a slet is suspended on an item, or an engine broke, and it has not been repaired.
        """
        _check_seconds("wait", timeout, -TIMEOUT_MAX)  # the rest of a time-out may be negative
        return self._applications.wait(application, timeout)

    @operation(role="operate", patience=LONG, max_request=TOPOLOGY)
    def plan(self, mesh: Mesh) -> AnyPlan:
        """Plan `apply` for a running application; print the plan, or `apply()` it. Nothing happens yet.

        Raises:
            StaleMesh: the mesh is not of the revision that runs.
            MeshError, PlanError: the mesh is invalid, or the change is impossible.
        """
        self._check_running()
        _check_mesh("plan", mesh)
        return self._planned(mesh)

    @operation(role="operate", patience=LONG, max_request=TOPOLOGY)
    def plan_topology(self, toml: str, *, proof: ProofLike | None = None, folder: str = "") -> AnyPlan:
        """Plan the change of a running application to a topology file; relative paths start at *folder*."""
        from exop.remoting.api.wire_types import Topology, proven

        return proven(self._planned(Topology(toml, None, folder=folder).read(self)), proof)

    @operation(role="operate", patience=LONG)
    def plan_edits(
        self, application: str, edits: Edits, *, proof: ProofLike | None = None, folder: str = ""
    ) -> AnyPlan:
        """Plan edits that are written as text (`exop.remoting.api.edits`); relative paths start at *folder*."""
        from exop.model.meshes.resolve import with_full_paths
        from exop.remoting.api.edits import edited
        from exop.remoting.api.wire_types import proven

        running = self.mesh(application)
        mesh = edited(running, edits, self.catalog)
        return proven(self._planned(with_full_paths(mesh, Path(folder), running)), proof)

    @operation(role="operate", patience=LONG)
    def import_memento(self, application: str, node: str, data: bytes) -> AnyPlan:
        """Plan that a node continues from the state in a file, which may have been edited.

        Raises:
            MeshError: the slet keeps no memento.
            StoredStateError: the file is damaged, newer, of another class, or a value in it does not fit.
        """
        from exop.model.slets.stored_memento import import_memento

        mesh, place = self.mesh(application), f"{application}.{node}"
        memento = import_memento(data, mesh.node(node).slet.memento_class(place), place)
        return self._planned(mesh.restore(node, memento))

    @operation(role="operate", patience=LONG)
    def plan_reverse(self, application: str, number: int) -> AnyPlan:
        """Plan to undo the change with this number in the history: its nodes and channels become as before.

        Raises:
            PlanError: there is no such entry, or it has no stored change.
        """
        toml, notes = self._applications.history.reverse(self.mesh(application), number)
        return cast("AnyPlan", cast("Plan", self.plan_topology(toml)).noting(notes))

    @operation(role="operate", patience=LONG, max_request=TOPOLOGY, long=True)
    def apply(
        self, mesh: Mesh, *, timeout: float | None = None, pause: float | None = None, stall: bool = False
    ) -> Made:
        """Deploy *mesh* as a new application, or change the running one to it; return it with its revision.

        A change is given up if the drivers need longer than *timeout* seconds (10 by default) to reach their safe
        points: a slet that hangs does not block the others. *pause* and *stall* as for `Plan.apply`.

        Raises:
            MeshError: the mesh is invalid, or *timeout* is no number of seconds; nothing has happened.
            PlanError: the change could not be made; everything is as before.
            StaleMesh: another change was applied meanwhile.
        """
        self._check_running()
        _check_mesh("apply", mesh)
        _check_seconds("apply", timeout)
        _check_seconds("apply", pause, setting="pause")
        return _uninterrupted(self._applications.apply, mesh, timeout, pause, stall=stall)

    @operation(role="operate", patience=LONG, max_request=TOPOLOGY, long=True)
    def apply_topology(self, toml: str, revision: int = 0, *, folder: str = "") -> str:
        """Deploy or change an application to a topology file; return its name. Relative paths start at *folder*."""
        from exop.remoting.api.wire_types import Topology

        return self.apply(Topology(toml, revision, folder=folder).read(self)).name

    def restore(self, application: str, node: str, memento: Memento) -> Mesh:
        """Let a node continue from another state, by a change like any other. Returns the new mesh.

        Raises:
            MeshError: its slet keeps no memento, or one of another class.
            StoredStateError: a value in it is not of its field's type.
            PlanError: the change could not be made; everything is as before.
        """
        return self.apply(self.mesh(application).restore(node, memento))

    @operation(role="operate", patience=LONG, long=True)
    @recorded
    def rollback(self, application: str, node: str) -> Made:
        """Let the predecessor of a node, kept by `plan.apply(keep=…)`, take over again with its own, current state.

        Raises:
            PlanError: there is no predecessor; or the change could not be made, and everything is as before.
        """
        return _uninterrupted(self._applications.changes.rollback, application, node, self._applications.plan)

    @operation(role="operate")
    @recorded
    def abandon_proof(self, application: str) -> bool:
        """Cancel the proof of a change: the old slets stay. Returns `False` if none is under way."""
        self.deployment(application)
        return _uninterrupted(self._applications.changes.shadows.abandon, application, "it was given up")

    @operation(role="operate")
    @recorded
    def resume(self, application: str, node: str) -> None:
        """Let items into a suspended or failed node again; the item that it is suspended on comes first.

        Raises:
            LifecycleError: it is not suspended.
        """
        _uninterrupted(self._applications.resume, application, node)

    @operation(role="operate")
    def restart(self, application: str) -> None:
        """Try again to start an application that could not be started again with the platform.

        Raises:
            UnknownName: there is no such application here.
            ExopError: the start has failed again.
        """
        raise NotImplementedError

    @operation(role="operate", patience=STOP)
    @recorded
    def retry_dead_letters(self, application: str, node: str) -> int:
        """Process all dead letters of a node again, in order, after the items in flight; return their number.

        Raises:
            PlanError: the stream of the node has ended.
        """
        from exop.runtime.supervision.failure_policy import retry_dead_letters

        return _uninterrupted(retry_dead_letters, self.deployment(application), node)

    @operation(role="operate", patience=STOP)
    @recorded
    def checkpoint(self, application: str) -> None:
        """Take a checkpoint of a durable application now; it is written when this returns.

        Raises:
            CheckpointError: the application is not durable, or a driver did not reach a safe point in time.
            NotStorable, StateError: the checkpoint cannot be stored or written; the one before stays valid.
        """
        _uninterrupted(self._applications.checkpoints.take, self._applications.get(application))

    @operation(role="operate")
    @recorded
    def end(self, application: str) -> None:
        """Ask the sources of an application to end; the items in flight are still processed."""
        self.deployment(application).end_sources()

    @operation(role="operate", patience=STOP)
    @recorded
    def remove(self, application: str, timeout: float = 5.0) -> bool:
        """Stop an application at its safe points and undeploy it; return whether all its threads ended in time."""
        _check_seconds("remove", timeout, -TIMEOUT_MAX)
        return _uninterrupted(self._applications.remove, application, timeout)

    @property
    def bundles(self) -> Any:
        """The bundles: installed, started, updated, stopped and uninstalled while the platform runs."""
        raise NotImplementedError

    @operation(patience=LONG)
    def install_bundle(self, archive: bytes, name: str) -> dict[str, Any]:
        """Keep a bundle without importing its code. Errors refer to it by *name*."""
        return dict(self.bundles.install_archive(archive, name))

    @operation(patience=LONG)
    def start_bundle(self, bundle: str) -> dict[str, Any]:
        """Import a bundle, and offer its slets and channels."""
        return dict(self.bundles.start(bundle))

    @operation(patience=LONG)
    def update_bundle(
        self,
        archive: bytes,
        name: str,
        *,
        timeout: float | None = None,
        pause: float | None = None,
        stall: bool = False,
    ) -> dict[str, Any]:
        """Replace the started versions of a bundle by a new one, in all applications or in none."""
        return dict(self.bundles.update_archive(archive, name, timeout=timeout, pause=pause, stall=stall))

    @operation
    def stop_bundle(self, bundle: str) -> dict[str, Any]:
        """Withdraw the slets and channels of a bundle."""
        return dict(self.bundles.stop(bundle))

    @operation
    def uninstall_bundle(self, bundle: str) -> dict[str, Any]:
        """Stop a bundle and remove it."""
        return dict(self.bundles.uninstall(bundle))

    @operation(role="observe")
    def list_bundles(self) -> list[dict[str, Any]]:
        """Return the installed bundles."""
        return list(self.bundles.list())


def _uninterrupted(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    from exop.runtime.supervision.interrupts import uninterrupted

    return uninterrupted(work)(*given, **named)


def _check_mesh(place: str, given: object) -> None:
    """Raise `PlanError` if *given* is no mesh."""
    if not isinstance(given, Mesh):
        found = f"{given!r:.80} ({type(given).__name__})"
        raise PlanError(f"{place} takes a mesh, as app.build() or platform.mesh(name) returns it, not {found}")


def _check_seconds(place: str, given: object, least: float = 0.0, setting: str = "timeout") -> None:
    from exop.wiring.changes.plan import check_seconds

    check_seconds(place, given, least, setting)

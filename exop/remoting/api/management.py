"""The management interface: the operations on a running platform, each defined once.

`Platform` inherits and carries out the operations. The server's table of operations and the methods of
`RemotePlatform` are derived from their signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

from exop.errors import ExopError, MeshError, PlanError, entry
from exop.model.filter import as_filter
from exop.model.meshes.checks import with_full_paths
from exop.model.meshes.mesh import Mesh
from exop.model.slets.described import describe, summary
from exop.model.slets.memento import Memento
from exop.model.slets.spec import DEAD
from exop.remoting.api.hosting import TOPOLOGY, Hosting, where_it_runs
from exop.remoting.transport.operation import LONG, operation
from exop.runtime.history import recorded
from exop.runtime.pause import check_seconds
from exop.runtime.supervision.failure_policy import failed_item, kept_item, retry_dead_letters
from exop.runtime.supervision.interrupts import uninterrupted

# The methods import the rest of the implementation lazily, because a client needs only the signatures.
if TYPE_CHECKING:
    from exop.registry import ServiceRegistry
    from exop.remoting.api.edits import Edits
    from exop.remoting.api.wire_types import ProofLike
    from exop.runtime.catalog import Catalog
    from exop.runtime.deployment import Deployment
    from exop.runtime.supervision.failure_state import FailedItem
    from exop.wiring.changes.plan import Plan

AnyPlan = TypeVar("AnyPlan")
#: The mesh that runs after a change. Only its revision and the pause are sent to a client.
Made: TypeAlias = Mesh
#: Seconds that a client waits for an operation in which drivers must reach their safe points.
STOP: Final = 60.0


class Management(Hosting, Generic[AnyPlan]):
    """The operations on a platform.

    Each method raises `UnknownName` if the platform does not run the application, or the mesh has no such node.
    """

    state: Path | None
    registry: ServiceRegistry
    catalog: Catalog
    _check_running: Callable[[], None]  #: Raises `PlanError` unless the platform is running.

    def _planned(self, mesh: Mesh) -> AnyPlan:
        return cast("AnyPlan", self._hosts.plan(mesh))

    @operation(role="observe")
    def status(self, application: str | None = None) -> dict[str, Any]:
        """Return the status of the platform, or of one application with its components and channels, as plain data."""
        raise NotImplementedError

    @operation(role="observe")
    def metrics(self, application: str | None = None, *, quantiles: bool = False) -> dict[str, Any]:
        """Return the metrics of the components and channels of one application, or of all applications, by name."""
        raise NotImplementedError

    @operation(role="observe")
    def applications(self, *, inactive: bool = False) -> list[str]:
        """Return the names of the deployed applications.

        With *inactive*, also return those that are still opening and those that failed to restart.
        """
        return list(self._hosts.names(inactive=inactive))

    def deployment(self, application: str) -> Deployment:
        """Return the deployment of an application."""
        return self._applications.get(application)

    @operation(role="observe")
    def mesh(self, application: str) -> Mesh:
        """Return the current mesh of a running application.

        A slet whose code the caller lacks is represented by its role, ports and settings.
        """
        return cast("Mesh", self._hosts.mesh(application))

    @operation(role="observe")
    def topology(self, application: str) -> str:
        """Return the mesh of a running application as TOML."""
        return self.mesh(application).to_toml()

    @operation(role="observe")
    def described(self, application: str) -> dict[str, Any]:
        """Return the roles, ports and settings of the slets of a running application, by identity.

        If the ports of a slet depend on its settings, the result lists the ports of all nodes with this slet.
        """
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
    def describe_slet(self, slet: str) -> dict[str, Any]:
        """Return the role, ports, settings and memento of a slet that applications can use, or raise `UnknownName`."""
        return describe(entry(f"the platform {self.name!r}", "slet", self.catalog.slets, slet))

    @operation(role="observe")
    def slet_summaries(self) -> list[dict[str, Any]]:
        """Return the role, first line of the docstring, ports and settings of each slet that applications can use."""
        return [summary(spec) for spec in self.catalog.slets.values()]

    def services(self, query: str = "") -> Iterable[dict[str, Any]]:
        """Yield the `id`, `interfaces` and `properties` of each service that matches a filter."""
        for one in self.registry.find(None, as_filter(query or None)):
            plain = {key: list(value) if isinstance(value, tuple) else value for key, value in one.properties.items()}
            yield {"id": one.id, "interfaces": list(one.interfaces), "properties": plain}

    @where_it_runs
    def memento(self, application: str, node: str) -> Memento:
        """Return a copy of a node's state between two items.

        Raises:
            MeshError: the slet of the node has no memento.
            PlanError: a driver did not reach a safe point in time.
        """
        from exop.wiring.changes.successors import capture

        return uninterrupted(capture)(self.deployment(application), node)

    @operation(role="observe", patience=STOP, long=True)
    @where_it_runs
    def export_memento(
        self, application: str, node: str, form: Literal["json", "msgpack", "shown"] | None = None
    ) -> tuple[str, bytes]:
        """Return a node's memento as the content of a file, and the format of the file.

        The format is *form*, or by default `json` if JSON can represent the memento, and otherwise `msgpack`. The form
        `shown` is JSON for reading, which cannot be imported.
        """
        from exop.model.slets.stored_memento import export_memento

        return export_memento(self.memento(application, node), f"{application}.{node}", form)

    @operation(role="observe", patience=STOP, long=True)
    @where_it_runs
    def move_cost(self, application: str, node: str) -> dict[str, Any]:
        """Estimate what a move of a node to another host costs; raises as `memento`.

        Returns:
            `ahead` and `cut`, the bytes that travel while the stream runs and while it stops; `seconds`, how long it
            stops; `whole`, the largest field of the memento that travels in the cut, if it is large.
        """
        from exop.wiring.changes.arrivals import move_cost

        return dict(uninterrupted(move_cost)(self.deployment(application), node))

    @where_it_runs
    def kept_item(self, application: str, node: str) -> FailedItem | None:
        """Return the item on which a node is suspended, with the memento, settings and traceback.

        Return `None` if the node is not suspended on an item. The method `to_bytes()` of the result returns the content
        of a file for `exop.testing.replay`.
        """
        return kept_item(self.deployment(application).component(node))

    @where_it_runs
    def dead_letters(self, application: str, node: str) -> list[FailedItem]:
        """Return the items that a node has set aside (`on_error="dead-letter"`), beginning with the oldest."""
        return list(self.deployment(application).component(node).trouble.dead)

    @operation(role="observe")
    @where_it_runs
    def failed_items(self, application: str, node: str) -> dict[str, Any]:
        """Return the item on which a node is suspended and its dead letters, as text.

        At most 100 dead letters are returned, with the total number.
        """
        component = self.deployment(application).component(node)
        kept, dead = kept_item(component), component.trouble.dead
        return {
            "kept": kept.summary() if kept is not None else None,
            "dead_letters": [letter.summary() for letter in list(dead)[:100]],
            "count": len(dead),
            "dropped": dead.dropped,
            "channel": component.node.ports[DEAD] if component.aside is not None else None,
        }

    @operation(role="observe")
    @where_it_runs
    def export_item(self, application: str, node: str, dead_letter: int | None = None) -> bytes:
        """Return the item on which a node is suspended, or a dead letter, as a file for `exop.testing.replay`.

        Raises:
            NoSuchItem: there is no such item.
            NotStorable: the item is of a type that cannot be stored.
        """
        return failed_item(self.deployment(application).component(node), dead_letter).to_bytes()

    @operation(role="observe")
    def history(self, application: str = "") -> list[dict[str, Any]]:
        """Return the operations on an application, beginning with the oldest.

        Each entry contains the user, the operation, the revisions before and after, the result of a trial, the pause
        and the outcome. Without a name, return the operations on the bundles of the platform, and the calls of other
        platforms that concern no application, including refused ones.
        """
        if not (found := self._applications.history.of(application)) and application:
            self.mesh(application)  # raises `UnknownName` with the known names
        return found

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished; return `False` if it is still running after *timeout* seconds.

        Raises:
            ComponentFailed: a slet is suspended on an item, or an engine has failed, and has not been repaired.
            LastCheckpointFailed: it has finished, and its end, with what its sinks hold, cannot be stored.
        """
        check_seconds("wait", timeout, -TIMEOUT_MAX)  # the rest of a time-out may be negative
        return bool(self._hosts.wait(application, timeout))

    @operation(role="operate", patience=LONG, max_request=TOPOLOGY)
    def plan(self, mesh: Mesh) -> AnyPlan:
        """Return the plan by which `apply` would change a running application to *mesh*, without changing it.

        Call `apply()` on the plan to carry it out.

        Raises:
            StaleMesh: the mesh is not based on the current revision.
            MeshError, PlanError: the mesh is invalid, or the change is impossible.
        """
        self._check_running()
        _check_mesh("plan", mesh)
        return self._planned(mesh)

    @operation(role="operate", patience=LONG, max_request=TOPOLOGY)
    def plan_topology(self, toml: str, *, proof: ProofLike | None = None, folder: str = "") -> AnyPlan:
        """Plan a change of a running application to match a topology file.

        Relative paths in the file are relative to *folder*.
        """
        from exop.remoting.api.wire_types import Topology, proven

        return proven(self._planned(Topology(toml, None, folder=folder).read(self)), proof)

    @operation(role="operate", patience=LONG)
    def plan_edits(
        self, application: str, edits: Edits, *, proof: ProofLike | None = None, folder: str = ""
    ) -> AnyPlan:
        """Plan the edits of a mesh that a command describes as text (`exop.remoting.api.edits`).

        Relative paths in the settings are relative to *folder*.
        """
        from exop.remoting.api.edits import edited
        from exop.remoting.api.wire_types import proven

        running = self.mesh(application)
        mesh = edited(running, edits, self.catalog)
        return proven(self._planned(with_full_paths(mesh, Path(folder), running)), proof)

    @operation(role="operate", patience=LONG)
    def import_memento(self, application: str, node: str, data: bytes) -> AnyPlan:
        """Plan a change after which a node continues from the memento in a file. The file may be edited first.

        Raises:
            MeshError: the slet has no memento.
            StoredStateError: the file is damaged, or contains a newer version, another class or an invalid value.
        """
        from exop.model.slets.stored_memento import import_memento

        mesh, place = self.mesh(application), f"{application}.{node}"
        memento = import_memento(data, mesh.node(node).slet.memento_class(place), place)
        return self._planned(mesh.restore(node, memento))

    @operation(role="operate", patience=LONG)
    def plan_reverse(self, application: str, number: int) -> AnyPlan:
        """Plan a change that undoes change *number* of the history and restores the affected nodes and channels.

        Raises:
            PlanError: the history has no entry *number*, its entry has changed no mesh, or there is no state directory.
        """
        history, mesh = self._applications.history, self.mesh(application)
        toml, notes = history.reverse(mesh, number)
        try:
            plan = cast("Plan", self.plan_topology(toml)).noting(notes)
        except MeshError as problem:
            name = str(problem.facts.get("name", ""))
            if problem.facts.get("kind") == "slet" and "@" in (bundle := name.rpartition(":")[0]):
                here = bundle in {one["bundle"] for one in self.list_bundles()}
                cure = f"`exop bundle start {bundle}`" if here else "`exop bundle install FILE --start`"
                raise PlanError(
                    f"the entry {number} of {application} takes {name} back, which a later change has replaced, and "
                    f"{bundle} is not started: {cure} starts it beside the new version; then repeat this"
                ) from problem

            def fits(first: list[int]) -> bool:
                try:
                    self.plan_topology(history.reverse(mesh, number, first)[0])
                except ExopError as found:  # that of a plan is of a valid mesh
                    return not isinstance(found, MeshError)
                return True

            slets = {*self.catalog.slets, *(node.slet.identity for node in mesh.nodes.values())}
            if not (first := history.obstacles(mesh, number, slets, fits)):
                raise
            commands = ", then ".join(f"`exop history {application} --reverse {one} --make`" for one in first)
            why = f"the change {number} of {application} cannot be undone before later ones that build on it"
            raise PlanError(f"{why}; undo these first: {commands}; now, {problem}") from None
        if not plan:
            cure = f"`exop memento import {application}.NODE FILE` restores one that was exported before"
            raise PlanError(f"the entry {number} of {application} left nothing to undo; a state is not kept: {cure}")
        return cast("AnyPlan", plan)

    @operation(role="operate", patience=LONG, max_request=TOPOLOGY, long=True)
    def apply(
        self, mesh: Mesh, *, timeout: float | None = None, pause: float | None = None, stall: bool = False
    ) -> Made:
        """Deploy *mesh* as a new application, or change the running application to *mesh*.

        Return the mesh with its new revision. If the drivers do not reach their safe points within *timeout* seconds
        (10 by default), the change is undone, so that a slet that hangs does not block the others. Handing over a state
        may stop the stream for *pause* seconds (0.05 by default), or with *stall* for as long as necessary.

        Raises:
            MeshError: the mesh is invalid, or *timeout* is not a number of seconds; the application is not changed.
            PlanError: the change failed and was undone.
            StaleMesh: another change was applied after the mesh was read.
        """
        self._check_running()
        _check_mesh("apply", mesh)
        check_seconds("apply", timeout)
        check_seconds("apply", pause, setting="pause")
        return cast("Mesh", uninterrupted(self._hosts.apply)(mesh, timeout, pause, stall=stall))

    @operation(role="operate", patience=LONG, max_request=TOPOLOGY, long=True)
    def apply_topology(self, toml: str, revision: int = 0, *, folder: str = "") -> str:
        """Deploy the application in a topology file, or change the running one to match the file.

        Return the application's name. Relative paths in the file are relative to *folder*.
        """
        from exop.remoting.api.wire_types import Topology

        return self.apply(Topology(toml, revision, folder=folder).read(self)).name

    def restore(self, application: str, node: str, memento: Memento) -> Mesh:
        """Replace the state of a node by *memento*, as a change of the application. Return the new mesh.

        Raises:
            MeshError: the slet has no memento, or a memento of another class.
            StoredStateError: a value in the memento is not of its field's type.
            PlanError: the change failed and was undone.
        """
        return self.apply(self.mesh(application).restore(node, memento))

    @operation(role="operate", patience=LONG, long=True)
    @recorded
    def rollback(self, application: str, node: str) -> Made:
        """Switch a node back to its previous slet, which `plan.apply(keep=…)` kept running.

        The state of the previous slet is up to date. Return the new mesh.

        Raises:
            PlanError: no previous slet is running; or the change failed and was undone.
        """
        return cast("Mesh", uninterrupted(self._hosts.rollback)(application, node))

    @operation(role="operate")
    @recorded
    def abandon_proof(self, application: str) -> bool:
        """Cancel the trial of a change; the old slets keep running. Return `False` if no trial is running."""
        return bool(uninterrupted(self._hosts.abandon_proof)(application))

    @operation(role="operate", long=True)
    @recorded
    def resume(self, application: str, node: str) -> None:
        """Resume a suspended or failed node, beginning with the item on which it was suspended.

        Raises:
            LifecycleError: the node is not suspended.
        """
        uninterrupted(self._hosts.resume)(application, node)

    @operation(role="operate")
    def restart(self, application: str) -> None:
        """Start an application that failed to restart when the platform was started.

        Raises:
            UnknownName: no application of this name failed to restart.
            ExopError: the application has failed to restart once more.
        """
        raise NotImplementedError

    @operation(role="operate", patience=STOP, long=True)
    @recorded
    @where_it_runs
    def retry_dead_letters(self, application: str, node: str) -> int:
        """Process all dead letters of a node once more, in order, after the items in flight.

        Return the number of dead letters.

        Raises:
            PlanError: the stream of the node has ended.
        """
        count = uninterrupted(retry_dead_letters)(deployment := self.deployment(application), node)
        self._applications.checkpoints.changed(deployment)
        return count

    @operation(role="operate", patience=STOP, long=True)
    @recorded
    def checkpoint(self, application: str) -> None:
        """Take a checkpoint of a durable application, and return when the checkpoint is written.

        Raises:
            CheckpointError: the application is not durable, or a driver did not reach a safe point in time.
            NotStorable, StateError: the checkpoint cannot be stored or written; the previous checkpoint remains valid.
        """
        uninterrupted(self._hosts.checkpoint)(application)

    @operation(role="operate", patience=STOP)
    @recorded
    def end(self, application: str, timeout: float = 0.0) -> bool:
        """End the sources of an application; the items in flight are still processed.

        Return whether a restart knows of it, by a checkpoint that is taken if they end within *timeout* seconds.
        """
        check_seconds("end", timeout)
        return bool(uninterrupted(self._hosts.end)(application, timeout))

    @operation(role="operate", patience=STOP)
    @recorded
    def remove(self, application: str, timeout: float = 5.0) -> bool:
        """Stop an application at its safe points and undeploy it.

        Return whether all threads of the application ended within *timeout* seconds.
        """
        check_seconds("remove", timeout, -TIMEOUT_MAX)
        return bool(uninterrupted(self._hosts.remove)(application, timeout))

    @property
    def bundles(self) -> Any:
        """The methods that install, start, update, stop and uninstall bundles while the platform runs."""
        raise NotImplementedError

    @operation(patience=LONG)
    def install_bundle(self, archive: bytes, name: str) -> dict[str, Any]:
        """Store a bundle on the platform without importing its code. Errors refer to the archive by *name*."""
        return dict(self.bundles.install_archive(archive, name))

    @operation(patience=LONG)
    def start_bundle(self, bundle: str, imports_from: tuple[str, ...] = ()) -> dict[str, Any]:
        """Import the code of a bundle, preferably with *imports_from*, and register its slets and channel kinds."""
        return dict(self.bundles.start(bundle, imports_from))

    @operation(patience=LONG)
    def update_bundle(
        self,
        archive: bytes,
        name: str,
        *,
        application: str | None = None,
        timeout: float | None = None,
        pause: float | None = None,
        stall: bool = False,
    ) -> dict[str, Any]:
        """Replace the started versions of a bundle by the version in *archive*, in all applications or in none.

        With *application*, replace them only there.
        """
        return dict(self.bundles.update_archive(archive, name, application, timeout=timeout, pause=pause, stall=stall))

    @operation
    def stop_bundle(self, bundle: str) -> dict[str, Any]:
        """Unregister the slets and channel kinds of a bundle."""
        return dict(self.bundles.stop(bundle))

    @operation
    def uninstall_bundle(self, bundle: str) -> dict[str, Any]:
        """Stop a bundle and remove it."""
        return dict(self.bundles.uninstall(bundle))

    @operation(role="observe")
    def list_bundles(self) -> list[dict[str, Any]]:
        """Return the installed bundles."""
        return list(self.bundles.list())


def _check_mesh(place: str, given: object) -> None:
    """Raise `PlanError` if *given* is no mesh."""
    if not isinstance(given, Mesh):
        found = f"{given!r:.80} ({type(given).__name__})"
        raise PlanError(f"{place} takes a mesh, as app.build() or platform.mesh(name) returns it, not {found}")

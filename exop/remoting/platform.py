"""A platform seen from another process: what can be asked of it, and `connect()`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from exop.errors import ComponentFailed, PeerUnreachable, UnknownName
from exop.hooks import Plugins
from exop.model.diff import without_marks
from exop.model.memento import Memento
from exop.model.mesh import Mesh
from exop.pictures.notebook import Figures
from exop.remoting.bundles_client import RemoteBundles
from exop.remoting.client import ControlClient
from exop.remoting.finding import find_platforms
from exop.remoting.plans import RemotePlan, as_topology
from exop.remoting.service import ControlServer
from exop.runtime.catalog import Catalog
from exop.runtime.trouble import FailedItem

if TYPE_CHECKING:
    from exop.remoting.declare import Operation
    from exop.remoting.planned import Changed
    from exop.remoting.served import Served

#: How often `wait` asks, in seconds.
POLL = 0.2
#: How long a change may take, in seconds: slets are opened, and drivers come to their safe points.
PATIENCE = 120.0


def serve(platform: Served) -> ControlServer:
    """Answer the operations of *platform* over a socket in its state directory, or in the run directory."""
    address = platform.state / "control.sock" if platform.state is not None else None

    def table() -> Mapping[str, Operation]:
        # Typed requests cost 20 ms to declare: the first peer pays them, not the platform that starts.
        from exop.remoting.bundles import BundleOperations
        from exop.remoting.changes import ChangeOperations
        from exop.remoting.declare import operations
        from exop.remoting.mementos import MementoOperations
        from exop.remoting.pieces import Pieces
        from exop.remoting.served import Operations

        pieces = Pieces()
        changes = ChangeOperations(platform, pieces)
        mementos = MementoOperations(platform, pieces, changes)
        return operations(Operations(platform), changes, mementos, BundleOperations(platform))

    server = ControlServer(table, address, name=platform.name)
    server.start()
    return server


class RemotePlatform:
    """A running platform of this user, in another process: the interface of `Platform` over its control socket."""

    def __init__(self, address: str | Path) -> None:
        self.address = Path(address)
        self._client = ControlClient(address)

    def __enter__(self) -> Self:
        self._client.platform()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The name of the platform."""
        return self._client.platform().name

    def close(self) -> None:
        """End the connection; the platform goes on."""
        self._client.close()

    def status(self, application: str | None = None) -> dict[str, Any]:
        """Return the status of the platform, or of one application."""
        call = self._client.call
        return Figures(call("application", {"application": application}) if application is not None else call("status"))

    def metrics(self, application: str) -> dict[str, Any]:
        """The figures of an application's components and channels."""
        status = self.status(application)
        return Figures(nodes={n: c["metrics"] for n, c in status["nodes"].items()}, channels=status["channels"])

    def applications(self) -> list[str]:
        """The names of the applications that are deployed."""
        return sorted(name for name, one in self.status()["applications"].items() if one["state"] != "opening")

    def services(self, query: str = "") -> Iterator[dict[str, Any]]:
        """The services that a filter fits: `id`, `interfaces`, `properties`."""
        from exop.remoting.served import ServicesRequest

        return self._client.items("services", ServicesRequest(filter=query), dict[str, Any])

    def mesh(self, application: str) -> Mesh:
        """The mesh of a running application; slets whose code is not here stand in it by their descriptions."""
        from exop.runtime.catalog import known_slets

        found, slets = self._client.call("mesh", {"application": application}), dict(known_slets().slets)
        if not slets.keys() >= set(found.get("slets", ())):
            # Imported lazily: most clients have the code.
            from exop.model.described import absent

            described = self._client.call("described", {"application": application})
            slets |= {name: absent(one) for name, one in described.items() if name not in slets}
        return Mesh.from_toml(found["toml"], slets).at(found["revision"])

    def topology(self, application: str) -> str:
        """The mesh of a running application, as TOML."""
        return str(self._client.call("mesh", {"application": application})["toml"])

    def plan(self, mesh: Mesh) -> RemotePlan:
        """Plan `apply` for a running application; print the plan, or `apply()` it. Nothing has happened yet.

        Raises:
            UnknownName: no such application runs there, or one of the slets is not known there.
            StaleMesh: the mesh is not of the revision that runs.
            MeshError, PlanError: it cannot be made so.
        """
        return self._planned("plan", as_topology(mesh, self._send), mesh)

    def plan_topology(self, toml: str, *, proof: Mapping[str, Any] | None = None) -> RemotePlan:
        """Plan the change of a running application to a topology file; only the platform knows its slets."""
        return self._planned("plan", {"toml": toml, "revision": None, "proof": proof, "folder": os.getcwd()})

    def plan_edits(
        self, application: str, edits: Sequence[Mapping[str, Any]], *, proof: Mapping[str, Any] | None = None
    ) -> RemotePlan:
        """Plan edits that are written as text (`exop.remoting.edits`); the platform parses them."""
        request = {"application": application, "edits": list(edits), "proof": proof, "folder": os.getcwd()}
        return self._planned("edit", request)

    def apply(self, mesh: Mesh, *, timeout: float | None = None, **bounds: Any) -> Mesh:
        """Make *mesh* what runs there; its slets are found by their identity, code does not travel.

        *timeout*, and `pause` and `stall` among the *bounds*, as for `Plan.apply`.

        Raises:
            MeshError: the mesh cannot be, or code would have to travel; nothing has happened.
            PlanError: it could not be made to run; everything is as it was.
            StaleMesh: another change was applied meanwhile.
        """
        request = {**as_topology(mesh, self._send), "timeout": timeout, **bounds}
        return without_marks(mesh).at(self._carried_out("apply", request).revision)

    def apply_topology(self, toml: str, revision: int = 0, *, told: Callable[[], object] | None = None) -> str:
        """Make a topology file what runs there, and return the application's name; its slets are known there alone.

        *told* is called from time to time until it ends.
        """
        request = {"toml": toml, "revision": revision, "folder": os.getcwd()}
        return self._carried_out("apply", request, told).application

    def carry_out(
        self,
        plan: str,
        timeout: float | None = None,
        *,
        proof: Mapping[str, Any] | None = None,
        told: Callable[[], object] | None = None,
        **bounds: Any,
    ) -> Changed:
        """Make the change that was planned under this number; *told* is called from time to time until it ends."""
        return self._carried_out("carry_out", {"plan": plan, "timeout": timeout, "proof": proof, **bounds}, told)

    def rollback(self, application: str, node: str) -> Mesh:
        """Let the predecessor of a node, kept by `plan.apply(keep=…)`, take over again, as `Platform.rollback`."""
        self.roll_back(application, node)
        return self.mesh(application)

    def roll_back(self, application: str, node: str) -> Changed:
        """Roll back as `rollback`, and return the changes; the slets need not be known here."""
        return self._carried_out("rollback", {"application": application, "node": node})

    def abandon_proof(self, application: str) -> bool:
        """Give up the proof of a change: the old slets stay; `False` when none was under way."""
        return bool(self._client.call("abandon_proof", {"application": application}))

    def _carried_out(
        self, operation: str, request: Mapping[str, Any], told: Callable[[], object] | None = None
    ) -> Changed:
        """Begin what may take long, and wait for its end; *told* is called meanwhile."""
        from exop.remoting.planned import CarriedOut

        found = self._client.call(operation, request, CarriedOut, timeout=PATIENCE)
        while found.changed is None:
            if told is not None:
                told()
            found = self._client.call("outcome", {"number": found.number}, CarriedOut)
        return found.changed

    def _planned(self, operation: str, request: Mapping[str, Any], mesh: Mesh | None = None) -> RemotePlan:
        from exop.remoting.planned import Planned

        return RemotePlan(self._client.call(operation, request, Planned, timeout=PATIENCE), self, mesh)

    def _send(self, data: bytes) -> str:
        from exop.remoting.pieces import send

        return send(self._client, data)

    def memento(self, application: str, node: str) -> Memento:
        """A copy of a node's state as it is now; its class must be known here too, by an installed plugin.

        Raises:
            UnknownName, MeshError, PlanError: as `Platform.memento`.
            StoredStateError: its class is not here.
        """
        from exop.remoting.mementos_client import as_memento

        return as_memento(self.export_memento(application, node, "msgpack")[1], f"{application}.{node}")

    def restore(self, application: str, node: str, memento: Memento) -> Mesh:
        """Let a node go on from another state; a change like any other. Returns the mesh that runs then."""
        return self.plan(self.mesh(application).restore(node, memento)).apply()

    def export_memento(self, application: str, node: str, form: str | None = None) -> tuple[str, bytes]:
        """A node's state as the content of a file, and its form: `json` where that can hold it, else `msgpack`."""
        from exop.remoting.mementos_client import export_memento

        return export_memento(self._client, {"application": application, "node": node, "form": form})

    def import_memento(self, application: str, node: str, data: bytes) -> RemotePlan:
        """Plan that a node goes on from the state in a file, which was perhaps edited.

        Raises:
            UnknownName, MeshError: no such application or node, or it keeps no memento.
            StoredStateError: the file is damaged, newer, of another class, or a value in it does not fit.
        """
        return self._planned("import_memento", {"application": application, "node": node, "number": self._send(data)})

    def resume(self, application: str, node: str) -> None:
        """Let items into a suspended node again; the one that it is suspended on is tried first."""
        self._client.call("resume", {"application": application, "node": node})

    def restart(self, application: str) -> None:
        """Try again to start an application that could not be started again with the platform."""
        self._client.call("resume", {"application": application, "node": ""})

    @property
    def bundles(self) -> RemoteBundles:
        """The platform's bundles, as in `Platform.bundles`: a folder is sent as an archive, by the owner alone."""
        return RemoteBundles(self._client)

    def kept_item(self, application: str, node: str) -> FailedItem | None:
        """The item that a node is suspended on; `None` if it is not. Its class must be known here too."""
        if self.failed_items(application, node)["kept"] is None:
            return None
        return FailedItem.from_bytes(self.export_item(application, node))

    def dead_letters(self, application: str, node: str) -> list[FailedItem]:
        """The items of a node that were set aside, the oldest first. Their classes must be known here too."""
        count = int(self.failed_items(application, node)["count"])
        return [FailedItem.from_bytes(self.export_item(application, node, number + 1)) for number in range(count)]

    def retry_dead_letters(self, application: str, node: str) -> int:
        """Have all dead letters of a node tried again; returns how many."""
        request = {"application": application, "node": node}
        return int(self._client.call("retry_dead_letters", request, timeout=60.0))

    def failed_items(self, application: str, node: str) -> dict[str, Any]:
        """The kept item and the first dead letters of a node, in words, and how many there are."""
        return dict(self._client.call("failed_items", {"application": application, "node": node}))

    def export_item(self, application: str, node: str, dead_letter: int | None = None) -> bytes:
        """The kept item of a node, or one of its dead letters, as the content of a file for `exop.testing.replay`.

        Raises:
            NoSuchItem: there is no such item.
            NotStorable: it is of a type that cannot be stored.
        """
        request = {"application": application, "node": node, "dead_letter": dead_letter}
        return bytes(self._client.call("failed_item", request))

    def end(self, application: str) -> None:
        """Ask the sources of an application to end; what is under way is still processed."""
        self._client.call("end", {"application": application})

    def remove(self, application: str) -> bool:
        """Stop an application at its safe points and undeploy it."""
        return bool(self._client.call("remove", {"application": application}, timeout=60.0))

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished; `False` when *timeout* seconds were not enough.

        Raises:
            ComponentFailed: a slet is suspended on an item, or an engine broke, and it has not been repaired.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (found := self.status(application))["state"] != "finished":
            _check_alive(found)
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(POLL)
        return True


def _check_alive(application: dict[str, Any]) -> None:
    """Without a repair it will not finish: say which node is to be repaired, as `Platform.wait` does."""
    for driver, problem in application["crashed"].items():
        raise ComponentFailed(node=driver, phase="driving", problem=problem)
    if application["state"] == "suspended":
        name = application["name"]
        for node, facts in application["nodes"].items():
            if "error" in facts:
                raise ComponentFailed(node=f"{name}.{node}", phase="running", problem=facts["error"])


def _by_scheme(target: str) -> RemotePlatform:
    """Connect by the transport that a plugin has registered for the scheme of the address."""
    scheme, _, address = target.partition("://")
    plugins = Plugins()
    plugins.discover()
    transports = Catalog(plugins).transports()
    if scheme not in transports:
        raise UnknownName(place=f"the address {target}", kind="transport", name=scheme, known=transports)
    made: RemotePlatform = transports[scheme](address)
    return made


def connect(target: str | Path | None = None) -> RemotePlatform:
    """Connect to a running platform of this user.

    Args:
        target: Its state directory, its socket, its process id or its name; without one, the only platform that runs.

    Raises:
        PeerUnreachable: none answers there, or there are several and none was named.
    """
    if target is not None and "://" in str(target):
        return _by_scheme(str(target))
    if target is not None and (Path(target).is_dir() or Path(target).is_socket()):
        return RemotePlatform(target)
    found = find_platforms()
    wanted = [one for one in found if target is None or str(target) in (str(one.pid), one.name)]
    running = [one for one in wanted if not one.problem]
    if len(running) == 1:
        return RemotePlatform(running[0].address)
    mute = [one for one in found if one.problem and str(target or one.pid) == str(one.pid)]
    if not running and mute:
        raise PeerUnreachable(mute[0].problem)
    if not running:
        text = "" if target else "no platform is running; start one with `exop run APP` or `exop serve`"
        raise PeerUnreachable(text, address=str(target or "any socket"), problem="no platform is running")
    names = ", ".join(f"{one.pid} ({one.name})" for one in running)
    raise PeerUnreachable(f"several platforms run: {names}; name one of them (on the command line by --on)")

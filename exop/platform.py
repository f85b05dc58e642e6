"""`Platform` is the composition root: it creates the services, and delegates each operation to a service."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from exop.errors import ComponentFailed, ExopError, PlanError, PluginError, StateError, UnknownName, entry
from exop.hooks import Plugins
from exop.hosts.federation import Federation
from exop.hosts.fragment import Fragments
from exop.logs import logger
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import check_name
from exop.model.properties import HOST, KIND, NAME
from exop.model.slets.spec import Absent, SletSpec
from exop.pictures.notebook import Figures
from exop.registry import ServiceRegistry
from exop.remoting.api.management import Management
from exop.runtime.catalog import Catalog
from exop.runtime.component_manager import ComponentManager
from exop.runtime.deployment import Deployment
from exop.runtime.supervision.interpreter import check_lock, restore_switch_interval, shorten_switch_interval
from exop.safe_repr import RAISED, error_text
from exop.status import application_metrics, application_status
from exop.wiring import Applications, Plan, WiringController

if TYPE_CHECKING:
    from exop.bundle.bundles import Bundles
    from exop.remoting import ControlServer, Operation
    from exop.remoting.peers.service import RemotingService
    from exop.runtime.durable.store import Store, StoredApplication


class Platform(Management[Plan]):
    """One running instance of ExoP, embedded in this process.

        with Platform(state="state/") as platform:
            mesh = platform.apply(app.build())
            platform.wait(mesh.name)

    Args:
        state: The state directory. On `start`, the applications that ran there are restarted. Without a state
            directory, all data is in memory.
        name: The name of the platform; by default the name of the host.
        plugins: The plugins to use; by default the installed plugins.
        listen: The address at which other platforms reach this one: `tls://HOST:PORT`, `tcp://127.0.0.1:PORT`, or
            `inproc:NAME` within this process; by default, none can.
        identity: The folder with the certificate of the platform, as `exop certs issue` makes it; needed for TLS.
        policy: The file with the roles and channels of other platforms; without it, they may do nothing.
        peers: The addresses of other platforms by their names; the platform links itself with each that answers.
        announce: Whether to announce the address on the local network.
        control: Whether to open a socket for commands such as `exop ps`, which only the owner can use; by default only
            if *state* is given.

    Raises:
        MeshError: *name* is invalid.
        PlanError: on `start`, Python runs without its global lock.
        StateError: the state directory cannot be used.
    """

    def __init__(
        self,
        *,
        state: str | os.PathLike[str] | None = None,
        name: str | None = None,
        plugins: Plugins | None = None,
        control: bool | None = None,
        listen: str | None = None,
        identity: str | os.PathLike[str] | None = None,
        policy: str | os.PathLike[str] | None = None,
        peers: Mapping[str, str] | None = None,
        announce: bool = False,
    ) -> None:
        self.name = name or re.sub(r"[^\w.-]", "-", os.uname().nodename) or "host"
        check_name("a host", self.name)
        self.registry = ServiceRegistry()
        self.catalog = Catalog(plugins or Plugins())
        # Absolute: processes of engines, which get paths in it, have other working directories.
        self.state = Path(state).absolute() if state is not None else None
        self.components = ComponentManager(self.registry, self.name)
        self.wiring = WiringController(self.registry, self.components)
        self._applications = Applications(self.name, self.catalog, self.wiring)
        parts = (self.name, self._applications, self.catalog, self._start_again)
        here = Fragments(*parts, links=lambda: (self._remoting or self.remoting).peers, read=self._read_mesh)
        # A function: there are no bundles so far.
        self._hosts: Federation = Federation(here, lambda bundle: self.bundles.code(bundle))  # noqa: PLW0108
        self._control = control if control is not None else state is not None
        self._server: ControlServer | None = None
        self._listen, self._announce, self._peers = listen, announce, dict(peers or {})
        self._identity, self._policy = identity, policy
        self._remoting: RemotingService | None = None
        self._bundles: Bundles | None = None
        self._making = threading.Lock()
        self._restarting = threading.Lock()
        self.restarted: dict[str, str] = {}
        self._running = False
        self._starter: int | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Self:
        """Load the plugins, lock the state directory, and restart the applications that ran at the last `close`."""
        if self._running:
            return self
        check_lock()
        self.plugins.discover()
        self._gather()
        if self.state is not None:
            # Imported lazily: only platforms with a state directory need sqlite3.
            from exop.runtime.durable.store import Store

            self._applications.keep_in(Store(self.state))
        shorten_switch_interval()
        self._remoting, self.components.wires = None, {}
        self._running, self._starter, self._pid = True, threading.get_ident(), os.getpid()
        try:
            for interface, service in (("ComponentManager", self.components), ("WiringController", self.wiring)):
                self.registry.register(interface, service, {KIND: "platform", HOST: self.name, NAME: interface})
            if self.state is not None and (self.state / "bundles").is_dir():
                self.bundles.restore()
            if (store := self._applications.store) is not None:
                self._load_plugins(store)
            self._hosts.open()
            kept = {*self._hosts.exchange.held, *self.failed_to_restart}
            known = store.applications() if store is not None else ()
            stored = [one for one in known if one.active and one.name not in kept]
            self.components.opening.update({one.name: Deployment(Mesh(one.name)) for one in stored})
            self._link(store.peers() if store is not None else {})
            self._hosts.exchange.open()  # when the peers are known: its fragments are connected to them
            if self._control:  # before the applications start: clients can see the progress
                # Imported lazily: only platforms with a control connection need the server.
                from exop.remoting import ControlServer

                self._server = ControlServer(self._operations, self.state, name=self.name)
                self._server.start()
            for one in stored:
                self._restart_or_note(one)
        except BaseException:
            self.close()
            raise
        finally:
            self._starter = None
        list(self.plugins.ask("platform_started", platform=self))
        return self

    def _link(self, stored: Mapping[str, str]) -> None:
        """Listen, and begin the links to the peers; one that was stored by `connect_peer` prevents no start."""
        peers = {**stored, **self._peers}
        given = self._listen, self._identity, self._policy  # a file that is unusable is told before `connect` needs it
        if self._announce or peers or self._hosts.exchange.machines or any(one is not None for one in given):
            remoting = self.remoting
            for peer, uri in peers.items():
                try:
                    remoting.add(peer, uri)
                except ExopError as problem:
                    if peer in self._peers:
                        raise
                    if (link := remoting.peers.get(peer)) is not None:
                        link.reason = str(problem)
                    logger("exop.remoting").warning("not linked", peer=peer, address=uri, problem=str(problem))

    def close(self, timeout: float | None = None) -> None:
        """Stop every application, and release the state directory.

        Each application has *timeout* seconds (by default, 5) for its last checkpoint, and as many to leave. The next
        platform with this state directory restarts the applications.
        """
        if not self._running:
            return
        self._running = False
        if os.getpid() != self._pid:  # in a forked child, which has no threads; sockets and files belong to the parent
            if self._server is not None:
                self._server.stop()
            return
        list(self.plugins.ask("platform_stopping", platform=self))
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._hosts.tick()  # also stores how far conditional updates have come
        self._hosts.exchange.close()
        if self._remoting is not None:
            self._remoting.close()  # kept until the next start: who still sends a message finds closed links
        try:
            self._applications.close(timeout)
        finally:
            if self._bundles is not None:
                self._bundles.close()
                self._bundles = None
            if self._applications.store is not None:
                self._applications.store.close()
                self._applications.keep_in(None)
            restore_switch_interval()

    def load(self, folder: str | os.PathLike[str]) -> str:
        """Load a package folder (with application builders and slets) as a plugin, and return the plugin's name.

        The bundle in a folder with a `bundle.toml` is installed and started instead.

        Raises:
            PluginError: the folder is not a package, or its import failed.
            BundleError: as `bundles.install` and `bundles.start`.
        """
        if Path(folder, "bundle.toml").is_file():
            return str(self.bundles.start(self.bundles.install(folder)["bundle"])["bundle"])
        name = self.plugins.load_folder(Path(folder))
        self._gather()
        if self._applications.store is not None:
            self._applications.store.remember_plugin(name, self.plugins.folders[name])
        return name

    @property
    def bundles(self) -> Bundles:
        """The methods that install, start, update, stop and uninstall bundles while the platform runs.

        Raises:
            PlanError: the platform is not running.
            StateError: the state directory cannot be used.
        """
        # Imported lazily: only platforms with bundles need archives and versions.
        from exop.bundle.bundles import Bundles
        from exop.bundle.installed import BundleContext

        self._check_running()
        with self._making:
            if self._bundles is None:
                services = (self.registry, self.catalog, self._applications, self._hosts, self._gather)
                self._bundles = Bundles(BundleContext(self.name, self.state, *services))
        return self._bundles

    @property
    def remoting(self) -> RemotingService:
        """The links to other platforms; raises `PlanError` if the platform is not running."""
        # Imported lazily: only platforms with peers need rpyc and msgspec.
        from exop.remoting.identity import Identity
        from exop.remoting.peers.service import RemotingService
        from exop.remoting.policy import AccessControl, Policy

        with self._making:
            if self._remoting is None or not self._running:
                self._check_running()
                policy = None if self._policy is None else Policy(self._policy)
                identity = None if self._identity is None else Identity(self._identity)
                access = AccessControl(policy, identity, self._applications.history.counted)
                self._remoting = made = RemotingService(
                    self.name, self._operations, self.registry, access, listen=self._listen, announced=self._announce
                )
                self.components.wires, self.components.call_peer = made.wires, made.call
                made.start()
        return self._remoting

    @property
    def address(self) -> str | None:
        """The address at which other platforms reach this one; `None` if it does not listen."""
        return self._remoting.address if self._running and self._remoting is not None else None

    @property
    def failed_to_restart(self) -> Mapping[str, ExopError]:
        """The stored applications that failed to restart, each with the error."""
        return self._applications.lost

    def restart(self, application: str) -> None:
        """Start an application that failed to restart when the platform was started."""
        with self._restarting:
            store = self._applications.store
            entry(f"the platform {self.name!r}", "application that is down", self.failed_to_restart, application)
            assert store is not None  # it has those that are down
            self._load_plugins(store)
            stored = {one.name: one for one in store.applications()}
            self._hosts.restore(application)
            if application in stored:
                self._restart_or_note(stored[application])
            else:  # other hosts run all of it
                del self._applications.lost[application]
            if application in self.failed_to_restart:
                raise self.failed_to_restart[application]

    def slets(self) -> dict[str, SletSpec]:
        """Return the slets of all plugins and started bundles, by identity (`plugin:name`)."""
        return dict(self.catalog.slets)

    def status(self, application: str | None = None) -> dict[str, Any]:
        """Return the status of the platform, or of one application with its components and channels, as plain data."""
        opening = dict(self.components.opening)
        here = partial(self._status_here, opening)
        if application is not None:
            return Figures(self._hosts.status(application, here))
        names = {**opening, **dict.fromkeys(self.applications())}
        facts = {
            "platform": self.name,
            "pid": os.getpid(),
            "state": str(self.state) if self.state else None,
            "plugins": self.plugins.names(),
            "bundles": self._bundles.states() if self._bundles is not None else {},
            "broken_plugins": {name: str(error) for name, error in dict(self.plugins.broken).items()},
            "calls": self.components.user.plain(),
            "listeners": self.registry.hanging(),
            "access": self._remoting.access.status() if self._remoting is not None else {},
            "failed_to_restart": {name: str(error) for name, error in dict(self.failed_to_restart).items()},
            "applications": {name: Figures(self._hosts.status(name, here)) for name in names},
        }
        return Figures(facts)

    def _status_here(self, opening: Mapping[str, Deployment], application: str) -> dict[str, Any]:
        """Return the status of an application, or of its fragment on this platform, also while it is *opening*."""
        known = opening.get(application) or self.components.opening.get(application)
        deployment = known or self.deployment(application)
        found = application_status(deployment)
        found |= self._applications.changes.shadows.status(application)
        taker = self._applications.checkpoints.takers.get(application)
        calls = self.components.user.plain(application)
        found |= {"calls": calls} if calls else {}
        where = f" on {self.name}" * deployment.is_fragment
        found["crashed"] = {f"{what}{where}": why for what, why in found["crashed"].items()}
        return found | ({"checkpoints": taker.status()} if taker is not None else {})

    def metrics(self, application: str | None = None, *, quantiles: bool = False) -> dict[str, Any]:
        """Return the metrics of the components and channels of one application, or of all applications, by name.

        With *quantiles*, return the quantiles of times as well, and the slet and the ports of each node. Computing the
        quantiles takes several times as long as all other metrics.
        """
        opening = dict(self.components.opening)
        if application is None:
            names = {**opening, **dict.fromkeys(self.applications())}
            return Figures({name: self.metrics(name, quantiles=quantiles) for name in names})

        def here(application: str) -> dict[str, Any]:
            return application_metrics(opening.get(application) or self.deployment(application), whole=quantiles)

        return Figures(self._hosts.metrics(application, here, quantiles=quantiles))

    @property
    def plugins(self) -> Plugins:
        """The plugins of this platform. The attribute `broken` contains the plugins that failed to load."""
        return self.catalog.plugins

    def _gather(self) -> None:
        self.catalog.gather()
        self.components.kinds = self.catalog.kinds

    def _check_running(self) -> None:
        if not self._running:
            raise PlanError("the platform is not running; use `with Platform() as platform:`, or call start()")
        if self._starter not in (None, threading.get_ident()):
            raise PlanError(
                f"the platform {self.name!r} is starting the applications of {self.state} again; try again when it "
                f"runs, `exop ps` shows the progress"
            )

    def _load_plugins(self, store: Store) -> None:
        for name, folder in store.plugins().items():
            self.plugins.broken.pop(name, None)
            try:
                self.load(folder)
            except PluginError as problem:
                self.plugins.broken[name] = problem

    def _restart_or_note(self, stored: StoredApplication) -> None:
        """Continue an application from its checkpoint, or deploy it without a state; record what its code raises."""
        store = self._applications.store
        assert store is not None
        try:
            with self._applications.history.recorded(stored.name, "start", new=True) as entry:
                snapshot = store.checkpoints.read(stored.name)
                refused: list[str] = []
                mesh = self._read_mesh(snapshot.topology if snapshot is not None else stored.topology, refused)
                if snapshot is not None:
                    store.tidy(snapshot)
                    told = self._applications.recover(mesh, snapshot, stored)
                    self.restarted[stored.name] = f"goes on from its checkpoint{told}"
                else:
                    self._applications.apply(mesh.at(stored.revision))
                    why = "not durable" if mesh.durable is None else "it has no checkpoint yet"
                    self.restarted[stored.name] = f"started anew ({why})"
                self.restarted[stored.name] += "".join(f"; {one}" for one in refused)
                how, at = self.restarted[stored.name], self.mesh(stored.name).revision  # of the whole, at its home
                entry.update(dict.fromkeys(["revision", *entry.keys() & {"to"}], at), how=how)
        except RAISED as error:
            problem = ComponentFailed(node=stored.name, phase="being started again", problem=error_text(error))
            problem.__cause__ = error
            self._applications.lost[stored.name] = error if isinstance(error, ExopError) else problem
        finally:
            if stored.name not in self.restarted:  # the failed or interrupted deployment may have changed that
                with suppress(StateError):
                    store.set_active(stored.name, active=True)
            self.components.opening.pop(stored.name, None)

    def _start_again(self, application: str) -> None:
        """Start an application that the state directory has, after its start was held."""
        store = self._applications.store
        for one in store.applications() if store is not None else ():
            if one.name == application and one.active:
                self._restart_or_note(one)

    def _read_mesh(self, topology: str, refused: list[str] | None = None) -> Mesh:
        """Read a stored mesh without the pending updates whose conditions are *refused* by this release.

        Raises an `ExopError` that names the bundles and plugins whose code it lacks.
        """
        refused = [] if refused is None else refused
        try:
            mesh = Mesh.from_toml(topology, self.slets(), refused)
            for why in refused:
                logger("exop.platform").error(why, application=mesh.name)
            return mesh
        except ExopError as problem:
            rows = self._bundles.list() if self._bundles is not None else []
            down = [row for row in rows if row["state"] != "started"]
            found = {row["bundle"]: row.get("problem") or "it is not started" for row in down}
            found |= {name: str(error) for name, error in self.plugins.broken.items()}
            if isinstance(problem, UnknownName) and (name := str(problem.facts["name"])).count("@"):
                found.setdefault(name.rpartition(":")[0], Absent(name, "").refusal)
            if not (needed := [f"{name}: {why}" for name, why in found.items() if f'"{name}:' in topology]):
                raise
            raise StateError(f"{problem}; its code could not be loaded: {'; '.join(needed)}") from problem

    def _operations(self) -> Mapping[str, Operation]:
        # Declaring the request types takes 20 ms, so this is done for the first peer, not at the start.
        from exop.remoting.api.service import ManagementService

        return ManagementService(self).table()

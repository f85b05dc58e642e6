"""The applications that run on one platform: deployed, stored, secured by checkpoints, undeployed."""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from exop.errors import (
    CheckpointError,
    ComponentFailed,
    ExopError,
    NotStorable,
    PlanError,
    StateError,
    StillOpening,
    UnknownName,
)
from exop.logs import logger
from exop.model.meshes.checks import check
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.meshes.nodes import HERE
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.history import History
from exop.runtime.pause import PATIENCE
from exop.runtime.supervision.interrupts import check_interrupt
from exop.wiring.changes.channels import check_channels
from exop.wiring.changes.conditional_updates import follow_updates
from exop.wiring.changes.successors import discard
from exop.wiring.controller import WiringController

if TYPE_CHECKING:
    from exop.runtime.durable.checkpointer import Checkpointer
    from exop.runtime.durable.snapshot import Snapshot
    from exop.runtime.durable.store import Store

#: Seconds that an application has for its last checkpoint, and to leave, when the platform is closed.
LEAVING = 5.0
#: The errors of a checkpoint that fails: the checkpointer records them, and the status shows them.
CHECKPOINT_ERRORS = (CheckpointError, ComponentFailed, NotStorable, StateError)


class Deployments:
    """Deploys and undeploys meshes, and keeps the applications that run on a platform, by name.

    `lost` has the errors of applications that could not be started again; their checkpoints are kept. `fragments` has
    the names of the applications of which other hosts run parts.
    """

    def __init__(self, host: str, wiring: WiringController) -> None:
        self.deployed: dict[str, Deployment] = {}
        self.lost: dict[str, ExopError] = {}
        self.fragments: set[str] = set()
        self.store: Store | None = None
        self.checkpoints = Durability(wiring)
        self.history = History(ChainMap[str, Any](self.deployed, self.lost))
        self._host = host
        self._manager = wiring.manager
        self._wiring = wiring
        self._unmade: set[str] = set()
        self._turn = threading.RLock()
        self._closings = 0

    def keep_in(self, store: Store | None) -> None:
        """Keep the applications, their checkpoints, channels and engines there from now on; `None`: nowhere."""
        self.store = self.checkpoints.store = self.history.store = store
        if store is not None:
            self._manager.home, self._manager.engines = store.directory / "channels", store.engines

    def names(self, *, inactive: bool = False) -> list[str]:
        """The applications that are deployed; if *inactive*, also those that are opening or failed to restart."""
        return sorted({*self.deployed, *self._manager.opening, *self.lost} if inactive else self.deployed)

    def get(self, application: str) -> Deployment:
        """The running form of an application."""
        self._check_open(application)
        if (found := self.deployed.get(application)) is not None:
            return found
        if application in self.lost:
            problem = f"the application {application!r} is down, because it could not be started again"
            raise self._down(problem, application)
        place = f"the platform {self._host!r}"
        raise UnknownName(place=place, kind="application", name=application, known=self.names())

    def checkpointer(self, application: str) -> Checkpointer:
        """The checkpointer of an application; raises as `get`, and `CheckpointError` if it is not durable."""
        if (found := self.checkpoints.takers.get(self.get(application).name)) is None:
            cure = "build it with app.durable(every=…)"
            raise CheckpointError(application=application, problem="it is not durable", cure=cure)
        return found

    def _down(self, fact: str, application: str) -> StateError:
        return StateError(
            f"{fact} ({self.lost[application]}); repair that, and start it again by `exop resume {application}`, or "
            f"remove it by `exop remove {application}`"
        )

    def _check_open(self, application: str) -> None:
        """Raise `StillOpening` while the slets of an application are being opened."""
        if (deployment := self._manager.opening.get(application)) is not None:
            facts = deployment.opening_progress()
            waiting = "".join(f", {node} since {seconds:.0f} s" for node, seconds in facts["waiting"].items())
            opened, total = facts["opened"], facts["total"]
            raise StillOpening(application=application, host=self._host, opened=opened, total=total, waiting=waiting)

    def deploy(
        self,
        mesh: Mesh,
        snapshot: Snapshot | None = None,
        ready: Callable[[Deployment], None] | None = None,
        timeout: float | None = None,
    ) -> Deployment:
        """Create, connect, open and start everything; the sources start when every slet is ready.

        Each slet has *timeout* seconds to be made, and as many to open; it goes on from its state in *snapshot*.
        *ready* is called when everything is open, and no item moves yet. The caller takes the deployment out of
        `manager.opening`.
        """
        if mesh.nodes or mesh.name not in self.fragments:
            check(mesh, self._manager.kinds, home=self._host)
        check_channels(mesh, self._manager.kinds)
        self.check_hosts((*mesh.nodes.values(), *mesh.channels.values()))
        deployment = Deployment(mesh)
        deployment.is_fragment = mesh.name in self.fragments
        with ExitStack() as undo:
            self._create(deployment, timeout, undo)
            if snapshot is not None:
                # Imported lazily: only recovery needs the encoding.
                from exop.runtime.durable.snapshot import restore_contents, restore_states

                restore_states(deployment, snapshot)
            self._wiring.bind(deployment, self._wiring.whole_region(deployment))(None)
            if snapshot is not None:
                restore_contents(deployment, snapshot)
            undo.callback(deployment.stop)
            self._manager.opening[mesh.name] = deployment
            undo.callback(self._manager.opening.pop, mesh.name, None)
            check_interrupt()
            deployment.open(timeout)
            check_interrupt()
            if ready is not None:
                ready(deployment)
            deployment.start()
            undo.pop_all()
        return deployment

    def undeploy(self, deployment: Deployment, timeout: float = 5.0) -> bool:
        """Stop and unregister everything; return whether every thread has ended in time."""
        with deployment.changing:
            try:
                left = deployment.stop(timeout)
            finally:
                for component in deployment.components.values():
                    discard(deployment, self._manager, component)
                self._destroy_channels(deployment)
                self._manager.user.abandon(deployment.name)
                deployment.finished.set()
            return left

    def _create(self, deployment: Deployment, timeout: float | None, undo: ExitStack) -> None:
        mesh, durable = deployment.mesh, deployment.mesh.durable is not None
        undo.callback(self._destroy_channels, deployment)
        for spec in mesh.channels.values():
            made = self._manager.create_channel(mesh.name, spec, durable=durable, timeout=timeout)
            deployment.channels[spec.name] = made
        components = {}
        for node in mesh.nodes.values():
            component = self._manager.create(mesh.name, node, deployment.changed, durable=durable, timeout=timeout)
            components[node.name] = component
            undo.callback(discard, deployment, self._manager, component)
            self._manager.connect(component, node.ports)
            component.read_natively(deployment.channels)
        deployment.place(components, components)

    def _destroy_channels(self, deployment: Deployment) -> None:
        for channel in (*deployment.channels.values(), *deployment.inserted.values()):
            self._manager.destroy_channel(deployment.name, channel)

    def check_hosts(self, placed: Iterable[Node | ChannelSpec], peers: Collection[str] = ()) -> None:
        """Raise `PlanError` if a node or channel is placed on a host that is neither this platform nor a peer."""
        for one in placed:
            if one.host not in (None, self._host, HERE, *peers):
                known = f"its peers: {', '.join(sorted(peers))}" if peers else "it has no peers"
                raise PlanError(
                    f"{one.name} is placed on {one.host!r}, and this platform ({self._host!r}) has no connection to "
                    f"it ({known}); connect them (`exop connect URI`), or choose another host for {one.name}"
                )

    def _runs(self, application: str) -> bool:
        known = self.deployed.get(application)
        return known is not None and not known.finished.is_set()

    def _start(self, mesh: Mesh, snapshot: Snapshot | None = None, **how: Any) -> Deployment:
        """Deploy a mesh and keep it; its end is stored even if no caller waits for it."""
        closings = self._closings
        deployment = self.deploy(mesh, snapshot, **how)
        with self._turn:
            if self._closings != closings:
                self._manager.opening.pop(deployment.name, None)
                self.undeploy(deployment)
                raise PlanError(f"the platform was closed while {deployment.name} was opened")
            self.deployed[deployment.name] = deployment
            self._manager.opening.pop(deployment.name, None)

        def note_end() -> None:  # the next platform starts a durable application at its end
            if deployment.mesh.durable is None:
                self._set_inactive(deployment.name)

        deployment.over = note_end
        follow_updates(deployment, self._wiring, self._note)
        deployment.check_finished()
        self.lost.pop(mesh.name, None)
        return deployment

    def changed(self, deployment: Deployment) -> StateError | None:
        """Store a committed change; return the error if that is impossible now."""
        self._unmade.discard(deployment.name)
        unwritten = self._note(deployment)
        deployment.check_finished()
        return unwritten and StateError(
            f"{deployment.name}: the change is made and runs, but it is not stored ({unwritten}); it will be "
            f"stored with the next change, or when the platform is closed: make room there"
        )

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


class Durability:
    """Starts and stops the checkpointers (`takers`) of durable applications; `store` is `None` without a directory."""

    def __init__(self, wiring: WiringController) -> None:
        self._wiring = wiring
        self.store: Store | None = None
        self.takers: dict[str, Checkpointer] = {}
        self._over = WeakSet[Deployment]()
        self._lock = threading.Lock()

    def begin(self, deployment: Deployment) -> None:
        """Take the first checkpoint, when everything is open and no item moves yet."""
        self.tell(deployment)
        if (taker := self.taker(deployment)) is not None:
            with suppress(*CHECKPOINT_ERRORS):
                taker.begin()

    def tell(self, deployment: Deployment) -> None:
        """Set whether slets and channels take part in checkpoints."""
        on = self.store is not None and deployment.mesh.durable is not None
        for component in deployment.components.values():
            if component.instance is not None:
                component.instance.checkpointed = on
        for channel in deployment.channels.values():
            channel.take_part(on=on)

    def start(self, deployment: Deployment) -> None:
        """Take checkpoints periodically from now on, if the application is durable."""
        if (taker := self.taker(deployment)) is not None:
            taker.start()

    def changed(self, deployment: Deployment) -> None:
        """Take a checkpoint of a changed application, or stop taking checkpoints if it is no longer durable.

        If the checkpoint fails, the next one has the change; a restart before that makes the change again.
        """
        name = deployment.name
        if deployment.mesh.durable is not None:
            self.tell(deployment)
            self.start(deployment)
            self._take(self.takers.get(name))
        else:
            if name in self.takers:
                self.tell(deployment)
                self.stop(name)
            if self.store is not None:
                self.store.checkpoints.discard(name)

    def end_is_stored(self, application: str) -> bool:
        """Take the checkpoint of the end, at which sinks emit their buffered items; `False` if that fails."""
        return self._take(self.takers.get(application))  # if it fails, the next platform goes on at its end

    def last(self, deployment: Deployment, seconds: float, *, removed: bool = False) -> None:
        """Take the last checkpoint of an application within so many seconds; no item moves after it.

        One that is *removed* needs it only for the items that its sinks hold back.
        """
        with self._lock:
            self._over.add(deployment)
            taker = self.takers.pop(deployment.name, None)
        if taker is not None:
            taker.stop()
            if not removed or taker.has_sinks():
                self._take(taker, seconds, last=True)

    def stop(self, application: str) -> None:
        """Stop taking checkpoints of an application."""
        if (taker := self.takers.pop(application, None)) is not None:
            taker.stop()

    @staticmethod
    def _take(taker: Checkpointer | None, seconds: float = PATIENCE, *, last: bool = False) -> bool:
        """Take a checkpoint, if there is a checkpointer; `False` if that fails, which the log and the status show."""
        with suppress(*CHECKPOINT_ERRORS):
            if taker is not None:
                taker.take(seconds, last=last)
            return True
        return False

    def taker(self, deployment: Deployment) -> Checkpointer | None:
        """The checkpointer of a durable application; `None` also if it is removed or closed."""
        if self.store is None or deployment.mesh.durable is None:
            return None
        # Imported lazily: only durable applications need the encoding.
        from exop.runtime.durable.checkpointer import Checkpointer

        with self._lock:
            known = self.takers.get(deployment.name)
            if known is None and deployment not in self._over:
                known = self.takers[deployment.name] = Checkpointer(deployment, self.store.checkpoints, self._hold)
        return known

    def _hold(self, deployment: Deployment, component: Component, error: Exception) -> None:
        """Suspend a slet whose call was abandoned, until it is replaced or resumed."""
        with deployment.changing:  # no other change binds the node
            if deployment.components.get(component.node.name) is component:
                try:
                    self._wiring.rebind(
                        deployment, lambda: component.fail_until_resumed(error), nodes=[component.node.name]
                    )
                except PlanError:  # a driver does not park: items enter until the node is bound the next time
                    component.fail_until_resumed(error)

"""The applications of one platform: deployed, changed, stored and removed; one change at a time."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from exop.errors import CheckpointError, ExopError, PlanError, StaleMesh, StateError, StillOpening, UnknownName
from exop.logs import logger
from exop.model.meshes.checks import check, check_durable, resolved
from exop.model.meshes.diff import difference
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.meshes.nodes import HERE, INBOX, OUTBOX
from exop.model.slets.handover import tried
from exop.runtime.catalog import Catalog
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.durable.durability import Durability
from exop.runtime.history import History
from exop.runtime.lifecycle import Event, refused
from exop.runtime.supervision.interrupts import check_interrupt
from exop.wiring.changes.channels import check_channels
from exop.wiring.changes.conditional_updates import caught_up, follow_updates
from exop.wiring.changes.executor import Changes, finished
from exop.wiring.changes.plan import Plan, Step, make_plan, remarks_on
from exop.wiring.changes.rebuild import check_rebuilds
from exop.wiring.changes.successors import discard
from exop.wiring.controller import WiringController

if TYPE_CHECKING:
    from exop.runtime.durable.checkpointer import Checkpointer
    from exop.runtime.durable.snapshot import Snapshot
    from exop.runtime.durable.store import Store, StoredApplication

#: Seconds that an application has for its last checkpoint, and to leave, when the platform is closed.
LEAVING = 5.0


class Applications:
    """The applications of a platform by name. Concurrent changes of one application are made one after the other.

    `lost` has the errors of applications that could not be started again; their checkpoints are kept. `fragments` has
    the names of the applications of which other hosts run parts.
    """

    def __init__(self, host: str, catalog: Catalog, wiring: WiringController) -> None:
        self.deployed: dict[str, Deployment] = {}
        self.lost: dict[str, ExopError] = {}
        self.fragments: set[str] = set()
        self.store: Store | None = None
        self.checkpoints = Durability(self._hold)
        self.history = History(lambda name: name in self.deployed or name in self.lost)
        self.changes = Changes(wiring, self)
        self._host = host
        self._catalog = catalog
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
        self.check_open(application)
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

    def end(self, application: str, timeout: float) -> bool:
        """End the sources; return whether that is stored within *timeout* seconds, or need not be stored."""
        taker = self.checkpoints.takers.get(application)
        if self.get(application).end_sources(timeout if taker else 0.0) and timeout and taker is not None:
            with suppress(ExopError):  # the next checkpoint may have it
                taker.take()
                return True
        return taker is None

    def _down(self, fact: str, application: str) -> StateError:
        return StateError(
            f"{fact} ({self.lost[application]}); repair that, and start it again by `exop resume {application}`, or, "
            f"if you correct code that is in no bundle, with the platform; or remove it by `exop remove {application}`"
        )

    def check_open(self, application: str) -> None:
        """Raise `StillOpening` while the slets of an application are being opened."""
        if (deployment := self._manager.opening.get(application)) is not None:
            facts = deployment.opening_progress()
            waiting = "".join(f", {node} since {seconds:.0f} s" for node, seconds in facts["waiting"].items())
            opened, total = facts["opened"], facts["total"] or "?"
            raise StillOpening(application=application, host=self._host, opened=opened, total=total, waiting=waiting)

    def check_whole(self, application: str) -> None:
        """Raise `PlanError` if other hosts run parts of an application, or have done so: its home leads its changes."""
        if application in self.fragments and application not in self._unmade:
            raise PlanError(
                f"{application} runs on several hosts, or has done so: a change of the part on {self._host!r} alone is "
                f"refused; change the application at its home, which `exop ps` shows"
            )

    def plan(self, mesh: Mesh) -> Plan:
        """Check what `apply` would do, and return its plan; nothing has happened yet."""
        running = self.get(mesh.name)
        now, mesh = caught_up(mesh, mesh.revision, running.update_log)
        mesh = resolved(mesh, self._catalog.slets, durable=self.store is not None, running=now)
        plan = make_plan(now, mesh, self._manager.kinds)
        if mesh.nodes or mesh.name not in self.fragments:
            check(mesh, self._manager.kinds, plan.changes, home=self._host)
        check_channels(plan.changes, self._manager.kinds)
        check_durable(mesh, has_state=self.store is not None, nodes=None if now.durable is None else plan.changes.nodes)
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
        if (known := self.deployed.get(mesh.name)) is not None and mesh.revision:
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
            deployment = self.deploy(mesh, timeout=timeout)
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
        if (known := self.deployed.get(mesh.name)) is not None:
            self.undeploy(known)
        self.checkpoints.stop(mesh.name)
        self.fragments.add(mesh.name)
        return self.deploy(mesh.at(known.mesh.revision if known is not None else 0))

    def recover(self, mesh: Mesh, snapshot: Snapshot, stored: StoredApplication) -> str:
        """Start an application from its last checkpoint, which is of *mesh*; if that fails, the checkpoint is kept.

        A change that was stored after the checkpoint is made again. Returns a description of its outcome.
        """
        edited, problem = mesh, None
        if stored.revision > snapshot.revision:
            try:
                edited = Mesh.from_toml(stored.topology, self._catalog.slets, refused=[])
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
                deployment = self.deploy(running, snapshot)
                self._note(deployment)  # it is stored already, unless by another release; a change made again stays
                self.checkpoints.start(deployment)
            while again:
                try:
                    self.plan(edited.at(revision)).apply(stall=True)
                    break
                except StaleMesh:  # a conditional update that the change replaces has taken effect before it
                    now, edited = caught_up(edited, revision, deployment.update_log, replaced=True)
                    revision = now.revision
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
        if suspended := deployment.mesh.node(node).suspended:
            with self.changes.turn(application):  # first: another change may be made
                self.plan(deployment.mesh.resume(node)).apply()
        if (component := deployment.components[node]).closed:
            with self.changes.turn(application):
                self.changes.reopen(deployment, component)
        elif not suspended:
            with deployment.changing:
                if not (component := deployment.components[node]).allows(Event.RESUME):
                    raise refused(component.name, component.status, Event.RESUME)
                if component.tie is not None and component.tie.failure is not None:
                    cure = "a replacement or a changed setting (`exop configure`), which starts its engine again"
                    raise refused(component.name, component.status, Event.RESUME, cure) from component.tie.failure
                component.resume()

    def remove(self, application: str, timeout: float = 5.0) -> bool:
        """Stop an application, or forget one that is down; return whether all its threads have ended in time."""
        self.check_open(application)
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
        problem: ExopError | None = None
        try:
            self.checkpoints.last(deployment, timeout, removed=True)
        except CheckpointError as unwritten:
            problem = unwritten
        with self._turn:
            if self.deployed.get(application) is not deployment:  # another thread removes it
                return deployment.wait(timeout)
            del self.deployed[application]
            self.history.forget(application)
            try:
                if self.store is not None:
                    self.store.forget(application)
            except StateError as error:
                problem = problem or error
        try:
            left = self.undeploy(deployment, timeout)
        finally:
            self._manager.forget(application)
        if problem is not None:
            raise problem
        return left

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished; `False` when *timeout* seconds were not enough.

        Raises:
            LastCheckpointFailed: it has finished, and its end cannot be stored.
        """
        begin = time.monotonic()
        if application in self._manager.opening:
            turn = self.changes.turns[application]
            if not turn.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                return False
            turn.release()
        done = self.get(application).wait(None if timeout is None else timeout - (time.monotonic() - begin))
        if done and self.store is not None:
            self.checkpoints.store_end(application)
            self._set_inactive(application)
        return done

    def close(self, timeout: float | None = None) -> None:
        """Undeploy everything, after a last checkpoint of each durable application; all of them stay stored.

        Each application has *timeout* seconds for its last checkpoint, and as many to leave.
        """
        timeout = LEAVING if timeout is None else timeout
        for application in self.names():
            self.changes.shadows.stop(application)
        with self._turn:
            self._closings += 1
        self._manager.user.abandon(phase="opening", reason="the platform stops")
        for deployment in list(self.deployed.values()):
            self.checkpoints.last(deployment, timeout)
        with self._turn:
            deployments = list(self.deployed.values())
            self.deployed.clear()
        with ExitStack() as all_of_them:  # all are closed, also if one is interrupted
            for deployment in reversed(deployments):
                all_of_them.callback(self.undeploy, deployment, timeout)

    def deploy(self, mesh: Mesh, snapshot: Snapshot | None = None, timeout: float | None = None) -> Deployment:
        """Create, connect, open and start everything; the sources start when every slet is ready.

        Each slet has *timeout* seconds to be made, and as many to open; it goes on from its state in *snapshot*.
        Without one, a durable application takes its first checkpoint before any item moves. The end of the application
        is stored even if no caller waits for it.
        """
        closings = self._closings
        if is_filled := mesh.nodes or mesh.name not in self.fragments:  # otherwise, it is a fragment that begins empty
            check(mesh, self._manager.kinds, home=self._host)
        check_channels(difference(None, mesh), self._manager.kinds)
        self.check_hosts((*mesh.nodes.values(), *mesh.channels.values()))
        deployment = Deployment(mesh)
        deployment.is_fragment = mesh.name in self.fragments
        deployment.begins = not (is_filled or mesh.channels)
        with ExitStack() as undo:
            self._manager.opening[mesh.name] = deployment  # first: nobody is told that there is no such application
            undo.callback(self._manager.opening.pop, mesh.name, None)
            self._create(deployment, snapshot, timeout, undo)
            undo.callback(deployment.stop)
            check_interrupt()
            deployment.open(timeout)
            check_interrupt()
            if snapshot is not None:
                self.checkpoints.tell(deployment)
            elif is_filled:
                self.checkpoints.begin(deployment)
            deployment.start()
            with self._turn:
                if self._closings != closings:
                    raise PlanError(f"the platform was closed while {mesh.name} was opened")
                self.deployed[mesh.name] = deployment
            undo.pop_all()
        self._manager.opening.pop(mesh.name, None)

        def note_end() -> None:  # the next platform starts a durable application at its end
            if deployment.mesh.durable is None:
                self._set_inactive(mesh.name)

        deployment.over = note_end
        follow_updates(deployment, self._wiring, self._note, self.history)
        deployment.check_finished()
        self.lost.pop(mesh.name, None)
        return deployment

    def undeploy(self, deployment: Deployment, timeout: float = 5.0) -> bool:
        """Stop and unregister everything; return whether every thread has ended in time."""
        with deployment.changing:
            try:
                left = deployment.stop(timeout)
            finally:
                for component in deployment.components.values():
                    discard(deployment, self._manager, component)
                self._destroy_channels(deployment.name, deployment.channels | deployment.inserted)
                self._manager.user.abandon(deployment.name)
                self._tell_dropped(deployment)
                deployment.finished.set()
                deployment.notify_waiting()
            return left

    def _tell_dropped(self, deployment: Deployment) -> None:
        """Log the events that no peer has acknowledged, unless a checkpoint has them, or their receiver goes, too."""
        if deployment.finished.is_set() or deployment.is_fragment or not (events := deployment.undelivered()):
            return
        if self.store is None or not self.store.checkpoints.has(deployment.name):
            problem = "events that were not delivered are dropped"
            logger("exop.wiring").warning(problem, application=deployment.name, events=events)

    def _create(
        self, deployment: Deployment, snapshot: Snapshot | None, timeout: float | None, undo: ExitStack
    ) -> None:
        """Make and connect everything, and load a snapshot."""
        mesh, durable = deployment.mesh, deployment.mesh.durable is not None
        channels, components = dict[str, Any](), {}
        undo.callback(lambda: self._destroy_channels(mesh.name, channels | deployment.inserted))
        for spec in mesh.channels.values():
            channels[spec.name] = self._manager.create_channel(mesh.name, spec, durable=durable, timeout=timeout)
        deployment.channels = channels
        for node in mesh.nodes.values():
            component = self._manager.create(mesh.name, node, deployment.changed, durable=durable, timeout=timeout)
            components[node.name] = component
            undo.callback(discard, deployment, self._manager, component)
            self._manager.connect(component, node.ports)
            component.read_natively(deployment.channels)
        deployment.place(components, components)
        if snapshot is not None:
            # Imported lazily: only recovery needs the encoding.
            from exop.runtime.durable.snapshot import restore_contents, restore_states

            restore_states(deployment, snapshot)
        self._wiring.bind(deployment, self._wiring.whole_region(deployment))(None)
        deployment.trace(mesh, difference(None, mesh))
        if snapshot is not None and (cut := restore_contents(deployment, snapshot)):
            self._wiring.bind(deployment, self._wiring.whole_region(deployment), *cut)(None)

    def _destroy_channels(self, application: str, channels: dict[str, Any]) -> None:
        for channel in channels.values():
            self._manager.destroy_channel(application, channel)

    def check_hosts(self, placed: Iterable[Node | ChannelSpec], peers: Collection[str] = ()) -> None:
        """Raise `PlanError` for a host that is neither this platform nor a peer, `UnknownName` for such a connector."""
        for one in placed:
            kind, here = getattr(one, "kind", ""), one.host in (None, self._host, HERE)  # a node has no kind
            peer = one.settings.get("peer") if here and kind in (OUTBOX, INBOX) else None
            if peer and peer not in self._manager.wires:
                place = f"the channel {one.name!r} ({kind}): the platform {self._host!r}"
                raise UnknownName(place=place, kind="peer", name=peer, known=self._manager.wires)
            if not here and one.host not in peers:
                known = f"its peers: {', '.join(sorted(peers))}" if peers else "it has no peers"
                raise PlanError(
                    f"{one.name} is placed on {one.host!r}, and this platform ({self._host!r}) has no connection to "
                    f"it ({known}); connect them (`exop connect URI`), or choose another host for {one.name}"
                )

    def _runs(self, application: str) -> bool:
        known = self.deployed.get(application)
        return known is not None and not known.finished.is_set()

    def changed(self, deployment: Deployment) -> StateError | None:
        """Store a committed change; return the error if that is impossible now."""
        self._unmade.discard(deployment.name)
        unwritten = self._note(deployment)
        deployment.check_finished()
        return unwritten and StateError(
            f"{deployment.name}: the change is made and runs, but it is not stored ({unwritten}); it will be "
            f"stored with the next change, or when the platform is closed"
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
            problem = self.store.note(deployment.update_log.stored) if here and self.store is not None else None
        if problem is not None:
            logger("exop.wiring").error("the change was not stored", application=deployment.name, error=str(problem))
        return problem

    def _hold(self, deployment: Deployment, component: Component, error: Exception) -> None:
        """Suspend a slet whose call was abandoned, until it is replaced or resumed."""
        fail = partial(component.fail_until_resumed, error)
        with deployment.changing:  # no other change binds the node
            if deployment.components.get(component.node.name) is component:
                try:
                    self._wiring.rebind(deployment, fail, nodes=[component.node.name])
                except PlanError:  # a driver does not park: items enter until the node is bound the next time
                    fail()


def _tried(step: Step, running: Deployment) -> Step:
    """Let an engine try on a copy whether it can take over the internal state of the running component."""
    if step.state is None or step.before is None or step.after is None or step.node not in running.components:
        return step
    predecessor = running.components[step.node].instance
    return dataclasses.replace(step, state=tried(step.state, step.before, step.after, predecessor))

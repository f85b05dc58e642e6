"""The participant of a plan at one host: the change of its fragment, also after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from exop.errors import ExopError, MementoError, PlanError
from exop.hosts.fragment import Fragments, Known, Work, led_elsewhere, lost_fragment
from exop.hosts.moves.transfer import Transfer
from exop.hosts.protocol.messages import Did, Do, Pending, Restart
from exop.hosts.protocol.participant import Participant
from exop.hosts.updates import dropped, gone_since, remaining, unfit, without_gone
from exop.model.meshes.mesh import Mesh
from exop.model.slets.handover import hand_over
from exop.runtime.channels.outbox import Outbox
from exop.runtime.deployment import Deployment
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.history import CALLER
from exop.stacks import uncollected
from exop.wiring.changes.change import Change
from exop.wiring.changes.executor import changing, finished

if TYPE_CHECKING:
    from exop.hosts.moves.ahead import Ahead
    from exop.hosts.moves.handing import Handing
    from exop.hosts.moves.pairs import Pairs
    from exop.runtime.durable.checkpointer import Checkpointer, Unwritten


class FragmentChange(Participant):
    """The participant of a plan at one host: changes the fragment of the application there.

    A host without a fragment begins with an empty one. A fragment that becomes empty is removed after the commit.
    """

    def __init__(
        self,
        do: Do,
        application: str,
        here: Fragments,
        report: Callable[[Did], None],
        settled: Callable[[str, Known, bool, float], None],
    ) -> None:
        super().__init__(do.plan, application, here.running.changes, report)
        self._here = here
        self._settled = settled
        self._began = False
        self._over = threading.Event()
        self._whole = "", 0
        self._ahead: Ahead | None = None
        self._handing: Handing | None = None
        self._pairs: Pairs | None = None
        self._gone: dict[str, list[bool]] = {}
        self._taker: Checkpointer | None = None
        self._checkpoint: Unwritten | None = None

    def give(self, do: Do) -> None:
        """Do a step after those given before; an abort ends the trials that are in progress."""
        super().give(do)
        if do.step == "abort":
            self._over.set()
            abandon = partial(self._here.running.changes.shadows.abandon, self.application, "the change is aborted")
            threading.Thread(target=abandon, name=f"exop {self.name} ends", daemon=True).start()

    def _do(self, do: Do, turn: ExitStack) -> Any:
        if do.step == "prepare":
            if (home := self.plan.rpartition("@")[2]) != self._here.name:
                CALLER.set(f"platform {home}")  # in the thread of this plan
            self._here.running.check_open(self.application)
            self._prepare(do.change, turn)
        with changing(self.application):
            if do.step == "cut":
                with uncollected():
                    return self._cut(do, turn)
            super()._do(do, turn)
            if do.step == "prepare" and self._handing is not None:
                self._handing.copy_ahead()
            return None

    def _cut(self, do: Do, turn: ExitStack) -> Any:
        """Cut, and get ready what the host needs if it is started again after the vote."""
        handing, handed = self._handing, None
        if handing is not None:
            handing.take_over(do.handed or {})
        super()._do(do, turn)
        if handing is not None:
            handed = handing.hand_over(do.handed or {})
        store, change = self._here.running.store, self.change
        if store is None:
            return handed
        if change is None:  # the fragment stays as it is, and gets another home
            self.restart = Restart(self._known(0).stored(), began=self._began)
            return handed
        checkpoint, target = None, change.target
        if self._taker is not None and (target.nodes or target.channels):  # a channel may be left without a node
            self._here.running.checkpoints.tell(change.deployment, target)
            self._checkpoint = self._taker.prepare(target, (change.in_flight(), change.continued, change.coming))
            checkpoint = store.checkpoints.changes(self._checkpoint.snapshot, anew=self._began)
        stored = target if checkpoint is not None else change.stored
        self.restart = Restart(self._known(target.revision).stored(), stored.to_toml(), self._began, checkpoint)
        return handed

    def _reserve(self, change: Change, turn: ExitStack) -> None:
        """In a durable application, take no checkpoint but that of the cut, which parks all drivers, until the end.

        That checkpoint is a part of the vote. A host that is started again begins with it if the plan is committed:
        what has left or come stands in no other checkpoint.
        """
        running, name = self._here.running, self.application
        if (taker := running.checkpoints.taker(change.deployment, change.plan.after)) is None:
            return
        known = self._here.known.get(name)
        store = running.store if change.deployment.mesh.durable is not None else None
        if known is not None and store is not None and store.checkpoints.revision(name) < known.base:
            taker.take()  # that of the cut of the last plan could not be written
        change.before_cut.insert(0, partial(_flush, change))  # followers process this, too
        self._taker, change.in_checkpoint = running.changes.reserve(change, turn, always=True), True

    def _undo_at_close(self) -> None:
        if self._taker is not None and self._checkpoint is not None:
            self._taker.end()  # a later one would acknowledge events that this one, if it becomes the last, lacks
        super()._undo_at_close()

    def _known(self, base: int) -> Known:
        return Known(self.plan.rpartition("@")[2], base, self.plan, self._whole, gone=self._gone)

    def _prepare(self, work: Work | bytes, turn: ExitStack) -> None:
        """Plan the change of the fragment; this may begin an empty one."""
        # Imported lazily: only applications that span hosts need the encoding.
        from exop.hosts.moves.ahead import Ahead
        from exop.hosts.moves.handing import Handing
        from exop.hosts.moves.pairs import Pairs

        running, name, is_home = self._here.running, self.application, isinstance(work, Work)
        work = work if isinstance(work, Work) else Work.decoded(work, self._here)
        self._whole, moves = work.whole, work.transfer != Transfer()
        self._ahead = ahead = Ahead(self.plan, self._here.links, 0.0, self._over)
        if moves:  # at once: the hosts that send parts of states may be prepared earlier
            ahead.expect()
        with running.changes.turn(name):  # the former plan may still be removing the fragment that it has emptied
            known, deployed = self._here.known.get(name), running.deployed.get(name)
        self._check(work, known, deployed)
        if deployed is None or deployed.finished.is_set():
            self._began = True
            if running.store is not None:
                running.store.engines.discard(name)  # those of an earlier application of this name
            deployed = running.open_fragment(Mesh(name, durable=work.mesh.durable))
        elif known is None and not is_home and deployed.mesh.nodes:
            raise PlanError(f"another application {name!r} runs here; choose another name, or remove that one")
        running.fragments.add(name)  # all of an application that has run here may move away
        back = None
        if work.back in deployed.mesh.nodes and work.back not in work.transfer.departing:
            plan, back = running.changes.shadows.rollback_plan(work.back, deployed.mesh, running.plan)
        else:
            now = deployed.mesh  # updates that take effect from here on become a part of the plan
            mesh = self._without_gone(work, known, deployed, now)
            plan = running.plan(_fitting(known, now, mesh).at(now.revision))
        plan = plan.bounded(*work.bounds[:2], stall=work.bounds[2])
        shadow = work.shadow if plan.replacements or work.transfer.departing else None
        plan = replace(plan, shadow=shadow, keep=work.keep)
        ahead.seconds = plan.patience + (work.shadow.limit if work.shadow is not None else 0.0)
        self._pairs = pairs = Pairs(self.plan, plan, self._here, work, self._over)
        pairs.open()
        runs = turn.enter_context(running.changes.followed([plan], pairs.away))
        turn.enter_context(running.changes.turns_of(name, runs=runs))
        self.change = change = running.changes.change(plan, runs.get(name), back, pairs.followers())
        if change is not None:
            change.continued, change.adopted = work.transfer.continued, bool(work.former)
            if moves:
                away = partial(self._dropped, known, deployed)
                handing = work.transfer, ahead, work.pending, self._gone, away, pairs.behind
                self._handing = Handing(self._here.name, change, *handing)
                change.before_cut += [feeder.settle for feeder in pairs.feeders]

    def _without_gone(self, work: Work, known: Known | None, deployed: Deployment, now: Mesh) -> Mesh:
        """Return the planned mesh with the updates that are gone here and pending at the home."""
        mesh, pending = work.mesh, work.pending
        if known is not None and known.overruled:  # the home has another mesh
            pending = [*unfit(known.whole[0], mesh)]
        for one in pending:
            gone = self._dropped(known, deployed, one, now)
            mesh = without_gone(mesh, one, gone)
            self._gone |= remaining(one, gone)
        return mesh

    def _dropped(self, known: Known | None, deployed: Deployment, one: Pending, mesh: Mesh | None = None) -> list[bool]:
        """Return the flags of the pending updates of a node or channel that are gone here, in a mesh or by now."""
        log, mesh = deployed.update_log, mesh or deployed.mesh
        return dropped(log, mesh, one, {} if known is None else gone_since(log, mesh, known.whole[0], known.gone))

    def _check(self, work: Work, known: Known | None, deployed: Deployment | None) -> None:
        """Refuse a plan of another home, or one that does not begin a fragment that was lost or has finished."""
        name, home = self.application, self.plan.rpartition("@")[2]
        if known is not None and known.home not in (home, work.former):
            raise PlanError(led_elsewhere(name, self._here.name, known.home, home, later=True))
        if deployed is None and known is None and not work.begins:
            raise PlanError(lost_fragment(name, self._here.name))
        if deployed is not None and deployed.finished.is_set() and not work.begins:
            raise finished(name)

    def _finish(self, turn: ExitStack, *, made: bool) -> None:
        if self._ahead is not None:
            self._ahead.close()
        if self._handing is not None:
            self._handing.go_on()
        (self._settle if made else self._undo)(turn)

    def _undo(self, turn: ExitStack) -> None:
        """Release what was opened for the change, which is aborted."""
        if self._pairs is not None:
            self._pairs.close()
        turn.close()
        if self._handing is not None:
            self._handing.drop()
        if self._taker is not None and self.change is not None and self.change.deployment.mesh.durable is None:
            self._here.running.checkpoints.stop(self.application)  # it would have been durable after the change
            self._here.running.checkpoints.tell(self.change.deployment)
        if self._began:
            self._here.drop(self.application)
        elif self.application not in self._here.known:
            self._here.running.fragments.discard(self.application)

    def _settle(self, turn: ExitStack) -> None:
        """Run and store the fragment as the change has made it; remove it if it is empty."""
        running, name, change = self._here.running, self.application, self.change
        deployment = running.deployed.get(name)
        running.fragments.add(name)
        if deployment is not None:
            deployment.is_fragment, deployment.begins = True, False
        for one in change.successors.channels.values() if change is not None and self._began else ():
            if isinstance(one, Outbox):
                one.expects_loss = True  # what begins anew here, after another of its epoch, was accepted
        for one in deployment.channels.values() if deployment is not None and change and change.adopted else ():
            if isinstance(one, Outbox):
                one.doubt()  # what ran at the former home begins anew: its items are others
        self._surely(partial(super()._finish, turn, made=True))
        failpoint("plan-carried-out")
        self._surely(partial(self._write, deployment))
        if self._handing is not None:
            self._handing.remove_logs()
        known = self._known(change.target.revision if change is not None else 0)
        is_empty = deployment is not None and not (deployment.mesh.nodes or deployment.mesh.channels)
        paused = change.pause.seconds if change is not None else 0.0
        if not is_empty:
            self._surely(partial(self._settled, name, known, False, paused))
        with running.changes.turn(name) if is_empty else nullcontext():  # before another plan begins a fragment
            turn.close()
            if change is not None:
                self._surely(partial(running.changes.close, change))
            if is_empty and not (self._pairs is not None and self._pairs.keeps):
                self._surely(partial(running.remove, name))
            if is_empty:
                self._surely(partial(self._settled, name, known, True, paused))
        if self._handing is not None:
            self._handing.release()

    def _write(self, deployment: Deployment | None) -> None:
        """Store the fragment, the entry of its change and its checkpoint, and keep what the change keeps."""
        running, name, change = self._here.running, self.application, self.change
        if deployment is not None and self._began and running.store is not None:
            running.store.checkpoints.discard(name)
            running.store.save(deployment.mesh, active=True)
        if change is not None:
            running.changes.made(change, is_part=self.plan.rpartition("@")[2] == self._here.name)
            if self._pairs is not None:
                self._pairs.keep(change)
                self._pairs.close()
        if self._taker is not None and self._checkpoint is not None:
            with suppress(ExopError):  # the log and the status show it; a restart has it from the vote
                self._taker.write(self._checkpoint)


class RestoredChange(FragmentChange):
    """The participant of a plan after a restart: the fragment is not started until the outcome is known.

    After a commit the fragment begins with the mesh and the checkpoint of the cut, else with its last checkpoint.
    """

    def _do(self, do: Do, turn: ExitStack) -> Any:
        if do.step == "restore":
            self.restart = do.restart
            return
        if do.step == "commit" and self.restart is not None:
            try:
                self._store(self.restart)
            except ExopError as problem:  # the next start of the platform tries it again, too
                self._here.unstored[self.application] = partial(self._store, self.restart)
                self._here.running.lost[self.application] = problem
        if self.application not in self._here.running.lost:
            self._here.restart(self.application)

    def _store(self, restart: Restart) -> None:
        """Store what the change has made of the fragment."""
        name, running, store = self.application, self._here.running, self._here.running.store
        assert store is not None
        settled = Known(**restart.known | {"whole": tuple(restart.known["whole"])})
        if restart.topology is None:
            self._settled(name, settled, restart.began, 0.0)
            return
        mesh = self._here.read(restart.topology).at(settled.base)
        if is_empty := not (mesh.nodes or mesh.channels):
            store.forget(name)
        else:
            if restart.began:
                store.checkpoints.discard(name)
            store.save(mesh, active=True)
            if restart.checkpoint is not None:
                store.checkpoints.promote(mesh.name, mesh.revision, restart.topology, restart.checkpoint)
            running.fragments.add(name)
        self._settled(name, settled, is_empty, 0.0)

    def _finish(self, turn: ExitStack, *, made: bool) -> None:
        """Everything is done at the commit."""


def _fitting(known: Known | None, old: Mesh, new: Mesh) -> Mesh:
    """In a fragment that does not fit, let nodes that cannot take over the state begin without it."""
    lost = {}
    for name in old.nodes.keys() & new.nodes.keys() if known is not None and known.overruled else ():
        try:
            hand_over(old.nodes[name], new.nodes[name])
        except MementoError:
            lost[name] = replace(new.nodes[name], lose_state=True)
    return new.edited(lost)


def _flush(change: Change) -> None:
    """Let the slets emit their buffered output while the old connections are bound."""
    for component in change.deployment.components.values():
        component.flush(change.timeout)

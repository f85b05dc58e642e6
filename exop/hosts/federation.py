"""`Federation`: the applications of a platform, including those that span several hosts.

The *home* of an application has its whole mesh, and leads its changes; every host, also the home, runs a fragment.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exop.errors import (
    ComponentFailed,
    ExopError,
    HomeLost,
    LastCheckpointFailed,
    NotNow,
    PeerRefused,
    PeerUnreachable,
    PlanError,
    RemotingError,
    StateError,
    UnknownName,
)
from exop.hosts.fragment import Fragments, Known, Survivor, in_doubt, overruled
from exop.hosts.fragment_change import FragmentChange, RestoredChange
from exop.hosts.home import Home, Spanning, adoption, led_by_another, no_status
from exop.hosts.protocol import messages
from exop.hosts.protocol.exchange import Exchange
from exop.hosts.protocol.participant import Participant
from exop.hosts.supply import LEAVING, Code
from exop.model.meshes.mesh import Mesh
from exop.runtime.durable.durability import last_checkpoint
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.supervision.interrupts import held
from exop.wiring.changes.conditional_updates import caught_up
from exop.wiring.changes.executor import finished
from exop.wiring.changes.plan import Plan, make_plan

if TYPE_CHECKING:
    from exop.hosts.journal import Journal

#: Seconds after which an unchanged report, or a removal, is sent again.
REPEAT: Final = 1.0


class Federation:
    """Deploys, changes, awaits and removes applications on one host or several; `homes` are those of `Home`."""

    def __init__(self, here: Fragments, code: Code) -> None:
        self.name, self.here = here.name, here
        self.exchange = Exchange(here.name, self)
        self._local, self._links = here.running, here.links
        self._home = Home(here, self.exchange, code)
        self.homes, self.accept_loss, self._news = self._home.homes, self._home.accept_loss, self._home.news
        self.elsewhere, self.rollback = self._home.elsewhere, self._home.rollback
        runs, led = self._local.history.known, self.homes  # of those that are led here, other hosts may run all
        self._local.history.known = lambda name: runs(name) or (name in led and bool(led[name].hosts))
        self._sent: dict[str, tuple[messages.Report, float]] = {}
        self._sent_removal: dict[str, float] = {}
        self._journal: Journal | None = None

    def open(self) -> None:
        """Read what is known of applications that span hosts; `exchange.open` goes on with interrupted changes."""
        if self._local.store is None:
            return
        # Imported lazily: only platforms with a state directory need sqlite3, and only these applications msgspec.
        from exop.hosts.journal import Journal

        self.exchange.durable = True
        self._journal = journal = Journal(self._local.store.database)
        for name, row in journal.applications(home=True).items():
            mesh = Mesh(name).at(row["revision"])
            self.homes[name] = Spanning(mesh, row["connectors"], row["hosts"], {*row["leaving"]})
            try:
                self._read(name, row["topology"])
            except ExopError as problem:
                self._local.lost[name] = problem
        for name, row in journal.applications(home=False).items():
            self.here.known[name] = Known(**row | {"whole": tuple(row["whole"])})
            self._local.fragments.add(name)
        for home in (False, True):  # the homes announce their decisions to members that are held
            for name, entries in journal.plans(home=home).items():
                self.exchange.recover(name, entries, home=home, made=self.here.made(name, entries))

    def _read(self, application: str, topology: str) -> None:
        """Read the whole mesh of an application of which this is the home."""
        if (found := self.homes[application]).hosts:
            found.mesh = self.here.read(topology).at(found.mesh.revision)

    def restore(self, application: str) -> None:
        """Read again what could not be read when the platform was started; raises an `ExopError` as that did."""
        if self._journal is not None and application in self.homes:
            self._read(application, self._journal.applications(home=True)[application]["topology"])
        if (store := self.here.unstored.get(application)) is not None:
            store()
            del self.here.unstored[application]

    def running(self) -> Iterator[tuple[Mesh, str]]:
        """Yield the mesh of each application that has not finished, with its home; of another home, the fragment."""
        for name in self.names():
            known, deployment = self.here.known.get(name), self._local.deployed.get(name)
            if (found := self._home.spanning(name)) is not None:
                if not found.finished:
                    yield found.mesh, self.name
            elif deployment is not None and not deployment.finished.is_set():
                yield deployment.mesh, self.name if known is None else known.home

    def release(self, application: str, bundles: Collection[str]) -> None:
        """Stop bundles that a change has replaced, at the other hosts of an application, unless they are used there."""
        if (found := self._home.spanning(application)) is None:
            return
        if (participant := self.exchange.of(application).participant) is not None:
            participant.join(LEAVING)  # the old slets here are closed
        for host in found.hosts.keys() - found.changing.keys() - {self.name}:
            for bundle in bundles:
                self._home.supply.withdraw(application, host, bundle)

    def in_doubt(self, application: str) -> str | None:
        """Return the plan whose outcome is not known here; the fragment is held, or not started, until then."""
        return None if (found := self.exchange.machines.get(application)) is None else found.member.in_doubt

    # --- the operations of the platform

    def spans(self, mesh: Mesh) -> bool:
        """Whether an application spans hosts, or would do so with this mesh."""
        return mesh.name in self.homes or mesh.spans(self.name)

    def names(self, *, inactive: bool = False) -> list[str]:
        """Return the names of the applications, as `Applications.names`."""
        whole = {name: one.mesh.nodes for name, one in [*self.homes.items()] if one.hosts}
        down = set[str]() if inactive else {name for name, nodes in whole.items() if not nodes}
        doubted = (name for name in [*self.exchange.machines] if self.in_doubt(name))
        return sorted({*self._local.names(inactive=inactive), *whole, *doubted} - down)

    def mesh(self, application: str) -> Mesh:
        """Return the mesh of an application: the whole one at its home, elsewhere the fragment."""
        return (self._home.spanning(application) or self._local.get(application)).mesh

    def status(self, application: str, here: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Return the status of an application: at its home with that of all `hosts`, elsewhere with its `home`; *here*
        returns that of what runs on this platform.
        """
        if (found := self._home.spanning(application)) is None:
            more, doubt = self.here.led(application), self.in_doubt(application)
            if doubt is not None:
                more |= {"state": "in doubt", "plan": doubt, "home": doubt.rpartition("@")[2]}
                more |= {"problem": in_doubt(application, doubt, self.name)}
                if application not in self._local.deployed:
                    return no_status(application) | more
            elif isinstance(lost := self.exchange.refusals.get((more.get("home", ""), application)), HomeLost):
                more |= {"state": "home lost", "problem": str(lost)}
            elif (known := self.here.known.get(application)) is not None and known.overruled:
                more |= {"state": "fragment lost", "problem": overruled(application, self.name)}
            return here(application) | more
        return found.status(self._home.answers(found, application, here, "status"), self.name)

    def metrics(self, application: str, here: Callable[[str], dict[str, Any]], *, quantiles: bool) -> dict[str, Any]:
        """Return the metrics of the nodes and channels of an application, on all its hosts."""
        if (found := self._home.spanning(application)) is None:
            return here(application)
        return found.metrics(self._home.answers(found, application, here, "metrics", quantiles=quantiles))

    def _led(self, mesh: Mesh) -> Mesh:
        """Return a mesh without the name of its home, this platform; raise `PlanError` if another platform leads it."""
        self.here.check_home(mesh.name)
        running = self._home.spanning(mesh.name) or self._local.deployed.get(mesh.name)
        return mesh.at_home(self.name, running.mesh.nodes if running is not None else {})

    def plan(self, mesh: Mesh) -> Plan:
        """Plan a change of a running application; raises as `Applications.plan`."""
        if not self.spans(mesh := self._led(mesh)):
            return self._local.plan(mesh)
        if (found := self._home.spanning(mesh.name)) is not None and found.finished:
            raise finished(mesh.name)
        return self._home.planned(*caught_up(mesh, mesh.revision, self._home.log(mesh.name)))

    def apply(
        self, mesh: Mesh, timeout: float | None = None, pause: float | None = None, *, stall: bool = False
    ) -> Mesh:
        """Deploy or change an application, as `Applications.apply`."""
        if not self.spans(mesh := self._led(mesh)):
            return self._local.apply(mesh, timeout, pause, stall=stall)
        found = self.homes.setdefault(mesh.name, Spanning(Mesh(mesh.name)))
        with held(found.turn):
            over = found.finished and not mesh.revision if found.hosts else mesh.name not in self._local.deployed
            plan = self._home.planned(Mesh(mesh.name).at(found.mesh.revision), mesh) if over else self.plan(mesh)
            return plan.bounded(timeout, pause, stall=stall).apply()

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished, as `Applications.wait`."""
        if (found := self._home.spanning(application)) is None:
            return self._local.wait(application, timeout)

        def over() -> bool:
            if not found.finished and (problems := [one.problem for one in found.reports.values() if one.problem]):
                raise ComponentFailed(**problems[0])
            ends = [one.stored for one in found.reports.values()]
            return found.finished or (len(ends) == len(found.hosts) and None not in ends and False in ends)

        until, left = time.monotonic() + (timeout or 0.0), partial(self._unwritten, application)
        while True:
            with self._news:
                if not self._news.wait_for(over, None if timeout is None else until - time.monotonic()):
                    return False
            if found.mesh.durable is not None:
                with last_checkpoint(application, left), suppress(RemotingError):  # a host that is away takes it itself
                    self.checkpoint(application)
            if found.finished:
                return True
            with self._news:  # what was not stored is stored now, as the next reports tell
                found.reports = {host: one for host, one in found.reports.items() if one.stored is not False}

    def _unwritten(self, application: str) -> dict[str, int]:
        """Return how many items each sink has not written since checkpoints fail, on any host."""
        taker = self._local.checkpointer
        status = self.status(application, lambda app: no_status(app) | {"checkpoints": taker(app).status()})
        return dict(status.get("checkpoints", {}).get("unwritten", {}))

    def end(self, application: str, timeout: float) -> bool:
        """End the sources of an application, on all hosts; return whether it is stored that they have ended."""
        here = partial(self._local.end, application, timeout)
        return all(self._home.at_each_host("end", application, here, timeout=timeout))

    def resume(self, application: str, node: str) -> None:
        """Resume a suspended or failed node, on any host."""
        if (found := self._home.spanning(application)) and node in found.mesh.nodes and found.mesh.node(node).suspended:
            with held(found.turn):  # first: another change may be made
                self.apply(found.mesh.resume(node))
        else:
            (self.elsewhere(application, node) or self._local).resume(application, node)

    def abandon_proof(self, application: str) -> bool:
        """Cancel the trials of a change, on all hosts; return `False` if no trial is running."""
        self.mesh(application)  # raises `UnknownName`
        abandon = partial(self._local.changes.shadows.abandon, application, "it was given up")
        return any(self._home.at_each_host("abandon_proof", application, abandon))

    def checkpoint(self, application: str) -> None:
        """Take a checkpoint of each fragment of a durable application."""
        self._home.at_each_host("checkpoint", application, lambda: self._local.checkpointer(application).take())

    def resolve(self, application: str, *, commit: bool) -> None:
        """Settle a plan in doubt as an operator decides, as `Platform.resolve`."""
        if (plan := self.in_doubt(application)) is None:
            raise PlanError(f"no plan of {application!r} is in doubt on the platform {self.name!r}")
        steps = [f"{'commit' if commit else 'abort'} the plan {plan}"]
        with self._local.history.recorded(application, "resolve", new=True, steps=steps):
            self.exchange.resolve(application, plan, commit=commit)

    def fragment(self, application: str) -> Survivor:
        """Return what this platform knows of an application of which it runs a fragment.

        Raises:
            UnknownName, NotNow: it runs none of this name, or starts it when the outcome of a plan is known.
        """
        plan, finishes = self.in_doubt(application), self.exchange.finishes(application)  # in this order
        if (known := self.here.known.get(application)) is None and finishes:
            raise NotNow(f"{self.name} is just carrying out a plan of {application}; try again")
        if plan and (known is None or application not in self._local.deployed):
            raise NotNow(in_doubt(application, plan, self.name))
        if known is None:
            place = f"the platform {self.name!r}"
            raise UnknownName(place=place, kind="fragment", name=application, known=self.here.known)
        channels = self._local.get(application).mesh.channels.values()
        found = {one.settings["key"]: one.settings["epoch"] for one in channels if "epoch" in one.settings}
        epoch = self.exchange.of(application).member.epochs[application]
        return Survivor(known.home, known.whole, epoch, found, known.overruled, self.here.updates(application, known))

    def adopt(self, application: str) -> int:
        """Become the home of an application whose home is gone for good, as `Platform.adopt`."""
        if (led := self._home.spanning(application)) is not None:
            if another := led_by_another(self._home.answers(led, application, no_status, "status")):
                raise PlanError(another["problem"])
            return led.mesh.revision
        survivors = {self.name: (found := self.fragment(application))}
        for peer, link in self._links().items():
            with suppress(UnknownName, PeerUnreachable):  # the adoption names those that are missing
                survivors[peer] = Survivor(**link.call("fragment", application=application))
        number, spanning = f"{uuid.uuid4().hex[:12]}@{self.name}", Spanning(Mesh(application))
        target, parts = adoption(self.here, found.home, survivors, number)
        # Above the epoch of every host, and above that of the former home.
        epoch, home = max(one.epoch for one in survivors.values()) + 2, self.exchange.of(application).home
        self.exchange.do(partial(home.epochs.__setitem__, application, epoch))
        self.homes[application] = spanning
        with self._local.history.recorded(application, "adopt", former=found.home, hosts=[*parts]):
            self._home.lead(number, spanning, target, parts, make_plan(target.mesh, target.mesh))
        return target.mesh.revision

    def remove(self, application: str, timeout: float = 5.0) -> bool:
        """Stop an application on all hosts; return whether all its threads have ended in time.

        A host that cannot be reached removes its fragment when it is reached again.
        """
        self.here.check_home(application)
        if (found := self.homes.get(application)) is None or not found.hosts:
            return self._local.remove(application, timeout)
        until = time.monotonic() + timeout
        with held(found.turn):
            found.leaving |= found.hosts.keys() - {self.name}
            self._lead_no_more(application, found)
            self._send_removals(application, found, timeout)
            self.here.unstored.pop(application, None)
            left = self._removed(application, timeout)
            with self._news:
                return self._news.wait_for(lambda: not found.leaving, max(0.0, until - time.monotonic())) and left

    # --- what the exchange calls

    def receive(self, application: str, data: bytes, peer: str = "", *, leads: bool = True) -> None:
        """Process a message of a *peer*, in the thread of a connection; unless it *leads*, it may only answer.

        Raises:
            PeerRefused: the message is in the name of another platform, or only the home may send it.
        """
        # Imported lazily: only applications that span hosts need the encoding.
        from exop.hosts.journal import decode_message

        name, known = type(message := decode_message(data)).__name__, self.here.known.get(application)
        found = self.homes.get(application)
        if isinstance(message, messages.Report) and not (message.gone or (found and (found.hosts or found.leaving))):
            raise HomeLost(home=self.name, application=application, host=peer)
        if not leads and isinstance(message, (messages.Propose, messages.Proceed, messages.Finish, messages.Remove)):
            raise PeerRefused(address=self.name, problem=f"a change of {application} needs the role operate there")
        if not leads and known is None and found is None:
            raise PeerRefused(address=self.name, problem=f"{name} on {application}, which does not run here")
        names = {message.sender}
        if isinstance(message, (messages.Propose, messages.Proceed)):
            names.add(message.plan.rpartition("@")[2])
        elif isinstance(message, messages.Finish) and known is not None:
            names.add(known.home)
        if peer and (others := names - {peer}):
            problem = f"{name} on {application} is a message of {others.pop()!r}, not of {peer!r}"
            raise PeerRefused(address=self.name, problem=problem)
        self.exchange.receive(application, message)

    def call(self, peer: str, application: str, message: messages.Message | messages.Notice) -> None:
        """Send a message to a peer."""
        from exop.hosts.journal import encode

        self._links()[peer].call("protocol", application=application, message=encode(message))

    def participant(self, application: str, do: messages.Do, report: Callable[[messages.Did], None]) -> Participant:
        """Return the participant of a plan."""
        kind = RestoredChange if do.step == "restore" else FragmentChange
        return kind(do, application, self.here, report, self._settled)

    def record(self, application: str, entry: messages.JournalEntry) -> None:
        """Write an entry durably; the plan is committed by that of its home."""
        kind = type(entry).__name__.lower()
        failpoint(f"plan-{kind}-before")
        found, target = self._home.pending[entry.plan] if isinstance(entry, messages.Committed) else (None, None)
        if self._journal is not None:
            self._journal.record(application, entry, target.stored() if target is not None else None)
        failpoint(f"plan-{kind}-after")
        if found is None or target is None:
            return
        with self._news:
            found.mesh, found.connectors, found.hosts = target.mesh, target.connectors, target.hosts
            found.changing, found.kept = target.changing, target.kept
            found.forget()
            found.finished, found.pauses = False, {}
            found.reports = {host: one for host, one in found.reports.items() if one.plan == found.hosts.get(host)}

    def _settled(self, application: str, known: Known, is_empty: bool, paused: float) -> None:
        """Note a plan that this host has committed. A fragment that has become empty is known no more."""
        if known.home != self.name and (found := self.homes.get(application)) is not None:
            self._lead_no_more(application, found)  # that home has adopted the application since
        if not is_empty:
            self.here.known[application] = known
            self._write(application, known.stored(), home=False)
        else:
            self._forget(application, known.plan)
        self.exchange.send(known.home, application, messages.Report(self.name, known.plan, paused=paused))

    def overruled(self, application: str, plan: str) -> None:
        """Note that the home, unless it has lost the application since, has decided otherwise than an operator here."""
        if (known := self.here.known.get(application)) is not None and known.home == plan.rpartition("@")[2]:
            known.overruled = True
            self._write(application, known.stored(), home=False)

    def _forget(self, application: str, settled: str = "") -> None:
        """Drop what is known of the fragment of this platform; another application may have its name from now on."""
        self._local.fragments.discard(application)
        self.exchange.do(partial(self.exchange.of(application).member.forget, settled))
        if self.here.known.pop(application, None) is not None:
            self._write(application, None, home=False)

    def notice(self, application: str, notice: messages.Notice) -> None:
        """Process a message beside the plans."""
        match notice:
            case messages.Remove():
                work = partial(self._remove_for, application, notice)
                threading.Thread(target=work, name=f"exop remove {application}", daemon=True).start()
            case messages.Finish():
                if (deployment := self._local.deployed.get(application)) is not None:
                    deployment.check_finished(everywhere=True)
            case messages.Report():
                self._heard(application, notice)

    def _heard(self, application: str, report: messages.Report) -> None:
        """Process the report of a host; the application has finished when all fragments have ended."""
        if (found := self.homes.get(application)) is None:
            return
        with self._news:
            if report.plan == found.changing.get(report.sender):
                del found.changing[report.sender]
                found.pauses[report.sender] = report.paused
            led = any(one is found for one, _ in list(self._home.pending.values()))  # a change may add what runs on
            if report.gone and report.sender in found.leaving:
                found.leaving.discard(report.sender)
                self._keep(application, found)
            elif report.overruled and report.sender not in found.hosts and not led:  # nothing should run there
                found.leaving.add(report.sender)
                self._keep(application, found)
            elif report.plan == found.hosts.get(report.sender):
                found.reports[report.sender] = report
                if not led:
                    self._home.learn(found, report, partial(self._keep, application, found))
                reports = map(found.reports.get, found.hosts)
                if not (led or found.finished) and all(one is not None and one.ended for one in reports):
                    self.notice(application, messages.Finish(self.name))  # first: a restart does not begin it again
                    found.finished = True
            self._news.notify_all()
        if found.finished and report.sender in found.hosts and not report.finished:
            self.exchange.send(report.sender, application, messages.Finish(self.name))

    def _lead_no_more(self, application: str, found: Spanning) -> None:
        found.hosts, found.reports, found.mesh = {}, {}, Mesh(application)
        found.forget()
        self._local.history.forget(application)
        self._keep(application, found)

    def _keep(self, application: str, found: Spanning) -> None:
        """Store an application that is removed, as long as hosts have not confirmed that."""
        self._write(application, found.stored() if found.leaving or found.hosts else None, home=True)

    def _write(self, application: str, content: dict[str, Any] | None, *, home: bool) -> None:
        if self._journal is not None:
            self._journal.keep(application, content, home=home)

    def _remove_for(self, application: str, notice: messages.Remove) -> None:
        """Remove a fragment for its home, which asks again: now, unless a plan in progress may begin it again."""
        known, machines = self.here.known.get(application), self.exchange.of(application)
        if known is not None and known.home != notice.sender:  # it has been adopted: nothing of the sender is here
            self.exchange.send(notice.sender, application, messages.Report(self.name, gone=True))
            return
        if machines.member.plan is not None or not machines.removal.acquire(blocking=False):
            return  # a plan in progress, or another thread removes it, and its slets and channels still go
        try:
            with suppress(ExopError):  # not reported: the home asks again
                if known is not None:
                    self._removed(application, notice.timeout)
                self.exchange.send(notice.sender, application, messages.Report(self.name, gone=True))
        finally:
            machines.removal.release()

    def _removed(self, application: str, timeout: float) -> bool:
        """Remove the fragment of this platform; return whether its threads have ended in time."""
        left = True
        try:
            with suppress(UnknownName):  # it has no nodes here
                left = self._local.remove(application, timeout)
        except LastCheckpointFailed:  # it is removed, though its sinks cannot write what they hold
            self._forget(application)
            raise
        self._forget(application)  # last: a fragment that is not known is not removed when the home asks again
        return left

    def tick(self) -> None:
        """Report the fragments of this platform to their homes, and repeat removals."""
        now = time.monotonic()
        for application, known in list(self.here.known.items()):
            before, updates = known.gone, self.here.updates(application, known)
            if known.gone != before:
                with suppress(StateError):  # it is told all the same
                    self._write(application, known.stored(), home=False)
            report = replace(self.here.report(application, known), overruled=known.overruled, updates=updates)
            sent, at = self._sent.get(application, (None, 0.0))
            if report != sent or now - at >= REPEAT:
                self._sent[application] = report, now
                self.exchange.send(known.home, application, report)
        for application, found in list(self.homes.items()):
            if found.leaving and now - self._sent_removal.get(application, 0.0) >= REPEAT:
                self._send_removals(application, found, 5.0)

    def _send_removals(self, application: str, found: Spanning, timeout: float) -> None:
        self._sent_removal[application] = time.monotonic()
        for host in [*found.leaving]:  # confirmations come meanwhile
            self.exchange.send(host, application, messages.Remove(self.name, timeout))

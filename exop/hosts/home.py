"""The changes of applications that span hosts, as their home plans and leads them; and how a host becomes a home."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from exop.errors import ExopError, NotNow, PeerUnreachable, PlanError, RemotingError, StateError, UnknownName, entry
from exop.hosts.fragment import Fragments, Survivor, Work, adopted, led_elsewhere, lost_fragment, overruled
from exop.hosts.moves.transfer import Moves, Transfer, check_trying
from exop.hosts.plan_notes import notes_by_host, outline, warnings_of
from exop.hosts.protocol.exchange import Exchange
from exop.hosts.protocol.messages import Fragment, Refuse, Report
from exop.hosts.supply import Code, Supply, notes_of
from exop.hosts.updates import UpdatedMesh, learnt, planned
from exop.logs import logger
from exop.model.meshes.checks import check, resolved
from exop.model.meshes.diff import difference, without_marks
from exop.model.meshes.fragments import Connector, Placement, epochs, fragments
from exop.model.meshes.mesh import Mesh, Node
from exop.runtime.channels.outbox import Outbox
from exop.runtime.deployment import Deployment
from exop.runtime.pause import ANSWERING
from exop.runtime.supervision.interrupts import GLANCE, check_interrupt, held
from exop.status import application_status
from exop.wiring.changes.conditional_updates import Updates, renewed
from exop.wiring.changes.executor import finished
from exop.wiring.changes.plan import PAUSE, Plan, make_plan
from exop.wiring.shadow.shadows import no_standby

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlatform

#: Seconds to wait for the connection to a host that takes part in a change.
CONNECTING: Final = 3.0


@dataclass
class Spanning(UpdatedMesh):
    """An application of which this platform is the home.

    Attributes:
        mesh: The whole mesh; without nodes before the first commit.
        connectors: The epochs of its connectors, by key.
        hosts: The hosts that run a fragment, each with the last plan that concerned it.
        leaving: The hosts that have not confirmed its removal.
        reports: The last report of each host on its last plan.
        changing: The hosts that have not carried out the last plan.
        pauses: The seconds for which the last plan has paused the drivers of each host; unknown after a restart.
        kept: The nodes whose predecessors run on since the last change of each, as they were before it.
        lost: The hosts without their fragments, as the log tells.
        turn: Held while the application is changed.
    """

    connectors: dict[str, int] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    reports: dict[str, Report] = field(default_factory=dict)
    changing: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    pauses: dict[str, float] = field(default_factory=dict)
    kept: dict[str, Node] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    turn: threading.RLock = field(default_factory=threading.RLock)

    def paused(self) -> dict[str, float]:
        """Return the milliseconds for which the last change stopped the stream, if it did: the longest of a host."""
        return {"paused_ms": round(longest * 1e3, 3)} if (longest := max(self.pauses.values(), default=0.0)) else {}

    def stored(self) -> dict[str, Any]:
        """Return it as it is stored."""
        found = {"topology": self.mesh.to_toml(), "revision": self.mesh.revision, "connectors": self.connectors}
        return found | {"hosts": self.hosts, "leaving": [*self.leaving]}

    def status(self, hosts: Mapping[str, dict[str, Any]], home: str) -> dict[str, Any]:
        """Return its status: that of the fragment at the *home*, and those of all *hosts*, unless another leads it."""
        found = {**no_status(self.mesh.name), **hosts.get(home, {}), "revision": self.mesh.revision}
        if another := led_by_another(hosts):
            return found | another
        found["running_s"] = max((one.get("running_s", 0.0) for one in hosts.values()), default=0.0)
        found["last_change"] = {"revision": self.mesh.revision, **paused} if (paused := self.paused()) else None
        for name in ("shadow", "proof", "kept"):
            if all_of_them := {node: one for part in hosts.values() for node, one in part.get(name, {}).items()}:
                found[name] = all_of_them
        held = {host: part.get("checkpoints", {}).get("unwritten", {}) for host, part in hosts.items()}
        if left := {f"{sink} on {host}": items for host, sinks in held.items() for sink, items in sinks.items()}:
            found["checkpoints"] = {**found.get("checkpoints", {}), "unwritten": left}
        return found | {"state": self._state(hosts), "hosts": dict(hosts)}

    def metrics(self, hosts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the metrics of all nodes and channels, and those of each of the *hosts*."""
        answered = [one for one in hosts.values() if "nodes" in one]
        names = ("nodes", "channels", "inserted")
        whole = {name: {key: value for one in answered for key, value in one[name].items()} for name in names}
        facts = {"revision": self.mesh.revision, "state": self._state(hosts), "hosts": dict(hosts)}
        return {**(answered or [{}])[0], **whole, **facts}

    def _state(self, hosts: Mapping[str, dict[str, Any]]) -> str:
        """Return the state of the application: that of the first host that does not run soundly, if any."""
        states = ["finished"] if self.finished else [one["state"] for one in hosts.values()]
        return min(states, key=lambda state: {"running": 1, "finished": 2}.get(state, 0))


class Home:
    """Leads the changes of the applications whose home is this platform.

    Attributes:
        homes: The applications that span hosts, and of which this platform is the home.
        news: Notified when the state of one of them has changed.
        pending: For each plan in progress, the application as it is now, and as it is after the commit.
        supply: Sends bundles to other hosts.
    """

    def __init__(self, here: Fragments, exchange: Exchange, code: Code) -> None:
        self.name = here.name
        self.homes: dict[str, Spanning] = {}
        self.news = threading.Condition()
        self.pending: dict[str, tuple[Spanning, Spanning]] = {}
        self._here, self._applications, self._catalog, self._links = here, here.running, here.catalog, here.links
        self._exchange = exchange
        self.supply = Supply(here.name, here.links, code)

    def spanning(self, application: str) -> Spanning | None:
        """Return an application of which this is the home, and which runs on hosts.

        Raises:
            StateError: its mesh could not be read when the platform was started.
        """
        if (found := self.homes.get(application)) is not None and found.hosts and not found.mesh.nodes:
            self._applications.get(application)  # raises it
        return found if found is not None and found.hosts else None

    def log(self, application: str) -> Updates:
        """Return the conditional updates of an application that have taken effect; raises `UnknownName`."""
        found = self.homes.get(application)
        return found if found is not None and found.hosts else self._applications.get(application).update_log

    def elsewhere(self, application: str, node: str) -> RemotePlatform | None:
        """Return the platform that runs a node or relay of an application that is led here; `None` if this one does.

        Raises:
            PeerUnreachable, UnknownName: that platform is not connected, or the mesh has no such node.
        """
        if (found := self.spanning(application)) is None:
            return None
        placed = Placement(found.mesh, self.name, self._catalog.kinds)
        host = dict(one.relay for one in placed.connectors.values()).get(node) or placed.of(found.mesh.node(node))
        return None if host == self.name else self._links()[host].platform()

    def planned(self, before: Mesh, mesh: Mesh) -> Plan:
        """Check a change of a whole mesh, and plan it."""
        kinds = self._catalog.kinds
        mesh = resolved(mesh, self._catalog.slets, durable=self._applications.store is not None, running=before)
        plan = make_plan(before, mesh, kinds)
        check(mesh, kinds, plan.changes, home=self.name)
        self._applications.check_hosts((*plan.changes.nodes, *plan.changes.channels), self._links().keys())
        moves = self._moves(plan)  # refuses what cannot move
        old, new = outline(moves.before), outline(moves.after)
        self.supply.lacking(old, new)
        self._reach(hosts := differing(old, new))
        if lost := [one for host in hosts if (one := self._lost(host, mesh.name, runs=host in old))]:
            raise NotNow(lost[0])
        return replace(plan, carry_out=self._carry_out, remarks=self._notes)

    def _notes(self, plan: Plan) -> tuple[str, ...]:
        """Describe what a change does at each host; asks the hosts what it costs to move their nodes."""
        # Imported lazily: only moves need the encoding.
        from exop.wiring.changes.arrivals import MoveCost, move_cost

        name = plan.after.name

        def cost(host: str, node: str) -> MoveCost | str:
            try:
                if host == self.name:
                    return move_cost(self._applications.get(name), node)
                return cast("MoveCost", self._links()[host].platform().move_cost(name, node))
            except ExopError as problem:
                return str(problem)

        moves = self._moves(plan)
        lacking = self.supply.lacking(outline(moves.before), outline(moves.after))
        known = {*warnings_of(moves.before)}  # told by earlier plans
        warnings = [f"warning: {one}" for one in warnings_of(moves.after) if one not in known]
        return *notes_by_host(moves, cost), *warnings, *notes_of(lacking)

    def _moves(self, plan: Plan) -> Moves:
        """Return the moves of a change, with the hosts of everything before and after it; raises as `Moves`."""
        before, after = (Placement(one, self.name, self._catalog.kinds) for one in (plan.before, plan.after))
        return Moves(before, after)

    def _reach(self, hosts: Iterable[str]) -> None:
        """Wait shortly for the connections to the hosts of a change; raise `PlanError` if one is away."""
        if away := self._away(hosts, CONNECTING):
            raise NotNow(f"{away}; nothing was changed on any host; see `exop peers`")

    def _away(self, hosts: Iterable[str], patience: float = 0.0) -> str:
        """Say which hosts are not connected within *patience* seconds each, and why; nothing if all are."""
        links = {host: self._links()[host] for host in hosts if host != self.name}
        away = [host for host, link in links.items() if not link.wait_until(connected=True, timeout=patience)]
        told = "{} cannot be reached at the moment: {}".format
        return ", ".join(told(host, links[host].reason or "not connected yet") for host in away)

    def _carry_out(self, plan: Plan) -> Mesh:
        """Make a planned change, on all hosts or on none."""
        name = plan.after.name
        found, verb = self.homes.setdefault(name, Spanning(Mesh(name))), "change" if plan.before.nodes else "deploy"
        with held(found.turn), self._applications.history.recorded(name, verb, new=True, steps=plan.summary):
            if found.finished and plan.before.nodes:  # since the change was planned
                raise finished(name)
            if (found.hosts or plan.before.nodes) and not found.finished:
                plan = renewed(plan, self.log(name))
            return plan.before if plan.before.nodes and not plan else self._make(found, plan)

    def learn(self, found: Spanning, report: Report, keep: Callable[[], None]) -> None:
        """Make the conditional updates that a host reports a part of the mesh, which *keep* stores, and note them."""
        if not found.turn.acquire(blocking=False):  # it is being changed; a later report tells it again
            return
        try:
            if updates := found.learn(report.updates):
                with suppress(StateError):  # the reports tell it again after a restart
                    keep()
        finally:
            found.turn.release()
        for one in updates if report.sender != self.name else ():  # this host notes its own
            what = f"conditional update {'could not take effect' if one.dropped else 'took effect'}"
            self._applications.history.noted(found.mesh.name, what, node=one.name, steps=[str(one.update)])

    def accept_loss(self, application: str, outbox: str = "") -> list[str]:
        """Let what hosts have lost begin anew, and connectors without their state go on, as `Platform.accept_loss`."""
        if outbox:
            known = {k: v for k, v in self._applications.get(application).channels.items() if isinstance(v, Outbox)}
            entry(f"{application} on {self.name}", "outbox", known, outbox).accept_loss()
            return [outbox]
        if (found := self.spanning(application)) is None:
            raise PlanError(
                f"{self.name!r} is not the home of an application {application!r} that spans hosts; `exop ps` shows "
                f"the home; a connector has a name of its own, {application}.OUTBOX"
            )
        self._applications.check_open(application)
        with held(found.turn), self._applications.history.recorded(application, "accept"):
            if found.finished:
                raise PlanError(f"{application} has finished: there is nothing to accept")
            connectors = Placement(found.mesh, self.name, self._catalog.kinds).connectors.values()
            if lost := [host for host in found.hosts if self._lost(host, application)]:
                for one in (one for one in connectors if one.target in lost and one.source not in lost):
                    self._accepted(one, application)  # it is no error there that the inbox begins anew
                self._make(found, make_plan(found.mesh, found.mesh), lost)
            went, unknown, until = [*lost], list[str](), time.monotonic() + CONNECTING
            for one in connectors:
                # The halves at a host that has begun anew, or has just returned, have to find each other first.
                begins = bool({one.source, one.target} & {*lost})
                while not (gone := self._accepted(one, application)) and (begins or gone is None):
                    if time.monotonic() > until:
                        break
                    time.sleep(0.05)
                went += [one.outbox] if gone else []
                unknown += [one.outbox] if gone is None else []
            if unknown:
                why = f"whether these have lost their state is known when they are connected: {', '.join(unknown)}"
                raise NotNow(f"accepted: {', '.join(went) or 'none'}; {why}; repeat this then, see `exop peers`")
            if not went:
                raise PlanError(f"no host or connector of {application} has lost anything: there is nothing to accept")
        return went

    def _lost(self, host: str, application: str, *, runs: bool = True) -> str:
        """Say that a fragment is lost, if the host *runs* one, or unfit; raise `PlanError` if another home leads it."""
        try:
            if host != self.name:
                known = self._links()[host].call("fragment", application=application)
                later = known["epoch"] > self._exchange.of(application).home.epochs[application]
                if known["home"] != self.name and (later or not runs):  # else, it has not taken part in an adoption yet
                    raise PlanError(led_elsewhere(application, host, known["home"], self.name, later=later))
                return overruled(application, host) if runs and known.get("overruled") else ""
        except UnknownName as problem:
            if runs and problem.facts["kind"] != "fragment":  # no link to the host is known
                raise
            return lost_fragment(application, host) if runs else ""
        except (NotNow, RemotingError) as problem:  # who is away, the change tells; else, the plan waits there
            if runs and isinstance(problem, NotNow):
                raise
        return ""

    def _accepted(self, one: Connector, application: str) -> bool | None:
        """Let a connector go on; return whether it had lost its state, or `None` if that is not known yet."""
        if self._away([one.source]):
            return None
        try:
            there: Any = self if one.source == self.name else self._links()[one.source].platform()
            there.accept_loss(application, one.outbox)
        except (PlanError, PeerUnreachable) as problem:
            return None if problem.facts.get("unknown", isinstance(problem, PeerUnreachable)) else False
        return True

    def answers(
        self, found: Spanning, application: str, here: Callable[[str], dict[str, Any]], operation: str, **given: Any
    ) -> dict[str, dict[str, Any]]:
        """Return the answer of each host; of one that cannot be asked, its state and the problem, unless it is over."""
        answers = {}
        for host in found.hosts:
            try:
                if host == self.name:
                    answers[host] = here(application)
                    continue
                answers[host] = self._links()[host].call(operation, 2.0, application=application, **given)
                if (home := answers[host].get("home", host if "hosts" in answers[host] else self.name)) != self.name:
                    answers[host] = adopted(application, self.name, home)
            except ExopError as problem:
                if found.finished:
                    answers[host] = no_status(application) | {"state": "finished"}
                elif isinstance(problem, UnknownName) and problem.facts.get("kind") != "peer":
                    answers[host] = {"state": "fragment lost", "problem": lost_fragment(application, host)}
                else:
                    answers[host] = {"state": "unreachable", "problem": str(problem)}
        before, found.lost = found.lost, {host for host, one in answers.items() if one["state"] == "fragment lost"}
        for host in found.lost - before:
            logger("exop.hosts").warning("a fragment is lost", host=host, problem=answers[host]["problem"])
        return answers

    def at_each_host(self, operation: str, application: str, here: Callable[[], Any], **given: Any) -> list[Any]:
        """Call an operation at all hosts that have an application, or here for its home; raise the first error."""
        if (found := self.spanning(application)) is None:
            if operation != "checkpoint":  # that of one part is of use, too
                self._here.check_home(application, calls=True)
            return [here()]
        if another := led_by_another(self.answers(found, application, no_status, "status")):
            raise PlanError(another["problem"])
        answers, problems = list[Any](), list[ExopError]()
        for host in found.hosts:
            try:
                there = None if host == self.name else self._links()[host].platform()
                answers.append(here() if there is None else there.ask(operation, application=application, **given))
            except ExopError as problem:
                if not (isinstance(problem, UnknownName) and found.finished):
                    problems.append(problem)
        if problems:  # that of a host that is away is raised only if there is no other one
            raise min(problems, key=lambda one: isinstance(one, RemotingError))
        return answers

    def rollback(self, application: str, node: str) -> Mesh:
        """Let the predecessor of a node, which was kept, take over again, on any host."""
        self._here.check_home(application)
        if (found := self.spanning(application)) is None:
            return self._applications.changes.rollback(application, node, self._applications.plan)
        with held(found.turn):
            now = found.mesh.node(node)
            if (kept := found.kept.get(node)) is None:
                raise no_standby(application, node)
            kept = replace(kept, ports=now.ports, suspended=now.suspended, lose_state=True)
            return self._make(found, self.planned(found.mesh, found.mesh.edited({node: kept})), back=node)

    def _make(self, found: Spanning, plan: Plan, lost: Collection[str] = (), back: str = "") -> Mesh:
        """Lead the change of the fragments that differ, or are *lost*, and wait for its outcome.

        The predecessor of the node *back* takes over again.
        """
        name, number = plan.after.name, f"{uuid.uuid4().hex[:12]}@{self.name}"
        before, kinds = plan.before if plan.before.nodes else None, self._catalog.kinds
        old = fragments(before, self.name, found.connectors, kinds) if before is not None else {}
        old = {host: one for host, one in old.items() if host not in lost}
        moves = self._moves(plan)
        known = epochs(moves.before, moves.after, found.connectors)
        check_trying(plan, moves, self.name)
        known |= dict.fromkeys(moves.renewed, plan.after.revision + 1)
        new = fragments(plan.after, self.name, known, kinds)
        hosts = differing(old, new)
        if before is not None and not found.hosts and self.name in new:  # what runs here becomes a fragment
            hosts = [*dict.fromkeys([self.name, *hosts])]
        self._reach(hosts)
        for note in warnings_of(moves.after) if before is None else ():  # a plan shows it
            logger("exop.hosts").warning(note, application=name)
        pending = [*planned(plan.before, plan.after)]
        # Of an application that begins to span hosts, updates may take effect until the commit, each with a revision.
        more = 0 if found.hosts else sum(len(positions) for *_, positions in pending)
        after = without_marks(plan.after).at(plan.before.revision + 1 + more)
        changing = dict.fromkeys(hosts, number)
        left = {host: one for host, one in (found.hosts | changing).items() if host in new}
        kept = {one.node: one.before for one in plan.succeeded if one.before is not None and plan.keep is not None}
        kept |= {node: one for node, one in found.kept.items() if node not in {step.node for step in plan.steps}}
        target = Spanning(after, known, left, changing=changing, finished=found.finished and before is None, kept=kept)
        bounds, whole = (plan.timeout, plan.pause, plan.stall), (after.to_toml(), after.revision)
        runs = found.hosts.keys() or {self.name} if before is not None else set()
        parts: dict[str, Fragment] = {}
        for host in hosts:
            moved, part = moves.hosts.get(host, Transfer()), new.get(host, Mesh(name))
            begins = host in lost or host not in runs
            work = Work(part, bounds, whole, moved, pending, "", begins, plan.shadow, plan.keep, back)
            parts[host] = Fragment(work, (name,), moved.wave)
        with self.supply.sent(name, self.supply.lacking(outline(moves.before), outline(moves.after))):
            self.lead(number, found, target, parts, plan)
        self._applications.history.changed(plan.before, after, steps=plan.summary, hosts=hosts, **found.paused())
        return after

    def lead(self, number: str, found: Spanning, target: Spanning, parts: Mapping[str, Fragment], plan: Plan) -> None:
        """Lead a change to its outcome, and wait a while until all hosts have carried it out.

        They have 60 seconds to get ready, or the timeout of the *plan*; it is aborted if the connection to one is lost.

        Raises:
            PlanError: the change was aborted, or the application has finished, or is still removed from a host.
        """
        name = target.mesh.name
        with self.news:  # from now on, it does not finish before the outcome
            if found.finished and not target.finished:
                raise finished(name)
            if waiting := found.leaving & {*parts}:
                raise NotNow(f"{', '.join(sorted(waiting))} has not removed the former {name} yet, or is not reached")
            self.pending[number] = found, target
        try:
            prepare = 60.0 if plan.timeout is None else plan.timeout + ANSWERING
            prepare += plan.shadow.limit if plan.shadow is not None else 0.0
            outcome = self._exchange.begin(name, number, parts, prepare=prepare, hold=plan.patience + ANSWERING)
            linked = time.monotonic()
            while not wait([outcome], GLANCE).done:
                linked = linked if (problem := self._away(parts)) else time.monotonic()
                try:
                    check_interrupt()
                except KeyboardInterrupt:
                    problem, linked = "it was interrupted", 0.0
                if time.monotonic() > linked + CONNECTING:  # it aborts the plan, unless that is decided
                    self._exchange.receive(name, Refuse(number, self.name, problem))
            ended = outcome.result()
        finally:
            del self.pending[number]
        if not ended.commit:
            told = "; ".join(why if host == self.name else f"{host}: {why}" for host, why in ended.reasons.items())
            longer = "repeat it, with a longer timeout (`--timeout`) if the command has one"
            told += f"; {self._away(ended.late) or longer}" * bool(ended.late)
            raise NotNow(f"{told}; nothing was changed on any host; see `exop ps`")
        with self.news:
            self.news.wait_for(lambda: not found.changing, plan.patience)


def no_status(application: str) -> dict[str, Any]:
    """Return the status of an application of which nothing runs here."""
    return {key: fact for key, fact in application_status(Deployment(Mesh(application))).items() if key != "opening"}


def led_by_another(hosts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of a host that another home leads, if any has answered so."""
    return next((one for one in hosts.values() if one["state"] == "adopted"), {})


def differing(old: Mapping[str, Mesh], new: Mapping[str, Mesh]) -> list[str]:
    """Return the hosts whose fragments differ."""
    return [host for host in {**old, **new} if difference(old.get(host), new.get(host))]


def adoption(
    here: Fragments, former: str, survivors: Mapping[str, Survivor], number: str
) -> tuple[Spanning, dict[str, Fragment]]:
    """Return an application after this platform has adopted it from the *former* home, and the parts of all hosts.

    Every host stores the whole mesh of the last plan that it has committed; the newest one is put into force. What ran
    at the former home begins anew at the new one, without its state. Connectors between other hosts go on undisturbed.
    A plan of the former home is refused from then on, since the epoch of the application is higher.
    *survivors* are the hosts that run fragments, with what they know; *number* is that of the plan.

    Raises:
        PlanError: the home still leads the application, or hosts other than it are not connected.
    """
    kinds = here.catalog.kinds
    topology, revision = max((one.whole for one in survivors.values()), key=lambda whole: whole[1])
    before = Mesh.from_toml(topology, here.catalog.slets).at(revision)
    revision += sum(len(one.pending) for part in (before.nodes, before.channels) for one in part.values())
    for update in (update for one in survivors.values() for update in learnt(before, one.updates)):
        before = update.to_mesh(before)
    old = Placement(before, former, kinds)
    away = {host for host in old.hosts if (link := here.links().get(host)) is None or not link.connected}
    if missing := away - survivors.keys() - {former}:  # who answers without a part begins anew
        raise NotNow(
            f"{before.name}: {', '.join(sorted(missing))} cannot be reached, and runs a part; link this platform "
            f"with it, or start it again, and repeat"
        )
    if former in survivors and survivors[former].home == former:
        raise PlanError(
            f"the home of the application, {former}, answers: give the command to it, by --on, or stop it "
            f"before another host adopts the application"
        )
    after = before.at_home(former).at_home(here.name)
    known = {key: epoch for one in survivors.values() for key, epoch in one.connectors.items()}
    connectors = epochs(old, Placement(after, here.name, kinds), known)
    parts = fragments(after, here.name, connectors, kinds)
    target = Spanning(after.at(revision + 1), connectors, dict.fromkeys(parts, number))
    target.changing = dict.fromkeys({**parts, **survivors}, number)
    whole = after.to_toml(), revision + 1
    empty, bounds, pending = Mesh(before.name, durable=before.durable), (None, PAUSE, False), [*planned(before, after)]
    return target, {
        host: Fragment(Work(parts.get(host, empty), bounds, whole, Transfer(), pending, former), (before.name,))
        for host in target.changing
    }

"""The fragments of one platform: its parts of applications that span hosts, and the steps of their changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from exop.errors import ComponentFailed, PlanError
from exop.hosts.moves.transfer import Transfer
from exop.hosts.protocol.messages import JournalEntry, Pending, Prepared, Progress, Report
from exop.hosts.updates import Gone, progress
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.shadow import Shadow
from exop.runtime.catalog import Catalog
from exop.runtime.history import calling_platform
from exop.wiring import Applications

if TYPE_CHECKING:
    from exop.hosts.moves.ahead import Links
    from exop.hosts.moves.twins import Twin

#: The time-out, the longest pause, and whether it may be longer, as for `Plan.apply`.
Bounds: TypeAlias = tuple[float | None, float, bool]


class Work:
    """The change of one fragment.

    Attributes:
        mesh: The fragment after the change, with its marks; its revision is of no meaning.
        whole: The whole mesh after the change as a topology file, with its revision.
        transfer: What moves between this fragment and others.
        pending: The pending updates of the whole mesh before the change, as the home knows them.
        former: The home that another host replaces by this change; empty for any other change.
        begins: Whether the host may be without a fragment before the change.
        shadow, keep: The trial before it, and the time for which predecessors are kept, as for `Plan.apply`.
        back: The node whose predecessor takes over again.
    """

    def __init__(
        self,
        mesh: Mesh,
        bounds: Bounds,
        whole: tuple[str, int],
        transfer: Transfer,
        pending: Sequence[Pending] = (),
        former: str = "",
        begins: bool = True,
        shadow: Shadow | None = None,
        keep: float | None = None,
        back: str = "",
    ) -> None:
        self.mesh, self.bounds, self.whole, self.transfer, self.former = mesh, bounds, whole, transfer, former
        self.pending, self.begins, self.shadow, self.keep, self.back = pending, begins, shadow, keep, back

    def encoded(self) -> bytes:
        """Encode the work. Raises `MeshError` if a slet cannot travel."""
        # Imported lazily: only applications that span hosts need it.
        import msgspec

        from exop.remoting.api.wire_types import Topology, as_proof

        topology, proof = Topology.sent(self.mesh, bytes), as_proof(self.shadow, self.keep)
        parts = (topology, self.bounds, self.whole, self.transfer, self.pending, self.former, self.begins)
        return msgspec.msgpack.encode((*parts, proof, self.back))

    @classmethod
    def decoded(cls, data: bytes, here: Fragments) -> Work:
        """Decode the work, with the slets that are known *here*. Raises `MeshError` if one is unknown."""
        from exop.remoting.api.wire_types import Proof, Topology
        from exop.remoting.transport.codec import decoder

        form = tuple[Topology, Bounds, tuple[str, int], Transfer, list[Pending], str, bool, Proof | None, str]
        topology, bounds, whole, transfer, pending, former, begins, proof, back = decoder(form).decode(data)
        shadow, keep = (proof.shadow(proof.divert), proof.keep) if proof is not None else (None, None)
        return cls(topology.read(here), bounds, whole, transfer, pending, former, begins, shadow, keep, back)


def lost_fragment(application: str, host: str) -> str:
    """Say that a host has returned without its fragment, and what helps."""
    return (
        f"{host} has returned without its fragment of {application}; start it again with its state directory; if that "
        f"is gone, or it had none, `exop accept {application}` at the home lets the fragment begin anew, without its "
        f"state (of a durable application, in a new state directory)"
    )


def led_elsewhere(application: str, host: str, home: str, other: str, *, later: bool = False) -> str:
    """Say that another platform than the *home* of the fragment on a host wants to change it, and what helps.

    A host that is the home itself has been replaced by the other platform, unless its epoch is the *later* one.
    """
    if host == home and not later:
        return adopted(application, host, other)["problem"]
    cure = f"give the command to it, --on {home}; another application needs another name"
    return f"the home of {application} is {home!r}, not {other!r}; {cure}"


def in_doubt(application: str, plan: str, host: str) -> str:
    """Say that a host does not know the outcome of a plan, and what helps."""
    home = plan.rpartition("@")[2]
    return (
        f"{host} has agreed to the plan {plan}, and waits until its home, {home}, tells the outcome; if {home} does "
        f"not return, look whether another host has made the change (`exop history {application} --on HOST`): if so, "
        f"`exop resolve {application} --commit --on {host}`, otherwise --abort; if {home} returns, and has decided "
        f"otherwise, the states of the nodes that the plan moves, and items on their way, may be lost"
    )


def overruled(application: str, host: str) -> str:
    """Say that the home has decided otherwise than an operator on a host, and what helps."""
    return (
        f"the home of {application} has decided otherwise than `exop resolve` on {host}, and the part there does not "
        f"fit; `exop accept {application}` at the home makes it fit; nodes that the change moves from or to {host} may "
        f"begin anew, without their state, and items on their way between hosts may be lost"
    )


def adopted(application: str, host: str, home: str) -> dict[str, str]:
    """Return the status at a *host* that was the home of an application, which another *home* has adopted."""
    problem = (
        f"{home} has adopted {application}, and leads it; what still runs on {host} is not connected with it: `exop "
        f"remove {application} --on {host}` removes that, and that alone"
    )
    return {"home": home, "state": "adopted", "problem": problem}


@dataclass
class Known:
    """The knowledge of a host about its fragment.

    Attributes:
        home: The platform that leads the application.
        base: The revision of the fragment after the last plan; conditional updates follow it.
        plan: The last plan that was committed here.
        whole: The whole mesh after that plan as a topology file, with its revision: for another home, if this one dies.
        overruled: Whether an operator here had decided otherwise than the home; the next plan makes the fragment fit.
        gone: Those of the conditional updates that were pending after that plan which are gone, as of the last report.
    """

    home: str
    base: int = 0
    plan: str = ""
    whole: tuple[str, int] = ("", 0)
    overruled: bool = False
    gone: Gone = field(default_factory=dict)

    def stored(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return dict(vars(self))


@dataclass(frozen=True)
class Survivor:
    """The knowledge of a host about an application of which it runs a fragment.

    Attributes:
        whole: The whole mesh after the last plan as a topology file, with its revision.
        connectors: The epochs of the connectors of the fragment, by key.
        overruled: Whether the fragment does not fit, as in `Known`.
        updates: How far its conditional updates have come, as in `Report`.
    """

    home: str
    whole: tuple[str, int]
    epoch: int
    connectors: Mapping[str, int]
    overruled: bool = False
    updates: tuple[Progress, ...] = ()


@dataclass
class Fragments:
    """The fragments of the platform *name*, by application.

    Attributes:
        restart: Starts an application again, as the state directory has it.
        read: Reads a stored mesh; raises an `ExopError` that names the bundles and plugins whose code it lacks.
        unstored: Stores what a committed plan has made of a fragment, by application, where its code was lacking.
        twins: The followers here of leaders on other hosts, by application and node.
    """

    name: str
    running: Applications
    catalog: Catalog
    restart: Callable[[str], None]
    links: Links
    read: Callable[[str], Mesh]
    unstored: dict[str, Callable[[], None]] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    twins: dict[tuple[str, str], Twin] = field(default_factory=dict)

    def applications(self) -> list[str]:
        """Return the names of the applications that run here."""
        return self.running.names()

    def mesh(self, application: str, /) -> Mesh:
        """Return the mesh that runs here: of an application that spans hosts, the fragment."""
        return self.running.get(application).mesh

    def led(self, application: str) -> dict[str, str]:
        """Return the home of a fragment, if any; if it runs without a connection to it, also the problem and cure."""
        if (known := self.known.get(application)) is None:
            return {}
        home, link, runs = known.home, self.links().get(known.home), self.running.deployed.get(application)
        if home == self.name or (link is not None and link.connected) or (runs is not None and runs.finished.is_set()):
            return {"home": home}
        why = "this platform is not linked with it" if link is None else link.reason
        dial = ", or link it by `exop connect URI`" * (link is None or not link.uri)
        cure = "" if link is not None and link.refused else f"; start {home} again or repair the network{dial}"
        problem = (
            f"its home {home} is not connected: {why}; the items from there and to there wait, and {application} "
            f"cannot be changed{cure}; if {home} is gone for good, `exop adopt {application} --on {self.name}` makes "
            f"{self.name} the home, where what ran on {home} begins anew"
        )
        return {"home": home, "problem": problem}

    def check_home(self, application: str, *, calls: bool = False) -> None:
        """Raise `PlanError` if another platform leads the application, unless it *calls*, or if it is opened here."""
        leaders = {self.name, calling_platform()} if calls else {self.name}
        if (known := self.known.get(application)) is not None and known.home not in leaders:
            raise PlanError(
                f"{application} spans several hosts, and is changed at its home, the platform {known.home!r}; this "
                f"platform ({self.name!r}) runs a fragment of it; give the command to the home, --on {known.home}"
            )
        if known is not None:
            self.running.check_open(application)

    def made(self, application: str, entries: Iterable[JournalEntry]) -> str:
        """Return the last plan that was carried out here, if what it has made of the fragment is all written."""
        store, known = self.running.store, self.known.get(application, Known(""))
        for one in entries:
            restart = one.restart if isinstance(one, Prepared) else None
            if store is not None and restart is not None and restart.checkpoint is not None:
                return known.plan if store.checkpoints.revision(application) >= restart.known["base"] else ""
        return known.plan

    def updates(self, application: str, known: Known) -> tuple[Progress, ...]:
        """Return how far the conditional updates that were pending after the last plan have come here."""
        if (deployment := self.running.deployed.get(application)) is None:
            return ()
        found, known.gone = progress(deployment.update_log, known.whole[0], known.gone)
        return tuple(found)

    def report(self, application: str, known: Known) -> Report:
        """Return the state of a fragment."""
        host, deployment = self.name, self.running.deployed.get(application)
        if (lost := self.running.lost.get(application)) is not None:
            facts = {"node": f"{application} on {host}", "phase": "being started again", "problem": str(lost)}
            return Report(host, known.plan, problem=facts)
        if deployment is None:  # it had finished when the platform was started, unless it is not started yet
            store, names = self.running.store, self.running.names(inactive=True)
            over = application not in names and (store is None or not store.is_active(application))
            return Report(host, known.plan, ended=over, finished=over)
        # From the cut of a plan to its outcome, what leaves is gone here, and has not come elsewhere.
        settled = deployment.changing.acquire(blocking=False)
        try:
            over = deployment.all_ended() and settled
        except ComponentFailed as problem:
            facts = {**problem.facts, "node": f"{problem.facts['node']} on {host}"}
            return Report(host, known.plan, problem={name: str(value) for name, value in facts.items()})
        finally:
            if settled:
                deployment.changing.release()
        paused = deployment.last_change[1] if deployment.last_change is not None else 0.0
        taker, finished = self.running.checkpoints.takers.get(application), deployment.finished.is_set()
        stored = (taker is None or taker.figures.trouble is None) if settled and not deployment.at_work() else None
        return Report(host, known.plan, ended=over, stored=stored, finished=finished, paused=paused)

    def drop(self, application: str) -> None:
        """Undeploy a fragment that was opened for a plan that is aborted."""
        self.running.fragments.discard(application)
        if (deployment := self.running.deployed.pop(application, None)) is not None:
            self.running.undeploy(deployment)

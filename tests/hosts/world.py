"""Hosts, a home and a network in one thread: everything that may go wrong does so where a schedule says it.

A schedule is a string of bytes. Two of them are one event: a kind, and its argument. All zeros is a run without faults,
so a failing schedule shrinks to the few faults that matter.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from exop.hosts.protocol.coordinator import Coordinator
from exop.hosts.protocol.member import Member
from exop.hosts.protocol.messages import (
    Action,
    Committed,
    Conflict,
    Did,
    Do,
    Ended,
    Fragment,
    NotRecorded,
    Prepared,
    Record,
    Send,
    Settled,
)

#: Seconds to prepare, to hold, and between repetitions.
PREPARE, HOLD, RESEND = 4.0, 3.0, 1.0
HOME = "home"


@dataclass(frozen=True)
class Frame:
    """An item on its way to the consumer of a node."""

    sender: str
    node: str
    epoch: int
    number: int


class Receiver(Member):
    """A member at whose host items arrive from others."""

    def accepts(self, name: str, epoch: int) -> bool:
        """Whether an item of this epoch may pass: it is not old, nor of a plan whose decision has not arrived here."""
        return epoch == self.epochs[name]


@dataclass
class Site:
    """One process: a machine, and what survives its crash.

    Attributes:
        steps: What the participant was given to do, in order.
        held: The nodes whose drivers are parked.
        owned: The nodes that run here, each with the number of its last item. Survives a crash, as a log would.
        taken: By consumed node: the number of the last item. Survives, too.
        applied: The plans whose changes are in `owned`.
        fuse: How many more actions are carried out before a crash.
    """

    name: str
    machine: Any
    journal: list[Any] = field(default_factory=list)
    up: bool = True
    reachable: bool = True
    write_fails: bool = False
    fuse: int | None = None
    steps: deque[Do] = field(default_factory=deque)
    held: set[str] = field(default_factory=set)
    owned: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)

    def undecided(self) -> set[str]:
        """The plans that it has recorded a yes to, and no outcome."""
        yes = {one.proposal.plan for one in self.journal if isinstance(one, Prepared)}
        return yes - {one.plan for one in self.journal if isinstance(one, Settled)}


class World:
    """A home and some hosts. Node `n` runs on one host at a time and sends items to its consumer."""

    def __init__(self, members: int, coordinator: type[Coordinator], member: type[Receiver]) -> None:
        self.now = 0.0
        self.faults = 0
        self.classes = coordinator, member
        self.home = Site(HOME, coordinator(HOME, resend=RESEND))
        self.hosts = [Site(f"h{n}", member(f"h{n}", resend=RESEND)) for n in range(members)]
        self.sites = {one.name: one for one in (self.home, *self.hosts)}
        self.network: list[tuple[str, Any]] = []
        self.late: list[tuple[str, Any]] = []
        self.plans: dict[str, dict[str, Fragment]] = {}
        self.ended: dict[str, bool] = {}
        self.senders: dict[tuple[str, int], str] = {}
        self.consumers = {"a": self.hosts[-1], "b": self.hosts[0]}
        self.owners = {"a": "h0", "b": self.hosts[-1].name}
        for node, name in self.owners.items():
            self.sites[name].owned[node] = 0
            self.consumers[node].taken[node] = 0

    # -- what may happen

    def event(self, kind: int, argument: int) -> None:
        """Let one event happen; most of them are progress, and a fault that this schedule leaves out is, too."""
        host = self.hosts[argument % len(self.hosts)]
        site = [*self.hosts, self.home][argument % (len(self.hosts) + 1)]
        fault = kind - 180
        if fault < 0 or not self.faults & 1 << fault // 10:
            if kind < 120 or fault >= 0:
                self.progress()
            elif kind < 135:
                self.begin("ab"[argument & 1], argument >> 1)
            elif kind < 165:
                self.emit(argument)
            else:
                self.step(host)
        elif fault < 6 and self.network:
            self.late.append(self.network.pop(argument % len(self.network)))
        elif fault < 10 and self.late:
            self.deliver(self.late.pop(argument % len(self.late)))
        elif fault < 20 and self.network:
            self.network.pop(argument % len(self.network))
        elif fault < 30 and self.network:
            self.late.append(self.network[argument % len(self.network)])
        elif fault < 40:
            self.wait(argument % 4)
        elif fault < 50:
            site.fuse = argument >> 5
        elif fault < 60:
            site.reachable = not site.reachable
        elif fault < 66:
            self.crash(site)
        elif fault < 70:
            site.write_fails = True
        else:
            self.step(host, problem="it cannot")

    def progress(self) -> bool:
        """Do what a world without faults would do next; returns whether there was anything."""
        for host in self.hosts:
            if host.up and host.steps:
                self.step(host)
                return True
        if self.network:
            self.deliver(self.network.pop(0))
            return True
        for site in self.sites.values():
            if not (site.up and site.reachable):
                site.reachable = True
                self.restart(site)
                return True
        return self.wait(0)

    def begin(self, node: str, choice: int) -> None:
        """Replace a node, or move it to another host; every third plan has the other hosts in it, too."""
        if not self.home.up:
            return
        owner, consumer = self.owners[node], self.consumers[node].name
        target = self.hosts[choice % len(self.hosts)].name
        parts: dict[str, list[str]] = {owner: ["give"]}
        parts.setdefault(consumer, [])
        parts.setdefault(target, []).append("take")
        if choice % 3 == 2:
            parts |= {one.name: parts.get(one.name, []) for one in self.hosts}
        fragments = {
            name: Fragment(
                tuple((verb, node) for verb in verbs) or (("touch", node),),
                (f"to {node}", *([node] if verbs else [])),
                int(verbs == ["take"]),
            )
            for name, verbs in parts.items()
        }
        plan = f"p{len(self.plans)}"
        self.plans[plan] = fragments
        self.act(self.home, self.home.machine.begin(plan, fragments, self.now, prepare=PREPARE, hold=HOLD))

    def emit(self, argument: int) -> None:
        """The owner of a node sends its next item, or one of the last once more."""
        node = "ab"[argument & 1]
        for host in self.hosts:
            if host.up and node in host.owned and node not in host.held:
                back = (argument >> 1) % 3
                if back == 0:
                    host.owned[node] += 1
                number = host.owned[node] - max(0, back - 1)
                epoch = host.machine.epochs[node]
                self.send(host, self.consumers[node].name, Frame(host.name, node, epoch, number))

    def send(self, site: Site, to: str, message: Any) -> None:
        """Put a message on the network, unless the sender is cut off."""
        if site.reachable:
            self.network.append((to, message))

    def deliver(self, envelope: tuple[str, Any]) -> None:
        """Let a message arrive, unless its receiver is down or cut off."""
        to, message = envelope
        site = self.sites[to]
        if not (site.up and site.reachable):
            return
        if isinstance(message, Frame):
            self.take(site, message)
        else:
            self.act(site, site.machine.receive(message, self.now))

    def take(self, site: Site, frame: Frame) -> None:
        """A consumer takes an item if it is the next one, and of the epoch that holds."""
        held = frame.node in site.held
        if held or not site.machine.accepts(f"to {frame.node}", frame.epoch):
            return
        holds = max(
            (one.epochs.get(f"to {frame.node}", 0) for one in site.journal if isinstance(one, Settled)), default=0
        )
        assert frame.epoch == holds, (
            f"{site.name} takes an item of {frame.node} of the epoch {frame.epoch}, not {holds}"
        )
        assert self.senders.setdefault((frame.node, frame.epoch), frame.sender) == frame.sender, (
            "two senders in one epoch"
        )
        if frame.number == site.taken[frame.node] + 1:
            site.taken[frame.node] += 1

    def wait(self, more: float) -> bool:
        """Let time pass until a machine has something to do, and somewhat longer; returns whether one had."""
        due = [one.machine.due for one in self.sites.values() if one.up and one.machine.due is not None]
        if not due:
            return False
        self.now = max(self.now, min(due)) + more
        for site in self.sites.values():
            if site.up:
                self.act(site, site.machine.timeout(self.now))
        return True

    def step(self, host: Site, problem: str = "") -> None:
        """The participant of a host does its next step; one before the decision may fail."""
        if not host.up or not host.steps:
            return
        do = host.steps.popleft()
        problem = problem if do.step in ("prepare", "hold", "cut") else ""
        handed = None if problem else self.participate(host, do)
        if do.step != "restore":
            self.act(host, host.machine.receive(Did(do.plan, do.step, handed, problem), self.now))

    def participate(self, host: Site, do: Do) -> Any:
        """Do the step of a participant; return the data that a cut hands over."""
        if do.step in ("hold", "restore"):
            host.held |= {node for _, node in do.change}
        elif do.step == "cut":
            assert all(node in host.owned for verb, node in do.change if verb == "give"), f"{host.name} owns it no more"
            given = {node: host.owned[node] for verb, node in do.change if verb == "give"}
            theirs = {node: last for one in do.handed.values() for node, last in one.items()}
            assert all(node in given | theirs for verb, node in do.change if verb == "take"), (
                f"{host.name} gets nothing"
            )
            return given | {node: theirs[node] for verb, node in do.change if verb == "take" and node not in given}
        elif do.step == "commit":
            assert do.plan not in host.undecided(), f"{host.name} commits {do.plan} without a decision"
            self.apply(host, do.plan, do.change, do.handed)
            host.held.clear()
        elif do.step == "abort":
            assert do.plan not in host.undecided(), f"{host.name} releases {do.plan} after its yes without a decision"
            host.held.clear()
        return None

    def apply(self, host: Site, plan: str, change: Any, handed: Any) -> None:
        """Change what a host owns; once for each plan."""
        if plan in host.applied:
            return
        host.applied.add(plan)
        for verb, node in change:
            if verb == "give":
                host.owned.pop(node)
        for verb, node in change:
            if verb == "take":
                host.owned[node] = handed[node]
        if not host.owned and host not in self.consumers.values():  # nothing is left there
            host.machine.forget()

    def act(self, site: Site, actions: list[Action]) -> None:
        """Carry out what a machine asks for; a crash may come behind every single action."""
        for action in actions:
            if site.fuse is not None:
                site.fuse -= 1
                if site.fuse < 0:
                    self.crash(site)
                    return
            match action:
                case Send():
                    self.send(site, action.to, action.message)
                case Record() if site.write_fails:
                    site.write_fails = False
                    plan = getattr(action.entry, "plan", None) or action.entry.proposal.plan  # type: ignore[union-attr]
                    self.act(site, site.machine.receive(NotRecorded(plan, "the disk is full"), self.now))
                    return
                case Record():
                    site.journal.append(action.entry)
                    if isinstance(action.entry, Committed):
                        self.committed(action.entry.plan)
                case Do():
                    site.steps.append(action)
                case Ended():
                    assert self.ended.setdefault(action.plan, action.commit) == action.commit
                case Conflict():
                    raise AssertionError(f"{site.name}: no human has resolved {action.plan}")

    def committed(self, plan: str) -> None:
        """From here on the node is where the plan puts it."""
        for name, fragment in self.plans[plan].items():
            self.owners |= {node: name for verb, node in fragment.change if verb == "take"}

    def crash(self, site: Site) -> None:
        """Lose everything but the journal and what the participant had on its disk."""
        site.up, site.fuse, site.write_fails = False, None, False
        site.steps.clear()
        site.held.clear()

    def restart(self, site: Site) -> None:
        """Start again: redo what is recorded, then go on."""
        if site.up:
            return
        site.up = True
        prepared = {one.proposal.plan: one for one in site.journal if isinstance(one, Prepared)}
        for one in site.journal:
            if isinstance(one, Settled) and one.commit:
                self.apply(site, one.plan, prepared[one.plan].proposal.change, prepared[one.plan].handed)
        site.machine = self.classes[site is not self.home](site.name, resend=RESEND)
        actions = site.machine.recover(site.journal, self.now)
        for action in actions:  # drivers that were held stay held until the participant has been put there again
            if isinstance(action, Do):
                site.held |= {node for _, node in action.change}
        self.act(site, actions)

    # -- what must hold

    def check(self) -> None:
        """The invariants that hold after every step."""
        for node in self.owners:
            running = [one.name for one in self.hosts if one.up and node in one.owned and node not in one.held]
            assert len(running) <= 1, f"{node} runs on {running}"
        decided = {one.plan for one in self.home.journal if isinstance(one, Committed)}
        for host in self.hosts:
            assert host.applied <= decided, f"{host.name} has applied {host.applied - decided} without a decision"
            undone = {one.plan for one in host.journal if isinstance(one, Settled) and not one.commit}
            assert not undone & decided, f"{host.name} has undone {undone & decided}, which is committed"

    def heal(self) -> None:
        """No more faults: everything comes to its end, and every plan is made everywhere or nowhere."""
        for site in self.sites.values():
            site.reachable, site.fuse, site.write_fails = True, None, False
            self.restart(site)
        self.network += self.late
        for _ in range(3000):
            busy = self.progress()
            self.check()
            if not busy:
                break
        assert self.home.machine.due is None, "the home has not forgotten a plan"
        decided = {one.plan for one in self.home.journal if isinstance(one, Committed)}
        for host in self.hosts:
            assert host.machine.plan is None, f"{host.name} is still in {host.machine.plan}"
            assert not host.held, f"{host.name} holds {host.held}"
            meant = {plan for plan in decided if host.name in self.plans[plan]}
            assert host.applied == meant, f"{host.name} has applied {host.applied}, not {meant}"
        for node, owner in self.owners.items():
            assert [one.name for one in self.hosts if node in one.owned] == [owner]
            assert self.sites[owner].owned[node] >= self.consumers[node].taken[node], f"{node}: items were forgotten"

    def run(self, schedule: bytes) -> None:
        """Let all events of a schedule happen, then heal. Its first byte says which kinds of faults there are."""
        self.faults = schedule[0]
        for at in range(1, len(schedule) - 1, 2):
            self.event(schedule[at], schedule[at + 1])
            self.check()
        self.heal()

"""The exchange of a platform: one thread that drives the state machines of plans over several hosts.

It passes messages to the machines and carries out their actions. Steps of participants, and calls of peers, happen in
other threads: neither user code nor a peer that does not answer delays it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from exop.errors import ExopError, PeerUnreachable, PlatformBusy, UnknownName
from exop.hosts.fragment import in_doubt
from exop.hosts.protocol import messages
from exop.hosts.protocol.coordinator import Coordinator
from exop.hosts.protocol.member import Member
from exop.hosts.protocol.participant import Participant
from exop.logs import logger

if TYPE_CHECKING:
    from exop.hosts.federation import Federation

#: Seconds between two looks at the fragments of this platform.
TICK: Final = 0.1


@dataclass
class Machines:
    """The state machines of one application, with the participant of the plan in progress.

    Attributes:
        outcomes: The results of the plans in progress, for their callers.
        removal: Held while the fragment is removed.
        doubt: The last plan of which the log tells that it is in doubt here.
    """

    home: Coordinator
    member: Member
    participant: Participant | None = None
    outcomes: dict[str, Future[messages.Ended]] = field(default_factory=dict)
    removal: threading.Lock = field(default_factory=threading.Lock)
    doubt: str | None = None


class Exchange:
    """Drives the machines of all applications of one platform that span hosts.

    The methods of the *owner*, except `call`, are called in the thread of the exchange.

    Attributes:
        held: The applications that are started only when a plan that a restart has interrupted is carried out.
        refusals: By peer and application, the error by which the peer has refused the last message.
        durable: Whether a restart knows the plans that this platform, as their home, had committed before.
        resend: Seconds after which the machines repeat a message that was not answered.
    """

    def __init__(self, name: str, owner: Federation) -> None:
        self.name = name
        self.machines: dict[str, Machines] = {}
        self.held: set[str] = set()
        self.refusals: dict[tuple[str, str], ExopError] = {}
        self.durable = False
        self._begun: set[str] = set()
        self.resend = 1.0
        self._owner = owner
        self._mail: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._peers: dict[str, SimpleQueue[tuple[str, messages.Message | messages.Notice] | None]] = {}
        self._starting = threading.Lock()
        self._closed = True

    def open(self) -> None:
        """Process messages from now on; those that have come before, and those of interrupted plans, wait for it."""
        self._closed = False
        if not self._mail.empty():
            self.start()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._starting:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name=f"exop {self.name} hosts", daemon=True)
                thread.start()  # raises if too many threads run; a later message tries it again
                self._thread = thread

    def close(self) -> None:
        """End the threads; plans in progress fail."""
        with self._starting:
            self._closed, thread = True, self._thread
        self._mail.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        for machines in self.machines.values():
            if machines.participant is not None:
                machines.participant.leave(5.0)
        for queue in self._peers.values():
            queue.put(None)
        self._peers.clear()
        self.machines.clear()
        self._begun.clear()
        self._thread, self._mail = None, SimpleQueue()

    def do(self, work: Callable[[], None]) -> None:
        """Do *work* in the thread of the exchange."""
        self.start()
        self._mail.put(work)

    def receive(self, application: str, message: messages.Message | messages.Notice) -> None:
        """Process a message."""
        self.do(partial(self._receive, application, message))

    def begin(
        self, application: str, plan: str, fragments: Mapping[str, messages.Fragment], *, prepare: float, hold: float
    ) -> Future[messages.Ended]:
        """Begin a plan as its home; return its outcome."""
        outcome: Future[messages.Ended] = Future()

        def begin() -> None:
            machines = self.of(application)
            self._begun.add(plan)
            machines.outcomes[plan] = outcome
            actions = machines.home.begin(plan, fragments, time.monotonic(), prepare=prepare, hold=hold)
            self._act(application, machines.home, actions)

        self.do(begin)
        return outcome

    def recover(self, application: str, entries: Sequence[messages.JournalEntry], *, home: bool, made: str) -> None:
        """Continue after a restart with the records of an application, before any message.

        A commit that was recorded and not *made* is made. The actions are carried out from `start` on, when both
        machines of each application know their records: a home that does not would answer that a plan was aborted.
        """
        machines = self.of(application)
        machine = machines.home if home else machines.member
        self._mail.put(partial(self._act, application, machine, machine.recover(entries, time.monotonic())))
        if machines.member.in_doubt is not None:
            self.held.add(application)
        settled = entries[-1]
        prepared = next((one for one in reversed(entries) if isinstance(one, messages.Prepared)), None)
        if isinstance(settled, messages.Settled) and settled.commit and settled.plan != made and prepared is not None:
            proposal = prepared.proposal
            restore = messages.Do(proposal.plan, "restore", proposal.change, prepared.handed, prepared.restart)
            self.held.add(application)
            self._mail.put(partial(self._act, application, machine, [restore, replace(restore, step="commit")]))

    def resolve(self, application: str, plan: str, *, commit: bool) -> None:
        """Settle a plan in doubt as an operator decides."""
        member = self.of(application).member
        self.do(lambda: self._act(application, member, member.resolve(plan, commit=commit)))

    def of(self, application: str) -> Machines:
        """Return the machines of an application."""
        if (found := self.machines.get(application)) is None:
            made = Machines(Coordinator(self.name, resend=self.resend), Member(self.name, resend=self.resend))
            found = self.machines.setdefault(application, made)  # another thread may have been faster
        return found

    def send(self, peer: str, application: str, message: messages.Message | messages.Notice) -> None:
        """Send a message, which may be lost."""
        if peer == self.name:
            self.receive(application, message)
            return
        if (queue := self._peers.get(peer)) is None:
            queue = SimpleQueue()
            threading.Thread(target=self._send_all, args=(peer, queue), name=f"exop to {peer}", daemon=True).start()
            self._peers[peer] = queue  # not earlier: no thread may be left
        if queue.qsize() < 200:  # more are dropped, since the machines send them again
            queue.put((application, message))
        else:
            logger("exop.hosts").warning("a message is dropped: the peer does not answer", peer=peer)

    def _send_all(self, peer: str, queue: SimpleQueue[tuple[str, messages.Message | messages.Notice] | None]) -> None:
        """Send the messages of a queue to a peer; one that cannot be sent is lost."""
        while (found := queue.get()) is not None:
            application, message = found
            try:
                self._owner.call(peer, application, message)
                self.refusals.pop((peer, application), None)
            except (PeerUnreachable, PlatformBusy, UnknownName) as problem:  # a peer may not have dialled yet
                logger("exop.hosts").debug("a message is lost", peer=peer, problem=str(problem))
            except ExopError as problem:  # sending it again does not help
                before = self.refusals.get((peer, application))
                level = logging.DEBUG if str(before) == str(problem) else logging.WARNING
                self.refusals[peer, application] = problem
                logger("exop.hosts").log(level, "a message is refused", peer=peer, problem=str(problem))
                if isinstance(message, (messages.Propose, messages.Proceed)):
                    self.receive(application, messages.Refuse(message.plan, peer, str(problem)))
                elif isinstance(message, messages.Ready):  # a commit ignores it
                    self.send(peer, application, messages.Refuse(message.plan, self.name, str(problem)))

    def _run(self) -> None:
        next_tick = time.monotonic()
        while True:
            now = time.monotonic()
            machines = [(name, machine) for name, one in [*self.machines.items()] for machine in (one.home, one.member)]
            due = min([next_tick, *(machine.due for _, machine in machines if machine.due is not None)])
            try:
                works = [self._mail.get(timeout=max(0.0, due - now))]
            except Empty:
                works = [partial(self._time_out, name, machine) for name, machine in machines]
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK
                works.append(self._owner.tick)
            for work in works:
                if work is None:
                    return
                try:
                    work()
                except Exception:  # noqa: BLE001 (a defect concerns one application; the others continue)
                    logger("exop.hosts").exception("a message was not processed")
                    time.sleep(TICK)  # what is due may be due again at once

    def finishes(self, application: str) -> bool:
        """Whether a committed plan is just being carried out here."""
        if (machines := self.machines.get(application)) is None or (works := machines.participant) is None:
            return False
        return works.is_alive() and machines.member.has_committed(works.plan)

    def _time_out(self, application: str, machine: Coordinator | Member) -> None:
        self._act(application, machine, machine.timeout(time.monotonic()))

    def _receive(self, application: str, message: messages.Message | messages.Notice) -> None:
        """Pass a message to its machine. A question for the outcome of a plan goes to the home that made the plan."""
        if isinstance(message, messages.Notice):
            self._owner.notice(application, message)
            return
        machines = self.of(application)
        to_home = isinstance(message, (messages.Ready, messages.Refuse))
        if isinstance(message, messages.Ask):
            to_home = message.plan.rpartition("@")[2] == self.name
            if to_home and not self.durable and message.plan not in self._begun:
                return  # it may have been committed before a restart: other members, or an operator, know
        machine = machines.home if to_home else machines.member
        self._act(application, machine, machine.receive(message, time.monotonic()))

    def _act(self, application: str, machine: Coordinator | Member, actions: list[messages.Action]) -> None:
        """Carry out the actions of a machine, in their order."""
        machines = self.machines[application]
        for action in actions:
            match action:
                case messages.Send():
                    self.send(action.to, application, action.message)
                    if (doubt := machines.member.overdue(time.monotonic())) and doubt != machines.doubt:
                        machines.doubt = doubt
                        facts = {"application": application, "problem": in_doubt(application, doubt, self.name)}
                        logger("exop.hosts").warning("the outcome of a plan is not known here", **facts)
                case messages.Do():
                    if (participant := machines.participant) is None or participant.plan != action.plan:
                        participant = self._owner.participant(application, action, partial(self.receive, application))
                        participant.start()
                        machines.participant = participant
                    participant.give(action)
                case messages.Record(entry):
                    try:
                        self._owner.record(application, entry)
                    except ExopError as error:
                        plan = entry.plan if not hasattr(entry, "proposal") else entry.proposal.plan
                        problem = messages.NotRecorded(plan, str(error))
                        self._act(application, machine, machine.receive(problem, time.monotonic()))
                        return
                    if isinstance(entry, messages.Finished):
                        self._begun.discard(entry.plan)  # no member asks any more
                case messages.Ended():
                    if (outcome := machines.outcomes.pop(action.plan, None)) is not None:
                        outcome.set_result(action)
                case messages.Conflict():
                    facts = {"application": application, "plan": action.plan, "resolved": str(action.resolved)}
                    facts["cure"] = f"where exop ps at the home shows `fragment lost`: exop accept {application}, there"
                    logger("exop.hosts").error("the home has decided otherwise than the operator here", **facts)
                    self._owner.overruled(application, action.plan)

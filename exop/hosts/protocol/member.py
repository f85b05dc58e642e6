"""A member's part of a change with several participants: a state machine that does no I/O and uses no clock or threads.

    idle ─▶ prepare ─▶ hold ─▶ cut ─▶ in doubt ─▶ commit | abort ─▶ idle
               └── alone: a failure, or the deadline ─┘└── the home's decision, or an operator's

Before its yes a member may abort alone. After it, the member is in doubt: it stays held, and asks the home and the
other members until one of them knows the outcome. It carries out one plan at a time. Others are refused
meanwhile; one that comes when the outcome is being carried out waits for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from exop.hosts.protocol.messages import (
    Action,
    Ask,
    Conflict,
    Decision,
    Did,
    Do,
    JournalEntry,
    Message,
    NotRecorded,
    ParticipantStep,
    Prepared,
    Proceed,
    Propose,
    Ready,
    Record,
    Refuse,
    Send,
    Settled,
    advanced,
)

#: For each step that the home requests, the step that must be done before.
_BEFORE: Final[dict[ParticipantStep, ParticipantStep]] = {"hold": "prepare", "cut": "hold"}


@dataclass
class _Part:
    """A member's part of the plan in progress.

    Attributes:
        step: The last step given to the participant; *done* once the participant has reported it.
        ask_at: The time to ask for the outcome, or to try again to record it.
        unrecorded: The outcome, if it could not be recorded yet.
    """

    proposal: Propose
    step: ParticipantStep
    deadline: float
    ask_at: float
    done: bool = False
    handed: Any = None
    unrecorded: Settled | None = None

    @property
    def decided(self) -> bool:
        """Whether it is being committed or aborted."""
        return self.step in ("commit", "abort")

    @property
    def in_doubt(self) -> bool:
        """Whether the member has voted yes, and does not know the outcome."""
        return self.step == "cut" and self.done


class Member:
    """Carries out one participant's part of plans, and settles each as its home decides.

    The caller passes in every message and every report of the participant, calls `timeout` at `due`, and carries out
    the returned actions in their order before the next call.

    Attributes:
        epochs: The epochs that are valid here, as long as anything of the application runs here.
        resend: Seconds without a message after which the member asks.
    """

    def __init__(self, name: str, *, resend: float = 1.0) -> None:
        self.name = name
        self.epochs: Counter[str] = Counter()
        self.resend = resend
        self._part: _Part | None = None
        self._next: Propose | None = None  # waits until the plan in progress, which is decided, is settled here
        self._given_up = "", ""  # the last plan that it has aborted alone, and why
        self._settled: dict[str, Settled] = {}
        # The last plan, if an operator has settled it; its home is asked until it answers, since it may return.
        self._by_hand: Propose | None = None
        self._ask_home_at = 0.0

    @property
    def due(self) -> float | None:
        """The time of the next `timeout`; `None` if the member waits for nothing."""
        if (part := self._part) is None:
            return self._ask_home_at if self._by_hand is not None else None
        asks = part.done or part.unrecorded is not None or self._next is not None
        return min([part.deadline] * self._may_give_up(part) + [part.ask_at] * asks, default=None)

    @property
    def plan(self) -> str | None:
        """The plan in progress here."""
        return self._part.proposal.plan if self._part is not None else None

    @property
    def in_doubt(self) -> str | None:
        """The plan for which it has voted yes, and of which it does not know the outcome."""
        return self.plan if self._part is not None and self._part.in_doubt else None

    def has_committed(self, plan: str) -> bool:
        """Whether it knows that a plan is committed."""
        return (settled := self._settled.get(plan)) is not None and settled.commit

    def overdue(self, now: float) -> str | None:
        """Return the plan in doubt whose home, another host, should have told the outcome by now."""
        part = self._part
        late = part is not None and part.proposal.sender != self.name and now >= part.deadline
        return self.in_doubt if late else None

    def receive(self, message: Message, now: float) -> list[Action]:
        """Process a message of the home or of another member, or a report of the caller."""
        actions, part = self.timeout(now), self._part
        if isinstance(message, Ask):
            settled = self._settled.get(message.plan)  # an undecided plan is no answer: this member may still vote yes
            if settled is not None and not settled.by_hand:
                actions.append(Send(message.sender, Decision(message.plan, self.name, settled.commit)))
            return actions
        if part is None or part.proposal.plan != message.plan:
            return actions + self._of_another(message, now)
        match message:
            case Propose() if part.step == "prepare" and part.done:
                actions += self._ready(part)
            case Proceed():
                actions += self._proceed(part, message, now)
            case Decision() if message.sender in (part.proposal.sender, *part.proposal.peers):
                actions += self._decided(part, message.commit)
            case Did() if message.step == part.step:
                actions += self._did(part, message, now)
            case NotRecorded() if part.in_doubt:  # the yes was not sent
                actions += self._give_up(part, message.problem)
            case NotRecorded():
                part.unrecorded, part.ask_at = self._settled.get(message.plan), now + self.resend
        return actions

    def timeout(self, now: float) -> list[Action]:
        """Abort at the deadline, before the yes; ask for the outcome if no message has come for a while."""
        if (part := self._part) is None:
            if self._by_hand is None or now < self._ask_home_at:
                return []
            self._ask_home_at = now + self.resend
            return [Send(self._by_hand.sender, Ask(self._by_hand.plan, self.name))]
        if now >= part.deadline and self._may_give_up(part):
            return self._give_up(part, f"{part.step} has taken too long")
        if now < part.ask_at:
            return []
        if (waits := self._next) is not None:
            self._next = None
            return [Send(waits.sender, Refuse(waits.plan, self.name, self._problem(waits)))]
        part.ask_at = now + self.resend
        if part.unrecorded is not None:
            return self._carry_out(part, part.unrecorded)
        home, peers = part.proposal.sender, part.proposal.peers if part.in_doubt else ()
        return [Send(name, Ask(part.proposal.plan, self.name)) for name in (home, *peers) if part.done]

    def recover(self, journal: Iterable[JournalEntry], now: float) -> list[Action]:
        """Continue after a restart, before `receive`; held if the outcome of a plan is not known."""
        prepared: Prepared | None = None
        for entry in journal:
            if isinstance(entry, Prepared):
                prepared = entry
                self.epochs |= Counter(entry.proposal.epochs)  # it has replaced the records of former plans
            elif isinstance(entry, Settled):
                self._by_hand = prepared.proposal if prepared is not None and entry.by_hand else None
                prepared = None
                self._settle(entry)
        if prepared is None:
            return []
        proposal, handed = prepared.proposal, prepared.handed
        self._part = _Part(proposal, "cut", now, now, done=True, handed=handed)
        return [Do(proposal.plan, "restore", proposal.change, handed, prepared.restart), *self.timeout(now)]

    def resolve(self, plan: str, *, commit: bool) -> list[Action]:
        """Settle a plan in doubt as an operator decides, if its home is gone for good."""
        part = self._part
        return [] if part is None or self.in_doubt != plan else self._decided(part, commit, by_hand=True)

    def forget(self, settled: str = "") -> None:
        """Accept plans of any epoch: nothing of the application runs here any more, and any home may deploy it anew.

        If that is the outcome of the *settled* plan, as an operator decided, its home is still asked.

        A late proposal of a plan that is over may be prepared again, but its home, which it asks, has aborted it.
        """
        self.epochs.clear()
        if self._by_hand is not None and self._by_hand.plan != settled:
            self._by_hand = None

    def _of_another(self, message: Message, now: float) -> list[Action]:
        """Process a message of a plan that is not in progress here."""
        settled, part = self._settled.get(message.plan), self._part
        if isinstance(message, Decision) and self._next is not None and self._next.plan == message.plan:
            self._next = None  # another member has refused it
        match message:
            case Decision():
                done: list[Action] = [Send(message.sender, Ready(message.plan, self.name, "commit"))] * message.commit
                return self._compared(message, settled) + done
            case Propose() if part is not None and part.decided and part.unrecorded is None:
                if self._next is None or self._next.plan != message.plan:
                    part.ask_at = now + message.hold
                self._next = message
            case Propose() | Proceed() if settled is None:
                if problem := self._problem(message):
                    return [Send(message.sender, Refuse(message.plan, self.name, problem))]
                assert isinstance(message, Propose)
                self._part = _Part(message, "prepare", now + message.prepare, now + self.resend)
                return [Do(message.plan, "prepare", message.change)]
        return []

    def _compared(self, decision: Decision, settled: Settled | None) -> list[Action]:
        """Compare the decision of the home with that of an operator, which it replaces."""
        proposal = self._by_hand  # none any more, if another home has adopted the application since
        if settled is None or proposal is None or (proposal.plan, proposal.sender) != (settled.plan, decision.sender):
            return []
        self._by_hand, self._settled[settled.plan] = None, Settled(settled.plan, decision.commit, {})
        if decision.commit == settled.commit:  # on record: after a restart, the home has forgotten the plan
            one = Settled(settled.plan, settled.commit, settled.epochs)
            return [Record(one)] * (one.epochs.keys() <= self.epochs.keys())  # unless nothing of it is left here
        self.epochs.subtract(dict.fromkeys(settled.epochs, 1))  # of a commit, which is none for the home
        return [Conflict(settled.plan, resolved=settled.commit)]

    def _problem(self, message: Propose | Proceed) -> str:
        """Return the reason to refuse a request of a plan that is not in progress here."""
        given_up, reason = self._given_up
        if message.plan == given_up or isinstance(message, Proceed):
            return reason if message.plan == given_up else "it was restarted meanwhile"
        if old := [name for name, epoch in message.epochs.items() if epoch < self.epochs[name]]:
            return (
                f"{', '.join(old)}: another plan was committed since this one was made; if the home has lost its "
                f"state, `exop adopt {old[0]} --on {self.name}` makes {self.name} the home"
            )
        unsettled = f"the plan {self.plan} is not settled here; try again, or see `exop ps --on {self.name}`"
        return unsettled if self._part is not None else ""

    def _proceed(self, part: _Part, message: Proceed, now: float) -> list[Action]:
        """Begin the next step; answer a request for a finished step again."""
        if not part.done:
            return []
        if message.step == part.step:
            return self._ready(part)
        if _BEFORE.get(message.step) != part.step:
            return []
        part.step, part.done = message.step, False
        if part.step == "hold":
            part.deadline = now + part.proposal.hold
        return [Do(message.plan, part.step, part.proposal.change, message.handed)]

    def _did(self, part: _Part, report: Did, now: float) -> list[Action]:
        """Process the report of a finished step."""
        if part.decided:
            self._part, waits, self._next = None, self._next, None
            return self._of_another(waits, now) if waits is not None else []
        if report.problem:
            return self._give_up(part, report.problem)
        part.done, part.handed, part.ask_at = True, report.handed, now + self.resend
        record = [Record(Prepared(part.proposal, part.handed, report.restart))] if part.in_doubt else []
        return [*record, *self._ready(part)]

    def _ready(self, part: _Part) -> list[Action]:
        handed = part.handed if part.step == "cut" else None
        return [Send(part.proposal.sender, Ready(part.proposal.plan, self.name, part.step, handed))]

    def _decided(self, part: _Part, commit: bool, *, by_hand: bool = False) -> list[Action]:
        """Record a decision, and let the participant carry it out. There is no commit without a yes."""
        if not part.in_doubt:
            return [] if commit or part.decided else self._abort(part, "the home has aborted the plan")
        part.step, part.done = "commit" if commit else "abort", False
        if by_hand or commit:
            self._by_hand = part.proposal if by_hand else None
        settled = Settled(part.proposal.plan, commit, advanced(part.proposal.epochs) if commit else {}, by_hand)
        self._settle(settled)
        return self._carry_out(part, settled)

    def _carry_out(self, part: _Part, settled: Settled) -> list[Action]:
        """Return the actions of a decision. The acknowledgement comes last, since the home forgets the plan then.

        What an operator has decided is not acknowledged before the home tells the same.
        """
        part.unrecorded = None
        actions: list[Action] = [Record(settled), Do(settled.plan, part.step, part.proposal.change, part.handed)]
        return actions + self._ready(part) if settled.commit and not settled.by_hand else actions

    def _may_give_up(self, part: _Part) -> bool:
        return not part.decided and not part.in_doubt

    def _give_up(self, part: _Part, reason: str) -> list[Action]:
        """Abort alone, before the yes."""
        return [*self._abort(part, reason), Send(part.proposal.sender, Refuse(part.proposal.plan, self.name, reason))]

    def _abort(self, part: _Part, reason: str) -> list[Action]:
        part.step, part.done, self._given_up = "abort", False, (part.proposal.plan, reason)
        return [Do(part.proposal.plan, "abort", part.proposal.change)]

    def _settle(self, settled: Settled) -> None:
        """Note an outcome; the new epochs are valid from now on."""
        self.epochs |= Counter(settled.epochs)
        self._settled[settled.plan] = settled
        if len(self._settled) > 100:  # the home knows all for which others may ask
            del self._settled[next(iter(self._settled))]

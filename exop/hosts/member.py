"""A member's side of a plan over several participants, as a state machine without I/O, clock or threads.

    idle ─▶ prepare ─▶ prepared ─▶ hold ─▶ held ─▶ cut ─▶ voted ─▶ commit | abort ─▶ idle
               └────────── alone: a failure, or the deadline ──┘      └── the home's decision, or a human's

Before its yes a member may abort alone. After it, it is in doubt: it stays held and asks the home and the other members
until one of them knows the outcome. It carries out one plan at a time and refuses others meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from exop.hosts.messages import (
    Action,
    Applied,
    Ask,
    Conflict,
    Cut,
    Decision,
    Did,
    Do,
    Entry,
    Epochs,
    Hold,
    Message,
    NotRecorded,
    Prepared,
    Propose,
    Ready,
    Record,
    Send,
    Settled,
    Vote,
    advanced,
)

#: Where a member is in its plan; `prepare` to `cut`, `commit` and `abort` are steps that its participant is doing.
State: TypeAlias = Literal["prepare", "prepared", "hold", "held", "cut", "voted", "commit", "abort"]
#: The states that follow a step of the participant.
_AFTER: Final[dict[str, State]] = {"prepare": "prepared", "hold": "held", "cut": "voted"}
#: The states in which the next step is the home's.
_WAITING: Final = ("prepared", "held", "voted")
#: How many outcomes a member remembers for others that ask; the home knows every one that they may need.
REMEMBERED: Final = 100


@dataclass
class _Part:
    """The plan that a member is carrying out.

    Attributes:
        ask_at: When to ask, or to try again to record the outcome.
        unrecorded: The outcome, as long as it could not be recorded.
    """

    proposal: Propose
    state: State
    deadline: float
    ask_at: float
    handed: Any = None
    unrecorded: Settled | None = None


class Member:
    """Carries out one participant's part of plans, and settles each as its home decides.

    The driver gives it every message and every report of the participant, and calls `timeout` at `due`; it carries out
    the actions in their order before it calls again.

    Attributes:
        name: The name under which homes and other members send to it.
        epochs: The epochs that hold here.
        resend: Seconds after which a member that hears nothing asks.
    """

    def __init__(self, name: str, *, resend: float = 1.0) -> None:
        self.name = name
        self.epochs = Epochs()
        self.resend = resend
        self._part: _Part | None = None
        self._given_up: dict[str, str] = {}
        self._settled: dict[str, Settled] = {}

    @property
    def due(self) -> float | None:
        """When `timeout` has something to do; `None` while it waits for nothing."""
        part = self._part
        if part is None:
            return None
        times = [part.deadline] if self._may_give_up(part) else []
        if part.state in _WAITING or part.unrecorded is not None:
            times.append(part.ask_at)
        return min(times, default=None)

    @property
    def plan(self) -> str | None:
        """The plan that is under way here."""
        return self._part.proposal.plan if self._part is not None else None

    @property
    def state(self) -> State | None:
        """The state of that plan here; `None` while there is none."""
        return self._part.state if self._part is not None else None

    @property
    def in_doubt(self) -> str | None:
        """The plan that it has voted yes to and of which it does not know the outcome."""
        return self.plan if self.state == "voted" else None

    def receive(self, message: Message, now: float) -> list[Action]:
        """Take a message of the home or of another member, or a report of the driver."""
        actions = self.timeout(now)
        part = self._part
        if isinstance(message, Ask):
            return actions + self._answer(message)
        if isinstance(message, Propose) and (part is None or part.proposal.plan != message.plan):
            return actions + self._propose(message, now)
        if part is None or part.proposal.plan != message.plan:
            return actions + self._of_another(message)
        match message:
            case Propose() if part.state == "prepared":
                actions += self._to_home(Ready(message.plan, self.name, "prepare"))
            case Hold():
                actions += self._hold(part, now)
            case Cut():
                actions += self._cut(part, message)
            case Decision():
                actions += self._decided(
                    part, Settled(message.plan, message.commit, self._epochs(part, message.commit))
                )
            case Did() if message.step == part.state:
                actions += self._did(part, message, now)
            case NotRecorded():
                actions += self._not_recorded(part, message, now)
        return actions

    def timeout(self, now: float) -> list[Action]:
        """Give up what takes too long, if no yes was given; ask what has become of a plan of which nothing is heard."""
        part = self._part
        if part is None:
            return []
        if now >= part.deadline and self._may_give_up(part):
            return self._give_up(part, f"{part.state} has taken too long")
        if now < part.ask_at:
            return []
        part.ask_at = now + self.resend
        if part.unrecorded is not None:
            return self._carry_out(part, part.unrecorded)
        if part.state not in _WAITING:
            return []
        asked = (part.proposal.sender, *(part.proposal.peers if part.state == "voted" else ()))
        return [Send(name, Ask(part.proposal.plan, self.name)) for name in asked]

    def recover(self, journal: Iterable[Entry], now: float) -> list[Action]:
        """Go on after a restart, held if the outcome of a plan is not known. Called before `receive`."""
        prepared: dict[str, Prepared] = {}
        for entry in journal:
            if isinstance(entry, Prepared):
                prepared[entry.proposal.plan] = entry
            elif isinstance(entry, Settled):
                prepared.pop(entry.plan, None)
                self._settle(entry)
        for plan, entry in prepared.items():  # one at the most
            self._part = _Part(entry.proposal, "voted", now, now, entry.handed)
            return [Do(plan, "restore", entry.proposal.change, entry.handed), *self.timeout(now)]
        return []

    def resolve(self, plan: str, *, commit: bool) -> list[Action]:
        """Settle a plan in doubt as a human decides, for whom the home is gone for ever."""
        part = self._part
        if part is None or self.in_doubt != plan:
            return []
        settled = Settled(plan, commit, self._epochs(part, commit), by_hand=True)
        return [*self._decided(part, settled), Send(part.proposal.sender, Ask(plan, self.name))]

    def _propose(self, message: Propose, now: float) -> list[Action]:
        """Begin to prepare, unless there is a reason to refuse."""
        old = [name for name, epoch in message.epochs.items() if self.epochs.is_old(name, epoch)]
        if message.plan in self._settled:
            return []
        if message.plan in self._given_up:
            return self._refuse(message, self._given_up[message.plan])
        if old:
            return self._refuse(message, f"{', '.join(old)}: another plan was committed since this one was made")
        if self._part is not None:
            return self._refuse(message, f"the plan {self.plan} is not settled here")
        self._part = _Part(message, "prepare", now + message.prepare, now + self.resend)
        return [Do(message.plan, "prepare", message.change)]

    def _hold(self, part: _Part, now: float) -> list[Action]:
        if part.state == "held":
            return self._to_home(Ready(part.proposal.plan, self.name, "hold"))
        if part.state != "prepared":
            return []
        part.state, part.deadline = "hold", now + part.proposal.hold
        return [Do(part.proposal.plan, "hold", part.proposal.change)]

    def _cut(self, part: _Part, message: Cut) -> list[Action]:
        if part.state == "voted":
            return self._to_home(Vote(message.plan, self.name, yes=True, handed=part.handed))
        if part.state != "held":
            return []
        part.state = "cut"
        return [Do(message.plan, "cut", part.proposal.change, message.handed)]

    def _did(self, part: _Part, report: Did, now: float) -> list[Action]:
        """Go on when the participant has done a step."""
        plan = part.proposal.plan
        if report.step in ("commit", "abort"):
            self._part = None
            return []
        if report.problem:
            return self._give_up(part, report.problem)
        part.state, part.ask_at = _AFTER[report.step], now + self.resend
        if report.step == "prepare" or report.step == "hold":
            return self._to_home(Ready(plan, self.name, report.step))
        part.handed = report.handed
        vote = Vote(plan, self.name, yes=True, handed=report.handed)
        return [Record(Prepared(part.proposal, report.handed)), *self._to_home(vote)]

    def _decided(self, part: _Part, settled: Settled) -> list[Action]:
        """Carry out a decision: record it, then let the participant do it. A commit without a yes cannot be."""
        if part.state != "voted":
            may_abort = not settled.commit and part.state not in ("commit", "abort")
            return self._abort(part, "the home has aborted the plan") if may_abort else []
        part.state = "commit" if settled.commit else "abort"
        self._settle(settled)
        return self._carry_out(part, settled)

    def _carry_out(self, part: _Part, settled: Settled) -> list[Action]:
        """Return the actions of a decision. The home forgets the plan once it is acknowledged, so that comes last."""
        part.unrecorded = None
        step: Literal["commit", "abort"] = "commit" if settled.commit else "abort"
        actions: list[Action] = [Record(settled), Do(settled.plan, step, part.proposal.change, part.handed)]
        return [*actions, *(self._to_home(Applied(settled.plan, self.name)) if settled.commit else ())]

    def _of_another(self, message: Message) -> list[Action]:
        """Answer a message of a plan that is not under way here, if the home waits for an answer."""
        settled = self._settled.get(message.plan)
        if isinstance(message, Decision) and message.commit:
            conflict = [Conflict(message.plan, resolved=False)] if settled is not None and not settled.commit else []
            return [*conflict, Send(message.sender, Applied(message.plan, self.name))]
        if isinstance(message, Decision) and settled is not None and settled.commit and settled.by_hand:
            return [Conflict(message.plan, resolved=True)]
        if isinstance(message, (Hold, Cut)) and settled is None:
            return self._refuse(message, self._given_up.get(message.plan, "it was restarted meanwhile"))
        return []

    def _answer(self, message: Ask) -> list[Action]:
        """Pass the outcome on to another member. Only the home's decisions: a member that gave up may yet vote yes."""
        settled = self._settled.get(message.plan)
        if settled is None or settled.by_hand:
            return []
        return [Send(message.sender, Decision(message.plan, self.name, commit=settled.commit))]

    def _not_recorded(self, part: _Part, message: NotRecorded, now: float) -> list[Action]:
        """A yes that is not in the journal was not sent, so give up; an outcome that is not is recorded later."""
        if part.state == "voted":
            return self._give_up(part, message.problem)
        part.unrecorded, part.ask_at = self._settled.get(message.plan), now + self.resend
        return []

    def _may_give_up(self, part: _Part) -> bool:
        return part.state in ("prepare", "prepared", "hold", "held", "cut")

    def _give_up(self, part: _Part, reason: str) -> list[Action]:
        """Abort alone, before the yes."""
        vote = Vote(part.proposal.plan, self.name, yes=False, reason=reason)
        return [*self._abort(part, reason), *self._to_home(vote)]

    def _abort(self, part: _Part, reason: str) -> list[Action]:
        part.state = "abort"
        _remember(self._given_up, part.proposal.plan, reason)
        return [Do(part.proposal.plan, "abort", part.proposal.change)]

    def _refuse(self, message: Propose | Hold | Cut, reason: str) -> list[Action]:
        return [Send(message.sender, Vote(message.plan, self.name, yes=False, reason=reason))]

    def _settle(self, settled: Settled) -> None:
        """Note an outcome; the new epochs hold from here on."""
        self.epochs.advance(settled.epochs)
        _remember(self._settled, settled.plan, settled)

    def _epochs(self, part: _Part, commit: bool) -> dict[str, int]:
        return advanced(part.proposal.epochs) if commit else {}

    def _to_home(self, message: Message) -> list[Action]:
        assert self._part is not None
        return [Send(self._part.proposal.sender, message)]


def _remember(known: dict[str, Any], plan: str, value: object) -> None:
    known[plan] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]

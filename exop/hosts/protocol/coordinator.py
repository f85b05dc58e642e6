"""The coordinator's part of a change with several participants: a state machine without I/O, clock and threads.

    prepare ──all ready──▶ hold ──all ready──▶ cut, wave by wave ──all ready──▶ commit ──all applied──▶ forgotten
       └──────────── a refusal, a failed write, or the deadline ──┴───────▶ aborted, forgotten at once

The record `Committed` is the only commit point. A plan without it is aborted, also after a crash of the coordinator. If
a participant asks about a plan that the coordinator does not know, the coordinator replies that the plan was aborted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from exop.hosts.protocol.messages import (
    Action,
    Ask,
    Committed,
    Decision,
    Ended,
    Finished,
    Fragment,
    JournalEntry,
    Message,
    NotRecorded,
    Proceed,
    Propose,
    Ready,
    Record,
    Refuse,
    Send,
    advanced,
)

Phase: TypeAlias = Literal["prepare", "hold", "cut", "commit"]


@dataclass
class _Progress:
    """A plan in progress, or committed and not yet applied by every member.

    Attributes:
        wave: The number of the wave up to which members are asked to cut.
        answered: The members that have answered in this phase.
        handed: The data that the members have handed over at their cuts.
    """

    plan: str
    members: tuple[str, ...]
    epochs: Mapping[str, int]
    fragments: Mapping[str, Fragment] = field(default_factory=dict)
    prepare: float = 0.0
    hold: float = 0.0
    phase: Phase = "prepare"
    deadline: float = math.inf
    resend_at: float = 0.0
    wave: int = 0
    answered: set[str] = field(default_factory=set)
    handed: dict[str, Any] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """Return the members that have not answered yet."""
        asked = [one for one in self.members if self.phase != "cut" or self.fragments[one].wave <= self.wave]
        return [one for one in asked if one not in self.answered]


class Coordinator:
    """Leads each plan to one decision, and repeats the decision until every member has it.

    The caller passes in every message, calls `timeout` at `due`, and carries out the returned actions in their order
    before the next call.

    Attributes:
        epochs: The fencing epoch of each node and channel, one higher with every plan that is committed over it.
        resend: Seconds after which an unanswered message is sent again.
    """

    def __init__(self, name: str, *, resend: float = 1.0) -> None:
        self.name = name
        self.epochs: Counter[str] = Counter()
        self.resend = resend
        self._plans: dict[str, _Progress] = {}

    @property
    def due(self) -> float | None:
        """The time of the next `timeout`; `None` if no plan is in progress."""
        return min((min(one.deadline, one.resend_at) for one in self._plans.values()), default=None)

    def begin(
        self, plan: str, fragments: Mapping[str, Fragment], now: float, *, prepare: float, hold: float
    ) -> list[Action]:
        """Begin a plan over the members that *fragments* names; *plan* is a new identifier, also across crashes.

        The streams run while the members prepare, for at most *prepare* seconds. Then the members stop them until the
        decision, for at most *hold* seconds.
        """
        epochs = {name: self.epochs[name] for one in fragments.values() for name in one.fences}
        for other, progress in self._plans.items():
            if shared := sorted(epochs.keys() & progress.epochs.keys()):
                problem = f"the last plan of {', '.join(shared)}, {other}, is not settled on all hosts yet"
                return [Ended(plan, commit=False, reasons={self.name: problem})]
        progress = self._plans[plan] = _Progress(plan, tuple(fragments), epochs, fragments, prepare, hold)
        progress.wave = min(one.wave for one in fragments.values())
        progress.deadline = now + prepare
        return self._request(progress, now)

    def receive(self, message: Message, now: float) -> list[Action]:
        """Process a message of a member, or a refusal of the caller. Late and duplicate answers change nothing."""
        actions, progress = self.timeout(now), self._plans.get(message.plan)
        match message:
            case Ask() if progress is None:
                actions.append(Send(message.sender, Decision(message.plan, self.name, commit=False)))
            case NotRecorded() if progress is not None:
                actions += self._abort(progress, {self.name: message.problem})
            case Refuse() | Ready() if progress is not None and message.sender not in (self.name, *progress.members):
                pass
            case Refuse() if progress is not None and progress.phase != "commit":
                actions += self._abort(progress, {message.sender: message.reason})
            case Ready() if progress is not None and message.step == progress.phase:
                progress.answered.add(message.sender)
                progress.handed[message.sender] = message.handed
                actions += self._advance(progress, now)
        return actions

    def timeout(self, now: float) -> list[Action]:
        """Abort the plans whose time is over, and repeat unanswered requests."""
        actions: list[Action] = []
        for progress in list(self._plans.values()):
            if now >= progress.deadline:
                late = tuple(progress.missing())
                limit = progress.prepare if progress.phase == "prepare" else progress.hold
                reason = f"no answer to {progress.phase} from {', '.join(late)} within {limit:g} s"
                actions += self._abort(progress, {self.name: reason}, late)
            elif now >= progress.resend_at:
                actions += self._request(progress, now)
        return actions

    def recover(self, journal: Iterable[JournalEntry], now: float) -> list[Action]:
        """Continue after a restart, before `receive`: announce the committed plans again; all others are aborted."""
        for entry in journal:
            if isinstance(entry, Committed):
                self._plans[entry.plan] = _Progress(entry.plan, entry.members, entry.epochs, phase="commit")
                self.epochs |= Counter(entry.epochs)
            elif isinstance(entry, Finished):
                self._plans.pop(entry.plan, None)
        return self.timeout(now)

    def _advance(self, progress: _Progress, now: float) -> list[Action]:
        """Go to the next wave or phase, or to the end of the plan, when all members have answered."""
        plan, later = progress.plan, [one.wave for one in progress.fragments.values() if one.wave > progress.wave]
        if progress.phase == "commit":
            self.epochs |= Counter(progress.epochs)  # not earlier: the decision may not be recordable
        if progress.missing():
            return []
        match progress.phase:
            case "prepare":
                progress.deadline = now + progress.hold
                return self._enter("hold", progress, now)
            case "hold":
                return self._enter("cut", progress, now)
            case "cut" if later:
                progress.wave = min(later)
                return self._request(progress, now)
            case "cut":
                progress.epochs, progress.deadline = advanced(progress.epochs), math.inf
                record = Record(Committed(plan, progress.members, progress.epochs))
                return [record, *self._enter("commit", progress, now), Ended(plan, commit=True)]
            case "commit":
                del self._plans[plan]
                return [Record(Finished(plan))]

    def _enter(self, phase: Phase, progress: _Progress, now: float) -> list[Action]:
        progress.phase, progress.answered, progress.handed = phase, set(), {}
        return self._request(progress, now)

    def _request(self, progress: _Progress, now: float) -> list[Action]:
        """Send the request of this phase to the members that have not answered yet."""
        progress.resend_at = now + self.resend
        return [Send(member, self._message(progress, member)) for member in progress.missing()]

    def _message(self, progress: _Progress, member: str) -> Message:
        plan, phase = progress.plan, progress.phase
        if phase == "commit":
            return Decision(plan, self.name, commit=True)
        if phase != "prepare":
            return Proceed(plan, self.name, phase, dict(progress.handed))
        fragment, peers = progress.fragments[member], tuple(one for one in progress.members if one != member)
        epochs = {name: progress.epochs[name] for name in fragment.fences}
        return Propose(plan, self.name, fragment.change, epochs, peers, progress.prepare, progress.hold)

    def _abort(self, progress: _Progress, reasons: Mapping[str, str], late: tuple[str, ...] = ()) -> list[Action]:
        """Abort, and tell the members once: a member that misses the message asks for the outcome."""
        del self._plans[progress.plan]
        decisions = [Send(member, Decision(progress.plan, self.name, commit=False)) for member in progress.members]
        return [*decisions, Ended(progress.plan, commit=False, reasons=reasons, late=late)]

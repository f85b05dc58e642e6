"""The home's side of a plan over several participants, as a state machine without I/O, clock or threads.

    prepare ──all ready──▶ hold ──all held──▶ cut, wave by wave ──all voted yes──▶ committed ──all applied──▶ forgotten
       └──────────── a no, a failed write, or the deadline ─┴───────────▶ aborted, forgotten at once

The record `Committed` is the only commit point. A plan without one is aborted, also after a crash of the home: whoever
asks about a plan that the home does not know hears that it is aborted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from exop.hosts.messages import (
    Action,
    Applied,
    Ask,
    Committed,
    Cut,
    Decision,
    Ended,
    Entry,
    Epochs,
    Finished,
    Fragment,
    Hold,
    Message,
    NotRecorded,
    Propose,
    Ready,
    Record,
    Send,
    Vote,
    advanced,
)

Phase: TypeAlias = Literal["prepare", "hold", "cut", "committed"]


@dataclass
class _Progress:
    """A plan that is under way, or committed and not yet applied by every member.

    Attributes:
        answered: The members that have answered in this phase.
        handed: What the members that voted yes have handed over.
    """

    members: tuple[str, ...]
    fragments: Mapping[str, Fragment] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    prepare: float = 0.0
    hold: float = 0.0
    phase: Phase = "prepare"
    deadline: float | None = None
    resend_at: float = 0.0
    wave: int = 0
    answered: set[str] = field(default_factory=set)
    handed: dict[str, Any] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """The members whose answer is awaited."""
        asked = self.members
        if self.phase == "cut":
            asked = tuple(name for name in asked if self.fragments[name].wave <= self.wave)
        return [name for name in asked if name not in self.answered]


class Coordinator:
    """Leads plans to one decision each, and sees that every member hears it.

    The driver gives it every message and calls `timeout` at `due`; it carries out the actions in their order before it
    calls again.

    Attributes:
        name: The name under which members answer.
        epochs: The epochs at which the next plan is made.
        resend: Seconds until a message without an answer is sent again.
    """

    def __init__(self, name: str, *, resend: float = 1.0) -> None:
        self.name = name
        self.epochs = Epochs()
        self.resend = resend
        self._plans: dict[str, _Progress] = {}

    @property
    def due(self) -> float | None:
        """When `timeout` has something to do; `None` while nothing is under way."""
        times = [time for one in self._plans.values() for time in (one.deadline, one.resend_at) if time is not None]
        return min(times, default=None)

    @property
    def unsettled(self) -> list[str]:
        """The plans that are under way, or committed and not yet applied by every member."""
        return list(self._plans)

    def begin(
        self, plan: str, fragments: Mapping[str, Fragment], now: float, *, prepare: float, hold: float
    ) -> list[Action]:
        """Begin a plan over the members that *fragments* name.

        Args:
            plan: Its name, never used before, not even by a home that has crashed since.
            fragments: The part of each member.
            now: The time, on the clock of this home.
            prepare: Seconds for all members to prepare; the streams run meanwhile.
            hold: Seconds from the first driver that is parked to the decision.
        """
        epochs = {name: self.epochs.of(name) for one in fragments.values() for name in one.fences}
        for other, progress in self._plans.items():
            if shared := sorted(epochs.keys() & progress.epochs.keys()):
                return [Ended(plan, commit=False, reasons={self.name: f"{other} has not settled {', '.join(shared)}"})]
        progress = self._plans[plan] = _Progress(tuple(fragments), fragments, epochs, prepare, hold)
        return self._enter(plan, progress, "prepare", now)

    def receive(self, message: Message, now: float) -> list[Action]:
        """Take a message of a member, or the report of the driver that a record could not be written."""
        actions = self.timeout(now)
        progress = self._plans.get(message.plan)
        if progress is None:
            if isinstance(message, (Ask, Ready)) or (isinstance(message, Vote) and message.yes):  # presumed abort
                actions.append(Send(message.sender, Decision(message.plan, self.name, commit=False)))
            return actions
        if isinstance(message, NotRecorded):
            return actions + self._abort(message.plan, {self.name: message.problem})
        return actions + self._answered(message, progress, now)

    def timeout(self, now: float) -> list[Action]:
        """Give up the plans whose time is over, and repeat the requests that are without an answer."""
        actions: list[Action] = []
        for plan, progress in list(self._plans.items()):
            if progress.deadline is not None and now >= progress.deadline:
                late = ", ".join(progress.missing())
                limit = progress.prepare if progress.phase == "prepare" else progress.hold
                reason = f"no answer to {progress.phase} from {late} within {limit:g} s"
                actions += self._abort(plan, {self.name: reason})
            elif now >= progress.resend_at:
                actions += self._request(plan, progress, progress.missing(), now)
        return actions

    def give_up(self, plan: str, reason: str) -> list[Action]:
        """Abort a plan for its caller; one that is committed, or over, stays what it is."""
        progress = self._plans.get(plan)
        if progress is None or progress.phase == "committed":
            return []
        return self._abort(plan, {self.name: reason})

    def recover(self, journal: Iterable[Entry], now: float) -> list[Action]:
        """Go on after a restart: tell the committed plans again; all others are aborted. Called before `receive`."""
        for entry in journal:
            if isinstance(entry, Committed):
                self._plans[entry.plan] = _Progress(entry.members, epochs=entry.epochs, phase="committed")
                self.epochs.advance(entry.epochs)
            elif isinstance(entry, Finished):
                self._plans.pop(entry.plan, None)
        return self.timeout(now)

    def _answered(self, message: Message, progress: _Progress, now: float) -> list[Action]:
        """Take an answer to what the plan is about now; what comes late or twice changes nothing."""
        match message:
            case Ask() if message.sender in progress.missing():
                return self._messages(message.plan, progress, [message.sender])
            case Vote(yes=False) if progress.phase != "committed":
                return self._abort(message.plan, {message.sender: message.reason})
            case Ready() if message.step == progress.phase:
                progress.answered.add(message.sender)
            case Vote(yes=True) if progress.phase == "cut":
                progress.answered.add(message.sender)
                progress.handed[message.sender] = message.handed
            case Applied() if progress.phase == "committed":
                self.epochs.advance(progress.epochs)  # not before: the record of the decision may fail
                progress.answered.add(message.sender)
            case _:
                return []
        return self._advance(message.plan, progress, now)

    def _advance(self, plan: str, progress: _Progress, now: float) -> list[Action]:
        if not self._complete(progress):
            return []
        if progress.phase == "prepare":
            return self._enter(plan, progress, "hold", now)
        if progress.phase == "hold":
            progress.wave = min(one.wave for one in progress.fragments.values())
            return self._enter(plan, progress, "cut", now)
        if progress.phase == "cut":
            later = [one.wave for one in progress.fragments.values() if one.wave > progress.wave]
            if later:
                progress.wave = min(later)
                return self._request(plan, progress, progress.missing(), now)
            return self._commit(plan, progress, now)
        del self._plans[plan]
        return [Record(Finished(plan))]

    def _complete(self, progress: _Progress) -> bool:
        return not progress.missing()

    def _enter(self, plan: str, progress: _Progress, phase: Phase, now: float) -> list[Action]:
        """Begin a phase. The time to hold covers the cut, too: its deadline stays."""
        progress.phase = phase
        progress.answered = set()
        if phase != "cut":
            limits = {"prepare": now + progress.prepare, "hold": now + progress.hold}
            progress.deadline = limits.get(phase)
        return self._request(plan, progress, progress.missing(), now)

    def _request(self, plan: str, progress: _Progress, members: Iterable[str], now: float) -> list[Action]:
        progress.resend_at = now + self.resend
        return self._messages(plan, progress, members)

    def _messages(self, plan: str, progress: _Progress, members: Iterable[str]) -> list[Action]:
        """Tell members what they have to do in this phase."""
        return [Send(member, self._message(plan, progress, member)) for member in members]

    def _message(self, plan: str, progress: _Progress, member: str) -> Message:
        if progress.phase == "prepare":
            fragment = progress.fragments[member]
            epochs = {name: progress.epochs[name] for name in fragment.fences}
            peers = tuple(name for name in progress.members if name != member)
            return Propose(plan, self.name, fragment.change, epochs, peers, progress.prepare, progress.hold)
        if progress.phase == "hold":
            return Hold(plan, self.name)
        if progress.phase == "cut":
            return Cut(plan, self.name, dict(progress.handed))
        return Decision(plan, self.name, commit=True)

    def _commit(self, plan: str, progress: _Progress, now: float) -> list[Action]:
        progress.epochs = advanced(progress.epochs)
        record = Record(Committed(plan, progress.members, progress.epochs))
        told = self._enter(plan, progress, "committed", now)
        return [record, *told, Ended(plan, commit=True)]

    def _abort(self, plan: str, reasons: Mapping[str, str]) -> list[Action]:
        """Abort: tell the members once. One that does not hear it asks, and hears it then."""
        progress = self._plans.pop(plan)
        told = [Send(member, Decision(plan, self.name, commit=False)) for member in progress.members]
        return [*told, Ended(plan, commit=False, reasons=reasons)]

"""The messages, actions and journal records of a plan over several participants.

All of them are small frozen values, ready to be encoded. A machine ignores a message that does not fit its state, or
answers it with the outcome of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: The steps of a participant, in the order of the protocol; `restore` re-establishes a cut after a restart.
Step: TypeAlias = Literal["prepare", "hold", "cut", "commit", "abort", "restore"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """One member's part of a plan.

    Attributes:
        change: The work of the participant; opaque to the protocol.
        fences: The nodes and channels of which the change moves the epoch.
        wave: Members are cut wave by wave: the sources of a move before its targets.
    """

    change: Any = None
    fences: tuple[str, ...] = ()
    wave: int = 0


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message between machines."""

    plan: str
    sender: str


# --- from the home to a member
@dataclass(frozen=True, slots=True)
class Propose(_Sent):
    """Prepare a change that was planned at these epochs; the time limits are in seconds."""

    change: Any
    epochs: Mapping[str, int]
    peers: tuple[str, ...]
    prepare: float
    hold: float


@dataclass(frozen=True, slots=True)
class Proceed(_Sent):
    """Do the next step before the vote; a cut carries what the members of earlier waves handed over."""

    step: Step
    handed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision(_Sent):
    """The outcome of a plan. A participant that knows it passes it on to one that asks."""

    commit: bool


# --- from a member to the home
@dataclass(frozen=True, slots=True)
class Ready(_Sent):
    """A step is done: `cut` is the yes of the vote, with what later waves get; `commit`: the outcome is recorded."""

    step: Step
    handed: Any = None


@dataclass(frozen=True, slots=True)
class Refuse(_Sent):
    """The no of the vote, at any step before the yes."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask(_Sent):
    """Asks for the outcome of a plan: sent to the home, and by a member in doubt to the other members."""


# --- from the driver of a machine to the machine
@dataclass(frozen=True, slots=True)
class Did:
    """The participant has finished a step; with the problem if it failed, else with what the step hands over."""

    plan: str
    step: Step
    handed: Any = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NotRecorded:
    """A record could not be written; the rest of the list of actions was not carried out."""

    plan: str
    problem: str


Message: TypeAlias = Propose | Proceed | Decision | Ready | Refuse | Ask | Did | NotRecorded


# --- journal records
@dataclass(frozen=True, slots=True)
class Committed:
    """Home: the plan is committed. This record is the only commit point; without it a plan is aborted."""

    plan: str
    members: tuple[str, ...]
    epochs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Finished:
    """Home: every member has applied the plan; it need not be remembered."""

    plan: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Member: it is about to vote yes, with all that it needs to carry out either decision after a restart."""

    proposal: Propose
    handed: Any = None


@dataclass(frozen=True, slots=True)
class Settled:
    """Member: the outcome of a plan that it had voted yes to, and who decided it; the epochs that hold if committed."""

    plan: str
    commit: bool
    epochs: Mapping[str, int]
    by_hand: bool = False


Entry: TypeAlias = Committed | Finished | Prepared | Settled


# --- actions, carried out in their order
@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; it may be lost, doubled or overtaken."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Record:
    """Append to the journal; durable before the next action. If that fails: `NotRecorded`, and no further action."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Do:
    """Let the participant do a step, behind the steps that it was given before; it reports `Did`."""

    plan: str
    step: Step
    change: Any = None
    handed: Any = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Home: report the outcome of the plan to its caller, with the reasons of those that refused."""

    plan: str
    commit: bool
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Member: report that the home has decided otherwise than a human did here."""

    plan: str
    resolved: bool


Action: TypeAlias = Send | Record | Do | Ended | Conflict


def advanced(epochs: Mapping[str, int]) -> dict[str, int]:
    """Return the epochs that hold once a plan made at *epochs* is committed."""
    return {name: epoch + 1 for name, epoch in epochs.items()}

"""The messages, actions and journal records of a plan over several participants.

All of them are small frozen values, ready to be encoded. Every message names its plan and its sender; a machine ignores
a message of a plan that it does not know, or answers it with the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

#: What a member asks of its participant, in the order of the protocol; `restore` re-establishes a cut after a restart.
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


# --- from the home to a member


@dataclass(frozen=True, slots=True)
class Propose:
    """Prepare a change. It was planned at these epochs; the time limits are in seconds."""

    plan: str
    sender: str
    change: Any
    epochs: Mapping[str, int]
    peers: tuple[str, ...]
    prepare: float
    hold: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Park what the change affects."""

    plan: str
    sender: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Put everything in its place, and vote. Carries what the members of earlier waves handed over."""

    plan: str
    sender: str
    handed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a plan. A participant that knows it passes it on to one that asks."""

    plan: str
    sender: str
    commit: bool


# --- from a member to the home


@dataclass(frozen=True, slots=True)
class Ready:
    """A step before the vote is done."""

    plan: str
    sender: str
    step: Literal["prepare", "hold"]


@dataclass(frozen=True, slots=True)
class Vote:
    """Yes, with what is handed over to later waves; or no, with the reason."""

    plan: str
    sender: str
    yes: bool
    reason: str = ""
    handed: Any = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks for the outcome of a plan: sent to the home, and by a member in doubt to the other members."""

    plan: str
    sender: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The member has recorded that the plan is committed."""

    plan: str
    sender: str


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


Message: TypeAlias = Propose | Hold | Cut | Decision | Ready | Vote | Ask | Applied | Did | NotRecorded


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
    """Home: tell the caller what has become of the plan, and the reasons of those that voted no."""

    plan: str
    commit: bool
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Member: the home has decided otherwise than a human did here; to be reported."""

    plan: str
    resolved: bool


Action: TypeAlias = Send | Record | Do | Ended | Conflict


class Epochs:
    """The fencing epoch of each node and channel: it grows by one with every plan that is committed over it."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The epoch that holds now."""
        return self._known.get(name, 0)

    def advance(self, epochs: Mapping[str, int]) -> None:
        """Let these hold from now on; an epoch never goes back."""
        for name, epoch in epochs.items():
            self._known[name] = max(epoch, self.of(name))

    def is_old(self, name: str, epoch: int) -> bool:
        """A plan was committed over *name* since: refuse the frame or proposal that carries *epoch*."""
        return epoch < self.of(name)

    def accepts(self, name: str, epoch: int) -> bool:
        """A frame of this epoch may pass: it is not old, nor of a plan whose decision has not arrived here."""
        return not self.is_old(name, epoch) and epoch == self.of(name)


def advanced(epochs: Mapping[str, int]) -> dict[str, int]:
    """Return the epochs that hold once a plan made at *epochs* is committed."""
    return {name: epoch + 1 for name, epoch in epochs.items()}

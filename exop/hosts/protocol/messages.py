"""The messages, actions and journal records of a plan over several participants.

All of them are small frozen values that can be encoded. A state machine ignores a message that does not fit its state,
or answers it with the outcome of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, dataclass_transform

#: The steps of a participant, in the order of the protocol; `restore` re-establishes a cut after a restart.
ParticipantStep: TypeAlias = Literal["prepare", "hold", "cut", "commit", "abort", "restore"]

Section: TypeAlias = Literal["nodes", "channels"]
#: Of a node or channel: how many conditional updates are left, and which of those that are gone were dropped.
Progress: TypeAlias = tuple[Section, str, int, list[bool]]
#: The pending conditional updates of a node or channel: where each is after a plan; -1 if the plan cancels it, `None`
#: if the successor of the slet does without it.
Pending: TypeAlias = tuple[Section, str, list[int | None]]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value:
    """The base of all messages, actions and records: frozen dataclasses, with the annotated fields."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Fragment(Value):
    """One member's part of a plan.

    Attributes:
        change: The work of the participant; opaque to the protocol.
        fences: The nodes and channels whose epochs the change advances.
        wave: Members are cut in waves: the sources of a move before its targets.
    """

    change: Any = None
    fences: tuple[str, ...] = ()
    wave: int = 0


class _Sent(Value):
    """A message between state machines."""

    plan: str
    sender: str


# --- from the home to a member
class Propose(_Sent):
    """Prepare a change that was planned at these epochs; the time limits are in seconds."""

    change: Any
    epochs: Mapping[str, int]
    peers: tuple[str, ...]
    prepare: float
    hold: float


class Proceed(_Sent):
    """Do the next step before the vote; a cut carries the data handed over by the members of earlier waves."""

    step: ParticipantStep
    handed: Mapping[str, Any] = field(default_factory=dict)


class Decision(_Sent):
    """The outcome of a plan. A participant that knows it passes it on to one that asks."""

    commit: bool


# --- from a member to the home
class Ready(_Sent):
    """A step is done: `cut` is the yes of the vote, with data for later waves; `commit`: the outcome is recorded."""

    step: ParticipantStep
    handed: Any = None


class Refuse(_Sent):
    """The no of the vote, at any step before the yes."""

    reason: str


class Ask(_Sent):
    """Asks for the outcome of a plan: sent to the home, and by a member in doubt to the other members."""


# --- between the home of an application and the other hosts, beside the plans
class Report(Value):
    """The state of a fragment, sent to the home when it changes, and from time to time.

    Attributes:
        plan: The last plan that was committed there.
        ended: Whether all its slets have ended, and all their items have been acknowledged.
        problem: The facts of the `ComponentFailed` because of which it does not end.
        stored: Whether no checkpoint has failed after the end of all its slets; `None` before it.
        gone: The host does not run the application (any more).
        finished: The host knows that all fragments have ended.
        paused: The seconds for which that plan has paused the drivers there.
        overruled: An operator had decided otherwise there than the home: the fragment does not fit the whole mesh.
        updates: How far the conditional updates have come that were pending after that plan.
    """

    sender: str
    plan: str = ""
    ended: bool = False
    problem: Mapping[str, str] = field(default_factory=dict)
    stored: bool | None = None
    gone: bool = False
    finished: bool = False
    paused: float = 0.0
    overruled: bool = False
    updates: tuple[Progress, ...] = ()


class Finish(Value):
    """All fragments have ended: the application has finished."""

    sender: str


class Remove(Value):
    """The application is removed, within the time-out in seconds."""

    sender: str
    timeout: float


class Restart(Value):
    """The content of a host's state directory after the plan, for a start after its vote if the plan is committed.

    Attributes:
        known: What the host knows of the application after the plan.
        topology: The fragment after the plan as a topology file; `None` if it stays as it is.
        began: Whether the host had no fragment before the plan.
        checkpoint: The parts of the checkpoint of the cut that differ from the last checkpoint, if one was taken.
    """

    known: dict[str, Any]
    topology: str | None = None
    began: bool = False
    checkpoint: dict[str, Any] | None = None


# --- from the caller of a state machine
class Did(Value):
    """The participant has finished a step: with a problem if it failed, else with the data that it hands over.

    In an application with a state directory, a cut also reports what a *restart* begins with.
    """

    plan: str
    step: ParticipantStep
    handed: Any = None
    problem: str = ""
    restart: Restart | None = None


class NotRecorded(Value):
    """A record could not be written; the actions after it were not carried out."""

    plan: str
    problem: str


#: The messages that a state machine gets from those of other hosts.
PeerMessage: TypeAlias = Propose | Proceed | Decision | Ready | Refuse | Ask
Message: TypeAlias = PeerMessage | Did | NotRecorded
#: The messages beside the plans.
Notice: TypeAlias = Report | Finish | Remove


# --- journal records
class Committed(Value):
    """Home: the plan is committed. This record is the only commit point; without it a plan is aborted."""

    plan: str
    members: tuple[str, ...]
    epochs: Mapping[str, int]


class Finished(Value):
    """Home: every member has applied the plan, which can be forgotten."""

    plan: str


class Prepared(Value):
    """Member: it is about to vote yes; with all data to carry out either decision after a restart."""

    proposal: Propose
    handed: Any = None
    restart: Restart | None = None


class Settled(Value):
    """Member: the outcome of a plan after the yes, whether an operator decided it, and the epochs after a commit."""

    plan: str
    commit: bool
    epochs: Mapping[str, int]
    by_hand: bool = False


JournalEntry: TypeAlias = Committed | Finished | Prepared | Settled


# --- actions, carried out in their order
class Send(Value):
    """Send a message, which may be lost, doubled or overtaken."""

    to: str
    message: Message


class Record(Value):
    """Append to the journal, durably before the next action. If that fails: `NotRecorded`, and no further action."""

    entry: JournalEntry


class Do(Value):
    """Let the participant do a step after the steps given before; it reports `Did`."""

    plan: str
    step: ParticipantStep
    change: Any = None
    handed: Any = None
    restart: Restart | None = None


class Ended(Value):
    """Home: report the outcome of the plan to its caller; with the reasons not to commit it, and who was too late."""

    plan: str
    commit: bool
    reasons: Mapping[str, str] = field(default_factory=dict)
    late: tuple[str, ...] = ()


class Conflict(Value):
    """Member: report that the decision of the home differs from that of an operator here."""

    plan: str
    resolved: bool


Action: TypeAlias = Send | Record | Do | Ended | Conflict


def advanced(epochs: Mapping[str, int]) -> dict[str, int]:
    """Return the epochs after the commit of a plan made at *epochs*."""
    return {name: epoch + 1 for name, epoch in epochs.items()}

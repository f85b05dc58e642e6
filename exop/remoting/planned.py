"""A plan as it crosses a border: what will happen, as data, and the number under which it waits on its platform."""

from __future__ import annotations

import secrets
import threading
from typing import Any, Generic, TypeVar

import msgspec

from exop.errors import PlanError
from exop.remoting.offered import PlanLike

T = TypeVar("T")
#: So many plans wait at a time; the oldest makes room.
MOST_PLANS = 32


class PlannedSetting(msgspec.Struct, frozen=True):
    """A setting that changes: its values as texts, `None` where a slet does not have it, and why (`SettingChange`)."""

    name: str
    before: str | None
    after: str | None
    why: str


class PlannedStep(msgspec.Struct, frozen=True):
    """A step of a plan: the verb, what the node becomes, what is done, how its state and settings change."""

    verb: str
    node: str
    text: str
    does: str
    state: str | None = None
    settings: list[PlannedSetting] = []
    hand_over_s: float | None = None
    """Seconds that the hand-over of the state took on a copy, if user code makes it."""
    fields: list[str] = []
    """The fields of ports and of the memento that change."""


class Planned(msgspec.Struct, frozen=True):
    """A plan as data; `anything` tells whether there is anything to do, `text` is what `print` shows."""

    plan: str
    application: str
    revision: int
    anything: bool
    steps: list[PlannedStep]
    channels_added: list[str]
    channels_removed: list[str]
    notes: list[str]
    text: str
    proven: bool = False
    """It is proven before it is made, which takes its time."""


class Changed(msgspec.Struct, frozen=True):
    """A change that was made: the revision that runs, and for how long the stream stood still."""

    application: str
    revision: int
    paused_ms: float | None = None


class CarriedOut(msgspec.Struct, frozen=True):
    """A change that is being made under a number, and what came of it when it is made."""

    number: str
    changed: Changed | None = None


def as_data(number: str, plan: PlanLike) -> Planned:
    """Return the part of a plan that is sent to the client."""
    notes = list(plan.notes)  # for which the hand-over of states is tried
    steps = [
        PlannedStep(
            one.verb,
            one.node,
            one.text,
            one.does,
            one.state.text if one.state else None,
            [
                PlannedSetting(
                    change.name,
                    None if change.new else repr(change.before),
                    None if change.why == "dropped" else repr(change.after),
                    change.why,
                )
                for change in one.settings
            ],
            plan.took.get(one.node),
            list(one.fields),
        )
        for one in plan.steps
    ]
    return Planned(
        plan=number,
        application=plan.after.name,
        revision=plan.before.revision,
        anything=bool(plan),
        steps=steps,
        channels_added=[f"{one.name} ({one.kind})" for one in plan.changes.channels_added],
        channels_removed=[one.name for one in plan.changes.channels_removed],
        notes=notes,
        text=str(plan),
        proven=plan.shadow is not None,
    )


def plain(planned: Planned) -> dict[str, Any]:
    """A plan as JSON has it."""
    found: dict[str, Any] = msgspec.to_builtins(planned)
    return found


class Shelf(Generic[T]):
    """Things that wait to be asked for by their number; bounded, the oldest makes room."""

    def __init__(self, what: str, most: int = MOST_PLANS) -> None:
        self._what = what
        self._most = most
        self._held: dict[str, T] = {}
        self._lock = threading.Lock()

    def put(self, one: T) -> str:
        """Keep it, and return its number."""
        number = secrets.token_hex(8)
        with self._lock:
            self._held[number] = one
            while len(self._held) > self._most:
                del self._held[next(iter(self._held))]
        return number

    def __contains__(self, number: str) -> bool:
        with self._lock:
            return number in self._held

    def take(self, number: str) -> T:
        """Give it out, once.

        Raises:
            PlanError: there is none of this number (any more).
        """
        with self._lock:
            if number not in self._held:
                raise PlanError(f"the platform has no {self._what} {number!r} (any more); make it again")
            return self._held.pop(number)

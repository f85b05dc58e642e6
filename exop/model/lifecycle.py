"""The life cycle of a component as a sans-I/O state machine: events in, a state and instructions out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from exop.errors import LifecycleError


class State(StrEnum):
    """Where a component is in its life (paper §2.4)."""

    CREATED = "created"
    OPENING = "opening"
    READY = "ready"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    FAILED = "failed"
    ENDED = "ended"
    STOPPED = "stopped"
    DESTROYED = "destroyed"


class Event(StrEnum):
    """What can happen to a component."""

    OPEN = "open"
    OPENED = "opened"
    START = "start"
    SUSPEND = "suspend"
    RESUME = "resume"
    FAIL = "fail"
    END = "end"
    STOP = "stop"
    DESTROY = "destroy"


class Instruction(StrEnum):
    """What the runtime must do after an event."""

    ENTER = "enter"
    LET_ITEMS_IN = "let items in"
    HOLD_ITEMS = "hold items"
    EXIT = "exit"
    FORGET = "forget"


_S, _E, _I = State, Event, Instruction

TRANSITIONS: dict[tuple[State, Event], tuple[State, tuple[Instruction, ...]]] = {
    (_S.CREATED, _E.OPEN): (_S.OPENING, (_I.ENTER,)),
    (_S.OPENING, _E.OPENED): (_S.READY, ()),
    (_S.OPENING, _E.FAIL): (_S.STOPPED, ()),  # it never was open: there is nothing to close, and nothing to resume
    (_S.READY, _E.START): (_S.ACTIVE, (_I.LET_ITEMS_IN,)),
    (_S.READY, _E.SUSPEND): (_S.SUSPENDED, (_I.HOLD_ITEMS,)),
    (_S.READY, _E.STOP): (_S.STOPPED, (_I.EXIT,)),
    (_S.READY, _E.FAIL): (_S.FAILED, (_I.HOLD_ITEMS,)),
    (_S.ACTIVE, _E.SUSPEND): (_S.SUSPENDED, (_I.HOLD_ITEMS,)),
    (_S.ACTIVE, _E.FAIL): (_S.FAILED, (_I.HOLD_ITEMS,)),
    (_S.ACTIVE, _E.END): (_S.ENDED, ()),
    (_S.ACTIVE, _E.STOP): (_S.STOPPED, (_I.EXIT,)),
    (_S.SUSPENDED, _E.RESUME): (_S.ACTIVE, (_I.LET_ITEMS_IN,)),
    (_S.SUSPENDED, _E.FAIL): (_S.FAILED, ()),  # an engine goes on working behind a suspended component
    (_S.SUSPENDED, _E.END): (_S.ENDED, ()),
    (_S.SUSPENDED, _E.STOP): (_S.STOPPED, (_I.EXIT,)),
    (_S.FAILED, _E.RESUME): (_S.ACTIVE, (_I.LET_ITEMS_IN,)),
    (_S.FAILED, _E.FAIL): (_S.FAILED, ()),
    (_S.FAILED, _E.STOP): (_S.STOPPED, (_I.EXIT,)),
    (_S.ENDED, _E.STOP): (_S.STOPPED, (_I.EXIT,)),
    (_S.ENDED, _E.FAIL): (_S.FAILED, ()),
    (_S.CREATED, _E.DESTROY): (_S.DESTROYED, (_I.FORGET,)),
    (_S.STOPPED, _E.DESTROY): (_S.DESTROYED, (_I.FORGET,)),
}


@dataclass(frozen=True)
class Lifecycle:
    """The state of one component; `on(event)` gives the next one and what is to be done."""

    component: str
    state: State = State.CREATED

    def allowed(self) -> list[Event]:
        """The events that the state allows now."""
        return [event for event in Event if (self.state, event) in TRANSITIONS]

    def on(self, event: Event) -> tuple[Lifecycle, tuple[Instruction, ...]]:
        """The life cycle after *event*, and the instructions that go with it.

        Raises:
            LifecycleError: the state does not allow the event.
        """
        found = TRANSITIONS.get((self.state, event))
        if found is None:
            allowed = ", ".join(self.allowed()) or "nothing"
            raise LifecycleError(component=self.component, state=str(self.state), event=str(event), allowed=allowed)
        state, instructions = found
        return Lifecycle(self.component, state), instructions

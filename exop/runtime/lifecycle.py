"""The life cycle of a component: its states, and the state after each event."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from exop.errors import LifecycleError


class State(StrEnum):
    """The state of a component in its life cycle (paper §2.4)."""

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
    """An event in the life cycle of a component."""

    OPEN = "open"
    OPENED = "opened"
    START = "start"
    SUSPEND = "suspend"
    RESUME = "resume"
    FAIL = "fail"
    END = "end"
    STOP = "stop"
    DESTROY = "destroy"


_S, _E = State, Event

#: The state after an event; a pair that is missing is not allowed.
TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (_S.CREATED, _E.OPEN): _S.OPENING,
    (_S.OPENING, _E.OPENED): _S.READY,
    (_S.OPENING, _E.FAIL): _S.STOPPED,  # it never was open: there is nothing to close, and nothing to resume
    (_S.READY, _E.START): _S.ACTIVE,
    (_S.READY, _E.SUSPEND): _S.SUSPENDED,
    (_S.READY, _E.STOP): _S.STOPPED,
    (_S.READY, _E.FAIL): _S.FAILED,
    (_S.ACTIVE, _E.SUSPEND): _S.SUSPENDED,
    (_S.ACTIVE, _E.FAIL): _S.FAILED,
    (_S.ACTIVE, _E.END): _S.ENDED,
    (_S.ACTIVE, _E.STOP): _S.STOPPED,
    (_S.SUSPENDED, _E.RESUME): _S.ACTIVE,
    (_S.SUSPENDED, _E.FAIL): _S.FAILED,  # an engine goes on working behind a suspended component
    (_S.SUSPENDED, _E.END): _S.ENDED,
    (_S.SUSPENDED, _E.STOP): _S.STOPPED,
    (_S.FAILED, _E.RESUME): _S.ACTIVE,
    (_S.FAILED, _E.FAIL): _S.FAILED,
    (_S.FAILED, _E.STOP): _S.STOPPED,
    (_S.ENDED, _E.STOP): _S.STOPPED,
    (_S.ENDED, _E.FAIL): _S.FAILED,
    (_S.CREATED, _E.DESTROY): _S.DESTROYED,
    (_S.STOPPED, _E.DESTROY): _S.DESTROYED,
}


def refused(component: str, state: State, event: Event) -> LifecycleError:
    """Return the error for an event that the state of a component does not allow."""
    allowed = ", ".join(other for other in Event if (state, other) in TRANSITIONS) or "nothing"
    return LifecycleError(component=component, state=str(state), event=str(event), allowed=allowed)

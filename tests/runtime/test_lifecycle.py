"""The life cycle: every state is reached and has a way to the end, and what is not in the table is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.runtime.lifecycle import TRANSITIONS, Event, State, refused


def walk(*path: Event) -> State:
    """The state after some events."""
    state = State.CREATED
    for event in path:
        state = TRANSITIONS[state, event]
    return state


def allowed(state: State) -> set[Event]:
    """The events that a state allows."""
    return {event for event in Event if (state, event) in TRANSITIONS}


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_a_slet_works_only_between_its_opening_and_its_stop(happened):
    """Whatever happens: it is open before it is active, and nothing but its destruction follows the stop."""
    states = [State.CREATED]
    for event in happened:
        states.append(TRANSITIONS.get((states[-1], event), states[-1]))
    for before, after in pairwise(states):
        if after is State.ACTIVE:
            assert before in (State.READY, State.SUSPENDED, State.FAILED, State.ACTIVE)
        if before is State.STOPPED:
            assert after in (State.STOPPED, State.DESTROYED)
        if before is State.DESTROYED:
            assert after is State.DESTROYED
    assert (State.READY in states) >= (State.ACTIVE in states)


@pytest.mark.parametrize("state", State)
def test_every_state_is_reached_and_leads_to_the_end(state):
    """No state is unreachable, and from each there is a way to `destroyed`."""
    assert state in reachable(State.CREATED)
    assert State.DESTROYED in reachable(state)


def reachable(start: State) -> set[State]:
    """The states that can follow *start*, itself included."""
    found, todo = {start}, [start]
    while todo:
        here = todo.pop()
        for (state, _), following in TRANSITIONS.items():
            if state is here and following not in found:
                found.add(following)
                todo.append(following)
    return found


def test_the_usual_life():
    """Created, opened, started, suspended, resumed, ended, stopped, destroyed."""
    end = walk(Event.OPEN, Event.OPENED, Event.START, Event.SUSPEND, Event.RESUME, Event.END, Event.STOP, Event.DESTROY)
    assert end is State.DESTROYED
    assert not allowed(end)


def test_a_slet_that_could_not_be_opened_cannot_be_resumed():
    """It never was open: it is stopped, with nothing to close, and only to be destroyed."""
    assert allowed(walk(Event.OPEN, Event.FAIL)) == {Event.DESTROY}


def test_a_failed_slet_is_resumed_or_stopped():
    """Failed while it ran, it waits for somebody: resumed it is active again."""
    failed = walk(Event.OPEN, Event.OPENED, Event.START, Event.FAIL)
    assert allowed(failed) == {Event.RESUME, Event.FAIL, Event.STOP}
    assert TRANSITIONS[failed, Event.RESUME] is State.ACTIVE


def test_an_engine_may_end_or_fail_while_it_is_suspended():
    """Suspending holds items back from a slet; an engine that has some goes on working."""
    suspended = walk(Event.OPEN, Event.OPENED, Event.START, Event.SUSPEND)
    assert TRANSITIONS[suspended, Event.END] is State.ENDED
    assert TRANSITIONS[suspended, Event.FAIL] is State.FAILED


def test_the_error_says_what_is_possible():
    """The message names component, state, event and the allowed events."""
    error = refused("numbers.average", State.CREATED, Event.START)
    assert str(error) == "numbers.average is created: it cannot start; possible now: open, destroy"
    assert refused("n.a", State.DESTROYED, Event.START).facts["allowed"] == "nothing"

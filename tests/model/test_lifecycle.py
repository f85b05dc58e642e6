"""The life cycle: only what the table allows happens, and every state has a way to the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.errors import LifecycleError
from exop.model.lifecycle import TRANSITIONS, Event, Instruction, Lifecycle, State

events = st.lists(st.sampled_from(Event), max_size=30)


def walk(*path: Event) -> Lifecycle:
    """The life cycle after some events."""
    cycle = Lifecycle("numbers.average")
    for event in path:
        cycle, _ = cycle.on(event)
    return cycle


@given(events)
def test_only_allowed_events_change_anything(happened):
    """Whatever happens in whatever order, an event is allowed and leads on, or is refused."""
    cycle = Lifecycle("numbers.average")
    for event in happened:
        before = cycle
        if event in before.allowed():
            cycle, instructions = before.on(event)
            assert (cycle.state, instructions) == TRANSITIONS[before.state, event]
            assert cycle.component == before.component
        else:
            with pytest.raises(LifecycleError):
                before.on(event)


@given(events)
def test_items_are_let_in_only_while_active(happened):
    """Following the instructions, items enter exactly in `active`: the runtime needs to look at nothing else."""
    cycle, inside, entered, left = Lifecycle("n.a"), False, 0, 0
    for event in happened:
        if event not in cycle.allowed():
            continue
        cycle, instructions = cycle.on(event)
        for instruction in instructions:
            entered += instruction is Instruction.ENTER
            left += instruction is Instruction.EXIT
            inside = (inside or instruction is Instruction.LET_ITEMS_IN) and instruction not in (
                Instruction.HOLD_ITEMS,
                Instruction.EXIT,
            )
        if cycle.state is State.ACTIVE:
            assert inside
        if cycle.state in (State.SUSPENDED, State.FAILED, State.READY, State.STOPPED):
            assert not inside or Event.END in happened  # what has ended lets nothing in: nothing comes
        assert left <= entered <= 1


@given(events)
def test_a_slet_is_closed_once_if_it_was_opened(happened):
    """A component that was ready is closed exactly once before it is destroyed; one that never was, never."""
    cycle, was_ready, exits = Lifecycle("n.a"), False, 0
    for event in happened:
        if event in cycle.allowed():
            cycle, instructions = cycle.on(event)
            was_ready = was_ready or cycle.state is State.READY
            exits += instructions.count(Instruction.EXIT)
    if cycle.state is State.DESTROYED:
        assert exits == was_ready


@pytest.mark.parametrize("state", State)
def test_the_machine_is_total(state):
    """Every pair of state and event has an answer: a transition, or an error that names what is possible."""
    for event in Event:
        cycle = Lifecycle("n.a", state)
        if event in cycle.allowed():
            assert isinstance(cycle.on(event)[0].state, State)
        else:
            with pytest.raises(LifecycleError) as caught:
                cycle.on(event)
            assert caught.value.facts == {
                "component": "n.a",
                "state": str(state),
                "event": str(event),
                "allowed": ", ".join(cycle.allowed()) or "nothing",
            }


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
        for (state, _), (following, _) in TRANSITIONS.items():
            if state is here and following not in found:
                found.add(following)
                todo.append(following)
    return found


def test_the_usual_life():
    """Created, opened, started, suspended, resumed, ended, stopped, destroyed."""
    end = walk(Event.OPEN, Event.OPENED, Event.START, Event.SUSPEND, Event.RESUME, Event.END, Event.STOP, Event.DESTROY)
    assert end.state is State.DESTROYED
    assert end.allowed() == []


def test_a_slet_that_could_not_be_opened_cannot_be_resumed():
    """It never was open: it is stopped, with nothing to close, and only to be destroyed."""
    assert walk(Event.OPEN, Event.FAIL).allowed() == [Event.DESTROY]


def test_a_failed_slet_is_resumed_or_stopped():
    """Failed while it ran, it waits for somebody: resumed it is active again."""
    failed = walk(Event.OPEN, Event.OPENED, Event.START, Event.FAIL)
    assert set(failed.allowed()) == {Event.RESUME, Event.FAIL, Event.STOP}
    assert failed.on(Event.RESUME)[0].state is State.ACTIVE


def test_an_engine_may_end_or_fail_while_it_is_suspended():
    """Suspending holds items back from a slet; an engine that has some goes on working."""
    suspended = walk(Event.OPEN, Event.OPENED, Event.START, Event.SUSPEND)
    assert suspended.on(Event.END)[0].state is State.ENDED
    assert suspended.on(Event.FAIL)[0].state is State.FAILED


def test_the_error_says_what_is_possible():
    """The message names component, state, event and the allowed events."""
    with pytest.raises(LifecycleError) as caught:
        walk(Event.START)
    assert str(caught.value) == "numbers.average is created: it cannot start; possible now: open, destroy"

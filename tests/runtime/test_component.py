"""Binding a slet function to its state and settings."""

import functools

import pytest

from exop import Memento, OutputPort, Slet, slet
from exop.model.meshes.mesh import Node
from exop.model.slets.slet import spec_of
from exop.runtime.component import Component
from exop.runtime.durable.snapshot import capture_node, restore_node
from exop.runtime.lifecycle import State
from exop.runtime.slet_code import atomic, bind_function


class Sum(Memento):
    """A state."""

    total: int = 0


@slet
def state_last(item: int, state: Sum, *, factor: int = 2) -> int:
    """The state stands last."""
    state.total += item * factor
    return state.total


@slet
def state_keyword(item: int, *, state: Sum, factor: int = 2) -> int:
    """The state is a keyword."""
    state.total += item * factor
    return state.total


@pytest.mark.parametrize("slet_function", [state_last, state_keyword])
def test_a_bound_slet_is_called_with_the_item_alone(slet_function):
    """A bound slet is called with the item alone, whether its memento is positional or a keyword."""
    state = Sum()
    bound = bind_function(slet_function.__slet__, state, {"factor": 10})
    assert bound(3) == 30
    assert bound(1) == 40
    assert state.total == 40


def test_instances_share_nothing():
    """Two bindings of one function have their own state and settings; the function itself stays as it was."""
    one, other = Sum(), Sum()
    first = bind_function(state_last.__slet__, one, {"factor": 1})
    second = bind_function(state_last.__slet__, other, {"factor": 100})
    assert (first(1), second(1), first(1)) == (1, 100, 2)
    assert state_last.__kwdefaults__ == {"factor": 2}
    assert state_last.__defaults__ is None


def test_settings_that_are_not_given_keep_their_defaults():
    """A node that was built by hand with some settings only works as well."""
    assert bind_function(state_last.__slet__, Sum(), {})(3) == 6


def test_a_function_without_state_and_settings_is_called_as_it_is():
    """Nothing to bind, nothing in between."""

    @slet
    def plain(item: int) -> int:
        return item

    assert bind_function(plain.__slet__, None, {}) is plain


def test_a_closure_keeps_what_it_has_closed_over():
    """The twin of a closure sees the same variables."""
    seen = []

    @slet
    def note(item: int, *, times: int = 1) -> None:
        seen.extend([item] * times)

    bind_function(note.__slet__, None, {"times": 3})(7)
    assert seen == [7, 7, 7]


def test_a_wrapped_function_is_called_through_its_wrapper():
    """A decorator below @slet stays in force."""

    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return 2 * function(*args, **kwargs)

        return wrapper

    @slet
    @twice
    def half(item: int, *, by: int = 2) -> int:
        return item // by

    assert bind_function(half.__slet__, None, {"by": 5})(50) == 20


def test_a_twin_is_named_as_its_function():
    """Tracebacks and logs show the name that the author gave."""
    twin = bind_function(state_last.__slet__, Sum(), {"factor": 1})
    assert (twin.__name__, twin.__qualname__) == ("state_last", "state_last")


@pytest.mark.parametrize("lazy", [False, True])
def test_an_atomic_call_that_fails_leaves_the_memento_as_it_was(lazy):
    """The state of before the item comes back, in the same object; a call that succeeds keeps what it did."""
    state = Sum()

    def call(item):
        state.total += item
        if item < 0:
            raise ValueError(item)
        return [item]

    def call_lazily(item):
        yield from call(item)

    careful = atomic(call_lazily if lazy else call, state, lazy=lazy)
    assert careful(5) == [5]
    with pytest.raises(ValueError, match="-1"):
        careful(-1)
    assert state.total == 5


class Engine(Slet, own_driver=True):
    """An engine with two outputs."""

    one: OutputPort[int]
    other: OutputPort[int]


@pytest.mark.parametrize("restored", [False, True])
def test_an_engine_whose_predecessor_has_ended_one_output_ends_with_the_other(restored):
    """It goes on where that one was: replaced, or restored from a checkpoint."""
    before, after = (Component(f"app.{name}", "app", Node("e", spec_of(Engine)), lambda _: None) for name in "ab")
    before._port_ended("one")
    if restored:
        restore_node(after, capture_node(before, {}))
    else:
        after.succeed(before, None)
    after.status = State.ACTIVE
    after._port_ended("other")
    assert after.status is State.ENDED

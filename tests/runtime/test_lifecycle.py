"""The life cycle of a component: its states, and the hooks of its slet with their times and figures."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Platform, status
from exop.errors import ComponentFailed
from exop.model.meshes.mesh import Node
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.remoting.transport.codec import encode_message
from exop.runtime.component import Component
from exop.runtime.lifecycle import TRANSITIONS, Event, State, opens, refused
from exop.runtime.supervision.budget import UserCalls
from tests.change.tools import chain, changed, end, endless, grows, plain, whole, writing
from tests.rig import PATIENCE, Takes, collector, eventually, line, threads_leave


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


_ACTIVE = (Event.OPEN, Event.OPENED, Event.START)


@pytest.mark.parametrize(
    ("events", "state", "then"),
    [
        ((*_ACTIVE, Event.SUSPEND, Event.RESUME, Event.END, Event.STOP, Event.DESTROY), State.DESTROYED, set()),
        ((Event.OPEN, Event.FAIL), State.STOPPED, {Event.DESTROY}),  # it never was open: there is nothing to resume
        ((*_ACTIVE, Event.FAIL), State.FAILED, {Event.RESUME, Event.FAIL, Event.STOP}),
        ((*_ACTIVE, Event.FAIL, Event.RESUME), State.ACTIVE, {Event.SUSPEND, Event.FAIL, Event.END, Event.STOP}),
        # An engine continues with the items that it has while it is suspended.
        ((*_ACTIVE, Event.SUSPEND), State.SUSPENDED, {Event.RESUME, Event.FAIL, Event.END, Event.STOP}),
    ],
)
def test_events_lead_to_a_state_and_allow_others(events, state, then):
    """The usual life, an opening that fails, a failure that is resumed, a suspended engine."""
    found = State.CREATED
    for event in events:
        found = TRANSITIONS[found, event]
    assert (found, {event for event in Event if (found, event) in TRANSITIONS}) == (state, then)


def test_the_error_says_what_is_possible():
    """The message names component, state, event and the allowed events."""
    error = refused("numbers.average", State.CREATED, Event.START)
    assert str(error) == "numbers.average is created: it cannot start; possible now: open, destroy"
    assert refused("n.a", State.DESTROYED, Event.START).facts["allowed"] == "nothing"


class Opens(Takes):
    """Has something to open."""

    def __enter__(self) -> Self:
        return self


def test_only_a_class_with_an_opening_of_its_own_opens():
    """Functions, and classes without `__enter__`, have nothing to open."""
    assert [opens(spec_of(one)) for one in (Opens, Takes, collector([]))] == [True, False, False]


def test_the_last_opening_of_a_slet_is_remembered():
    """How long it took, and how much of that was computing; an opening that fails is none."""

    class Broken(Takes):
        """Does not open."""

        def __enter__(self) -> Self:
            raise ValueError("no")

    calls = UserCalls()
    Component("one", "app", Node("node", spec_of(Takes)), print, user=calls).enter()
    (found,) = calls.opened.values()
    assert found.seconds >= found.computing == 0.0
    component = Component("two", "app", Node("node", spec_of(Broken)), print, user=calls)
    with pytest.raises(ComponentFailed, match="no") as failed:
        component.enter()
    assert (failed.value.node, type(failed.value.__cause__)) == ("node", ValueError)
    assert [*calls.opened.values()] == [found]


def test_deploying_and_changing_remember_what_they_open(tmp_path: Path):
    """Every way in which a platform opens a slet counts."""
    app = line(
        "opening", numbers=("stock:count_up", {"to": 3}), write=("stock:write_lines", {"path": tmp_path / "lines"})
    )
    with Platform() as platform:
        platform.apply(app.build())
        written = platform.slets()["stock:write_lines"]
        assert platform.components.user.opened[written.identity].seconds > 0
        platform.wait("opening")


def bad_at_the_end(error: BaseException, before: Callable[[], object] = lambda: None) -> type[Slet]:
    """A slet that raises *error* when it is closed."""

    class Bad(Slet):
        def __exit__(self, *exc: object) -> None:
            before()
            raise error

        @input_port
        def x(self, x: int) -> int:
            return x

    return Bad


class Unflushed(Slet):
    """One that cannot hand on what it has buffered."""

    def flush(self) -> None:
        """Fail."""
        raise OSError("the disk is full")

    @input_port
    def x(self, x: int) -> int:
        """Pass on."""
        return x


@pytest.mark.parametrize("error", [SystemExit("bye"), GeneratorExit(), ValueError("no")], ids=repr)
def test_everything_is_closed_whatever_one_raises(error):
    """`remove` and `close` come to their end: nothing of the application is left, and nothing of the others runs on."""
    with threads_leave():
        platform = Platform().start()
        seen: list[int] = []
        for name in ("one", "two"):
            platform.apply(chain(name, endless, bad_at_the_end(error), writing(seen)).build())
        platform.apply(chain("three", endless, plain, writing(seen)).build())
        assert platform.remove("one") is True
        assert platform.applications() == ["three", "two"]
        platform.close()
        assert platform.applications() == []


def test_an_interrupt_of_the_main_thread_is_raised_when_all_is_closed():
    """It may be the user's: it is not swallowed, and nothing is left behind either."""
    with threads_leave():
        platform = Platform().start()
        seen: list[int] = []
        met = threading.Event()

        def interrupt() -> None:
            _thread.interrupt_main()
            met.wait(PATIENCE)

        platform.apply(chain("one", endless, bad_at_the_end(ValueError(), interrupt), writing(seen)).build())
        platform.apply(chain("two", endless, plain, writing(seen)).build())
        services = platform.registry
        with pytest.raises(KeyboardInterrupt):
            platform.close()
        met.set()
        assert platform.applications() == []
        assert not services.find(None, "(application=one)")
        assert not services.find(None, "(application=two)")


def test_a_slet_that_cannot_flush_is_replaced_without_its_state():
    """The change is refused with the cure, and everything runs on; told to lose the state, it is made."""
    seen: list[int] = []
    with Platform() as platform:
        platform.apply(chain("app", endless, Unflushed, writing(seen)).build())
        grows(seen, 10)
        with pytest.raises(
            ComponentFailed, match="b failed while flushing: OSError: the disk is full; .*lose_state=True"
        ):
            changed(platform, "app", lambda mesh: mesh.replace("b", plain))
        grows(seen, 10)
        changed(platform, "app", lambda mesh: mesh.replace("b", plain, lose_state=True))
        grows(seen, 10)
        assert platform.mesh("app").node("b").slet.name == "plain"
        end(platform, "app")
    whole(seen)


class Slow(Slet):
    """Answers when it is let."""

    def __iter__(self) -> Iterator[int]:
        """No items."""
        return iter(())

    def metrics(self):
        """One figure, at last."""
        LET.wait(PATIENCE)
        return {"rows": 7}


class Raises(Slow):
    """Has no answer."""

    def metrics(self):
        """None at all."""
        raise SystemExit("no figures")


class Silent(Slow):
    """Has none of its own."""

    metrics = Slet.metrics


LET = threading.Event()


def of(cls: type[Slet]) -> Component:
    """A component of this slet."""
    return Component("app/slet#1", "app", Node("slet", spec_of(cls)), lambda _: None)


def asking() -> int:
    """How many threads wait for figures."""
    return sum(one.name.endswith("reporting figures") for one in threading.enumerate())


def test_a_slow_answer_is_not_waited_for(monkeypatch):
    """It says for how long there is none; one question at a time is asked, and the answer is shown when it is there."""
    monkeypatch.setattr("exop.runtime.lifecycle.PATIENCE", 0.01)
    LET.clear()
    slow = of(Slow)
    for _ in range(3):
        assert slow.own_figures()["metrics()"].startswith("has not answered for")
    assert asking() == 1
    LET.set()
    eventually(lambda: slow.own_figures() == {"rows": 7})


class Large(Slow):
    """Says far too much."""

    def metrics(self):
        """One figure that is good, and others that are too long, too deep or too many."""
        deep = []
        for _ in range(3000):
            deep = [deep]
        rest = {str(number): number for number in range(1000)}
        return {"rows": 7, "pair": [1, 2], "deep": deep, "text": "x" * 10**6, "list": [1] * 10**6} | rest


def test_large_figures_keep_no_platform_from_answering():
    """The figures of one slet are bounded, since the status of the platform, and so every command, contains them."""
    large = of(Large)
    told: list[dict[str, Any]] = []
    eventually(
        lambda: told.append(large.own_figures()) or not told[-1].get("metrics()", "has not").startswith("has not")
    )
    figures = told[-1]
    assert figures["rows"] == 7
    assert figures["list"] == "a list of 1000000 values"
    assert figures["pair"] == [1, 2]
    assert figures["metrics()"] == "has 1005 figures; 200 are shown"
    assert len(encode_message(status.plain(figures))) < 10_000


def test_metrics_that_raise_are_reported_and_a_slet_without_them_starts_no_thread():
    """Even `SystemExit` is only shown."""
    raises = of(Raises)
    eventually(lambda: raises.own_figures() == {"metrics()": "raised SystemExit('no figures')"})
    before = asking()
    assert [of(one).own_figures() for one in (Silent, collector([]))] == [{}, {}]
    assert asking() == before


@pytest.mark.parametrize("in_time", [False, True])
def test_a_commit_that_ends_while_a_change_waits_for_it_is_not_asked_again(in_time):
    """A checkpoint that ends forgets the call in its own thread."""
    component = Component("app.b", "app", Node("b", spec_of(plain)), lambda _: None)
    abandoned: list[bool] = []

    class Ending:
        def wait(self, seconds: float) -> bool:
            component.committing = None
            return in_time

        def abandon(self) -> None:
            abandoned.append(True)

    component.committing = Ending()
    component.settle(1.0)
    assert abandoned == [] if in_time else [True]

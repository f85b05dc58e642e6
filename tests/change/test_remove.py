"""A slet is removed while items flow: what waits for it is dealt with first, or it is said that it goes with it."""

from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest

from exop import Application, InputPort, slet
from exop.errors import PlanError
from exop.model.meshes.mesh import Mesh, Node
from exop.model.slets.slet import spec_of
from exop.runtime.drivers.base import current_driver
from tests.change.tools import Tap, changed, count_to, endless, finish, in_thread, refused_after_bind, writing
from tests.rig import Gate, eventually, same


def test_what_waits_in_front_of_the_last_reader_is_drained(platform):
    """Nobody else would take it: the queue is emptied into the slet that is removed, and a plan says so."""
    seen: list[int] = []
    gate = Gate()

    @slet
    def slow(x: int) -> None:
        gate.pass_through()
        seen.append(x)

    app = Application("app")
    app.add("source", count_to, to=200, out=app.channel("waiting", kind="queue", capacity=500))
    app.add("reader", slow, x="waiting")
    app.add("numbers", endless)  # the application does not end before the change begins
    platform.apply(app.build())
    eventually(lambda: platform.deployment("app").channels["waiting"].depth >= 199)
    plan = platform.plan(platform.mesh("app").remove("reader"))
    assert "drain the queue waiting first, while its producers wait" in plan.notes
    assert "no port reads waiting then: its items are dropped" in plan.notes
    with in_thread(plan.apply) as applied:
        gate.open()
        applied.result(20)
    assert len(seen) == 200
    assert sorted(seen) == seen


def test_what_waits_for_a_suspended_reader_goes_with_it_and_that_is_said(platform):
    """It can take nothing; the plan says how many items there are, and the channel is read by nobody."""
    seen: list[int] = []
    app = Application("app")
    app.add("source", endless, out=app.channel("waiting", kind="queue", capacity=50))
    app.add("sink", writing(seen), x="waiting")
    platform.apply(app.build())
    platform.apply(platform.mesh("app").suspend("sink"))
    eventually(lambda: platform.deployment("app").channels["waiting"].depth >= 49)
    plan = platform.plan(platform.mesh("app").remove("sink"))
    assert any(note.startswith("sink cannot take items: those that wait in waiting (") for note in plan.notes)
    plan.apply()


def test_a_slet_that_hangs_on_an_item_of_a_queue_that_goes_leaves_the_other_queues_as_they_were(platform):
    """The change is refused in time; the worker that was to empty one queue drains all of its queues again."""
    seen: list[int] = []
    entered, gate = Gate(closed=False), Gate()
    other = Tap()

    @slet
    def joined(x: int) -> None:
        if x == -1:  # the next one of its queue is delivered to empty it
            driver = current_driver()
            assert driver is not None
            entered.pass_through()
            eventually(lambda: driver.closed)
        elif x == -2:
            gate.pass_through()
        seen.append(x)

    app = Application("app")
    app.channel("goes", kind="queue")
    app.channel("stays", kind="queue")
    app.add("first", count_to, to=2, step=-1, out="goes")
    app.add("second", other.source(), out="stays")
    app.add("one", same, item="goes", out=app.channel("merged"))
    app.add("two", same, item="stays", out="merged")
    app.add("sink", joined, x="merged")
    platform.apply(app.build())
    worker = platform.deployment("app").channels["goes"].worker
    assert worker is platform.deployment("app").channels["stays"].worker
    entered.somebody_waits()
    eventually(lambda: platform.deployment("app").components["first"].status == "ended")
    with pytest.raises(PlanError, match="did not come to a safe point"):
        platform.apply(platform.mesh("app").remove("first").remove("one"), timeout=1.0)
    gate.open()
    other.let(3)
    eventually(lambda: seen == [-1, -2, 1, 2, 3])
    assert not worker.ignores_capacity
    other.shut()


@slet
def first_two(x: InputPort[int]) -> Iterator[int]:
    """Pass two items on, and end."""
    for one in x:
        yield one
        if one == 2:
            return


@pytest.fixture
def left(platform):
    """A tap into a queue that holds two items, whose only reader, `first`, has pulled two and ended."""
    tap = Tap()
    app = Application("app")
    app.add("source", tap.source(), out=app.channel("q", kind="queue", capacity=2))
    app.add("sink", writing([]), x=app.add("first", first_two, x="q"))
    platform.apply(app.build())
    tap.let(2)
    eventually(lambda: platform.deployment("app").components["first"].status == "ended")
    yield tap
    tap.shut()
    finish(platform, "app")


def with_another(mesh: Mesh, seen: list[Any]) -> Mesh:
    """Let another slet read the queue."""
    return mesh.add(Node("other", spec_of(writing(seen)), {}, {"x": "q"}))


@pytest.mark.parametrize("gone", [("first", "sink"), ()])
def test_a_queue_whose_reader_has_ended_holds_items_for_the_next_one(platform, left, gone):
    """It drops them while nobody reads; from the change on every item arrives, also if the ended slet stays."""
    seen: list[int] = []
    queue = platform.deployment("app").channels["q"]
    left.let(20)
    eventually(lambda: queue.dropped + queue.depth == 20)
    changed(platform, "app", lambda mesh: with_another(reduce(Mesh.remove, gone, mesh), seen))
    dropped = queue.dropped
    left.let(3000)  # more than an inserted queue holds
    eventually(lambda: 3022 in seen)
    assert all(after == before + 1 for before, after in pairwise(seen))
    assert queue.dropped == dropped


def test_a_queue_whose_reader_has_ended_keeps_nobody_waiting_if_its_next_one_is_refused(platform, left, monkeypatch):
    """The change back restores that nobody reads it: its items are dropped again."""
    queue = platform.deployment("app").channels["q"]
    refused_after_bind(platform, monkeypatch, lambda mesh: with_another(mesh.remove("first").remove("sink"), []))
    left.let(20)
    eventually(lambda: queue.dropped + queue.depth == 20)

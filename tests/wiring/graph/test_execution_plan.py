"""Which driver runs what, and where queues are put."""

from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, InputPort, OutputPort, Slet, input_port, slet
from exop.stock.slets import count_up
from exop.wiring.graph.execution_plan import LONGEST_CHAIN, plan_execution
from tests.rig import Two, same


@slet
def sink(item: Any) -> None:
    """Take everything."""


def test_where_one_driver_comes_no_queue_is_needed(rig):
    """It runs a chain, all consumers of a channel, and branches that meet again, one after the other."""
    app = Application("one")
    at = app.add("numbers", count_up, to=3)
    left, right = app.add("left", same, item=at), app.add("right", same, item=at)
    app.add("sink", sink, item=app.add("both", Two, left=left, right=right))
    execution = plan_execution(rig.graph(app))
    assert execution.inserted == {}
    assert [kind for kind, _ in execution.drivers["sink"]] == ["source"]


def test_where_two_drivers_meet_in_a_slet_its_ports_get_queues_with_one_worker(rig):
    """Rule 3: two sources into two ports of one slet: a queue for each port, and one worker for both."""
    app = Application("meet")
    one, other = app.add("one", count_up, to=3), app.add("other", count_up, to=3)
    app.add("both", Two, left=one, right=other)
    execution = plan_execution(rig.graph(app))
    assert set(execution.inserted) == {"one -> both.left", "other -> both.right"}
    assert all("several drivers meet in both" in reason for reason in execution.inserted.values())
    assert {"one -> both.left", "other -> both.right"} in execution.groups.values()


def test_the_queue_stands_where_the_drivers_meet_first(rig):
    """What stands behind the first meeting is run by the worker of its queue: no second queue."""
    app = Application("first")
    joined = app.channel("joined")
    app.add("one", count_up, to=3, out=joined)
    app.add("other", count_up, to=3, out=joined)
    at = app.add("a", same, item=joined)
    at = app.add("b", same, item=at)
    app.add("sink", sink, item=at)
    assert set(plan_execution(rig.graph(app)).inserted) == {"joined -> a.item"}


@pytest.mark.parametrize("settings", [{"kind": "latch"}, {"kind": "table", "key": "0"}, {"kind": "log"}])
def test_a_channel_that_keeps_something_is_pushed_into_by_one_driver(rig, settings):
    """Several drivers in front of a channel that keeps something: the queue stands before the channel."""
    app = Application("serial")
    kept = app.channel("kept", **settings)
    app.add("one", count_up, to=3, out=kept)
    app.add("other", count_up, to=3, out=kept)
    app.add("sink", sink, item=kept)
    execution = plan_execution(rig.graph(app))
    assert set(execution.inserted) == {"-> kept"}
    assert "push into kept" in execution.inserted["-> kept"]


def test_a_queue_that_was_asked_for_is_enough(rig):
    """Several drivers push into a queue channel: nothing more is needed."""
    app = Application("asked")
    joined = app.channel("joined", kind="queue")
    app.add("one", count_up, to=3, out=joined)
    app.add("other", count_up, to=3, out=joined)
    app.add("sink", sink, item=joined)
    execution = plan_execution(rig.graph(app))
    assert execution.inserted == {}
    assert set(execution.groups.values()) == {frozenset({"joined"})}


def test_queues_that_meet_far_downstream_share_a_worker(rig):
    """The meeting may be several slets away."""
    app = Application("far")
    one, other = app.channel("q1", kind="queue"), app.channel("q2", kind="queue")
    app.add("one", count_up, to=3, out=one)
    app.add("other", count_up, to=3, out=other)
    app.add("both", Two, left=app.add("a", same, item=one), right=app.add("b", same, item=other))
    assert {"q1", "q2"} in plan_execution(rig.graph(app)).groups.values()


def test_independent_queues_have_workers_of_their_own(rig):
    """Queues whose slets do not meet are drained in parallel."""
    app = Application("apart")
    for number in range(2):
        queue = app.channel(f"q{number}", kind="queue")
        app.add(f"numbers{number}", count_up, to=3, out=queue)
        app.add(f"sink{number}", sink, item=queue)
    assert sorted(map(sorted, set(plan_execution(rig.graph(app)).groups.values()))) == [["q0"], ["q1"]]


def test_a_queue_and_a_direct_connection_that_meet(rig):
    """A port fed directly and one fed by a queue: the direct one gets a queue too, drained by the same worker."""
    app = Application("mixed")
    queue = app.channel("q", kind="queue")
    app.add("one", count_up, to=3, out=queue)
    direct = app.add("other", count_up, to=3)
    app.add("both", Two, left=queue, right=direct)
    execution = plan_execution(rig.graph(app))
    assert set(execution.inserted) == {"other -> both.right"}
    assert {"q", "other -> both.right"} in execution.groups.values()


def test_the_queues_of_one_cycle_share_a_worker(rig):
    """Two workers in one cycle would wait for room at each other's full queue for ever: there is only one."""
    app = Application("loop")
    start, forth, back = (app.channel(name, kind="queue") for name in ("start", "forth", "back"))
    app.add("numbers", count_up, to=3, out=start)
    app.add("a", Two, left=start, right=back, out=forth)
    app.add("b", same, item=forth, out=back)
    execution = plan_execution(rig.graph(app))
    assert {"start", "forth", "back"} in execution.groups.values()
    assert [sorted(loop) for loop in execution.cycles] == [["a", "b"]]


def test_long_chains_are_split(rig):
    """A chain of direct calls has a queue after so many slets, long before Python's recursion limit."""
    app = Application("long")
    at = app.add("numbers", count_up, to=3)
    for number in range(3 * LONGEST_CHAIN):
        at = app.add(f"s{number}", same, item=at)
    execution = plan_execution(rig.graph(app))
    assert len(execution.inserted) == 3
    assert all("slets long" in reason for reason in execution.inserted.values())


def test_the_longest_way_counts_where_ways_of_different_lengths_meet(rig):
    """A slet that is reached by a short and a long way is as deep as the long one."""
    app = Application("ways")
    short = app.add("numbers", count_up, to=3)
    at = short
    for number in range(LONGEST_CHAIN - 5):
        at = app.add(f"s{number}", same, item=at)
    at = app.add("both", Two, left=short, right=at)
    for number in range(10):
        at = app.add(f"t{number}", same, item=at)
    execution = plan_execution(rig.graph(app))
    assert len(execution.inserted) == 1
    assert next(iter(execution.inserted)).startswith("t")


def test_a_slet_that_pulls_is_its_own_driver(rig):
    """What a pulling slet yields is pushed by itself, in no worker's thread; its queue has no worker."""

    @slet
    def puller(item: InputPort[Any]) -> Iterator[Any]:
        yield from item

    app = Application("pull")
    queue = app.channel("q", kind="queue")
    app.add("numbers", count_up, to=3, out=queue)
    at = app.add("puller", puller, item=queue)
    app.add("sink", sink, item=at)
    execution = plan_execution(rig.graph(app))
    assert execution.groups == {}
    assert [kind for kind, _ in execution.drivers["sink"]] == ["source"]


def test_an_engine_pushes_as_a_driver_of_its_own(rig):
    """What an engine puts out meets nothing that its upstream driver runs."""

    class Engine(Slet, own_driver=True):
        out: OutputPort[Any]

        @input_port
        def item(self, item: Any) -> None:
            """Hand over."""

    app = Application("engine")
    at = app.add("numbers", count_up, to=3)
    app.add("sink", sink, item=app.add("engine", Engine, item=at))
    execution = plan_execution(rig.graph(app))
    assert [kind for kind, _ in execution.drivers["engine"]] == ["source"]
    assert [kind for kind, _ in execution.drivers["sink"]] == ["engine"]


def test_no_queue_stands_behind_a_window_from_which_its_slet_evicts(rig):
    """A live window is shared by the channel and its slet, so the queue stands in front of the channel."""
    app = Application("live")
    window = app.channel("w", kind="window", evict=True)
    app.add("one", count_up, to=3, out=window)
    other = app.add("other", count_up, to=3)
    app.add("both", Two, left=window, right=other)
    execution = plan_execution(rig.graph(app))
    assert set(execution.inserted) == {"-> w", "other -> both.right"}
    assert {"-> w", "other -> both.right"} in execution.groups.values()


def test_queues_are_ordered_from_upstream_to_downstream(rig):
    """A worker that has several queues can drain the one farthest downstream first."""
    app = Application("order")
    start, back = app.channel("start", kind="queue"), app.channel("back", kind="queue")
    app.add("numbers", count_up, to=3, out=start)
    app.add("b", same, item=app.add("a", Two, left=start, right=back), out=back)
    execution = plan_execution(rig.graph(app))
    assert execution.ranks["start"] <= execution.ranks["back"]


def test_a_queue_in_front_of_slets_that_pull_is_behind_what_pushes_into_it(rig):
    """It leads into queues alone; emptied before a change, it has to stay empty, so its pusher has parked by then."""

    @slet
    def pulls(items: InputPort[Any]) -> Iterator[Any]:
        yield from items

    app = Application("pulled")
    queue = app.channel("queue", kind="queue")
    app.add("numbers", count_up, to=3, out=queue)
    for name in ("one", "other"):
        app.add(f"{name}-sink", sink, item=app.add(name, pulls, items=queue))
    execution = plan_execution(rig.graph(app))
    source, readers = ([execution.order[name] for name in names] for names in (["numbers"], ["one", "other"]))
    assert source[0] < execution.ranks["queue"] < min(readers)


def test_a_queue_that_stands_stays_while_its_place_is_there(rig):
    """What was inserted may hold items: it is kept when the connections change, and goes with its place."""
    app = Application("stand")
    at = app.add("numbers", count_up, to=3)
    app.add("sink", sink, item=at)
    graph = rig.graph(app)
    execution = plan_execution(graph, {"numbers -> sink.item": "it was needed", "gone -> sink.item": "no more"})
    assert execution.inserted == {"numbers -> sink.item": "it was needed"}


def test_the_distance_of_a_place_in_a_cycle_that_is_entered_in_its_middle(rig):
    """It counts direct calls from the last queue on, whatever a walk from the sources takes for the edge back."""
    app = Application("cycle")
    entry, back, forth = app.channel("entry", kind="queue"), app.channel("back", kind="queue"), app.channel("forth")
    app.add("numbers", count_up, to=3, out=entry)
    app.add("second", Two, left=entry, right=forth, out=back)
    app.add("first", same, item=back, out=forth)
    execution = plan_execution(rig.graph(app))
    assert not execution.inserted
    far = execution.depth
    assert 0 < far("first.item") < far("first.out") < far("channel forth") < far("second.right") == far("second.left")
    assert far("nowhere.x") == 0


def test_the_distances_around_a_channel_that_keeps_something(rig):
    """The way into it, one of its windows, and the port behind that follow each other; so does an engine's port."""
    app = Application("kept")
    window = app.channel("w", kind="window", count=2)
    app.add("first", same, item=app.add("numbers", count_up, to=3), out=window)
    app.add("sink", sink, item=window)
    execution = plan_execution(rig.graph(app))
    far = execution.depth
    places = ["numbers.out", "first.item", "first.out", "channel w", "into w", "window w | sink.item", "sink.item"]
    assert sorted(places, key=far) == places
    assert len({*map(far, places)}) == len(places)

"""Binding: what is connected is called; what changes while it runs loses nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, EndOfStream, InputPort, Punctuation, input_port, slet
from exop.runtime.channels.queue import QueueChannel
from exop.stock.slets import count_up
from exop.wiring.graph.binding import INSERTED_CAPACITY
from exop.wiring.graph.execution_plan import LONGEST_CHAIN
from tests.rig import PATIENCE, Gate, Two, collector, eventually, source_of


def slow_numbers(gate, to=100):
    """A source that waits at a gate before its second half."""

    @slet
    def numbers() -> Iterator[int]:
        for number in range(to):
            if number == to // 2:
                gate.pass_through()
            yield number

    return numbers


def failing_once(*bad):
    """A slet that raises once at each of these items, and passes all items on."""
    left = [*bad]

    @slet
    def careful(item: int) -> int:
        if item in left:
            left.remove(item)
            raise ValueError(item)
        return item

    return careful


def test_inserted_queues_are_shown_with_their_reason_and_in_the_registry(rig):
    """Where drivers meet: the queue that is put between is offered like any channel, and says why it is there."""
    app = Application("meet")
    app.add("both", Two, left=app.add("a", count_up, to=3), right=app.add("b", count_up, to=3))
    deployment = rig.run(app)
    assert set(deployment.inserted) == set(deployment.reasons) == {"a -> both.left", "b -> both.right"}
    assert all(queue.capacity == INSERTED_CAPACITY for queue in deployment.inserted.values())
    found = rig.registry.find("Channel", "(&(application=meet)(origin=wiring))")
    assert {one.properties["name"] for one in found} == set(deployment.inserted)
    assert len(deployment.workers) == 1


def test_two_applications_that_drop_their_output_share_nothing(rig):
    """A channel that nobody reads is nobody's: what one application leaves behind never enters another one."""
    seen, careful = [], failing_once(1)
    for name in ("first", "second"):
        app = Application(name)
        at = app.channel("shared-name")
        at = app.add("careful", careful, on_error="retry", item=app.add("numbers", count_up, to=3), out=at)
        if name == "second":
            app.add("sink", collector(seen), item=at)
        rig.run(app)
    assert seen == [0, 1, 2]


def test_binding_anew_keeps_what_queues_hold(rig):
    """Compiled again while items wait: everything arrives, once and in order, whatever queue it waits in."""
    seen, gate = [], Gate()

    @slet
    def slow(item: Any) -> Any:
        if item == 0:
            gate.pass_through()
        return item

    app = Application("keep")
    queue = app.channel("q", kind="queue", capacity=10)
    both = app.add("both", Two, left=app.add("a", count_up, to=100), right=app.add("b", source_of([])))
    app.add("slow", slow, item=both, out=queue)
    app.add("sink", collector(seen), item=queue)
    deployment = rig.deploy(app)
    gate.somebody_waits()
    gate.open()
    for _ in range(20):
        rig.wiring.rebind(deployment, timeout=PATIENCE)
    assert deployment.wait(PATIENCE)
    assert seen == list(range(100))


def test_the_longest_chain_of_the_deepest_calls_runs(rig):
    """As many slets as may call each other, each with as many frames as there can be: still far from the limit."""
    seen, marks = [], []

    @slet
    def wordy(item: int | Punctuation) -> Iterator[int | Punctuation]:
        yield item

    @slet
    def source() -> Iterator[int | Punctuation]:
        yield 1
        yield Punctuation(1)
        yield 2

    @slet
    def sink(item: int | Punctuation | EndOfStream) -> None:
        (seen if isinstance(item, int) else marks).append(item)

    app = Application("deep")
    at = app.add("source", source)
    for number in range(LONGEST_CHAIN):
        latch = app.channel(f"latch{number}", kind="latch")
        at = app.add(f"s{number}", wordy, item=at, out=latch)
        app.add(f"beside{number}", collector([]), item=at)
    app.add("sink", sink, item=at)
    rig.run(app)
    assert seen == [1, 2]
    assert marks == [Punctuation(1), EndOfStream()]


def test_what_waits_in_front_of_a_port_goes_with_it(rig):
    """A port that is connected elsewhere first gets what its own inserted queue holds; none of it counts as dropped."""
    seen, gate = [], Gate()

    class Slow(Two):
        @input_port
        def left(self, item: Any) -> None:
            """Wait at the first item."""
            if not seen:
                gate.pass_through()
            seen.append(item)

        @input_port
        def right(self, item: Any) -> None:
            """Take."""
            seen.append(item)

    app = Application("moved")
    app.add("a", count_up, to=50)
    app.add("b", source_of([]))
    app.add("c", source_of(["from c"]))
    app.add("beside", collector([]), item=app.output("c"))
    app.add("slow", Slow, left=app.output("a"), right=app.output("b"))
    deployment = rig.deploy(app)
    gate.somebody_waits()
    before = deployment.inserted["a -> slow.left"]
    eventually(lambda: before.depth == 50)
    rig.manager.connect(deployment.components["slow"], {"left": "c"})
    gate.open()
    rig.wiring.rebind(deployment, timeout=PATIENCE)
    assert deployment.wait(PATIENCE)
    assert [one for one in seen if isinstance(one, int)] == list(range(50))
    assert before.metrics()["dropped"] == 0


def test_a_consumer_that_comes_after_the_end_is_told_so(rig):
    """Connected to a stream that is over, it ends: it does not wait for ever."""
    seen, gate = [], Gate()

    @slet
    def waiting() -> Iterator[int]:
        gate.pass_through()
        yield 1

    app = Application("after")
    app.add("numbers", count_up, to=3)
    app.add("waiting", waiting)
    app.add("beside", collector([]), item=app.output("numbers"))
    app.add("late", collector(seen), item=app.output("waiting"))
    app.add("other", collector([]), item=app.output("waiting"))
    deployment = rig.deploy(app)
    eventually(lambda: str(deployment.components["numbers"].status) == "ended")
    rig.manager.connect(deployment.components["late"], {"item": "numbers"})
    rig.wiring.rebind(deployment, timeout=PATIENCE)
    eventually(lambda: str(deployment.components["late"].status) == "ended")
    gate.open()
    assert deployment.wait(PATIENCE)


@pytest.mark.parametrize(
    ("channel", "before", "after", "expected"),
    [
        ({"kind": "latch", "key": "0"}, [("a", 1), ("b", 1), ("a", 2)], [("c", 3)], [("a", 2), ("b", 1), ("c", 3)]),
        (
            {"kind": "log", "replay": True},
            [1, Punctuation(1), 2],
            [Punctuation(2)],
            [1, Punctuation(1), 2, Punctuation(2)],
        ),
    ],
    ids=["latch", "log"],
)
def test_a_consumer_that_comes_late_first_gets_what_its_channel_keeps(rig, channel, before, after, expected):
    """The last item of every key, or items and punctuations in their order; then the stream, once and in order."""
    seen, gate = [], Gate()

    @slet
    def source() -> Iterator[Any | Punctuation]:
        yield from before
        gate.pass_through()
        yield from after

    @slet(effects=True)
    def both(item: Any | Punctuation) -> None:
        seen.append(item)

    app = Application("late")
    kept = app.channel("kept", **channel)
    app.add("source", source, out=kept)
    app.add("early", collector([]), item=kept)
    app.add("nothing", source_of([]))
    app.add("late", both, item=app.output("nothing"))
    deployment = rig.deploy(app.build().suspend("late"))
    gate.somebody_waits()
    rig.manager.connect(deployment.components["late"], {"item": "kept"})
    rig.resume(deployment, "late")
    gate.open()
    assert deployment.wait(PATIENCE)
    assert seen == expected


def test_a_producer_that_leaves_holds_nobody_back(rig):
    """When one of two producers is disconnected, what waited only for it goes on: punctuations, and the end."""
    seen, gate = [], Gate()

    @slet
    def one() -> Iterator[int | Punctuation]:
        yield 1
        yield Punctuation(1)

    @slet
    def endless() -> Iterator[int]:
        gate.pass_through()
        yield 2

    @slet
    def sink(item: int | Punctuation | EndOfStream) -> None:
        seen.append(item)

    app = Application("leaves")
    joined = app.channel("joined")
    app.add("one", one, out=joined)
    app.add("endless", endless, out=joined)
    app.add("sink", sink, item=joined)
    deployment = rig.deploy(app)
    eventually(lambda: str(deployment.components["one"].status) == "ended")
    rig.manager.connect(deployment.components["endless"], {"out": None})
    rig.wiring.rebind(deployment, timeout=PATIENCE)
    eventually(lambda: seen == [1, EndOfStream()] or seen == [1, Punctuation(1), EndOfStream()])
    gate.open()
    assert deployment.wait(PATIENCE)


def test_workers_come_and_go_with_their_queues(rig):
    """A queue that is inserted while the application runs is drained; a worker without queues leaves."""
    seen, gate = [], Gate()
    app = Application("workers")
    app.add("a", slow_numbers(gate))
    app.add("b", slow_numbers(gate))
    app.add("beside", collector([]), item=app.output("b"))
    app.add("both", Two, left=app.output("a"), right=app.output("a"))
    app.add("sink", collector(seen), item=app.output("both"))
    deployment = rig.deploy(app)
    assert deployment.workers == {}
    gate.somebody_waits()
    gate.somebody_waits()  # both
    rig.manager.connect(deployment.components["both"], {"right": "b"})
    rig.wiring.rebind(deployment, timeout=PATIENCE)
    assert len(deployment.workers) == 1
    assert all(worker.alive for worker in deployment.workers.values())
    gate.open()
    assert deployment.wait(PATIENCE)
    # Each number twice: by both ports from a until the middle, then by one port from a and by one from b.
    assert sorted(seen) == sorted([*range(100)] * 2)


def test_a_held_item_goes_on_by_the_way_there_is_then(rig):
    """A slet is suspended on an item, its output is connected elsewhere: the item leaves by the new way."""
    before, after = [], []
    app = Application("held")
    one, other = app.channel("one"), app.channel("other")
    app.add("careful", failing_once(1), item=app.add("numbers", count_up, to=3), out=one)
    app.add("before", collector(before), item=one)
    app.add("nothing", failing_once(7), item=app.add("seven", source_of([7])), out=other)
    app.add("after", collector(after), item=other)
    deployment = rig.deploy(app)
    it = deployment.components["careful"]
    eventually(lambda: str(it.status) == "failed")
    rig.manager.connect(it, {"out": "other"})
    rig.wiring.rebind(deployment, timeout=PATIENCE)
    it.resume()
    eventually(lambda: after == [1, 2])
    assert before == [0]


def test_a_worker_that_leaves_hands_its_work_to_the_one_that_has_its_queues_then(rig):
    """Two workers, each suspended on an item, come under one: both items wait until their slets are resumed."""
    seen = []
    app = Application("heir")
    outs = []
    for number, first in (("1", 0), ("2", 10)):
        queue = app.channel(f"q{number}", kind="queue")
        app.add(f"numbers{number}", source_of(range(first, first + 5)), out=queue)
        outs.append(app.add(f"s{number}", failing_once(first + 1), item=queue))
    app.add("both", Two, left=outs[0], right=outs[0])
    app.add("other", collector([]), item=outs[1])
    app.add("sink", collector(seen), item=app.output("both"))
    deployment = rig.deploy(app)
    eventually(lambda: len(deployment.failures()) == 2)
    rig.manager.connect(deployment.components["both"], {"right": "s2"})
    rig.wiring.rebind(deployment, timeout=PATIENCE)
    (worker,) = deployment.workers.values()
    assert [runner for runner, _ in deployment.inlets.waiting()] == [worker, worker]
    assert len(deployment.failures()) == 2
    assert seen == [0, 0]
    for name in ("s1", "s2"):
        deployment.components[name].resume()
    assert deployment.wait(PATIENCE)
    assert [number for number in seen[2:] if number < 10] == [1, 2, 3, 4]
    assert [number for number in seen[2:] if number >= 10] == [11, 12, 13, 14]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_pulling_port_beside_others_has_its_own_queue(rig, number):
    """Alone at a queue channel it drains that; beside others it has one of its own."""
    seen = []

    @slet
    def puller(item: InputPort[int]) -> None:
        seen.extend(item)

    app = Application("pullers")
    queue = app.channel("q", kind="queue")
    app.add("numbers", count_up, to=50, out=queue)
    app.add("puller", puller, item=queue)
    for other in range(1, number):
        app.add(f"other{other}", collector([]), item=queue)
    deployment = rig.run(app)
    assert seen == list(range(50))
    assert len(deployment.inserted) == (number > 1)
    assert all(isinstance(one, QueueChannel) for one in deployment.inserted.values())

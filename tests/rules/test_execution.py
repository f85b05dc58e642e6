"""The ten rules of execution, each as something that can be seen from outside (design, section 5)."""

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, Batch, EndOfStream, Memento, OutputPort, Platform, Punctuation, Slet, slet
from exop.errors import ComponentFailed, WiringError
from exop.runtime.lifecycle import State
from exop.stock.slets import count_up
from exop.wiring.graph.execution_plan import LONGEST_CHAIN
from tests.rig import PATIENCE, Gate, collector, eventually, line, parked, rests, same, seeing, source_of


def noting(threads, name):
    """A slet that notes in which thread it is called."""

    @slet
    def note(item: Any) -> Any:
        threads.setdefault(name, set()).add(threading.current_thread())  # an identifier would be used again
        return item

    return note


# 1. Push is synchronous; only a queue changes threads; no look-up per item on the direct path.


def test_rule_1_direct_channels_call_in_the_thread_that_pushed(rig):
    """Everything up to the next queue is run by one thread, and what is behind the queue by another one."""
    threads = {}
    app = Application("threads")
    queue = app.channel("q", kind="queue")
    at = app.add("a", noting(threads, "a"), item=app.add("numbers", count_up, to=100))
    app.add("b", noting(threads, "b"), item=at, out=queue)
    at = app.add("c", noting(threads, "c"), item=queue)
    app.add("d", noting(threads, "d"), item=at)
    rig.run(app)
    assert threads["a"] == threads["b"] != threads["c"] == threads["d"]
    assert all(len(found) == 1 for found in threads.values())


def test_rule_1_an_item_runs_to_completion_before_the_next_one_begins(rig):
    """Depth first: all branches have dealt with an item before the source makes another."""
    story = []

    def telling(name):
        @slet
        def tell(item: int) -> int:
            story.append((name, item))
            return item

        return tell

    app = Application("depth")
    at = app.add("numbers", count_up, to=3)
    left, right = app.add("left", telling("left"), item=at), app.add("right", telling("right"), item=at)
    app.add("end", telling("end"), item=left)
    app.add("other", telling("other"), item=right)
    rig.run(app)
    assert story == [(name, n) for n in range(3) for name in ("left", "end", "right", "other")]


def test_rule_1_the_direct_path_takes_no_lock(rig):
    """Per item nothing of the platform is called but the generated function: seen by a profiler of the thread."""
    calls = []

    def profile(frame, event, _):
        if event == "call" and "exop" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)

    @slet
    def source() -> Iterator[int]:
        for number in range(200):
            if number == 100:  # the first ones are measured
                sys.setprofile(profile)
            yield number
        sys.setprofile(None)

    @slet
    def add(item: int) -> int:
        return item + 1

    app = Application("lean")
    at = app.add("source", source)
    for number in range(5):
        at = app.add(f"s{number}", add, item=at)
    app.add("sink", collector([]), item=at)
    rig.run(app)
    usual = [name for name in calls if name.startswith(("Driver", "SourceDriver", "ComponentMetrics"))]
    assert len(calls) < 100, f"{len(calls)} calls into the platform for 100 items: {calls[:20]}"
    assert len(usual) <= 40  # one item in fifty milliseconds is measured


# 2. Drivers pass a safe point between items; pausing is prompt on an idle stream too.


def test_rule_2_pausing_an_idle_application_is_prompt(rig):
    """A source that waits, a worker that sleeps, an engine that says nothing: all of them count as parked at once."""
    gate = Gate()

    @slet
    def waiting() -> Iterator[int]:
        gate.pass_through()
        yield 1

    class Silent(Slet, own_driver=True):
        out: OutputPort[int]

    app = Application("idle")
    queue = app.channel("q", kind="queue")
    app.add("waiting", waiting, out=queue)
    app.add("sink", collector([]), item=queue)
    app.add("silent", Silent)
    deployment = rig.deploy(app)
    gate.somebody_waits()
    for _ in range(50):
        with parked(deployment, 1.0):
            assert not any(driver.busy for driver in deployment.drivers())
    gate.open()
    deployment.end_sources()
    assert deployment.wait(PATIENCE)


def test_rule_2_parked_nothing_is_in_flight(rig):
    """Every item that was sent is processed or waits in a queue: sent = received + waiting, at every pause."""
    received = []
    app = Application("flight")
    queue = app.channel("q", kind="queue", capacity=5)
    at = app.add("a", same, item=app.add("numbers", count_up))
    app.add("b", same, item=at, out=queue)
    app.add("sink", collector(received), item=queue)
    deployment = rig.deploy(app)
    for _ in range(50):
        with parked(deployment):
            source = deployment.components["numbers"]
            waiting = deployment.channels["q"].depth
            in_hand = source.driver.yielded is not None
            assert source.state.number == len(received) + waiting + in_hand


# 3. A component is run by one driver at a time; order per output and input port.


def test_rule_3_a_slet_is_never_run_by_two_threads(rig):
    """Four sources and an engine into one slet: it is called by one thread, and no update of its state is lost."""

    class Total(Memento):
        number: int = 0

    inside, wrong = [], []

    @slet
    def add(item: int, total: Total) -> None:
        inside.append(1)
        if len(inside) != 1:
            wrong.append(len(inside))
        before = total.number
        for _ in range(3):
            pass
        total.number = before + 1
        inside.pop()

    app = Application("one")
    joined = app.channel("joined")
    for number in range(4):
        app.add(f"numbers{number}", count_up, to=500, out=joined)
    app.add("add", add, item=joined)
    deployment = rig.run(app)
    assert not wrong
    assert deployment.components["add"].state.number == 2000
    assert deployment.inserted


# 4. Parking goes upstream first, and no queue keeps a driver from its safe point.


def test_rule_4_a_full_queue_keeps_no_driver_from_parking(rig):
    """The pusher waits for room behind a slet that is suspended: it parks all the same, and loses nothing."""
    seen = []
    app = Application("full")
    queue = app.channel("q", kind="queue", capacity=1)
    app.add("numbers", count_up, to=20, out=queue)
    app.add("sink", collector(seen), item=queue)
    deployment = rig.deploy(app.build().suspend("sink"))
    eventually(lambda: deployment.channels["q"]._pushers)
    for _ in range(5):
        with parked(deployment):
            pass
    assert 1 <= deployment.channels["q"].depth <= 7
    rig.resume(deployment, "sink")
    assert deployment.wait(PATIENCE)
    assert seen == list(range(20))


def test_rule_4_a_slet_that_emits_much_comes_to_its_safe_point(rig):
    """The results of an item in flight enter beyond the capacity, so that the item can be finished."""
    seen, gate = [], Gate()

    @slet
    def many(item: int) -> Iterator[int]:
        yield from range(50)

    @slet
    def slow(item: int) -> None:
        if not seen:
            gate.pass_through()
        seen.append(item)

    app = Application("much")
    queue = app.channel("q", kind="queue", capacity=2)
    app.add("many", many, item=app.add("numbers", source_of([1])), out=queue)
    app.add("slow", slow, item=queue)
    deployment = rig.deploy(app)
    gate.somebody_waits()
    source = deployment.components["numbers"].driver
    source.close()
    assert rests(source, PATIENCE)
    assert deployment.channels["q"].depth == 49
    source.open()
    gate.open()
    assert deployment.wait(PATIENCE)
    assert seen == list(range(50))


# 5. Every cycle contains a queue; long chains are split.


def test_rule_5_a_cycle_without_a_queue_is_refused_and_one_with_it_runs():
    """Checked when the mesh is built, with the cycle's path and the cure."""

    @slet
    def less(item: int) -> int | None:
        return item - 1 if item else None

    def cycle(kind):
        app = Application("cycle")
        back = app.channel("back", kind=kind)
        app.add("start", count_up, to=5, out=back)
        app.add("less", less, item=back, out=back)
        return app

    with pytest.raises(WiringError, match=r"the cycle less -> less contains no queue.*kind='queue'"):
        cycle("direct").build()
    cycle("queue").run()


def test_rule_5_long_chains_do_not_reach_the_recursion_limit(rig):
    """Four times as many slets as may call each other: as calls, they would be deeper than Python allows."""
    seen = []
    app = Application("long")
    at = app.add("numbers", count_up, to=5)
    for number in range(4 * LONGEST_CHAIN):
        at = app.add(f"s{number}", same, item=at)
    app.add("sink", collector(seen), item=at)
    rig.run(app)
    assert seen == [0, 1, 2, 3, 4]


# 6. The switch interval is set.


def test_rule_6_the_switch_interval_is_below_pythons_own():
    """A busy driver keeps the interpreter no longer than the platform says."""
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        with Platform():
            assert sys.getswitchinterval() < 0.005
    finally:
        sys.setswitchinterval(before)


# 7. Back-pressure, not loss.


@pytest.mark.parametrize("capacity", [1, 3])
def test_rule_7_a_slow_consumer_slows_its_source_down_and_misses_nothing(rig, capacity):
    """The source is never further ahead than the queue holds and what is in hand."""
    ahead, made, seen = [], [0], []

    @slet
    def source() -> Iterator[int]:
        for number in range(300):
            made[0] += 1
            yield number

    @slet
    def slow(item: int) -> None:
        ahead.append(made[0] - len(seen))
        seen.append(item)

    app = Application("slow")
    queue = app.channel("q", kind="queue", capacity=capacity)
    app.add("source", source, out=queue)
    app.add("slow", slow, item=queue)
    rig.run(app)
    assert seen == list(range(300))
    assert max(ahead) <= capacity + 3


# 8. A slet that raises does not lose the item, and nothing of it has left.


def test_rule_8_a_suspended_slet_can_be_repaired_and_tries_the_same_item_again():
    """By default it is suspended: its settings are changed while it is, and the item is tried again with them."""
    seen = []

    @slet
    def limited(item: int, *, limit: int = 3) -> int:
        if item >= limit:
            raise ValueError(f"{item} is beyond {limit}")
        return item

    app = line("repair", numbers=(count_up, {"to": 6}), limited=limited, sink=collector(seen))
    with Platform() as platform:
        platform.apply(app.build())
        with pytest.raises(ComponentFailed, match="3 is beyond 3"):
            platform.wait("repair", PATIENCE)
        status = platform.status("repair")["nodes"]["limited"]
        assert (status["state"], status["kept"]["item"]) == ("failed", "3")
        assert seen == [0, 1, 2]
        platform.apply(platform.mesh("repair").configure("limited", limit=100))
        assert platform.wait("repair", PATIENCE)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_rule_8_upstream_waits_while_a_slet_is_suspended(rig):
    """The item is kept, and what comes behind it waits where it is: the source is parked with it."""
    bad = [5]

    @slet
    def careful(item: int) -> None:
        if item in bad:
            raise ValueError("five")

    deployment = rig.deploy(line("upstream", numbers=count_up, careful=careful))
    eventually(lambda: deployment.components["careful"].status is State.FAILED)
    driver = deployment.components["numbers"].driver
    assert rests(driver, PATIENCE)
    assert driver.held_by == "careful is suspended on an item"
    assert deployment.components["numbers"].state.number == 6


# 9. Control items travel in band.


def test_rule_9_control_items_keep_their_place_through_any_slets(rig):
    """Through fused slets, batches, queues and slets that pull their own way: behind what they were behind."""
    seen = []

    @slet
    def source() -> Iterator[Batch[int] | Punctuation]:
        for number in range(20):
            yield Batch([number, number])
            yield Punctuation(number)

    app = Application("band")
    queue = app.channel("q", kind="queue", capacity=1)
    at = app.add("a", same, item=app.add("source", source), out=queue)
    at = app.add("b", same, item=queue)
    app.add("sink", seeing(seen), item=at)
    rig.run(app)
    expected = [one for number in range(20) for one in (number, number, Punctuation(number))]
    assert seen == [*expected, EndOfStream()]


# 10. Metrics: counts are exact, times are sampled and marked.


def test_rule_10_counts_are_exact_and_times_are_sampled_and_marked():
    """Every port counts its items, in whatever form they come; only times rest on samples, and `sampled` names them."""

    @slet
    def batched() -> Iterator[Batch[int]]:
        for _ in range(10):
            yield Batch(range(7))

    app = Application("figures")
    queue = app.channel("q", kind="queue")
    app.add("numbers", count_up, to=1000, out=queue)
    app.add("singles", same, item=queue)
    app.add("many", same, item=app.add("batched", batched))
    report = app.run()
    nodes, channels = {name: node["metrics"] for name, node in report["nodes"].items()}, report["channels"]
    assert nodes["numbers"]["items_out"] == 1000
    assert channels["q"]["items"] == 1000
    assert nodes["batched"]["items_out"] == 70
    assert (nodes["many"]["items_in"], nodes["many"]["batches"]) == (70, 10)
    assert nodes["singles"]["items_in"] == 1000
    assert nodes["singles"]["items"]["item"] == 1000
    assert nodes["singles"]["sampled"] == ["busy_s", "service_ms", "latency_ms"]
    assert nodes["singles"]["latency_ms"]
    assert nodes["singles"]["service_ms"]

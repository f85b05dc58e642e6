"""Cycles: they run through queues, and come to an end."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, EndOfStream, InputPort, OutputPort, Slet, input_port, slet
from exop.runtime.drivers.base import current_driver
from exop.stock.slets import count_up
from exop.wiring.controller import EndOfCycle
from exop.wiring.graph.wiring_graph import find_cycles
from tests.rig import PATIENCE, Two, collector, eventually, same, source_of


@slet
def countdown(item: int) -> int | None:
    """One less, until nothing is left."""
    return item - 1 if item else None


def names(loops):
    """The nodes of each loop."""
    return sorted(map(sorted, loops))


def test_loops_are_found(rig):
    """Each set of slets that reach each other, and a slet that feeds itself; not what only leads there."""
    app = Application("find")
    back, own = app.channel("back", kind="queue"), app.channel("own", kind="queue")
    at = app.add("a", Two, left=app.add("numbers", count_up), right=back)
    at = app.add("b", same, item=at, out=back)
    app.add("c", same, item=back, out=own)
    app.add("d", countdown, item=own, out=own)
    app.add("sink", collector([]), item=own)
    graph = rig.graph(app)
    assert names(find_cycles(graph, graph.ordered())) == [["a", "b"], ["d"]]


def looped(name, capacity, numbers=20):
    """A slet whose result comes back to it until nothing is left of it."""
    seen = []
    app = Application(name)
    back = app.channel("back", kind="queue", capacity=capacity)
    app.add("numbers", count_up, to=numbers, out=back)
    app.add("countdown", countdown, item=back, out=back)
    app.add("sink", collector(seen), item=back)
    return app, seen


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_a_cycle_ends_when_nothing_moves_in_it_any_more(rig, capacity):
    """Its feeders have ended and it is quiet: the end goes round, and everything that was sent has been processed."""
    app, seen = looped("quiet", capacity)
    rig.run(app)
    assert sorted(seen) == sorted(value for number in range(20) for value in range(number + 1))


def test_a_worker_that_is_taken_off_its_thread_before_it_sends_the_end(rig, monkeypatch):
    """It finds out again that the cycle has come to its end, when it has a thread."""
    asked, app = [], looped("off", 10)[0]
    found = EndOfCycle.__call__

    def ask(self):
        todo = found(self)
        if todo is not None and not asked:
            asked.append(current_driver())
            current_driver().yields = current_driver().attention = True
        return todo

    monkeypatch.setattr(EndOfCycle, "__call__", ask)
    rig.run(app)
    assert len(asked) == 1


@pytest.mark.parametrize("capacity", [1, 3])
def test_a_cycle_through_several_queues_cannot_block_itself(rig, capacity):
    """Two full queues in one cycle: nobody waits for room at a queue that waits for him."""
    seen = []
    app = Application("several")
    start = app.channel("start", kind="queue", capacity=capacity)
    forth = app.channel("forth", kind="queue", capacity=capacity)
    back = app.channel("back", kind="queue", capacity=capacity)

    @slet
    def twice(item: int) -> Iterator[int]:
        yield item
        yield item

    app.add("numbers", count_up, to=200, out=start)
    app.add("a", Two, left=start, right=back, out=forth)
    less = app.add("b", countdown, item=app.add("twice", twice, item=forth))
    app.add("fewer", fewer(), item=less, out=back)
    app.add("sink", collector(seen), item=forth)
    rig.run(app)
    assert len(seen) >= 200


def fewer():
    """Let the first few pass."""
    passed = [0]

    @slet
    def fewer(item: int) -> int | None:
        passed[0] += 1
        return item if passed[0] <= 100 else None

    return fewer


def test_a_cycle_without_a_feeder_ends_at_once(rig):
    """Nothing will ever come: there is nothing to wait for."""
    app = Application("unfed")
    back = app.channel("back", kind="queue")
    app.add("countdown", countdown, item=back, out=back)
    rig.run(app)


def test_a_slet_that_sees_the_end_sees_it_once(rig):
    """However often the end goes round, a slet of the cycle is shown it once."""
    ends = []

    @slet
    def seeing(item: int | EndOfStream) -> int | None:
        if isinstance(item, EndOfStream):
            ends.append(item)
            return None
        return item - 1 if item else None

    app = Application("once")
    back = app.channel("back", kind="queue")
    app.add("numbers", count_up, to=5, out=back)
    app.add("seeing", seeing, item=back, out=back)
    rig.run(app)
    assert ends == [EndOfStream()]


def test_what_stands_behind_a_cycle_ends_too(rig):
    """The end leaves the cycle when it is over."""
    app, seen = looped("behind", 2)
    behind = []
    app.add("behind", collector(behind), item=app.add("more", same, item="back"))
    rig.run(app)
    assert sorted(behind) == sorted(seen)


def test_a_slet_that_pulls_may_be_in_a_cycle(rig):
    """What it has in hand counts as movement: the cycle is not over while it has something."""
    seen = []

    @slet
    def puller(item: InputPort[int]) -> Iterator[int]:
        for one in item:
            seen.append(one)
            if one:
                yield one - 1

    for _ in range(20):
        seen.clear()
        app = Application("pulling")
        back = app.channel("back", kind="queue", capacity=2)
        app.add("numbers", count_up, to=10, out=back)
        app.add("puller", puller, item=back, out=back)
        deployment = rig.run(app)
        assert sorted(seen) == sorted(value for number in range(10) for value in range(number + 1))
        rig.undeploy(deployment)


def test_an_engine_in_a_cycle_says_itself_when_it_has_ended(rig):
    """Its input is ended when everything else is quiet; the cycle is over when the engine says so."""
    seen = []

    class Engine(Slet, own_driver=True):
        out: OutputPort[int]

        def __enter__(self) -> "Engine":
            self.handed: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self.thread = threading.Thread(target=self.work, name="exop test engine")
            self.thread.start()
            return self

        def __exit__(self, *exc: object) -> None:
            self.handed.put(EndOfStream())
            self.thread.join(PATIENCE)

        @input_port
        def item(self, item: int | EndOfStream) -> None:
            """Hand over."""
            self.handed.put(item)

        def work(self) -> None:
            """One less."""
            while not isinstance(item := self.handed.get(), EndOfStream):
                if item:
                    self.out.push(item - 1)
            self.out.end()

    app = Application("engine")
    back = app.channel("back", kind="queue")
    app.add("a", Two, left=app.add("numbers", source_of([3])), right=back)
    app.add("sink", collector(seen), item=app.output("a"))
    app.add("forth", same, item=app.output("a"), out=app.channel("forth", kind="queue"))
    app.add("engine", Engine, item="forth", out=back)
    rig.run(app)
    assert seen[0] == 3


def test_a_cycle_beside_an_endless_stream_ends_for_itself(rig):
    """What does not feed the cycle does not keep it from ending."""
    app, seen = looped("beside", 5)
    app.add("endless", count_up)
    app.add("other", collector([]), item=app.output("endless"))
    deployment = rig.deploy(app)
    for name in ("countdown", "sink"):
        eventually(lambda name=name: str(deployment.components[name].status) == "ended")
    assert len(seen) == 210

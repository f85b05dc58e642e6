"""The driver of what is iterated: sources, and slets that pull."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from exop import Batch, InputPort, Memento, OutputPort, Punctuation, Slet, slet
from exop.errors import ComponentFailed
from exop.model.slets.ports import PortType
from exop.runtime.dataflow.entry import Entry
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.lifecycle import State
from exop.runtime.supervision import failure_policy as failure
from exop.stock.slets import count_up
from tests.rig import PATIENCE, Gate, collector, eventually, line, parked, rests, source_of, threads_leave
from tests.runtime.rig import Log, finished

SINGLE, BATCHES = PortType(), PortType(form="batch")


@pytest.fixture(autouse=True)
def no_thread_stays():
    """Every driver leaves."""
    with threads_leave():
        yield


def source(iterate, log, broken=lambda _: False, yields=SINGLE, **more):
    """A source driver that pushes into a log."""
    driver = SourceDriver("test", iterate, lambda: log.seen.append("end"), yields=yields, **more)
    driver.entry, driver.broken = log.entry, broken
    return driver


def test_it_pushes_what_is_yielded_and_then_ends():
    """`None` is nothing now; the end comes last."""
    log = Log()
    driver = source(lambda: iter([1, None, 2]), log)
    driver.start()
    finished(driver)
    assert log.seen == [1, 2, "end"]
    assert driver.count + driver.rows == 2


def test_batches_and_control_items_are_counted_as_what_they_are():
    """Figures at the source are exact: rows of batches, single items, and no control items."""
    log = Log()
    driver = source(lambda: iter([Batch([1, 2, 3]), Punctuation(1), Batch([4])]), log, yields=BATCHES)
    driver.start()
    finished(driver)
    assert log.seen == [1, 2, 3, Punctuation(1), 4, "end"]
    assert (driver.count, driver.rows) == (0, 4)
    mixed = source(lambda: iter([1, Punctuation(1), 2]), log, yields=PortType(punctuation=True))
    mixed.start()
    finished(mixed)
    assert (mixed.count, mixed.rows) == (0, 2)


@pytest.mark.parametrize("yielded", [None, (1,), ([1],), (Punctuation(1),)])
def test_what_an_earlier_release_had_in_hand_is_a_batch_now(yielded):
    """A slet that yielded single items then, and yields batches now, goes on with its item."""
    log = Log()
    driver = source(lambda: iter([[2, 3]]), log, yields=BATCHES)
    driver.restore(yielded)
    driver.start()
    finished(driver)
    first = [] if yielded is None else yielded[0] if isinstance(yielded[0], list) else [yielded[0]]
    assert log.seen == [*first, 2, 3, "end"]


def test_a_source_that_has_not_begun_can_be_parked():
    """Parked at any moment, also at its beginning, the driver reports that it rests."""
    for _ in range(100):
        log, gate = Log(), Gate()

        def iterate(gate=gate):
            gate.pass_through()
            yield 1

        driver = source(iterate, log)
        driver.start()
        driver.close()
        assert rests(driver, PATIENCE)
        gate.open()
        driver.open()
        finished(driver)


def test_it_pushes_by_the_way_there_is_when_it_is_opened():
    """Its entry may be replaced while the driver is parked, also while the slet is making the item."""
    gate, before, after = Gate(), Log(), Log()

    def iterate():
        gate.pass_through()
        yield 1

    driver = source(iterate, before)
    driver.start()
    gate.somebody_waits()
    driver.close()
    assert rests(driver, PATIENCE)
    driver.entry = after.entry
    driver.open()
    gate.open()
    finished(driver)
    assert (before.seen, after.seen) == (["end"], [1])


def test_ending_lets_the_item_in_hand_out():
    """A source that is told to end pushes what it has yielded, closes its iterator, and says that it has ended."""
    log, closed = Log(), []

    def iterate():
        try:
            number = 0
            while True:
                number += 1
                yield number
        finally:
            closed.append(number)

    driver = source(iterate, log)
    driver.start()
    eventually(lambda: len(log.seen) > 10)
    driver.end()
    finished(driver)
    assert log.seen == [*range(1, len(log.seen)), "end"]
    assert closed == [len(log.seen) - 1]


def test_what_raises_behind_a_source_is_not_taken_for_its_own_error():
    """A defect downstream ends the driver as a crash: the source is not iterated anew, which would lose the item."""
    asked = []

    def push(_):
        raise RuntimeError("a defect")

    driver = SourceDriver("test", lambda: iter([1]), lambda: None, yields=SINGLE)
    driver.entry, driver.broken = Entry(push, push, push), lambda error: asked.append(error) or True
    driver.start()
    assert driver.join(PATIENCE)
    assert isinstance(driver.crash, RuntimeError)
    assert not asked


class At(Memento):
    """The position of a source."""

    number: int = 0


def stumbling(bad, policy):
    """A source that raises before some numbers, once each."""
    left = set(bad)

    @slet(on_error=policy)
    def numbers(at: At) -> Iterator[int]:
        while at.number < 10:
            if at.number in left:
                left.remove(at.number)
                raise ValueError(f"before {at.number}")
            at.number += 1
            yield at.number - 1

    return numbers


def test_a_suspended_source_goes_on_from_its_memento(rig):
    """A source that raised waits to be resumed, and is then iterated anew: nothing lost, nothing doubled."""
    seen = []
    deployment = rig.deploy(line("source", numbers=stumbling([0, 5], "suspend"), sink=collector(seen)))
    numbers = deployment.components["numbers"]
    for _ in range(2):
        with pytest.raises(ComponentFailed, match="ValueError"):
            deployment.wait(PATIENCE)
        assert numbers.status is State.FAILED
        with parked(deployment):
            pass
        numbers.resume()
    assert deployment.wait(PATIENCE)
    assert seen == list(range(10))
    assert numbers.metrics.errors == 2


def test_a_source_is_tried_again_by_itself(rig, monkeypatch):
    """`retry`: iterated anew after a while, as long as it gets on in between."""
    monkeypatch.setattr(failure, "BACK_OFF", 0.0)
    seen = []
    rig.run(line("retry", numbers=stumbling(range(10), "retry"), sink=collector(seen)))
    assert seen == list(range(10))


def test_a_source_that_never_gets_on_is_suspended_in_the_end(rig, monkeypatch):
    """`retry` gives up after its tries at one place."""
    monkeypatch.setattr(failure, "BACK_OFF", 0.0)
    calls = []

    @slet(on_error="retry")
    def never() -> Iterator[int]:
        calls.append(1)
        raise ValueError("never")
        yield 1

    deployment = rig.deploy(line("never", never=never, sink=collector([])))
    with pytest.raises(ComponentFailed, match="never"):
        deployment.wait(PATIENCE)
    assert len(calls) == failure.TRIES + 1


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_a_source_that_is_given_up_ends_its_stream(rig, policy):
    """With `skip` and `dead-letter` the stream ends where it broke; that is counted, and is no failure of the slet."""
    seen = []
    deployment = rig.run(line("given-up", numbers=stumbling([5], policy), sink=collector(seen)))
    assert seen == [0, 1, 2, 3, 4]
    component = deployment.components["numbers"]
    assert (component.error, component.metrics.errors) == (None, 1)
    assert component.metrics.skipped == (policy == "skip")
    assert [letter.error for letter in component.trouble.dead] == ["ValueError: before 5"] * (policy == "dead-letter")


def test_what_a_source_pushes_by_further_ports_leaves_before_what_it_yields_next(rig):
    """Also behind a yielded `None`, and at the end."""
    seen = []

    class Source(Slet):
        more: OutputPort[str]

        def __iter__(self) -> Iterator[int]:
            self.more.push("a")
            yield 1
            self.more.push("b")
            yield None
            seen.append("after None")
            self.more.push("c")

    app = line("further", source=Source, sink=collector(seen))
    app.add("more", collector(seen), item=app.output("source", "more"))
    rig.run(app)
    assert seen == ["a", 1, "b", "after None", "c"]


def test_a_slet_may_push_by_out_itself(rig):
    """A field `out: OutputPort[T]` is the port by which results leave: what is pushed leaves before what is yielded."""
    seen = []

    class Pushing(Slet):
        out: OutputPort[int]

        def __iter__(self) -> Iterator[int]:
            self.out.push(1)
            yield 2

    rig.run(line("out", source=Pushing, sink=collector(seen)))
    assert seen == [1, 2]


def test_a_sink_that_pulls_in_a_plain_function(rig):
    """A function that pulls and returns nothing is run once; the item for which it raised is tried again."""
    seen, bad = [], [5]

    @slet
    def sink(item: InputPort[int]) -> None:
        for one in item:
            seen.append(one)
            if one in bad:
                bad.remove(one)
                raise ValueError("in a plain function")

    deployment = rig.deploy(line("pull", numbers=(count_up, {"to": 10}), sink=sink))
    with pytest.raises(ComponentFailed, match="plain function"):
        deployment.wait(PATIENCE)
    deployment.components["sink"].resume()
    assert deployment.wait(PATIENCE)
    assert seen == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]


def test_a_slet_that_pulls_is_not_parked_in_the_middle_of_an_item(rig):
    """Between its pulls a pulling slet has items in hand: it parks when it asks for the next ones, or yields."""
    gate, inside = Gate(), threading.Event()

    @slet
    def slow(item: InputPort[int]) -> None:
        while items := item.pull(1):
            inside.set()
            if items == [1]:
                gate.pass_through()
            inside.clear()

    deployment = rig.deploy(line("middle", numbers=(count_up, {"to": 5}), slow=slow))
    gate.somebody_waits()
    driver = deployment.components["slow"].driver
    driver.close()
    assert not rests(driver, 0.01)
    gate.open()
    assert rests(driver, PATIENCE)
    assert not inside.is_set()
    driver.open()
    assert deployment.wait(PATIENCE)


def test_a_busy_slet_that_pulls_can_be_parked(rig):
    """A sink that always finds something in its queue passes a safe point with every pull."""
    seen = []

    @slet
    def busy(item: InputPort[int]) -> None:
        seen.extend(item)

    deployment = rig.deploy(line("busy", numbers=count_up, busy=busy))
    eventually(lambda: len(seen) > 100)
    for _ in range(20):
        with parked(deployment):
            before = len(seen)
            assert len(seen) == before
    deployment.end_sources()
    assert deployment.wait(PATIENCE)
    assert seen == list(range(len(seen)))


def test_a_source_of_many_items_and_a_slow_consumer(rig):
    """The way the figures are made does not change what is pushed: 5000 items, of which some are measured."""
    seen: list[Any] = []
    deployment = rig.run(line("measured", numbers=source_of(range(5000)), sink=collector(seen)))
    assert seen == list(range(5000))
    driver = deployment.components["numbers"].driver
    assert driver.count + driver.rows == 5000

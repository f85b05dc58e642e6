"""Slets with a driver of their own: their pushes are safe points, their end is their own."""

import queue
import threading
from typing import Any

import pytest

from exop import Batch, EndOfStream, InputPort, OutputPort, Punctuation, Slet, input_port, slet
from exop.errors import ChannelClosed, ComponentFailed
from exop.runtime.dataflow.entry import NOWHERE, InFlight
from exop.runtime.drivers.base import Halted
from exop.runtime.drivers.source import EngineDriver
from exop.runtime.lifecycle import Event, State
from exop.stock.slets import count_up
from tests.rig import PATIENCE, Gate, Takes, collector, eventually, line, parked, rests, threads_leave


class Engine(Slet, own_driver=True):
    """Base of the engines here: runs `work` in a thread, keeps what stopped it."""

    out: OutputPort[Any]

    def __enter__(self) -> "Engine":
        self.stopped: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="exop test engine")
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.thread.join(PATIENCE)

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as stopped:  # noqa: BLE001 (kept for the test)
            self.stopped = stopped

    def work(self) -> None:
        """The work of the engine."""


def pushing(*payloads):
    """An engine that pushes these and ends."""

    class Pushing(Engine, own_driver=True):
        def work(self) -> None:
            """Push."""
            for payload in payloads:
                if isinstance(payload, list):
                    self.out.push_batch(payload)
                else:
                    self.out.push(payload)
            self.out.end()

    return Pushing


def deployed(rig, engine, seen):
    """An application of an engine and a sink."""
    return rig.deploy(line("engine", engine=engine, sink=collector(seen)))


def test_what_an_engine_pushes_arrives_in_order_and_is_counted(rig):
    """Items, batches and control items; control items are no items."""
    seen = []
    deployment = deployed(rig, pushing(1, [2, 3], Punctuation(3), 4), seen)
    assert deployment.wait(PATIENCE)
    assert seen == [1, 2, 3, 4]
    engine = deployment.components["engine"]
    assert engine.outputs["out"].rows == 4
    assert engine.status is State.ENDED
    assert engine.driver.count == 5  # the punctuation and the end are pushes, too


def test_nothing_leaves_an_engine_before_everything_is_open(rig):
    """An engine may begin while it opens: its pushes wait until every slet is ready and active."""
    order = []

    class Slow(Slet):
        def __enter__(self) -> "Slow":
            eventually(lambda: order)
            order.append("open")
            return self

        @input_port
        def item(self, item: int) -> None:
            """Take."""
            order.append(item)

    class Eager(Engine, own_driver=True):
        def work(self) -> None:
            """Push at once."""
            order.append("eager")
            self.out.push(1)
            self.out.end()

    assert rig.deploy(line("early", eager=Eager, slow=Slow)).wait(PATIENCE)
    assert order == ["eager", "open", 1]


def test_the_end_is_said_once(rig):
    """`end()` a second time, or pushing the end as an item, changes nothing."""
    marks = []

    class Twice(Engine, own_driver=True):
        def work(self) -> None:
            """End three times."""
            self.out.push(1)
            self.out.end()
            self.out.end()
            self.out.push(EndOfStream())

    @slet
    def seeing(item: Any | EndOfStream) -> None:
        marks.append(item)

    rig.run(line("twice", engine=Twice, sink=seeing))
    assert marks == [1, EndOfStream()]


def test_every_push_is_a_safe_point(rig):
    """A parked engine pushes nothing; its thread waits in its next push."""
    seen = []

    class Endless(Engine, own_driver=True):
        def work(self) -> None:
            """Push without end."""
            while True:
                self.out.push(len(seen))

    deployment = deployed(rig, Endless, seen)
    eventually(lambda: len(seen) > 10)
    for _ in range(20):
        with parked(deployment):
            assert not any(driver.busy for driver in deployment.drivers())
    assert seen == list(range(len(seen)))


def test_an_application_can_end_an_engine_that_is_a_source(rig):
    """Asked to end, the stream ends behind what is being pushed; later pushes are refused, and say why."""
    seen = []

    class Endless(Engine, own_driver=True):
        def work(self) -> None:
            """Push without end."""
            while True:
                self.out.push(1)

    deployment = deployed(rig, Endless, seen)
    eventually(lambda: seen)
    deployment.end_sources()
    assert deployment.wait(PATIENCE)
    engine = deployment.components["engine"].instance
    eventually(lambda: engine.stopped is not None)
    assert isinstance(engine.stopped, ChannelClosed)


def test_an_engine_that_never_pushes_can_be_ended_too(rig):
    """Its end does not wait for a next push."""
    gate = Gate()

    class Silent(Engine, own_driver=True):
        def work(self) -> None:
            """Wait."""
            gate.pass_through()

    deployment = deployed(rig, Silent, [])
    deployment.end_sources()
    assert deployment.wait(PATIENCE)
    gate.open()


def test_an_engine_waits_in_its_push_while_the_slet_behind_it_is_suspended(rig):
    """Back-pressure reaches the engine's own thread, and the item it waits with is tried again."""
    seen, bad = [], [2]

    @slet
    def careful(item: int) -> None:
        if item in bad:
            bad.remove(item)
            raise ValueError("bad")
        seen.append(item)

    deployment = rig.deploy(line("suspended", engine=pushing(1, 2, [3, 4]), sink=careful))
    with pytest.raises(ComponentFailed):
        deployment.wait(PATIENCE)
    assert seen == [1]
    with parked(deployment):
        pass
    deployment.components["sink"].resume()
    assert deployment.wait(PATIENCE)
    assert seen == [1, 2, 3, 4]


def test_several_threads_of_an_engine_push_one_at_a_time(rig):
    """Each thread's items stay in order, and one driver runs what follows."""
    seen = []

    class Crowd(Engine, own_driver=True):
        def work(self) -> None:
            """Four threads push."""
            threads = [threading.Thread(target=self.push_some, args=(me,)) for me in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            self.out.end()

        def push_some(self, me: int) -> None:
            """Push 200 items."""
            for number in range(200):
                self.out.push((me, number))

    deployment = deployed(rig, Crowd, seen)
    assert deployment.wait(PATIENCE)
    for me in range(4):
        assert [number for who, number in seen if who == me] == list(range(200))


def test_an_engine_that_reports_a_failure_is_failed(rig):
    """`fail` shows the error; waiting for the application says which engine broke."""

    class Broken(Engine, own_driver=True):
        def work(self) -> None:
            """Push something, then report."""
            self.out.push(1)
            self.out.fail(RuntimeError("the engine is out of order"))

    deployment = deployed(rig, Broken, [])
    with pytest.raises(ComponentFailed, match=r"engine failed while .*out of order"):
        deployment.wait(PATIENCE)


def test_an_application_whose_engine_breaks_before_it_starts_is_not_started(rig):
    """Broken between its opening and the start: the deployment fails, and everything is closed again."""
    closed = []

    class Broken(Slet, own_driver=True):
        out: OutputPort[int]

        def __enter__(self) -> "Broken":
            self.out.fail(RuntimeError("out of order"))
            return self

    class Other(Takes):
        def __exit__(self, *exc: object) -> None:
            closed.append("other")

    app = line("broken", engine=Broken, other=Other)
    with pytest.raises(ComponentFailed, match="out of order"):
        rig.deploy(app)
    assert closed == ["other"]
    assert not rig.registry.find(None, "(application=broken)")


def test_an_engine_that_waits_in_a_push_does_not_keep_a_failed_opening(rig):
    """Another slet cannot be opened: the engine's thread is let go, and leaves."""

    class Eager(Engine, own_driver=True):
        def work(self) -> None:
            """Push at once."""
            self.out.push(1)

    engines = []

    class Refuses(Takes):
        def __enter__(self) -> "Refuses":
            raise OSError("no such device")

    class Watched(Eager, own_driver=True):
        def __enter__(self) -> "Watched":
            engines.append(self)
            super().__enter__()
            return self

    app = line("refused", engine=Watched, sink=Refuses)
    with pytest.raises(ComponentFailed, match="sink failed while opening: no such device"):
        rig.deploy(app)
    assert not engines[0].thread.is_alive()
    assert isinstance(engines[0].stopped, Halted)


def test_an_engine_can_pull(rig):
    """A pull waits for items or the end; it is a safe point, and no other driver runs the engine."""
    seen = []

    class Pulling(Engine, own_driver=True):
        item: InputPort[int]

        def work(self) -> None:
            """Pull until the end."""
            while items := self.item.pull(10):
                self.out.push_batch(Batch(items))
            self.out.end()

    deployment = rig.deploy(line("pulling", numbers=(count_up, {"to": 1000}), engine=Pulling, sink=collector(seen)))
    for _ in range(10):
        with parked(deployment):
            pass
    assert deployment.wait(PATIENCE)
    assert seen == list(range(1000))


def test_an_engine_hands_over_and_ends_when_it_has_drained(rig):
    """Its input is called by the upstream driver; the end is not forwarded for it: it says so itself."""
    seen = []

    class Handing(Engine, own_driver=True):
        def __enter__(self) -> "Handing":
            self.handed: queue.SimpleQueue[Any] = queue.SimpleQueue()
            super().__enter__()
            return self

        @input_port
        def item(self, item: int | EndOfStream) -> None:
            """Hand over."""
            self.handed.put(item)

        def work(self) -> None:
            """Push what was handed over."""
            while not isinstance(item := self.handed.get(), EndOfStream):
                self.out.push(item * 10)
            self.out.end()

    rig.run(line("handing", numbers=(count_up, {"to": 100}), engine=Handing, sink=collector(seen)))
    assert seen == [10 * number for number in range(100)]


def test_an_engine_without_outputs_ends_with_its_inputs(rig):
    """An ω-engine has ended when all its inputs have."""

    class Sink(Slet, own_driver=True):
        @input_port
        def item(self, item: int) -> None:
            """Take."""

    rig.run(line("omega", numbers=(count_up, {"to": 10}), sink=Sink))


def test_a_suspended_engine_pushes_nothing(rig):
    """Suspending holds both ways: what is pushed to it, and what it pushes."""
    seen = []

    class Endless(Engine, own_driver=True):
        def work(self) -> None:
            """Push without end."""
            while True:
                self.out.push(1)

    deployment = deployed(rig, Endless, seen)
    eventually(lambda: seen)
    engine = deployment.components["engine"]
    engine.on(Event.SUSPEND)
    assert rests(engine.driver, PATIENCE)
    before = len(seen)
    engine.resume()
    eventually(lambda: len(seen) > before)


def test_much_work_that_comes_for_an_engine_at_once_takes_one_thread():
    """Work that is posted while a thread waits for its turn is done by that one; later work has a thread of its own."""
    looked = []

    class Looking(EngineDriver):
        def stand_by(self):
            looked.append(threading.current_thread())
            super().stand_by()

    with threads_leave():
        driver = Looking("crowded", lambda: None, lambda: ())
        driver.start()
        with driver.turn:
            for _ in range(50):
                driver.prompt()
            waiting = [one for one in threading.enumerate() if one.name == "exop crowded (given)"]
            assert len(waiting) == 1
        eventually(lambda: looked == waiting)
        driver.prompt()
        eventually(lambda: len(looked) == 2)


def test_a_push_that_was_halted_at_its_safe_point_is_not_handed_over():
    """The slet has the error already: it knows that the item has not left."""
    driver = EngineDriver("halted", lambda: None, lambda: ())
    driver.halt()
    with pytest.raises(Halted):
        driver.drive(lambda probe: None, lambda begun: InFlight(NOWHERE, "push", 1))
    assert driver.take_in_flight() == []

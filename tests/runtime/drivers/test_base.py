"""Safe points: parking and opening, nested and under race, holding, dozing, halting, items in flight."""

import threading
from types import SimpleNamespace

import pytest

from exop.runtime.dataflow.entry import Entry, InFlight, Unwind
from exop.runtime.dataflow.inlets import Inlets
from exop.runtime.drivers import base
from exop.runtime.drivers.base import Driver, Halted, acting_as, current_driver
from tests.rig import PATIENCE, Gate, eventually, rests, threads_leave
from tests.runtime.rig import Log, Runs, driven, finished


@pytest.fixture(autouse=True)
def no_thread_stays():
    """Every driver leaves."""
    with threads_leave():
        yield


def stepping(driver, work, until):
    """Work between safe points, as the drivers of the platform do."""
    while not until():
        driver.busy = True
        if driver.attention:
            driver.attend()
        work()
        driver.busy = False
        if driver.attention:
            driver.rest()


class Stepper:
    """A driver that works without end, and can tell that it is inside of an item."""

    def __init__(self):
        self.steps = 0
        self.inside = False
        self.stop = False
        self.driver = Runs(lambda driver: stepping(driver, self.work, lambda: self.stop))

    def work(self):
        """One item."""
        self.inside = True
        self.steps += 1
        self.inside = False

    def __enter__(self):
        self.driver.start()
        eventually(lambda: self.steps)
        return self

    def __exit__(self, *exc):
        self.stop = True
        finished(self.driver)


def test_a_driver_parks_only_between_two_items():
    """Several threads park one driver at random: none of them ever finds it inside of an item."""
    seen = []

    def park(stepper):
        for _ in range(100):
            stepper.driver.close()
            if not rests(stepper.driver, PATIENCE):
                seen.append("it did not park")
            if stepper.inside:
                seen.append("it was inside of an item")
            before = stepper.steps
            if stepper.steps != before:
                seen.append("it moved")
            stepper.driver.open()

    with Stepper() as stepper:
        threads = [threading.Thread(target=park, args=(stepper,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not seen
        assert not stepper.driver.closed


def test_it_goes_on_when_as_many_have_opened_as_have_closed():
    """Closing nests."""
    with Stepper() as stepper:
        stepper.driver.close()
        stepper.driver.close()
        assert rests(stepper.driver, PATIENCE)
        stepper.driver.open()
        before = stepper.steps
        assert stepper.driver.closed
        assert stepper.steps == before
        stepper.driver.open()
        eventually(lambda: stepper.steps > before)


def test_waiting_for_a_driver_that_does_not_come_ends_in_time():
    """A slow slet holds no thread up for longer than its timeout."""
    gate = Gate()

    def work(driver):
        driver.busy = True
        gate.pass_through()

    driver = driven(work)
    gate.somebody_waits()
    driver.close()
    assert not rests(driver, 0.01)
    gate.open()
    assert rests(driver, PATIENCE)
    finished(driver)


def test_no_wake_up_is_lost():
    """Whatever the order of pushing and falling asleep, the sleeper sees everything: 3000 items, one at a time."""
    entries, seen = [], []

    def work(driver):
        while True:
            while entries:
                seen.append(entries.pop())
            if len(seen) == 3000:
                return
            driver.doze(lambda: not entries)

    driver = driven(work)
    for number in range(3000):
        entries.append(number)
        if driver.sleeping:
            driver.wake()
        if number % 50 == 0:
            eventually(lambda: not entries)
    finished(driver)
    assert sorted(seen) == list(range(3000))


def test_a_driver_that_holds_is_parked_meanwhile_and_continues_when_it_can():
    """Waiting inside an item for a repair is a safe point."""
    ready = []

    def work(driver):
        driver.busy = True
        driver.hold("a place", lambda: ready)
        assert driver.busy
        driver.rest()

    driver = driven(work)
    eventually(lambda: driver.held_by == "a place")
    driver.close()
    assert rests(driver, PATIENCE)
    ready.append(True)
    driver.wake()
    assert driver.held_by == "a place"
    driver.open()
    finished(driver)
    assert driver.held_by is None


def test_a_driver_that_holds_never_moves_while_it_is_parked():
    """The race of going on and being closed at the same moment: 300 times, none is won by both."""
    moved, wrong = [0], []

    def work(driver):
        for number in range(300):
            driver.busy = True
            driver.hold("here", lambda number=number: moved[0] > number)
            if driver.closed and driver.attention and parked:
                wrong.append(number)
            driver.rest()

    parked = []
    driver = driven(work)

    def park():
        while driver.alive:
            driver.close()
            rests(driver, PATIENCE)
            parked.append(1)
            if driver.busy and driver.held_by is None and driver.alive:
                wrong.append("busy though parked")
            parked.clear()
            driver.open()

    thread = threading.Thread(target=park)
    thread.start()
    for number in range(300):
        eventually(lambda number=number: driver.held_by or moved[0] > number or not driver.alive)
        moved[0] += 1
        driver.wake()
    finished(driver)
    thread.join(PATIENCE)
    assert not wrong


def test_a_hold_with_patience_ends_by_itself_but_not_while_parked():
    """A back-off is over after its time, unless the driver is closed."""
    driver = driven(lambda driver: driver.hold("a while", lambda: False, timeout=0.01))
    finished(driver)
    waiting = Runs(lambda driver: driver.hold("a while", lambda: False, timeout=0.0))
    waiting.close()
    waiting.start()
    eventually(lambda: waiting.held_by == "a while")
    assert waiting.alive
    waiting.open()
    finished(waiting)


def test_a_wait_ends_in_time_however_little_time_is_left(monkeypatch):
    """A thread may lose the processor just before it sleeps, until after its deadline: it goes on all the same.

    The clock stands still, so that every one of these waits is asked for with a nanosecond left.
    """
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: 0.0))

    def work(driver):
        for _ in range(15_000):
            driver.wake()
            driver.wait_for(lambda: False, timeout=1e-9)

    finished(driven(work))


@pytest.mark.parametrize("place", ["attend", "hold", "doze", "wait_for"])
def test_a_halted_driver_leaves_wherever_it_waits(place):
    """Halting unwinds the thread at once, and is no crash."""

    def work(driver):
        while True:
            driver.busy = True
            if driver.attention:
                driver.attend()
            if place == "hold":
                driver.hold("for ever", lambda: False)
            elif place == "doze":
                driver.doze(lambda: True)
            elif place == "wait_for":
                driver.wait_for(lambda: False)
            driver.busy = False

    driver = driven(work)
    driver.halt()
    finished(driver)
    assert driver.crash is None


def test_a_closed_driver_can_be_halted():
    """Taking an application away does not wait for those who have parked it."""
    with Stepper() as stepper:
        stepper.driver.close()
        assert rests(stepper.driver, PATIENCE)
        stepper.driver.halt()
        assert stepper.driver.join(PATIENCE)


def test_a_crash_is_kept_and_waiting_threads_are_woken(capsys):
    """A defect ends the driver: the error is kept and logged with what helps, and waiting threads are woken."""
    told = []

    def work(driver):
        driver.busy = True
        raise RuntimeError("a defect")

    driver = Runs(work)
    driver.on_caught_up = lambda: told.append(driver.crash)
    driver.start()
    assert driver.join(PATIENCE)
    assert isinstance(driver.crash, RuntimeError)
    assert isinstance(told[-1], RuntimeError)
    assert "cure='restart the platform: a durable application continues" in capsys.readouterr().err
    assert rests(driver, PATIENCE)


def test_a_slet_that_calls_exit_is_a_crash_too():
    """`sys.exit()` in a slet does not make its thread disappear in silence."""
    driver = driven(lambda _: exit(3))
    assert driver.join(PATIENCE)
    assert isinstance(driver.crash, SystemExit)


def test_who_acts_for_a_driver_is_known():
    """The current driver is the one whose thread this is, or for which it acts."""
    assert current_driver() is None
    driver, other = Driver("one"), Driver("other")
    with acting_as(driver):
        assert current_driver() is driver
        with acting_as(other):
            assert current_driver() is other
        assert current_driver() is driver
    assert current_driver() is None


def test_the_first_items_are_measured_and_then_on_request():
    """Short runs have figures too; later an item is measured on request."""
    driver = Driver("measured")
    probes = 0
    for _ in range(100):
        if driver.attention:
            probes += driver.attend()
    assert probes == 16
    assert not driver.attention
    driver.measure_next()
    assert driver.attend()
    assert not driver.attention


def test_in_flight_items_are_sent_in_order_once_they_can_be():
    """A driver that went back to its safe point waits there, and then does what was left."""
    log, ready = Log(), []

    def work(driver):
        driver.busy = True
        unwound = Unwind("held", lambda: bool(ready), InFlight(log.entry, "push", 1))
        unwound.then(log.entry, "push", [2, 3])
        driver.unwound(unwound)

    driver = driven(work)
    eventually(lambda: driver.held_by == "held")
    assert not driver.busy
    assert log.seen == []
    ready.append(1)
    driver.wake()
    finished(driver)
    assert log.seen == [1, 2, 3]
    assert not driver.filled


def test_work_may_unwind_again():
    """An item that is refused once more stays before those behind it."""
    log, refusals = Log(), [1, 1, 1]

    def push(item):
        if refusals:
            refusals.pop()
            raise Unwind("again", lambda: True, InFlight(entry, "push", item))
        log.push(item)

    entry = Entry(push, push, push)

    def work(driver):
        driver.busy = True
        unwound = Unwind("held", lambda: True, InFlight(entry, "push", 1))
        unwound.then(entry, "push", [2, 3])
        driver.unwound(unwound)

    finished(driven(work))
    assert log.seen == [1, 2, 3]


def test_halting_is_not_caught_by_slets():
    """Halted is no Exception: a slet's own `except Exception` does not swallow it."""
    assert not issubclass(Halted, Exception)
    assert not issubclass(Unwind, Exception)


def holding(driver, log, ready):
    """Hold two items until *ready*."""
    driver.busy = True
    unwound = Unwind("held", ready, InFlight(log.entry, "push", 1))
    unwound.then(log.entry, "push", [2])
    driver.unwound(unwound)


def test_a_driver_that_is_prompted_while_it_leaves_comes_back_behind_its_former_thread():
    """One thread at a time runs a driver: the second one begins when the first one has noted that it rests."""
    threads, found = [], []

    class Leaving(Runs):
        def end_thread(self):
            leaves = super().end_thread()
            if not threads:
                threads.append(threading.current_thread())
                self.prompt()
            return leaves

        def _keep_running(self, run):
            if threads:
                found.append((threads[0].is_alive(), self.left))
            super()._keep_running(run)

    driver = Leaving(lambda _: None)
    driver.start()
    eventually(lambda: found)
    finished(driver)
    assert found == [(False, False)]
    assert driver.left


def test_a_driver_that_comes_back_amid_a_change_does_not_leave_while_its_items_are_put_in_order(monkeypatch):
    """For a moment, nothing waits for it: its thread is at the safe point meanwhile, and passes the items on."""
    driver, log, gate, inlet = Runs(lambda _: None), Log(), Gate(), Inlets._inlet
    driver.on_caught_up = gate.pass_through
    driver.inlets.runner = lambda _: driver
    driver.start()
    gate.somebody_waits()  # the former thread, which the next one follows
    driver.close()
    driver.inlets.post([InFlight(log.entry, "push", 1)])

    def put_back(*place):
        gate.open()
        eventually(lambda: driver.parked or driver.left)
        return inlet(*place)

    monkeypatch.setattr(Inlets, "_inlet", put_back)
    driver.inlets.put_in_order(lambda _: 0.0, driver)
    driver.open()
    finished(driver)
    assert log.seen == [1]


@pytest.mark.parametrize("stays", [False, True])
def test_a_change_replaces_the_places_that_a_parked_driver_looks_at(stays):
    """Another thread may replace them while the driver asks whether there is room: it then looks at the new ones."""
    driver, asked = Driver("test"), []

    class Place:
        def keeps_out(self, driver):
            asked.append(self)
            if len(asked) == 1:
                driver.overfilled = [self] if stays else []
            return False

    driver.overfill(Place())
    driver.stand_by()
    assert (len(asked), driver.overfilled) == (1 + stays, [])

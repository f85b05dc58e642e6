"""The queue: bounded, drained by a worker, back-pressure instead of loss."""

import math

import pyarrow as pa
import pytest

from exop.errors import MeshError
from exop.model.items import Batch, EndOfStream, Punctuation
from exop.runtime.channels.base import Outlet
from exop.runtime.channels.partitioned import Partitioning, route
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.dataflow.entry import Packet
from exop.runtime.dataflow.metrics import Tally
from exop.runtime.drivers.worker import Worker
from tests.rig import PATIENCE, eventually, rests, threads_leave
from tests.runtime.rig import Log, driven, finished, joined


@pytest.fixture
def workers():
    """Makes workers, and sees that they leave."""
    made = []

    def work(*queues, start=True):
        worker = Worker(f"test worker {len(made)}")
        worker.serve(queues)
        made.append(worker)
        if start:
            worker.start()
        return worker

    with threads_leave():
        yield work
        for worker in made:
            worker.halt()


def test_a_queue_holds_at_least_one_item():
    """A capacity below one is refused when the channel is made."""
    with pytest.raises(MeshError, match="holds at least 1"):
        QueueChannel("q", capacity=0)


def test_a_batch_counts_as_its_items():
    """The depth counts items, not entries; so does the figure of what entered; an empty batch leaves no trace."""
    queue = QueueChannel("q", capacity=10)
    entry = joined(queue, Log())
    entry.push_batch([])
    entry.push_batch(pa.record_batch({"x": pa.array([], pa.int32())}))
    assert not queue.entries
    entry.push(1)
    entry.push_batch([2, 3, 4])
    assert queue.depth == 4
    assert queue.metrics() == {"depth": 4, "capacity": 10, "items": 4, "dropped": 0}
    entry.control(Punctuation(4))
    assert queue.metrics()["items"] == 4


@pytest.mark.parametrize(("capacity", "first", "size"), [(4, 3, 2), (2, 1, 9)])
def test_a_batch_waits_until_it_fits_or_the_queue_is_empty(workers, capacity, first, size):
    """A batch enters when there is room for all its items; one that never fits is let in alone."""
    queue, log = QueueChannel("q", capacity=capacity), Log()
    entry = joined(queue, log)
    entry.push_batch(list(range(first)))
    driver = driven(lambda _: entry.push_batch(list(range(first, first + size))))
    eventually(lambda: queue._pushers)
    assert queue.depth == first
    workers(queue)
    finished(driver)
    eventually(lambda: log.seen == list(range(first + size)))
    assert queue.depth == 0


def test_punctuations_are_under_back_pressure_too(workers):
    """A stream of nothing but punctuations does not fill the memory; the end of the stream never waits."""
    queue, log = QueueChannel("q", capacity=2), Log()
    entry = joined(queue, log)
    sent = []

    def push(_):
        for time in range(5):
            entry.control(Punctuation(time))
            sent.append(time)
        entry.control(EndOfStream())

    driver = driven(push)
    eventually(lambda: queue._pushers)
    assert len(sent) == 2
    entry.control(EndOfStream())
    workers(queue)
    finished(driver)
    eventually(lambda: len(log.seen) == 7)
    assert [mark.time for mark in log.seen if isinstance(mark, Punctuation)] == [0, 1, 2, 3, 4]


def test_the_depth_comes_back_to_nothing_after_many_pushers(workers):
    """Items and batches of several pushers: the capacity is given back exactly, nothing is lost, order is kept."""
    queue, log = QueueChannel("q", capacity=3), Log()
    entry = joined(queue, log)

    def pusher(me):
        def push(_):
            for number in range(0, 300, 3):
                entry.push((me, number))
                entry.push_batch([(me, number + 1), (me, number + 2)])

        return push

    drivers = [driven(pusher(me)) for me in range(4)]
    workers(queue)
    for driver in drivers:
        finished(driver)
    eventually(lambda: len(log.seen) == 1200)
    eventually(lambda: queue.depth == 0)
    assert queue._extra == 0
    for me in range(4):
        assert [number for who, number in log.seen if who == me] == list(range(300))


def test_a_thread_that_is_no_driver_waits_for_room_too(workers):
    """A program that pushes by hand is under back-pressure like a driver."""
    import threading

    queue, log = QueueChannel("q", capacity=1), Log()
    entry = joined(queue, log)
    thread = threading.Thread(target=lambda: [entry.push(number) for number in range(5)])
    thread.start()
    eventually(lambda: queue._pushers)
    workers(queue)
    thread.join(60)
    eventually(lambda: log.seen == [0, 1, 2, 3, 4])


def test_taking_cuts_batches_and_stops_before_control_items():
    """A pull gets at most so many items, and a control item only when everything before it was taken."""
    queue = QueueChannel("q")
    entry = joined(queue, Log())
    entry.push_batch([1, 2, 3])
    entry.push(4)
    entry.control(Punctuation(4))
    entry.push(5)
    (first,) = queue.take(2)
    assert (first.method, first.payload) == ("push_batch", [1, 2])
    assert queue.depth == 4
    rest = queue.take(10)
    assert [rest[0].payload, rest[1]] == [[3], 4]
    (mark,) = queue.take(10)
    assert mark.payload == Punctuation(4)
    assert queue.take(10) == [5]
    assert queue.take(10) == []
    assert queue.depth == 0
    assert queue.metrics()["items"] == 5


def test_taking_cuts_a_record_batch_without_copying():
    """A record batch is cut by a slice."""
    queue = QueueChannel("q")
    joined(queue, Log()).push_batch(pa.record_batch({"x": [1, 2, 3]}))
    assert queue.take(2)[0].payload.to_pylist() == [{"x": 1}, {"x": 2}]
    assert queue.take(2)[0].payload.to_pylist() == [{"x": 3}]


def test_what_waits_is_captured_as_plain_data_and_restored_in_order(workers):
    """A capture holds items, batches and control items by kind; restored, they are delivered as before."""
    queue = QueueChannel("q", capacity=2)
    entry = joined(queue, Log())
    entry.push_batch(Batch([1, 2]))
    entry.control(EndOfStream())
    queue.entries.append(Packet("push", 3, 1.0, 1.0))
    held = queue.capture()
    assert held["entries"] == [("push_batch", [1, 2]), ("control", EndOfStream()), ("push", 3)]
    assert not held["left"]
    other, log = QueueChannel("q", capacity=2), Log()
    joined(other, log)
    workers(other)
    other.restore(held)
    eventually(lambda: log.seen == [1, 2, EndOfStream(), 3])
    assert other.depth == 0


def test_connections_can_change_while_items_wait(workers):
    """The contents belong to the channel: who is connected when they are delivered gets them."""
    queue, before, after = QueueChannel("q"), Log(), Log()
    entry = joined(queue, before)
    entry.push(1)
    joined(queue, after)
    entry.push(2)
    workers(queue)
    eventually(lambda: after.seen == [1, 2])
    assert before.seen == []


def test_what_is_measured_keeps_its_time_of_origin(workers):
    """A measured item or batch tells how long it waited, and its driver knows when it left its source."""
    queue, origins = QueueChannel("q"), []
    log = Log()
    entry = joined(queue, log)

    def push(driver):
        driver.origin = 42.0
        entry.probe.push(1)
        entry.probe.push_batch([2, 3])

    finished(driven(push))
    worker = workers(queue, start=False)
    log._then = lambda _: origins.append(worker.origin)
    worker.start()
    eventually(lambda: log.seen == [1, 2, 3])
    assert origins == [42.0, 42.0]
    assert len(queue.waits) == 2


def test_items_that_wait_are_passed_as_one_batch_to_a_port_that_gathers(workers):
    """Up to its limit, and never across a batch or a punctuation; all are counted, and the queue becomes empty."""
    batches: list[list[int]] = []
    queue, log = QueueChannel("q", capacity=100), Log(batches.append)
    entry = joined(queue, log)
    queue.deliver.gathers = 3
    for item in range(5):
        entry.push(item)
    entry.control(Punctuation(5))
    entry.push(5)
    entry.push_batch([6, 7, 8, 9])
    entry.push(10)
    workers(queue)
    eventually(lambda: queue.taken == 11 and not queue.entries)
    assert batches == [[0, 1, 2], [3, 4], [5], [6, 7, 8, 9], [10]]
    assert queue.depth == 0
    assert queue.metrics()["items"] == 11


@pytest.fixture
def waiting(workers):
    """A queue that waits without limit for three items, its entry, and the batches that it has passed on."""
    batches: list[list[int]] = []
    queue = QueueChannel("q", capacity=10)
    entry = joined(queue, Log(batches.append))
    queue.deliver.gathers, queue.deliver.max_wait = 3, math.inf
    worker = workers(queue)
    eventually(lambda: worker.sleeping)

    def held(item):
        """Push an item, and see that the worker, which has seen it, does not deliver it."""
        entry.push(item)
        eventually(lambda: queue.holds() and worker.sleeping)

    return queue, entry, batches, held


def test_items_wait_until_they_are_enough_for_a_batch(waiting):
    """The batch leaves with its last item; the next one waits again."""
    queue, entry, batches, held = waiting
    held(1)
    held(2)
    assert not batches
    entry.push(3)
    eventually(lambda: batches == [[1, 2, 3]])
    held(4)
    assert queue.depth == 1


@pytest.mark.parametrize("measured", [False, True])
def test_items_do_not_wait_for_more_if_something_else_follows(waiting, measured):
    """A punctuation, and a batch, leave behind the items before them; a measured item is one of the batch."""
    queue, entry, batches, held = waiting
    held(1)
    (entry.probe if measured else entry).push(2)
    entry.control(Punctuation(2))
    eventually(lambda: queue.marks == 1)
    held(3)
    entry.push_batch([4, 5])
    eventually(lambda: batches == [[1, 2], [3], [4, 5]])
    assert len(queue.waits) == measured


def test_items_do_not_wait_for_more_if_there_is_no_room(waiting):
    """Neither in a full queue, nor if a batch does not fit."""
    queue, entry, batches, held = waiting
    queue.deliver.gathers = 20
    for item in range(9):
        held(item)
    finished(driven(lambda _: entry.push_batch([*range(9, 19)])))
    eventually(lambda: batches == [[*range(9)], [*range(9, 19)]])
    for item in range(10):
        entry.push(item)
    eventually(lambda: batches[2:] == [[*range(10)]])


def test_items_wait_for_no_longer_than_the_limit(waiting):
    """The limit counts from the first of them; afterwards the next ones wait as long."""
    queue, entry, batches, _held = waiting
    queue.deliver.max_wait = 0.02
    entry.push(1)
    eventually(lambda: batches == [[1]])
    entry.push(2)
    eventually(lambda: batches == [[1], [2]])


def test_a_worker_that_holds_items_parks_and_empties_its_queue_at_once(waiting):
    """A change waits for neither; what was not delivered waits on."""
    queue, _, batches, held = waiting
    held(1)
    worker = queue.worker
    worker.close()
    assert rests(worker, PATIENCE)
    worker.draining = True
    worker.open()
    eventually(lambda: batches == [[1]])
    worker.draining = False
    held(2)
    worker.halt()
    assert worker.join(PATIENCE)
    assert [*queue.entries] == [2]


def test_a_queue_with_several_consumers_gathers_for_those_that_take_batches(workers):
    """All get the batches; items wait for more only if this suits every consumer."""
    queue, one, other = QueueChannel("q"), Log(), Log()
    one.entry.gathers, one.entry.max_wait = 3, math.inf
    entry = joined(queue, one, other)
    for item in range(4):
        entry.push(item)
    workers(queue)
    eventually(lambda: one.seen == other.seen == [0, 1, 2, 3])
    assert one.calls == other.calls == ["push_batch", "push_batch"]


def test_a_group_that_shares_a_queue_gets_batches(workers):
    """Each member gets the items of its keys."""
    logs = {name: Log() for name in ("a", "b")}
    for log in logs.values():
        log.entry.gathers = 100
    members = {name: log.entry for name, log in logs.items()}
    routed = route(Partitioning("q", "0", 8), [members], lambda *refused: None)
    queue = QueueChannel("q")
    entry = queue.entry([Outlet("group", routed)])
    for item in range(50):
        entry.push((item,))
    workers(queue)
    eventually(lambda: sum(len(log.seen) for log in logs.values()) == 50)
    assert [log.calls for log in logs.values()] == [["push_batch"], ["push_batch"]]


def test_a_queue_that_is_closed_leaves_its_count_and_goes(workers):
    """The port behind it counts on from there, and does not keep the queue in memory."""
    queue, log, tally = QueueChannel("q", capacity=3), Log(), Tally()
    log.entry.tally = tally
    entry = joined(queue, log)
    workers(queue)
    entry.push_batch([1, 2])
    entry.push(3)
    eventually(lambda: queue.taken == 3)
    before = tally.read_entered({})
    queue.close()
    assert (tally.sources, tally.read_entered({})) == ((), before)
    assert before == 1  # the port counts batches itself

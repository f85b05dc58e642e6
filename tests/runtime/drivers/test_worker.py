"""The worker: drains several queues, the one farthest downstream first."""

import pytest

from exop.runtime.channels.queue import QueueChannel
from exop.runtime.drivers.worker import TURN, Worker
from tests.rig import PATIENCE, eventually, threads_leave
from tests.runtime.rig import Log, joined


@pytest.fixture
def worker():
    """A worker that is taken away after the test."""
    with threads_leave():
        made = Worker("test")
        yield made
        made.halt()


def test_the_queue_farthest_downstream_comes_first(worker):
    """What is nearer to the end is finished before anything new is begun."""
    order = []
    up, down = QueueChannel("up"), QueueChannel("down")
    into_up, into_down = joined(up, Log(lambda item: order.append(("up", item)))), None
    into_down = joined(down, Log(lambda item: order.append(("down", item))))
    for number in range(3):
        into_up.push(number)
        into_down.push(number)
    worker.serve((down, up))
    worker.start()
    eventually(lambda: len(order) == 6)
    assert order == [("down", 0), ("down", 1), ("down", 2), ("up", 0), ("up", 1), ("up", 2)]


def test_no_queue_keeps_the_others_waiting(worker):
    """A worker takes turns: an endless queue does not starve the one beside it."""
    order = []
    busy, quiet = QueueChannel("busy", capacity=10_000), QueueChannel("quiet")
    into_busy = joined(busy, Log(lambda item: order.append("busy")))
    into_quiet = joined(quiet, Log(lambda item: order.append("quiet")))
    into_busy.push_batch([0])
    for number in range(10 * TURN):
        into_busy.push(number)
    into_quiet.push(1)
    worker.serve((busy, quiet))
    worker.start()
    eventually(lambda: len(order) == 10 * TURN + 2)
    assert order.index("quiet") <= 2 * TURN


def test_a_queue_that_its_own_worker_overfills_is_drained_before_more_is_taken(worker):
    """Multiplying upstream does not fill the memory downstream: the excess is bounded by one turn."""
    depths, done = [], []
    up, down = QueueChannel("up", capacity=100_000), QueueChannel("down", capacity=1)
    into_down = joined(down, Log(done.append))

    def multiply(item):
        for _ in range(3):
            into_down.push(item)
        depths.append(down.depth)

    into_up = joined(up, Log(multiply))
    for number in range(50 * TURN):
        into_up.push(number)
    worker.serve((down, up))
    worker.start()
    eventually(lambda: len(done) == 150 * TURN)
    assert max(depths) <= 3 * TURN + 1


def test_a_worker_sleeps_while_there_is_nothing_to_do_and_wakes_for_each_item(worker):
    """An idle worker costs nothing, and misses nothing."""
    queue, log = QueueChannel("q"), Log()
    entry = joined(queue, log)
    worker.serve((queue,))
    worker.start()
    for number in range(200):
        entry.push(number)
        eventually(lambda number=number: len(log.seen) == number + 1)
    eventually(lambda: worker.sleeping)


def test_a_retired_worker_leaves_when_its_queues_are_empty(worker):
    """Who serves nothing any more goes; what it had is drained before."""
    queue, log = QueueChannel("q"), Log()
    entry = joined(queue, log)
    for number in range(10):
        entry.push(number)
    worker.serve((queue,))
    worker.retire()
    worker.start()
    assert worker.join(PATIENCE)
    assert log.seen == list(range(10))


def test_who_watches_for_idleness_is_asked_when_everything_is_empty(worker):
    """What it returns is done by the worker, as an item of its own."""
    queue, log, done = QueueChannel("q"), Log(), []
    entry = joined(queue, log)
    entry.push(1)

    def idle():
        if log.seen and not done:
            return lambda: done.append((worker.busy, queue.depth))
        return None

    worker.idle = idle
    worker.serve((queue,))
    worker.start()
    eventually(lambda: done == [(True, 0)])


def test_work_that_comes_for_a_halted_worker_does_not_bring_it_back(worker):
    """A worker that was halted has left for good: it is not counted among those that live, nor waited for."""
    worker.start()
    worker.halt()
    assert worker.join(PATIENCE)
    worker.prompt()
    assert not worker.alive
    assert worker.join(PATIENCE)

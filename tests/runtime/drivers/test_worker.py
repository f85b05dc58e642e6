"""Workers drain queues, downstream first; few threads of the pool run many of them, and none holds up another."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exop.runtime.channels.queue import QueueChannel
from exop.runtime.dataflow.entry import InFlight, Unwind
from exop.runtime.drivers import worker as pools
from exop.runtime.drivers.worker import POOL, TURN, Pool, Worker
from tests.rig import PATIENCE, Gate, eventually, rests, threads_leave
from tests.runtime.rig import Log, joined


@pytest.fixture
def worker():
    """A worker that is taken away after the test."""
    with threads_leave():
        made = Worker("test")
        yield made
        made.halt()


def test_the_queue_farthest_downstream_comes_first(worker):
    """Items farther downstream are finished before new ones are begun."""
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
    """A worker without queues leaves, once its items are drained."""
    queue, log = QueueChannel("q"), Log()
    entry = joined(queue, log)
    for number in range(10):
        entry.push(number)
    worker.serve((queue,))
    worker.retire()
    worker.start()
    assert worker.join(PATIENCE)
    assert log.seen == list(range(10))


def test_idle_is_called_when_all_queues_are_empty(worker):
    """The worker makes the returned call, as an item of its own."""
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


@pytest.fixture
def serving():
    """Makes a queue with a started worker of its own, and sees that all threads leave."""
    with ExitStack() as ends:
        ends.enter_context(threads_leave())

        def serve(then=None, *, pool=POOL, capacity=1024):
            queue, log = QueueChannel("q", capacity=capacity), Log(then)
            entry = joined(queue, log)
            worker = Worker("test", pool)
            ends.callback(worker.halt)
            worker.serve((queue,))
            worker.start()
            return worker, entry, log

        yield serve


def test_more_workers_wait_in_user_code_than_threads_are_kept(serving):
    """64 slets that wait for each other get through: a worker that stays in one call has its slot taken."""
    pool = Pool(2)
    barrier = threading.Barrier(64)
    served = [serving(lambda _: barrier.wait(PATIENCE), pool=pool) for _ in range(64)]
    for _, entry, _ in served:
        entry.push(1)
    eventually(lambda: all(log.seen == [1] for _, _, log in served))
    assert not barrier.broken
    eventually(lambda: len(pool._threads) <= 2, "the end of the threads beyond the base")


def test_threads_come_and_go_as_often_as_needed(serving):
    """When the threads beyond the base have left, as many come again the next time."""
    pool, barrier = Pool(1), threading.Barrier(4)
    served = [serving(lambda _: barrier.wait(PATIENCE), pool=pool) for _ in range(4)]
    for number in range(4):
        for _, entry, _ in served:
            entry.push(number)
        eventually(lambda number=number: all(len(log.seen) == number + 1 for _, _, log in served))
        eventually(lambda: len(pool._threads) <= 1, "the end of the threads beyond the base")


def test_workers_that_hang_hold_up_no_other_one(serving):
    """With every thread of the base stuck in user code the other queues are drained."""
    pool, gate = Pool(1), Gate()
    hanging = [serving(lambda _: gate.pass_through(), pool=pool) for _ in range(3)]
    for _, entry, _ in hanging:
        entry.push(1)
    _, entry, log = serving(pool=pool)
    for number in range(3 * TURN):
        entry.push(number)
    eventually(lambda: log.seen == list(range(3 * TURN)))
    gate.open()
    eventually(lambda: all(log.seen == [1] for _, _, log in hanging))


def test_an_idle_worker_is_closed_and_opened_without_a_thread(serving):
    """It counts as parked at once, and opening it gives it no turn; what comes meanwhile waits."""
    worker, entry, log = serving()
    entry.push(0)
    eventually(lambda: worker.sleeping and not worker.scheduled)
    turns = []
    worker.watch(lambda: turns.append(True))
    worker.close()
    assert rests(worker, 0)
    worker.open()
    assert not worker.scheduled
    assert not turns
    worker.close()
    entry.push(1)
    eventually(lambda: not worker.scheduled)
    assert log.seen == [0]
    worker.open()
    eventually(lambda: log.seen == [0, 1])


def test_a_busy_worker_that_is_closed_gives_its_thread_back(serving):
    """At the safe point it leaves the thread, whatever waits in its queue; opened, it goes on where it was."""
    pool, gate = Pool(1), Gate()
    worker, entry, log = serving(lambda _: gate.pass_through(), pool=pool)
    for number in range(5):
        entry.push(number)
    eventually(lambda: log.seen)
    worker.close()
    gate.open()
    assert rests(worker, PATIENCE)
    eventually(lambda: not worker.scheduled)
    assert log.seen == [0]
    _, other, others = serving(pool=pool)
    other.push(1)
    eventually(lambda: others.seen == [1])
    worker.open()
    eventually(lambda: log.seen == [0, 1, 2, 3, 4])


def test_a_worker_with_much_to_do_lets_the_others_run(serving):
    """Turns are bounded: with one thread, an endless queue does not starve the one beside it."""
    pool, gate, order = Pool(1), Gate(), []

    def first(item):
        gate.pass_through()
        order.append("busy")

    _, busy, _ = serving(first, pool=pool, capacity=100 * TURN)
    _, quiet, _ = serving(lambda _: order.append("quiet"), pool=pool)
    for number in range(10 * TURN):
        busy.push(number)
    quiet.push(1)
    gate.open()
    eventually(lambda: len(order) == 10 * TURN + 1)
    assert order.index("quiet") <= TURN


def test_a_worker_that_is_halted_in_user_code_is_left_behind(serving):
    """It does not come to its end in time, which `join` tells; when the call returns, it takes nothing more."""
    gate = Gate()
    worker, entry, log = serving(lambda _: gate.pass_through())
    entry.push(1)
    entry.push(2)
    eventually(lambda: log.seen)
    worker.halt()
    assert not worker.join(0)
    assert worker.alive
    gate.open()
    assert worker.join(PATIENCE)
    assert log.seen == [1]


def test_workers_wait_for_room_without_a_thread(serving):
    """In a long row of full queues the workers wait at their safe points: the pool has no more threads than always."""
    pool, gate = Pool(2), Gate()
    worker, at, log = serving(lambda _: gate.pass_through(), pool=pool, capacity=1)
    row = [worker]
    for _ in range(30):
        worker, at, _ = serving(at.push, pool=pool, capacity=1)
        row.append(worker)
    pushing = threading.Thread(target=lambda: [at.push(number) for number in range(100)], daemon=True)
    pushing.start()
    eventually(lambda: all(one.waits_at is not None and not one.busy for one in row[1:]))
    eventually(lambda: len(pool._threads) <= 3)
    for one in row[1:]:
        one.close()
        assert rests(one, 0)
        one.open()
    gate.open()
    eventually(lambda: log.seen == list(range(100)))
    pushing.join(PATIENCE)


def test_workers_of_suspended_slets_wait_without_a_thread(serving):
    """They can be parked meanwhile, and go on, item by item, when their slet is resumed."""
    pool, resumed, row = Pool(2), [], []
    for number in range(30):

        def suspended(item, number=number):
            if not resumed:
                raise Unwind(
                    f"{number} is suspended", lambda: bool(resumed), InFlight(row[number][2].entry, "push", item)
                )

        row.append(serving(suspended, pool=pool))
    for _, entry, _ in row:
        for number in range(3):
            entry.push(number)
    workers = [worker for worker, _, _ in row]
    eventually(lambda: all(one.held_by and not one.busy and one.thread is None for one in workers))
    eventually(lambda: len(pool._threads) <= 2)
    for worker in workers:
        worker.close()
        assert rests(worker, 0)
        worker.open()
    resumed.append(True)
    for worker in workers:
        worker.wake()
    for worker, _, log in row:
        eventually(lambda log=log: log.seen == [0, 0, 1, 2], "the items")  # the log notes the refused one, too
        eventually(lambda worker=worker: worker.held_by is None)


@pytest.fixture
def threads(monkeypatch):
    """Threads of the pool; none can be started while there is a reason in the list."""
    reasons = []

    class Refused(threading.Thread):
        def start(self):
            if reasons:
                raise RuntimeError(reasons[0])
            super().start()

    monkeypatch.setattr(pools, "threading", SimpleNamespace(Thread=Refused, Lock=threading.Lock))
    return reasons


def test_a_thread_that_cannot_be_started_is_tried_again(serving, threads):
    """The push that would have started it does not fail; the work waits until there is a thread."""
    pool, gate = Pool(1), Gate()
    _, hanging, _ = serving(lambda _: gate.pass_through(), pool=pool)
    hanging.push(1)
    gate.somebody_waits()
    threads.append("can't start new thread")
    _, entry, log = serving(pool=pool)
    entry.push(1)
    eventually(lambda: not pool._counted)  # the slot of the one that hangs is taken
    entry.push(2)
    assert log.seen == []
    threads.clear()
    eventually(lambda: log.seen == [1, 2])
    gate.open()


def test_a_worker_that_gets_no_thread_at_all_says_so_when_it_is_started(threads):
    """It is not counted as running, and can be started when there are threads again."""
    pool, queue, log = Pool(1), QueueChannel("q"), Log()
    entry = joined(queue, log)
    worker = Worker("test", pool)
    worker.serve((queue,))
    threads.append("can't start new thread")
    with threads_leave():
        with pytest.raises(RuntimeError, match="can't start new thread"):
            worker.start()
        assert not worker.alive
        threads.clear()
        worker.start()
        entry.push(1)
        eventually(lambda: log.seen == [1])
        worker.halt()


def test_work_for_a_worker_that_has_left_waits_for_a_thread(threads):
    """Handing it over does not fail where the system has no thread; it is done with the next turn of any worker."""
    pool, log = Pool(1), Log()
    back, other = (Worker(name, pool) for name in ("back", "other"))
    with threads_leave():
        back.serve(())
        back.start()
        back.end()
        eventually(lambda: back.left and not pool._monitored)
        back.inlets.runner = lambda place: back
        threads.append("can't start new thread")
        back.inlets.post([InFlight(log.entry, "push", 1)])
        assert not back.left
        assert log.seen == []
        threads.clear()
        other.start()
        eventually(lambda: log.seen == [1])
        other.halt()


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(chance=st.randoms(use_true_random=False), size=st.integers(1, 3))
def test_any_graph_of_full_queues_comes_to_its_end(chance, size):
    """Queues of capacity 1 in any graph, with cycles, fan-out, and slets that wait: everything is passed on once."""
    number = chance.randint(2, 12)
    into = [[chance.randrange(number) for _ in range(chance.choice((0, 1, 1, 2, 3)))] for _ in range(number)]
    waits = [chance.random() < 0.2 for _ in range(number)]
    pool, pause, entries, workers = Pool(size), threading.Event(), [], []
    seen = [0] * number
    expected = [0] * number

    def follow(at, left):
        expected[at] += 1
        for following in into[at] if left else ():
            follow(following, left - 1)

    def slet_at(at):
        def push(left):
            seen[at] += 1
            if waits[at]:
                pause.wait(0.0005)
            for following in into[at] if left else ():
                entries[following].push(left - 1)

        return push

    with threads_leave():
        try:
            for at in range(number):
                queue = QueueChannel(f"q{at}", capacity=1)
                entries.append(joined(queue, Log(slet_at(at))))
                workers.append(Worker(f"w{at}", pool))
                workers[-1].serve((queue,))
                workers[-1].start()
            for _ in range(20):
                at, left = chance.randrange(number), chance.randint(0, 4)
                follow(at, left)
                entries[at].push(left)
            eventually(lambda: seen == expected)
        finally:
            for worker in workers:
                worker.halt()

"""`Worker`: the driver that drains queues; and `Pool`: the few threads that run the workers of all applications.

A worker has a thread only while it has something to do, and one thread at a time. At most `size` threads run workers at
the same time. A thread whose worker waits inside a call, or stays in one call for longer than HANDOFF, does not
count, and another thread takes its slot, so that no worker waits until another one has finished.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exop.runtime.dataflow.entry import InFlight, Wait
from exop.runtime.drivers.base import Signal, acting_as, current_driver, remaining
from exop.runtime.drivers.source import ThreadDriver

if TYPE_CHECKING:
    from exop.runtime.channels.queue import Buffered

#: The number of entries after which a worker checks its other queues, and lets other workers run.
TURN: Final = 64
#: Seconds in one call after which the thread of a worker no longer counts.
HANDOFF: Final = 0.02
#: Idle seconds after which a thread ends, if there are more than `size`.
IDLE: Final = 0.2


class Yielded(BaseException):
    """Ends the turn of a worker at a safe point. Not an `Exception`, so that slets do not catch it."""


@dataclass(eq=False, slots=True)
class PoolThread:
    """A thread of the pool, with the worker that it runs and `since` when.

    `count` is the number of items that the worker had taken when the monitor checked last.
    """

    signal: Signal = field(default_factory=Signal)
    worker: Worker | None = None
    since: float = 0.0
    count: int = -1


class Pool:
    """Runs the workers that have items, each for a limited turn, in the order in which they were scheduled.

    Args:
        size: The number of threads that may run workers at a time, and that do not end when idle.

    Attributes:
        due: The workers that wait for a turn.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self.due: deque[Worker] = deque()
        self._threads: set[PoolThread] = set()
        self._idle: dict[PoolThread, None] = {}
        self._counted: set[PoolThread] = set()  # among those that run workers
        self._users = 0
        self._backlog = Signal()
        self._monitored = self._watching = False

    def enlist(self, *, back: bool = False) -> None:
        """Count a worker that starts, or starts again (*back*); with at least one, the monitor and a thread run.

        If the system has no more threads, a worker that starts is not counted, and a `RuntimeError` is raised; for one
        that starts again, the monitor starts a thread later, or else the next worker that is scheduled.
        """
        with self._lock:
            if not self._has_threads() and not back:
                self._backlog.set()
                raise RuntimeError("can't start new thread")
            self._users += 1

    def dismiss(self) -> None:
        """Count a worker that has stopped; after the last one, all threads end."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._send_home()

    def schedule(self, worker: Worker) -> None:
        """Schedule a turn of *worker*, or another one if it is in a turn. Any thread may call this."""
        with self._lock:
            if worker.scheduled:
                worker.again = True
                return
            worker.scheduled = True
            self.due.append(worker)
            if self._monitored or self._has_threads():
                self._staff()

    @contextmanager
    def away(self, worker: Worker) -> Iterator[None]:
        """Let another thread run workers while *worker* waits, in its own thread, inside a call."""
        if (thread := worker.thread) is None:
            yield
            return
        with self._lock:
            self._release(thread)
        try:
            yield
        finally:
            with self._lock:
                self._counted.add(thread)

    # The methods below are called with the lock held, except for those that a thread runs.

    def _has_threads(self) -> bool:
        """Start the monitor and a thread unless they exist; return whether they exist now."""
        self._monitored = self._monitored or _started(self._monitor, "exop pool monitor")
        return self._monitored and (bool(self._threads) or self._start(idle=True))

    def _send_home(self) -> None:
        while self._idle:
            self._idle.popitem()[0].signal.set()
        self._backlog.set()

    def _release(self, thread: PoolThread) -> None:
        """Let another thread run workers instead of this one."""
        if thread in self._counted:
            self._counted.remove(thread)
            self._staff()

    def _staff(self) -> None:
        """Wake or start a thread for the scheduled workers if a slot is free; else wake the monitor."""
        if not self.due:
            return
        if len(self._counted) < self.size:
            if self._idle:
                thread, _ = self._idle.popitem()
                self._counted.add(thread)
                thread.signal.set()
                return
            if self._start():
                return
        if not self._watching:
            self._watching = True
            self._backlog.set()

    def _start(self, *, idle: bool = False) -> bool:
        """Start a thread; return `False` if the system has no more."""
        thread = PoolThread()
        if not _started(partial(self._run, thread), "exop worker"):
            return False
        self._threads.add(thread)
        if idle:
            self._idle[thread] = None
        else:
            self._counted.add(thread)
        return True

    def _run(self, thread: PoolThread) -> None:
        while True:
            worker, leaves = self._next(thread)
            if leaves:
                return
            if worker is not None:
                worker.turn()
            elif not thread.signal.wait(IDLE if len(self._threads) > self.size else None) and self._leaves(thread):
                return

    def _next(self, thread: PoolThread) -> tuple[Worker | None, bool]:
        """End a turn; return the next worker (`None` if none is scheduled), and whether the thread is to end."""
        with self._lock:
            self._idle.pop(thread, None)
            worker, thread.worker = thread.worker, None
            if worker is not None:
                worker.thread = None
                worker.scheduled, worker.again = worker.again, False
                if worker.scheduled:
                    self.due.append(worker)
            if self.due and len(self._counted) < self.size:
                self._counted.add(thread)
            if self.due and thread in self._counted and len(self._counted) <= self.size:
                thread.worker = worker = self.due.popleft()
                worker.thread = thread
                thread.since, thread.count = time.monotonic(), -1
                if self.due:
                    self._staff()
                return worker, False
            self._counted.discard(thread)
            if not self._users and not self.due:
                self._threads.discard(thread)
                self._send_home()
                return None, True
            self._idle[thread] = None
            return None, False

    def _leaves(self, thread: PoolThread) -> bool:
        """Return whether an idle thread is to end, which it is not if it has just been woken."""
        with self._lock:
            if thread not in self._idle or len(self._threads) <= self.size:
                return False
            del self._idle[thread]
            self._threads.remove(thread)
            return True

    def _monitor(self) -> None:
        """While workers wait for a turn, detect workers that stay in one call or turn, and retry to start a thread."""
        while True:
            with self._lock:
                self._watching = bool(self.due)
                if not self._users and not self.due:
                    self._monitored = False
                    return
                for thread in list(self._threads) if self.due else ():
                    self._look_at(thread, time.monotonic())
                if len(self._counted) < self.size:
                    self._staff()
                pause = HANDOFF if self._watching else None
            self._backlog.wait(pause)

    def _look_at(self, thread: PoolThread, now: float) -> None:
        if (worker := thread.worker) is None or thread not in self._counted or now - thread.since < HANDOFF:
            return
        if (count := worker.count + worker.rows) == thread.count:
            self._release(thread)
        else:
            thread.count = count
            worker.yields = worker.attention = True


def _started(run: Callable[[], None], name: str) -> bool:
    with suppress(RuntimeError):
        threading.Thread(target=run, name=name, daemon=True).start()
        return True
    return False


#: The pool of the process; a forked child, which does not inherit the threads, starts without any.
POOL: Final = Pool(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
os.register_at_fork(after_in_child=partial(POOL.__init__, POOL.size))  # type: ignore[misc]


class Worker(ThreadDriver):
    """Drains one or more queues, the one farthest downstream first, one entry at a time.

    Queues share a worker if they lead into one slet, which one driver at a time may run, or are on one cycle. A queue
    that its own worker has filled beyond its capacity is drained before anything further upstream is touched.

    A worker has no thread while it is idle or closed, waits for room, or waits for a suspended slet.

    Attributes:
        scheduled, again: Whether the worker waits for a turn or is in one, and whether it is to have another turn after
            that one, since there is more to do; set by the pool, or in the turn.
        yields: Whether the worker is to let others run after the current item; set by the pool.
        thread: The thread that runs the worker.
    """

    def __init__(self, name: str, pool: Pool = POOL) -> None:
        super().__init__(name)
        self._pool = pool
        self.scheduled = self.again = False
        self.thread: PoolThread | None = None
        self._started = self.yields = False

    def serve(self, queues: tuple[Buffered, ...]) -> None:
        """Set the queues to drain, downstream first. Called while the worker is parked or not started yet."""
        self.queues = queues
        for queue in queues:
            queue.worker = self
        if not self.empty:
            self.wake()

    def start(self) -> None:
        """Start to drain; a worker starts once."""
        if not self._started:
            self._pool.enlist()
            self._started = True
            self.notify()

    @property
    def alive(self) -> bool:
        """Whether the worker has started and not stopped."""
        return self._started and not self.left

    @property
    def empty(self) -> bool:
        """Whether all queues that the worker drains are empty."""
        return not any(queue.entries for queue in self.only or self.queues)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the worker has stopped; return `False` if *timeout* seconds have passed before."""
        news, left = Signal(), remaining(timeout)
        self.watch(news.set)
        try:
            while self.alive and current_driver() is not self and left() != 0 and news.wait(left()):
                continue
            return not self.alive
        finally:
            self.unwatch(news.set)

    def notify(self) -> None:
        """Schedule a turn, in which the worker checks its flags, its queues, and the condition for which it waits."""
        super().notify()
        if self.alive:
            self._pool.schedule(self)

    def open(self) -> None:
        """Let the worker continue; if there is nothing to do, it gets no thread."""
        super().open()
        if self.alive and not self.sleeping:
            self._pool.schedule(self)

    def _come_back(self) -> None:
        self.left = False
        self._pool.enlist(back=True)
        self._pool.schedule(self)

    def wait_for(self, ready: Callable[[], Any], timeout: float | None = None) -> None:
        """Wait while processing an item; another worker may use the thread's slot meanwhile."""
        if not ready():
            with self._pool.away(self):
                super().wait_for(ready, timeout)

    def _hold_for(self, work: InFlight, wait: Wait) -> None:
        """Wait for a slet without occupying a thread: the worker is scheduled again when the slet is resumed."""
        if wait.patience is not None or self.thread is None:
            super()._hold_for(work, wait)
            return
        self.held_by = wait.where
        self.rest()
        raise Yielded

    def defer(self, queue: Buffered) -> bool:
        """Wait for room in *queue* at the next safe point, without occupying a thread; not twice in one call."""
        if self.thread is None or self.ignores_capacity or queue in self.overfilled:
            return False
        self.overfill(queue)
        return True

    def turn(self) -> None:
        """Drain queues for one turn, in a thread of the pool."""
        if self.left:  # the worker was scheduled during its last turn
            return
        with acting_as(self):
            try:
                self._take_turn()
            except Yielded:
                return
            except BaseException as error:  # noqa: BLE001 (a defect after which no component can be resumed)
                self._note_crash(error)
                self.left = True
                self._quit()

    def _take_turn(self) -> None:
        self.parked = self.sleeping = False
        self.stand_by()  # also without attention: items of the last turn may be in flight
        self.held_by = None  # these items were processed, or assigned to another driver
        taken = 0
        while taken < TURN or not self._pool.due:
            if (self.ending or self.retired) and self.empty and self.end_thread():
                self._quit()
                return
            if not (moved := sum(self._drain(queue) for queue in self.queues)):
                self._rest_until_woken()
                return
            taken += moved
        self.again = True

    def _drain(self, queue: Buffered) -> int:
        """Deliver up to TURN entries of a queue, and more while the queue exceeds its capacity."""
        moved = 0
        while True:
            try:
                took = queue.drain(self, TURN)
            except Yielded:
                raise
            except BaseException as error:  # noqa: BLE001 (`unwinding` handles every error)
                self.unwound(error)
                took = 1
            moved += took
            if not took or queue.depth <= queue.capacity:
                return moved

    def _rest_until_woken(self) -> None:
        """Rest until another thread wakes the worker, since no item waits, unless one has arrived."""
        self.busy = True
        if self.attention:
            self.stand_by()
        if self.empty:
            self.rest_idly()
        self.rest()
        self.sleeping = True
        # Read after `sleeping` was set: from then on, a thread that adds something wakes the worker.
        if not (self.halting or self.ending or self.retired or self.filled):
            if self.empty:
                self.unblock()
                return
            if held := min((queue.holds() for queue in self.only or self.queues if queue.entries), default=0.0):
                with self._pool.away(self):
                    self._signal.wait(min(held, threading.TIMEOUT_MAX))
        self.sleeping, self.again = False, True

    def _park(self) -> None:
        """Park as every driver; while the worker waits, it occupies no thread."""
        if self.yields:
            self.yields = False
            if not self._closers:
                self.rest()
                self.again = True
                raise Yielded
        super()._park()

    def _wait_shut(self) -> None:
        if self._shut or self._kept_out:  # `rest` may have opened it
            raise Yielded

    def _quit(self) -> None:
        self._pool.dismiss()
        self.rest()
        self.on_caught_up()

"""The pool: the few threads that run the workers of all applications of the process, in turns.

A worker has a thread only while it has something to do. At most `size` threads run workers at a time; one whose worker
waits inside a call, or stays in one call for longer than HANDOFF, no longer counts, and another thread takes its slot:
no worker waits for another one to finish. A worker is run by one thread at a time.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from exop.runtime.drivers.base import Signal

if TYPE_CHECKING:
    from exop.runtime.drivers.worker import Worker

#: The seconds in one call after which a worker no longer counts among those that run.
HANDOFF: Final = 0.02
#: The idle seconds after which a thread beyond the base leaves.
IDLE: Final = 0.2


class Seat:
    """One thread of the pool, with the worker that it runs `since` then.

    Attributes:
        count: The items that the worker had taken when the monitor looked last.
        counts: It counts among the threads that run workers.
    """

    __slots__ = ("count", "counts", "signal", "since", "worker")

    def __init__(self, *, counts: bool) -> None:
        self.signal = Signal()
        self.worker: Worker | None = None
        self.since = 0.0
        self.count = -1
        self.counts = counts


class Pool:
    """Runs workers that have something to do, each for a bounded turn, in the order in which they were scheduled.

    Args:
        size: How many threads may run workers at a time, and stay when they are idle.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.begin()

    def begin(self) -> None:
        """Begin without a thread: also in a forked child, which has none of its parent's."""
        self._lock = threading.Lock()
        self._due: deque[Worker] = deque()
        self._seats: set[Seat] = set()
        self._idle: dict[Seat, None] = {}
        self._running = self._users = 0
        self._backlog = Signal()
        self._monitored = self._watching = False

    @property
    def crowded(self) -> bool:
        """Whether workers wait for their turn."""
        return bool(self._due)

    def enlist(self, *, back: bool = False) -> None:
        """Count a worker that begins, or comes *back*; while there is one, so are the monitor and a thread for workers.

        A worker that comes back is counted in any case. Where the system has no more threads, the monitor, or else the
        next worker that is scheduled, starts one later.

        Raises:
            RuntimeError: the system has no more threads; the worker is not counted.
        """
        with self._lock:
            self._users += 1
            if not self._has_threads() and not back:
                self._users -= 1
                self._backlog.set()
                raise RuntimeError("can't start new thread")

    def dismiss(self) -> None:
        """Count out a worker that has left; with the last one all threads leave."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._send_home()

    def schedule(self, worker: Worker) -> None:
        """Run *worker* soon: for another turn, if it is in one. Any thread may call this."""
        with self._lock:
            if worker.scheduled:
                worker.again = True
                return
            worker.scheduled = True
            self._due.append(worker)
            if self._monitored or self._has_threads():
                self._staff()

    @contextmanager
    def away(self, worker: Worker) -> Iterator[None]:
        """Let another thread run while *worker* waits, in its own thread, inside a call."""
        seat = worker.seat
        if seat is None:
            yield
            return
        with self._lock:
            self._release(seat)
        try:
            yield
        finally:
            with self._lock:
                self._claim(seat)

    # The methods below are called with the lock held, but for those that a thread runs.

    def _has_threads(self) -> bool:
        """Whether there are the monitor and a thread; starts them if it can."""
        self._monitored = self._monitored or _started(self._monitor, "exop pool monitor")
        return self._monitored and (bool(self._seats) or self._start(idle=True))

    def _send_home(self) -> None:
        while self._idle:
            self._idle.popitem()[0].signal.set()
        self._backlog.set()

    def _claim(self, seat: Seat) -> None:
        if not seat.counts:
            seat.counts = True
            self._running += 1

    def _release(self, seat: Seat) -> None:
        """Let another thread run in the place of this one."""
        if seat.counts:
            seat.counts = False
            self._running -= 1
            self._staff()

    def _staff(self) -> None:
        """Wake or start a thread for the workers that are due, if one may run; else the monitor looks for a slot."""
        if not self._due:
            return
        if self._running < self.size:
            self._running += 1
            if self._idle:
                seat, _ = self._idle.popitem()
                seat.counts = True
                seat.signal.set()
                return
            if self._start():
                return
            self._running -= 1
        if not self._watching:
            self._watching = True
            self._backlog.set()

    def _start(self, *, idle: bool = False) -> bool:
        """Start a thread; `False` if the system has no more."""
        seat = Seat(counts=not idle)
        if not _started(partial(self._run, seat), "exop worker"):
            return False
        self._seats.add(seat)
        if idle:
            self._idle[seat] = None
        return True

    def _run(self, seat: Seat) -> None:
        more = False
        while True:
            worker, leaves = self._next(seat, more=more)
            if leaves:
                return
            if worker is not None:
                more = worker.turn()
            elif not seat.signal.wait(IDLE if len(self._seats) > self.size else None) and self._leaves(seat):
                return

    def _next(self, seat: Seat, *, more: bool) -> tuple[Worker | None, bool]:
        """Note the end of a turn and take the next worker; `None` when there is none, and whether to leave then."""
        with self._lock:
            self._idle.pop(seat, None)
            worker, seat.worker = seat.worker, None
            if worker is not None:
                worker.seat = None
                worker.scheduled = more or worker.again
                worker.again = False
                if worker.scheduled:
                    self._due.append(worker)
            if self._due and self._running < self.size:
                self._claim(seat)
            if self._due and seat.counts and self._running <= self.size:
                seat.worker = worker = self._due.popleft()
                worker.seat = seat
                seat.since, seat.count = time.monotonic(), -1
                if self._due:
                    self._staff()
                return worker, False
            if seat.counts:
                seat.counts = False
                self._running -= 1
            if not self._users and not self._due:
                self._seats.discard(seat)
                self._send_home()
                return None, True
            self._idle[seat] = None
            return None, False

    def _leaves(self, seat: Seat) -> bool:
        """Let an idle thread leave, unless it has just been woken."""
        with self._lock:
            if seat not in self._idle or len(self._seats) <= self.size:
                return False
            del self._idle[seat]
            self._seats.remove(seat)
            return True

    def _monitor(self) -> None:
        """While workers are due, look for those that stay in one call or turn, and try again to start a thread."""
        while True:
            with self._lock:
                self._watching = bool(self._due)
                if not self._users and not self._due:
                    self._monitored = False
                    return
                for seat in list(self._seats) if self._due else ():
                    self._look_at(seat, time.monotonic())
                if self._running < self.size:
                    self._staff()
                pause = HANDOFF if self._watching else None
            self._backlog.wait(pause)

    def _look_at(self, seat: Seat, now: float) -> None:
        worker = seat.worker
        if worker is None or not seat.counts or now - seat.since < HANDOFF:
            return
        count = worker.count + worker.rows
        if count == seat.count:
            self._release(seat)
        else:
            seat.count = count
            worker.yield_soon()


def _started(run: Callable[[], None], name: str) -> bool:
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


#: The pool of the process.
POOL: Final = Pool(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.begin)

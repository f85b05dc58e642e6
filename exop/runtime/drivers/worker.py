"""The worker: the driver that drains queues. It has a thread of the pool while it has something to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from exop.runtime.dataflow.entry import Wait, Work
from exop.runtime.drivers.base import acting_as, current_driver
from exop.runtime.drivers.pool import POOL, Pool, Seat
from exop.runtime.drivers.source import ThreadDriver

if TYPE_CHECKING:
    from exop.runtime.channels.queue import Buffered

#: The number of entries after which a worker looks at its other queues, and gives way to other workers.
TURN: Final = 64


class Yielded(BaseException):
    """Takes a worker off its thread at a safe point. Not an `Exception`, so that no slet catches it.

    Args:
        again: It goes on as soon as it is its turn; else when it is scheduled.
    """

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again


class Worker(ThreadDriver):
    """Drains one or more queues, the one farthest downstream first, one entry at a time.

    Queues share a worker when they lead into one slet, which one driver at a time may run, or lie on one cycle. A queue
    that its own worker has filled beyond its capacity is drained before anything further upstream is touched.

    A worker that is idle, closed, waits for room, or waits for a suspended slet has no thread.

    Attributes:
        scheduled, again: It waits for its turn or is in one, and is to have another turn behind it: set by the pool.
        seat: The thread that runs it.
    """

    def __init__(self, name: str, pool: Pool = POOL) -> None:
        super().__init__(name)
        self._pool = pool
        self.queues: tuple[Buffered, ...] = ()
        self.scheduled = self.again = False
        self.seat: Seat | None = None
        self._started = self._yields = False
        self._full: list[Buffered] = []

    def serve(self, queues: tuple[Buffered, ...]) -> None:
        """Drain these queues, downstream first. Called while the worker is parked or not started yet."""
        self.queues = queues
        for queue in queues:
            queue.worker = self
        if not self.empty:
            self.wake()

    def start(self) -> None:
        """Begin to drain; a worker starts once."""
        if not self._started:
            self._pool.enlist()
            self._started = True
            self.notify()

    @property
    def alive(self) -> bool:
        """Whether it has started and not left."""
        return self._started and not self.left

    @property
    def empty(self) -> bool:
        """Whether nothing waits in any of the queues that it drains."""
        return not any(queue.entries for queue in self.only or self.queues)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has left; `False` when it has not within *timeout* seconds."""
        return current_driver() is not self and self._watched(lambda: not self.alive, timeout)

    def notify(self) -> None:
        """Schedule a turn: the worker looks at its flags, its queues, and the condition for which it waits."""
        super().notify()
        if self.alive:
            self._pool.schedule(self)

    def open(self, watcher: Callable[[], None] | None = None) -> None:
        """Let the worker go on; one that has nothing to do stays off the threads."""
        self._full = []  # perhaps it pushes elsewhere now
        super().open(watcher)
        if self.alive and not self.sleeping:
            self._pool.schedule(self)

    def _come_back(self) -> None:
        self.left = False
        self._pool.enlist(back=True)
        self._pool.schedule(self)

    def wait_for(self, ready: Callable[[], Any], timeout: float | None = None) -> None:
        """Wait inside an item; another worker has the thread's slot meanwhile."""
        if not ready():
            with self._pool.away(self):
                super().wait_for(ready, timeout)

    def _hold_for(self, work: Work, wait: Wait) -> None:
        """Wait for a slet without a thread: the worker is scheduled again when that is resumed."""
        if wait.patience is not None or self.seat is None:
            super()._hold_for(work, wait)
            return
        self.held_by = wait.where
        self.rest()
        raise Yielded(again=False)

    def defer(self, queue: Buffered) -> bool:
        """Wait for room in *queue* at the next safe point, without a thread; not twice in one call."""
        if self.seat is None or self.hurried or queue in self._full:
            return False
        self._full.append(queue)
        self.attention = True
        return True

    def yield_soon(self) -> None:
        """Let other workers run after the item that is under way."""
        self._yields = self.attention = True

    def turn(self) -> bool:
        """Drain for a while, in a thread of the pool; returns whether there is more to do at once."""
        if self.left:  # it was scheduled during its last turn
            return False
        with acting_as(self):
            try:
                return self._take_turn()
            except Yielded as yielded:
                return yielded.again
            except BaseException as error:  # noqa: BLE001 (a defect, where nothing can be resumed any more)
                self._note_crash(error)
                self.left = True
                self._quit()
        return False

    def _take_turn(self) -> bool:
        self.parked = self.sleeping = False
        self.busy = True
        self.stand_by()  # also without attention: it has left its last turn with work in flight, perhaps
        self.held_by = None  # that work is done, or was given to another driver
        taken = 0
        while taken < TURN or not self._pool.crowded:
            if (self.ending or self.retired) and self.empty and self._leave():
                self._quit()
                return False
            moved = sum(self._drain(queue) for queue in self.queues)
            if not moved:
                return self._busy_again()
            taken += moved
        return True

    def _drain(self, queue: Buffered) -> int:
        """Deliver up to TURN entries of a queue, and more while it holds more than its capacity."""
        moved = 0
        while True:
            try:
                took = queue.drain(self, TURN)
            except Yielded:
                raise
            except BaseException as error:  # noqa: BLE001 (a defect strands the driver; the rest passes)
                self.unwound(error)
                took = 1
            moved += took
            if not took or queue.depth <= queue.capacity:
                return moved

    def _busy_again(self) -> bool:
        """Rest until it is woken, since nothing waits; returns whether there is something to do after all."""
        self.busy = True
        if self.attention:
            self.stand_by()
        if self.empty:
            self.rest_idly()
        self.rest()
        self.sleeping = True
        # Read after `sleeping` was set: from then on, a thread that adds something wakes the worker.
        if self.empty and not (self.halting or self.ending or self.retired or self.filled):
            return False
        self.sleeping = False
        return True

    def _park(self) -> None:
        """Park while closed, wait for room, leave when halting: without a thread, the worker is scheduled again."""
        if self._yields:
            self._yields = False
            if not self._closers:
                self.rest()
                raise Yielded(again=True)
        super()._park()
        while self._full:
            if self._full[0].keeps_out(self):
                self.rest()
                raise Yielded(again=False)
            del self._full[0]

    def _wait_shut(self) -> None:
        if self._shut:  # `rest` may have opened it
            raise Yielded(again=False)

    def _quit(self) -> None:
        self._pool.dismiss()
        self.rest()
        self.told()

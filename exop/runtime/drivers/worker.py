"""The worker: the driver that drains queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exop.runtime.drivers.thread import ThreadDriver

if TYPE_CHECKING:
    from exop.runtime.channels.queue import QueueChannel

#: So many entries are taken from one queue before the worker looks at the others.
TURN = 64


class Worker(ThreadDriver):
    """Drains one or more queues, the one farthest downstream first, one entry at a time.

    Queues share a worker when what is behind them meets in one slet, which one driver at a time may run. A queue that
    its own worker has filled beyond its capacity is drained before anything further upstream is touched.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.queues: tuple[QueueChannel, ...] = ()

    def serve(self, queues: tuple[QueueChannel, ...]) -> None:
        """Drain these queues, downstream first. Called while the worker is parked or not started yet."""
        self.queues = queues
        for queue in queues:
            queue.worker = self

    def run(self) -> None:
        """Drain until asked to leave."""
        self.take_up()
        while not ((self.ending or self.retired) and self.empty):
            moved = False
            for queue in self.queues:
                took = self._drain(queue)
                moved = moved or took > 0
                while queue.overfull and took:
                    took = self._drain(queue)
            if not moved:
                self._sleep()

    def _drain(self, queue: QueueChannel) -> int:
        try:
            return queue.drain(self, TURN)
        except BaseException as error:  # noqa: BLE001 (a defect strands the driver; the rest passes)
            self.unwound(error)
            return 1

    @property
    def empty(self) -> bool:
        """Whether nothing waits in any of the queues that it drains."""
        return not any(queue.entries for queue in self.only or self.queues)

    def _sleep(self) -> None:
        self.busy = True
        if self.attention:
            self.stand_by()
        if self.empty:
            self.rest_idly()
        self.doze(lambda: self.empty)

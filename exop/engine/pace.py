"""`Pace` and `Gate`: when the next batch of a query on a `PullEngine` begins.

The engine asks the feeds what there is, and its question waits there: not at all when the stream passes a boundary (the
end of a minute), otherwise until a batch is worth its price; an idle query costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exop.engine.feed import Feed


@dataclass(frozen=True, slots=True)
class Pace:
    """The rule: at least `interval` seconds between two starts, unless a boundary or enough rows press.

    Args:
        interval: least time between the starts of two batches, in seconds.
        boundary: a punctuation that reaches the next multiple of this much stream time starts a batch at once.
        enough: so many waiting rows of one input start a batch at once.
        max_rows: most rows of one input in one batch.
    """

    interval: float = 0.0
    boundary: float | None = None
    enough: int = 50_000
    max_rows: int = 200_000

    def crosses(self, before: float | None, after: float) -> bool:
        """Tell whether a boundary lies between two moments of the stream."""
        if self.boundary is None:
            return False
        return before is None or after // self.boundary > before // self.boundary


class Gate:
    """The common long poll of all feeds of one query.

    An engine asks the feeds one after the other. The one that it asks first (the leader) waits for all of them; the
    others answer at once with what they have.
    """

    def __init__(self, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self.pace = pace
        self.lock = threading.Condition()
        self.feeds: list[Feed] = []
        self._clock = clock
        self._leader: Feed | None = None
        self._last_start = float("-inf")
        self._nudged = False
        self._released = False
        self._polled = threading.Event()

    def nudge(self) -> None:
        """Let the next poll return at once, with nothing if there is nothing. Call with the lock held.

        Engines look after each poll whether the watermark has moved, and close windows then.
        """
        self._nudged = True

    def release(self) -> None:
        """Wait no more: the stream has ended, or the query is being drained or closed."""
        with self.lock:
            self._released = True
            self.lock.notify_all()

    def hold(self) -> None:
        """Wait again."""
        with self.lock:
            self._released = False

    def wait_polled(self, timeout: float) -> bool:
        """Wait until the engine has asked for the first time: from then on the query runs."""
        return self._polled.wait(timeout)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until *ready()* holds; looked at whenever something happens in a feed."""
        with self.lock:
            self.lock.wait_for(ready)

    def wait(self, feed: Feed, timeout: float) -> None:
        """Wait until a batch may begin, at most *timeout* seconds. Call with the lock held."""
        self._polled.set()
        self._leader = self._leader or feed
        if feed is not self._leader:
            return
        deadline = self._clock() + timeout
        while not (self._released or self._nudged or self._due()):
            now = self._clock()
            if now >= deadline:
                break
            self.lock.wait(min(deadline, self._next_start()) - now)
        self._nudged = False
        if self._some_wait():
            self._last_start = self._clock()

    def _due(self) -> bool:
        if not self._some_wait():
            return False
        pressing = any(feed.urgent or feed.pending >= self.pace.enough for feed in self.feeds)
        return pressing or self._clock() >= self._next_start()

    def _next_start(self) -> float:
        """When waiting rows may start a batch; never, while there are none (a push then wakes the poll)."""
        return self._last_start + self.pace.interval if self._some_wait() else float("inf")

    def _some_wait(self) -> bool:
        return any(feed.pending for feed in self.feeds)

"""`BatchTrigger`: when the next batch of a query on a `PullEngine` begins.

The engine polls the feeds, and the poll waits until a batch is due: at once if the stream has passed a boundary, such
as the end of a minute, otherwise after an interval. An idle query costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from exop.runtime.supervision.watchdog import SAMPLER

if TYPE_CHECKING:
    from exop.engine.feed import Feed


class BatchTrigger:
    """The long poll that all feeds of a query share.

    An engine polls the feeds one after the other. The feed that it polls first (the leader) waits for rows of all
    feeds; the others return at once.

    Attributes:
        leader: That feed.
        began: When the engine has begun to compute the batch in progress; infinite while it polls, or sends results.
        interval: The minimum number of seconds between the beginnings of two batches.
        boundary: A punctuation that reaches the next multiple of this stream time begins a batch at once.
        enough: The number of waiting rows of one input that begins a batch at once.
        max_rows: The maximum number of rows of one input in a batch.
        polls: The engine waits for the next batch.
        poll_again: The next poll returns at once, also without rows: after each poll, engines check whether the
            watermark has moved, and close windows. Set with the lock held.
    """

    def __init__(
        self, interval: float = 0.0, boundary: float | None = None, enough: int = 50_000, max_rows: int = 200_000
    ) -> None:
        self.interval, self.boundary, self.enough, self.max_rows = interval, boundary, enough, max_rows
        self.lock = threading.Condition()
        self.feeds: list[Feed] = []
        self._clock = SAMPLER.clock
        self.leader: Feed | None = None
        self._last_start, self.began = float("-inf"), float("inf")
        self.poll_again = False
        self._released: dict[object, bool] = {}
        self._paused = self.polls = False

    def crosses(self, before: float | None, after: float) -> bool:
        """Return whether there is a boundary after the time *before*, up to the time *after*."""
        return (length := self.boundary) is not None and (before is None or after // length > before // length)

    def release(self, *, lasting: bool = False) -> object:
        """Let polls return at once until `hold` gets the result, or until `resume`, unless it is *lasting*."""
        with self.lock:
            self._released[released := object()] = lasting
            self.lock.notify_all()
            return released

    def hold(self, released: object) -> None:
        """Let polls wait again, unless they are released otherwise."""
        with self.lock:
            self._released.pop(released, None)

    def pause(self) -> None:
        """Let no batch begin; return when the batch in progress is committed, and the engine polls for the next one."""
        with self.lock:
            self._paused = True
            self.lock.wait_for(lambda: self.polls or any(feed.retired for feed in self.feeds))

    def resume(self) -> None:
        """Let batches begin again, and polls wait, as before `pause` and `release`, which may be in progress."""
        with self.lock:
            self._paused, self._released = False, {one: True for one, lasting in self._released.items() if lasting}
            self.lock.notify_all()

    def wait_until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until *ready()* is true, which is called whenever the state of a feed has changed; return whether it is.

        Wait for at most *timeout* seconds.
        """
        with self.lock:
            return self.lock.wait_for(ready, timeout)

    def wait(self, feed: Feed, timeout: float) -> None:
        """Wait until a batch may begin, at most *timeout* seconds. Call with the lock held."""
        self.leader = self.leader or feed
        if feed is not self.leader:
            return
        deadline = self._clock() + timeout
        self.polls, self.began = True, float("inf")
        self.lock.notify_all()
        while not self._released and (self._paused or not (self.poll_again or self._due())):
            if (now := self._clock()) >= deadline and not self._paused:
                break
            self.lock.wait(None if self._paused else min(deadline, self._next_start()) - now)
        self.poll_again = self.polls = False
        self.began = self._clock()
        if self._has_rows():
            self._last_start = self.began

    def _due(self) -> bool:
        urgent = any(feed.urgent or feed.pending >= self.enough for feed in self.feeds)
        return self._has_rows() and (urgent or self._clock() >= self._next_start())

    def _next_start(self) -> float:
        """Return the time at which waiting rows begin a batch; infinite without rows, as a push ends the wait."""
        return self._last_start + self.interval if self._has_rows() else float("inf")

    def _has_rows(self) -> bool:
        return any(feed.pending for feed in self.feeds)

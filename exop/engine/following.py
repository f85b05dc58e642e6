"""`Following`: the successor of a query catches up beside it: it computes the same batches, and sends nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from exop.engine.pull import PullEngine, QueryProgress
from exop.engine.trigger import BatchTrigger
from exop.errors import EngineError
from exop.safe_repr import error_text

if TYPE_CHECKING:
    from exop.engine.feed import Feed
    from exop.engine.pull_slet import PullSlet

#: Seconds for which a predecessor may send the results of a batch: as long as a change waits for drivers.
_SENDING = 10.0
#: Seconds for each step of the successor towards its predecessor.
_PATIENCE = 30.0
#: Seconds without a batch after which a predecessor that polls is taken for idle: at first, and while they come near.
_IDLE, _QUIET = 0.3, 2.0


class Step(NamedTuple):
    """A batch of the predecessor: its number, the offset after it in each feed, and the number of late rows before."""

    batch: int
    ends: Mapping[str, Any]
    late: Any = None


class Following:
    """The batches that a predecessor computes, which its successor computes at the same time, on a copy of the state.

    When they meet, both have computed the same batch at the same watermark: the same windows have closed in both. A
    successor that was behind may have computed several batches as one, at an older watermark, at which fewer rows are
    late: if its predecessor has dropped late rows meanwhile, they do not meet.

    The lock of the successor's trigger guards everything here.

    Attributes:
        leaders: The feeds of the predecessor, which have the rows, by port.
        batch: The last batch that the successor has computed, or that its copy contains, by its own numbers.
        computed: The number of batches that the successor has computed.
    """

    def __init__(self, successor: PullSlet, engine: PullEngine, predecessor: PullSlet) -> None:
        self.batch, self.computed = -1, 0
        self._successor, self._engine, self._predecessor = successor, engine, predecessor
        self._trigger: BatchTrigger = successor._trigger
        self._lock = self._trigger.lock
        self.leaders: Mapping[str, Feed] = dict(zip(successor.feeds, predecessor.feeds.values(), strict=False))
        self._planned: dict[str, Any] = {}
        self._steps: deque[Step] = deque()
        self._sent: dict[int, float | None] = {}
        self._now: Step | None = None
        self._last = Step(-1, {})
        self._watermark: float | None = None
        self._leader, self._problem = "", ""
        self._merged: Step | None = None  # the second one of the batches that were computed as one last
        self._skipped = self._polls = self._is_near = self._in_step = self._meets = self._over = False

    # For the predecessor.

    def plan(self, feed: Feed, end: Any) -> None:
        """Note the end of the next batch of a feed; with that of all feeds, the batch is known before it is sent."""
        with self._lock:
            if feed is self._predecessor._trigger.leader:
                self._planned = {}
            self._planned[next(port for port, leader in self.leaders.items() if leader is feed)] = end
            rows = any(end != self.leaders[port].done for port, end in self._planned.items())
            if rows and self._planned.keys() == self.leaders.keys():
                self._add(Step(self._predecessor._progress.batch + 1, self._planned))

    def note(self, batch: int, watermark: float | None) -> None:
        """Note that the results of a batch are sent."""
        with self._lock:
            self._sent = {one: known for one, known in self._sent.items() if one >= self._last.batch}
            self._sent[batch] = watermark
            self._add(Step(batch, {port: leader.done for port, leader in self.leaders.items()}))

    def meet(self) -> bool:
        """Return whether the successor is to take over behind the batch in progress."""
        with self._lock:
            self._meets = not self._done
            return self._meets

    def give_up(self, problem: str) -> None:
        """Note why the successor cannot follow any further."""
        with self._lock:
            self._problem = self._problem or problem
            self._lock.notify_all()

    # For the engine of the successor.

    def next(self, port: str, start: Any, timeout: float) -> Any:
        """Return the end of the next batch, after a wait of at most *timeout* seconds; `None` after the end.

        The port for which the engine asks first waits for all of them.
        """
        with self._lock:
            self._leader = self._leader or port
            if port == self._leader:
                self._choose(timeout)
            if self._over:
                return None
            if self._now is None:
                return start
            if start != self._last.ends[port]:
                self.give_up(f"it has read {port!r} up to {start}, not to {self._last.ends[port]}")
                return start
            return self._now.ends[port]

    # For the successor.

    def lead(self) -> int | None:
        """Let the predecessor tell its batches from now on, and keep their rows.

        Return the number of the last batch before, or `None` if the predecessor cannot send its results.
        """
        leader = self._predecessor
        if not leader._sending.acquire(timeout=_SENDING):  # what is behind it takes nothing
            return None
        try:
            known = leader._progress.batch
            self._last = Step(known, {port: feed.done for port, feed in self.leaders.items()})
            for feed in self.leaders.values():
                feed.lead(self)
            leader.follower = self
            return known
        finally:
            leader._sending.release()

    def begin(self, batch: int) -> None:
        """Begin behind this batch, which is in the copy of the state."""
        with self._lock:
            while self._steps and self._steps[0].batch <= batch:
                self._last = self._steps.popleft()
            if self._last.batch != batch:
                self.give_up(f"it has a copy of batch {batch}, which its predecessor has not sent")
            self.batch, self._watermark = batch, self._sent.setdefault(batch, None)
        for feed in self._successor.feeds.values():
            feed.following = self

    def put_out(self, batch: int, watermark: float | None) -> None:
        """Note that the successor has computed a batch."""
        with self._lock:
            step, self._now = self._now, None
            if step is None:
                self.give_up(f"it has computed batch {batch} without rows, and its predecessor has not")
                return
            self._last, self._watermark, self._skipped = step, watermark, False
            self.batch, self.computed = batch, self.computed + 1

    def come_near(self) -> bool:
        """Wait until the successor computes the same batch as its predecessor; return whether it gets there."""
        with self._lock:
            self._lock.wait_for(lambda: self._done or self._polls, _PATIENCE)
            if self._lock.wait_for(lambda: self._done or self._steps or self._now, _IDLE):
                # The first batch loads the state, the second one begins together with one of the predecessor.
                self._await(lambda: self.computed > 1)
            self._is_near = True
            self._lock.notify_all()
            self._await(lambda: not self._steps and self._is_equal)
            self._in_step = not self._done and not self._steps and self._is_equal and self._is_timely
            return self._in_step

    def take_over(self) -> bool:
        """Let the successor continue behind the last batch of its predecessor, which sends no more.

        Return `False` if it has not caught up, and the predecessor knows of it.

        Raises:
            EngineError: the successor has failed, or has not come to the same state.
        """
        successor = self._successor
        last = QueryProgress.load(self._predecessor.tie.committed.note)
        progress = last.handed_over([*successor.feeds])
        with self._lock:
            if self._meets:
                self._lock.wait_for(lambda: self._done or (self._rests and self._last.batch >= last.batch), _PATIENCE)
                ends = {port: leader.done for port, leader in self.leaders.items()}
                equal = self._last.batch == last.batch and self._last.ends == ends
                if not (equal and self._is_equal and self._is_timely):
                    self.give_up("it has not come to the state of its predecessor")
        successor._check()
        if not self._meets:
            self.close()
            return False
        if self._problem:
            raise EngineError(f"it has not caught up: {self._problem}; try again")
        # Without a batch, the engine has not looked at the state yet.
        successor.continue_behind(replace(progress, batch=self.batch, probes=0 if self.computed else 2))
        successor.following = None
        self.end()
        return True

    def end(self) -> None:
        """Let the engine of the successor poll by itself, and the predecessor go on alone."""
        self._predecessor.follower = None
        with self._lock:
            self._over = True
            self._lock.notify_all()
        for leader in self.leaders.values():
            leader.lead(None)

    def close(self) -> None:
        """Close the engine of the successor, which has sent nothing."""
        self._successor.engine = None  # first: it may still read rows that are not kept behind the end, and fail
        self.end()
        self._successor._stop(self._engine)
        self._successor.following = None

    @property
    def _done(self) -> bool:
        return self._over or bool(self._problem) or any(feed.retired for feed in self._trigger.feeds)

    @property
    def _rests(self) -> bool:
        """Whether the successor has computed and committed all that is planned: it polls for the next batch."""
        return self._polls and not self._steps

    @property
    def _is_equal(self) -> bool:
        """Whether the successor has the watermark of the predecessor, which has sent the same batch."""
        known = self._last.batch in self._sent and self._sent[self._last.batch] == self._watermark
        return known and not self._skipped and (self._now is None or self._merged is None)

    @property
    def _is_timely(self) -> bool:
        """Whether no batch of several has kept rows that its predecessor dropped; certain once that one polls."""
        return self._merged is None or self._late_rows() == self._merged.late

    def _late_rows(self) -> Any:
        return self._predecessor.metrics().get("late_rows")

    def _await(self, ready: Callable[[], bool]) -> None:
        """Wait until *ready()*, as long as there are batches to compute."""
        until = time.monotonic() + _PATIENCE
        while not (self._done or ready()) and (left := until - time.monotonic()) > 0:
            self._lock.wait_for(lambda: self._done or ready() or self._rests, left)
            if self._rests:
                self._lock.wait_for(lambda: self._done or ready() or not self._rests, _QUIET)
                if self._rests and self._predecessor._trigger.polls:  # it does not compute or commit a batch either
                    return

    def _add(self, step: Step) -> None:
        """Add a step, unless it was added when it was planned."""
        before = self._steps[-1] if self._steps else self._now or self._last
        if step.batch > before.batch:
            self._steps.append(step._replace(late=self._late_rows()))
        elif step.batch == before.batch and step.ends != before.ends:
            self.give_up(f"its predecessor has planned batch {step.batch} up to {before.ends}, not to {step.ends}")
        self._lock.notify_all()

    def _choose(self, timeout: float) -> None:
        """Choose the next batch.

        A successor that is behind computes all that is planned as one batch, if its engine `merges`: one that is no
        quicker than its predecessor would stay behind. Its first batches begin with one of the predecessor. One that
        has caught up computes each batch as it is, at the same watermark.
        """
        if self._now is not None:  # the engine has asked twice: it had nothing to compute, not even windows to close
            if self._now.ends != self._last.ends:
                self.give_up("it has not computed the rows that it was given")
            self._last, self._now, self._skipped = self._now, None, True
        self._polls, known = True, len(self._steps)
        self._lock.notify_all()
        self._lock.wait_for(
            lambda: self._done or len(self._steps) > (0 if self._is_near else known), _IDLE if known else timeout
        )
        if self._steps and not self._done:
            # From here on, both drop the same rows; the count before this batch is that behind the last ones.
            late = self._steps[0].late
            if self._merged is not None and self._merged.late != late:
                self.give_up("it may have kept rows that its predecessor has dropped as late")
            count = 1 if self._in_step or not self._engine.merges else len(self._steps)
            if count > 1 and self._is_near and (self._predecessor._trigger.polls or self._late_rows() != late):
                count = 1  # it catches up as it is; or would, with the others, keep rows that are dropped
            elif count > 1 and self._steps[-1].ends == self._steps[-2].ends:
                count -= 1  # a batch without rows closes the windows that end at the watermark of those before it
            self._merged = self._steps[1] if count > 1 else None
            for _ in range(count - 1):
                self._steps.popleft()
            self._now, self._polls = self._steps.popleft(), False


def follow(successor: PullSlet, predecessor: PullSlet) -> None:
    """Let a successor catch up beside its predecessor, if both engines allow for it; otherwise `inherit` starts it.

    Raises:
        EngineError: the successor cannot continue with a copy of the state.
    """
    if (before := predecessor.engine) is None or predecessor._ended or not successor.can_follow(predecessor):
        return
    engine, near = successor.compiled(), False
    following = Following(successor, engine, predecessor)
    try:
        if [feed.schema for feed in successor.feeds.values()] != [feed.schema for feed in predecessor.feeds.values()]:
            return
        known = following.lead()
        if (copied := None if known is None else engine.copy(before, successor.tie.directory, known)) is not None:
            following.begin(copied)
            successor.engine, successor.following = engine, following
            engine.start(successor._emit, successor.tie.directory)
            successor._watch(engine)
            near = following.come_near()
            successor._check()
    except Exception as error:
        there = f"the state inside {predecessor._name}"
        raise EngineError(f"it cannot go on with {there}: {error_text(successor._error(error))}") from error
    finally:
        if not near:
            following.close()

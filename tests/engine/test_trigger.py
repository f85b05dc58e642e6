"""When batches begin."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

from exop.engine.pull import Punctuate
from exop.engine.pull_slet import PullSlet
from exop.engine.trigger import BatchTrigger


@dataclass
class Rows:
    """The part of a feed that a trigger reads."""

    pending: int = 0
    urgent: bool = False


@dataclass
class Clock:
    """A clock that advances when a test waits, and then calls `meanwhile`."""

    now: float = 100.0
    meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def trigger_with(*feeds: Rows, **policy: float) -> tuple[BatchTrigger, Clock]:
    """A trigger whose lock advances the clock instead of waiting."""
    clock = Clock()
    trigger = BatchTrigger(**policy)
    trigger._clock = clock
    trigger.feeds.extend(feeds)

    def wait(timeout: float) -> bool:
        clock.now += timeout
        clock.meanwhile()
        return True

    trigger.lock.wait = wait  # type: ignore[assignment]
    return trigger, clock


def polled(trigger: BatchTrigger, feed: Rows, timeout: float = 10.0) -> None:
    """Poll as a feed does."""
    with trigger.lock:
        trigger.wait(feed, timeout)


def test_rows_start_the_first_batch_at_once():
    """If no batch has begun yet, waiting rows begin the first one without delay."""
    feed = Rows(pending=1)
    trigger, clock = trigger_with(feed, interval=5)
    polled(trigger, feed)
    assert clock.now == 100.0


def test_the_next_batch_keeps_the_interval():
    """Rows that wait start a batch one interval after the last start, not earlier."""
    feed = Rows(pending=1)
    trigger, clock = trigger_with(feed, interval=5)
    polled(trigger, feed)
    clock.now += 2
    polled(trigger, feed)
    assert clock.now == 105.0


def test_a_boundary_does_not_wait_for_the_interval():
    """An urgent feed starts a batch at once."""
    feed = Rows(pending=1)
    trigger, clock = trigger_with(feed, interval=5, boundary=60)
    polled(trigger, feed)
    feed.urgent = True
    polled(trigger, feed)
    assert clock.now == 100.0


def test_enough_rows_do_not_wait_for_the_interval():
    """A batch of a useful size begins at once."""
    feed = Rows(pending=1)
    trigger, clock = trigger_with(feed, interval=5, enough=10)
    polled(trigger, feed)
    feed.pending = 10
    polled(trigger, feed)
    assert clock.now == 100.0


def test_a_poll_without_rows_ends_after_its_timeout():
    """Without rows, the poll lasts until its time-out."""
    feed = Rows()
    trigger, clock = trigger_with(feed)
    polled(trigger, feed, timeout=10)
    assert clock.now == 110.0


def test_only_the_first_feed_that_is_asked_waits():
    """Engines poll the feeds of a query in turn: the leader waits for all of them, the others return at once."""
    first, second = Rows(), Rows()
    trigger, clock = trigger_with(first, second)
    polled(trigger, first, timeout=10)
    polled(trigger, second, timeout=10)
    assert clock.now == 110.0


def test_rows_of_any_feed_end_the_wait():
    """The leader waits for rows of all feeds, not only its own."""
    first, second = Rows(), Rows()
    trigger, clock = trigger_with(first, second)
    clock.meanwhile = lambda: setattr(second, "pending", 1)
    with trigger.lock:
        trigger.wait(first, 1.0)
    assert clock.now == 101.0


def test_poll_again_ends_one_poll():
    """One poll returns at once, and the next one waits."""
    feed = Rows()
    trigger, clock = trigger_with(feed)
    trigger.poll_again = True
    polled(trigger, feed)
    assert clock.now == 100.0
    polled(trigger, feed, timeout=1)
    assert clock.now == 101.0


def test_a_released_trigger_does_not_wait():
    """While a query is drained, perhaps twice at once, and when it is closed, polls return at once; then they wait."""
    feed = Rows()
    trigger, clock = trigger_with(feed)
    first, second = trigger.release(), trigger.release()
    polled(trigger, feed)
    trigger.hold(first)
    polled(trigger, feed)
    assert clock.now == 100.0
    trigger.hold(second)
    polled(trigger, feed, timeout=1)
    assert clock.now == 101.0


def test_a_cancelled_change_ends_what_it_began():
    """The polls wait again, also if the call that has released them is still waiting, and ends later."""
    feed = Rows()
    trigger, clock = trigger_with(feed)
    abandoned = trigger.release()
    trigger.resume()
    polled(trigger, feed, timeout=1)
    assert clock.now == 101.0
    trigger.release()
    trigger.hold(abandoned)
    polled(trigger, feed)
    assert clock.now == 101.0


def test_a_cancelled_change_does_not_stop_the_drain_at_the_end_of_the_stream():
    """What comes last is sent at once, not after a poll without rows."""
    feed = Rows()
    trigger, clock = trigger_with(feed)

    def settle() -> None:
        trigger.resume()
        polled(trigger, feed)

    feeds = {"a": SimpleNamespace(ended=True, lag=0, retired=None)}
    engine = SimpleNamespace(settle=settle)
    calls = {"_reported": nullcontext, "_check": lambda: None, "punctuation": Punctuate(by="watermark")}
    slet = SimpleNamespace(_trigger=trigger, feeds=feeds, engine=engine, **calls)
    PullSlet._settle(cast("PullSlet", slet))
    assert clock.now == 100.0
    polled(trigger, feed, timeout=1)
    assert clock.now == 101.0


def test_boundaries_lie_at_multiples():
    """A boundary is crossed by the step that reaches the next multiple; the first punctuation crosses one."""
    trigger = BatchTrigger(boundary=60)
    assert trigger.crosses(59, 60)
    assert trigger.crosses(None, 1)
    assert not trigger.crosses(60, 119)
    assert not BatchTrigger().crosses(0, 1000)

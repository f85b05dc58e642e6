"""When micro-batches begin."""

from collections.abc import Callable
from dataclasses import dataclass

from exop.engine.pace import Gate, Pace


@dataclass
class Rows:
    """A feed as the gate sees it."""

    pending: int = 0
    urgent: bool = False


@dataclass
class Clock:
    """A clock that moves on when somebody waits; `meanwhile` may change the world then."""

    now: float = 100.0
    meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


def gate_with(pace: Pace, *feeds: Rows, clock: Clock | None = None) -> tuple[Gate, Clock]:
    """A gate whose lock, instead of waiting, moves the clock on."""
    clock = clock or Clock()
    gate = Gate(pace, clock=clock)
    gate.feeds.extend(feeds)

    def wait(timeout: float) -> bool:
        clock.now += timeout
        clock.meanwhile()
        return True

    gate.lock.wait = wait  # type: ignore[assignment]
    return gate, clock


def polled(gate: Gate, feed: Rows, timeout: float = 10.0) -> None:
    """Poll as a feed does."""
    with gate.lock:
        gate.wait(feed, timeout)


def test_rows_start_the_first_batch_at_once():
    """Nothing is waited for when rows are there and no batch has begun yet."""
    feed = Rows(pending=1)
    gate, clock = gate_with(Pace(interval=5), feed)
    polled(gate, feed)
    assert clock.now == 100.0


def test_the_next_batch_keeps_the_interval():
    """Rows that wait start a batch one interval after the last start, not earlier."""
    feed = Rows(pending=1)
    gate, clock = gate_with(Pace(interval=5), feed)
    polled(gate, feed)
    clock.now += 2
    polled(gate, feed)
    assert clock.now == 105.0


def test_a_boundary_does_not_wait_for_the_interval():
    """An urgent feed starts a batch at once."""
    feed = Rows(pending=1)
    gate, clock = gate_with(Pace(interval=5, boundary=60), feed)
    polled(gate, feed)
    feed.urgent = True
    polled(gate, feed)
    assert clock.now == 100.0


def test_enough_rows_do_not_wait_for_the_interval():
    """A batch that is worth its price starts at once."""
    feed = Rows(pending=1)
    gate, clock = gate_with(Pace(interval=5, enough=10), feed)
    polled(gate, feed)
    feed.pending = 10
    polled(gate, feed)
    assert clock.now == 100.0


def test_a_poll_without_rows_ends_after_its_timeout():
    """With nothing to read, the poll lasts as long as it may and then says so."""
    feed = Rows()
    gate, clock = gate_with(Pace(), feed)
    polled(gate, feed, timeout=10)
    assert clock.now == 110.0


def test_only_the_first_feed_that_is_asked_waits():
    """Spark asks the feeds of a query in turn: the leader has waited for all, the others answer at once."""
    first, second = Rows(), Rows()
    gate, clock = gate_with(Pace(), first, second)
    polled(gate, first, timeout=10)
    polled(gate, second, timeout=10)
    assert clock.now == 110.0


def test_rows_of_any_feed_end_the_wait():
    """The leader waits for rows of all feeds, not only its own."""
    first, second = Rows(), Rows()
    gate, clock = gate_with(Pace(), first, second)
    clock.meanwhile = lambda: setattr(second, "pending", 1)
    with gate.lock:
        gate.wait(first, 1.0)
    assert clock.now == 101.0


def test_a_nudge_ends_one_poll():
    """After a nudge one poll returns at once, and the next waits again."""
    feed = Rows()
    gate, clock = gate_with(Pace(), feed)
    gate.nudge()
    polled(gate, feed)
    assert clock.now == 100.0
    polled(gate, feed, timeout=1)
    assert clock.now == 101.0


def test_a_released_gate_does_not_wait():
    """While a query is drained, and when it is closed, polls return at once; held again, they wait again."""
    feed = Rows()
    gate, clock = gate_with(Pace(), feed)
    gate.release()
    polled(gate, feed)
    assert clock.now == 100.0
    gate.hold()
    polled(gate, feed, timeout=1)
    assert clock.now == 101.0


def test_boundaries_lie_at_multiples():
    """A boundary is crossed by the step that reaches the next multiple; the first punctuation crosses one."""
    pace = Pace(boundary=60)
    assert pace.crosses(59, 60)
    assert pace.crosses(None, 1)
    assert not pace.crosses(60, 119)
    assert not Pace().crosses(0, 1000)

"""The log that a query reads a port from."""

import threading
from math import inf, nextafter

import pyarrow as pa
import pytest

from exop.engine.feed import ROW, Feed, Part, completed
from exop.engine.pull import MICROSECONDS, EventTime, InputPosition
from exop.engine.trigger import BatchTrigger
from exop.errors import EngineError, FeedClosed, QueryError
from exop.model.items import Reference

COLUMNS = pa.schema([pa.field("time", pa.int32(), nullable=False), pa.field("value", pa.int32())])


def rows(*times: int) -> pa.RecordBatch:
    """One row per time."""
    return pa.RecordBatch.from_arrays([pa.array(times, pa.int32())] * 2, schema=COLUMNS)


def feed_with(boundary: float | None = None, **options) -> Feed:
    """A feed of these columns whose polls never wait."""
    trigger = BatchTrigger(boundary=boundary)
    trigger.release()
    return Feed("rows", COLUMNS, trigger, **options)


def give(feed: Feed, batch: pa.RecordBatch, give_up=lambda: False) -> None:
    """Push a batch as soon as it is let in."""
    feed.admit(batch, give_up)
    feed.push(batch)


def read(feed: Feed, start: int, end: int) -> list[dict]:
    """The rows of a range."""
    return pa.ipc.open_stream(feed.read(start, end)).read_all().to_pylist()


def test_rows_are_read_by_offset_in_the_order_they_came():
    """Any range can be read, across and inside the batches that were pushed; rows are numbered."""
    feed = feed_with()
    feed.push(rows(10, 11, 12))
    feed.push(rows(13))
    assert feed.latest(0, None, 0) == 4
    assert [row["time"] for row in read(feed, 1, 4)] == [11, 12, 13]
    assert [row[ROW] for row in read(feed, 1, 4)] == [1, 2, 3]


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -1e300, 10.0**12])
def test_a_time_that_no_calendar_has_is_refused_before_the_engine_sees_it(time):
    """The engine would fail at it, and at it again after a restart; times that are missing are dropped."""
    columns = pa.schema([pa.field("time", pa.float64())])
    feed = Feed("rows", columns, BatchTrigger(), event_time=EventTime("time"))
    with pytest.raises(QueryError, match="rows: the column 'time' has a time that is no number, or too far away"):
        give(feed, pa.record_batch([pa.array([1.0, time])], schema=columns))
    give(feed, pa.record_batch([pa.array([1.0, None])], schema=columns))
    assert feed.pending == 2


def test_a_poll_offers_no_more_than_the_limit():
    """Admission control: so many rows from the start offset, the rest later."""
    feed = feed_with()
    feed.push(rows(*range(10)))
    assert feed.latest(0, 4, 0) == 4
    assert feed.latest(4, 4, 0) == 8
    assert feed.pending == 2


def test_files_are_offered_whole_and_in_their_places():
    """A batch ends before a file that is too large for it, and takes one with which it begins."""
    feed = feed_with()
    one, other = Reference("file:///one", 5), Reference("file:///other", 3)
    for batch in (rows(1, 2), rows(3), [one, other], rows(4)):
        give(feed, batch)
    assert [feed.latest(start, 4, 0) for start in (0, 3, 8)] == [3, 8, 12]
    assert feed.parts(0, 12) == [Part(0, 3, None), Part(3, 8, one), Part(8, 11, other), Part(11, 12, None)]
    assert [row["time"] for row in read(feed, 0, 3)] == [1, 2, 3]
    assert feed.latest(0, None, 0) == 12


def test_a_file_is_one_event():
    """The journal of the platform counts it so: after a restart, the feed begins at the same file."""
    feed = feed_with()
    feed.push([Reference("file:///one", 5), Reference("file:///other", 3)])
    feed.latest(0, 5, 0)
    feed.put_out()
    assert feed.reached() == InputPosition(1, 5)
    feed.commit(5)
    with pytest.raises(EngineError, match="holds rows 5 to 8"):
        feed.parts(0, 8)


def test_a_poll_that_finds_nothing_answers_its_start():
    """Spark takes an unchanged offset for: nothing new."""
    feed = feed_with()
    assert feed.latest(0, None, 0) == 0


def test_committed_rows_are_forgotten():
    """Rows that Spark has committed are trimmed and cannot be asked for again."""
    feed = feed_with()
    feed.push(rows(1, 2))
    feed.push(rows(3))
    feed.commit(2)
    assert [row["time"] for row in read(feed, 2, 3)] == [3]
    with pytest.raises(EngineError, match="holds rows 2 to 3, not 0 to 1"):
        feed.read(0, 1)


def test_a_full_feed_holds_its_pusher_until_the_results_are_sent():
    """Back-pressure. The commit is not waited for: Spark commits a batch only when the next one begins."""
    feed = feed_with(capacity=2)
    feed.push(rows(1, 2))
    pushed = threading.Event()

    def push() -> None:
        give(feed, rows(3))
        pushed.set()

    threading.Thread(target=push, daemon=True).start()
    assert not pushed.wait(0.1)
    assert feed.latest(0, None, 0) == 2
    feed.put_out()
    assert pushed.wait(60)


def test_a_pusher_that_is_wanted_elsewhere_does_not_wait():
    """A full feed never keeps a driver from its safe point: it is exceeded by the batch in flight."""
    feed = feed_with(capacity=1)
    feed.push(rows(1))
    give(feed, rows(2), lambda: True)
    assert feed.offset == 2


def test_a_retired_feed_refuses_with_what_ended_its_query():
    """A push after the query has failed raises the failure; after it was closed, that it is closed."""
    failed, closed = feed_with(), feed_with()
    failed.retire(EngineError("divided by zero"))
    closed.retire()
    with pytest.raises(EngineError, match="divided by zero"):
        give(failed, rows(1))
    with pytest.raises(FeedClosed, match="'rows' is closed"):
        give(closed, rows(1))


def test_a_retired_feed_offers_nothing_more_but_can_be_read():
    """The micro-batch under way is not disturbed."""
    feed = feed_with()
    feed.push(rows(1))
    feed.retire()
    assert feed.latest(0, None, 0) == 0
    assert len(read(feed, 0, 1)) == 1


def test_other_columns_are_refused():
    """A batch with other columns is refused, and the error names both sets of columns."""
    with pytest.raises(EngineError, match="takes time int32, value int32; what came has x int64"):
        give(feed_with(), pa.RecordBatch.from_pydict({"x": [1]}))


def test_a_punctuation_leaves_when_the_rows_before_it_have():
    """Put out means: every row pushed before the punctuation was in a planned range."""
    feed = feed_with()
    feed.push(rows(1))
    feed.punctuate(1)
    feed.push(rows(2, 2))
    feed.punctuate(2)
    feed.latest(0, 2, 0)
    feed.put_out()
    assert feed.complete() == 1
    feed.latest(2, None, 0)
    feed.put_out()
    assert feed.complete() == 2


def test_a_punctuation_behind_rows_whose_results_are_sent_is_undelivered():
    """A punctuation behind the last row has no micro-batch to carry it: the feed reports it as not delivered."""
    feed = feed_with()
    feed.push(rows(1))
    feed.punctuate(1)
    feed.latest(0, None, 0)
    assert not feed.undelivered
    feed.put_out()
    feed.punctuate(2)
    assert feed.undelivered
    assert feed.complete() == 2
    assert not feed.undelivered


def test_a_punctuation_that_was_not_delivered_before_a_restart_is_undelivered():
    """It came after the last batch, whose position is stored; the restarted feed receives it again."""
    first = feed_with()
    first.push(rows(1))
    first.latest(0, None, 0)
    first.put_out()
    position = first.reached()
    again = feed_with()
    again.push(rows(1))
    again.punctuate(2)
    again.resume(position)
    assert again.undelivered
    assert again.complete() == 2


def test_punctuations_only_move_on():
    """A punctuation with an earlier time than the last one has no effect."""
    feed = feed_with()
    feed.punctuate(5)
    feed.punctuate(4)
    assert feed.complete() == 5


def test_a_punctuation_moves_event_time_by_a_marker():
    """Complete through 59 means: nothing before 60 follows; the marker says so and is not counted as a row."""
    feed = feed_with(event_time=EventTime("time"))
    feed.push(rows(3))
    feed.punctuate(59)
    feed.latest(0, None, 0)
    feed.put_out()
    assert read(feed, 0, 2) == [{"time": 3, "value": 3, ROW: 0}, {"time": 60, "value": None, ROW: -1}]
    assert (feed.rows, feed.markers) == (1, 1)


@pytest.mark.parametrize(("complete", "following"), [(9.5, nextafter(9.5, inf)), (nextafter(10, 0), 10.0)])
def test_floating_point_times_follow_at_once(complete, following):
    """The watermark of the engine never passes a time that may still come, and reaches the next one that may."""
    columns = pa.schema([("time", pa.float64())])
    trigger = BatchTrigger()
    trigger.release()
    feed = Feed("rows", columns, trigger, event_time=EventTime("time"))
    feed.punctuate(complete)
    assert read(feed, 0, feed.offset) == [{"time": following, ROW: -1}]
    assert feed.event_time.before(following) == complete


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("unit", MICROSECONDS)
@pytest.mark.parametrize("complete", [-inf, -1e30, 0, 100.5, 2**53 + 1, 1e30, inf])
def test_the_column_of_the_time_holds_every_marker(kind, unit, complete):
    """At any punctuation, and at the end: not before what may follow, as far as the column reaches."""
    trigger = BatchTrigger()
    trigger.release()
    feed = Feed("rows", pa.schema([("time", kind)]), trigger, event_time=EventTime("time", unit))
    feed.punctuate(complete)
    feed.end()
    after, last = (row["time"] for row in read(feed, 0, feed.offset))
    assert after <= last
    assert last >= feed.never
    assert after > complete or after == last
    held = (2 ** (kind.bit_width - 1) - 1) if pa.types.is_integer(kind) else inf
    assert feed.never == min(held, EventTime("time", unit).never())


def test_with_a_boundary_only_crossings_are_marked():
    """Seconds inside a minute cost no marker; the one that completes the minute does, and is urgent."""
    feed = feed_with(boundary=60, event_time=EventTime("time"))
    feed.punctuate(0)
    feed.latest(0, None, 0)
    feed.punctuate(58)
    assert not feed.urgent
    feed.punctuate(59)
    assert feed.urgent
    feed.latest(1, None, 0)
    feed.put_out()
    assert feed.markers == 2


@pytest.mark.parametrize(("close_windows", "last"), [(True, 2**31 - 1), (False, 11)])
def test_the_end_moves_event_time_as_far_as_it_may(close_windows, last):
    """Windows close as if time went on for ever, or only as far as the stream was complete."""
    feed = feed_with(boundary=60, event_time=EventTime("time"))
    feed.punctuate(5)
    feed.punctuate(10)
    feed.end(close_windows=close_windows)
    assert [row["time"] for row in read(feed, 0, feed.offset)] == [6, last]


def test_moving_the_watermark_asks_for_another_poll():
    """Windows close in the batch after: the poll behind a boundary returns at once."""
    trigger = BatchTrigger(boundary=60)
    feed = Feed("rows", COLUMNS, trigger, event_time=EventTime("time"))
    feed.punctuate(59)
    assert feed.latest(0, None, 1000) == 1
    assert feed.latest(1, None, 1000) == 1


def test_rows_that_are_read_without_being_offered_have_left_with_their_batch():
    """Spark computes a batch again that it had begun before a crash, and that had not been emitted."""
    feed = feed_with()
    feed.push(rows(1, 2, 3))
    read(feed, 0, 2)
    feed.put_out()
    assert (feed.lag, feed.reached().offset) == (1, 2)


def test_lag_counts_what_has_not_been_put_out():
    """Rows that are planned but not delivered are still behind."""
    feed = feed_with()
    feed.push(rows(1, 2))
    feed.latest(0, None, 0)
    assert feed.lag == 2
    feed.put_out()
    assert feed.lag == 0


def test_the_end_that_an_engine_has_committed_before_a_crash_is_not_waited_for():
    """Until the end is sent, the position is before it; the engine has nothing to compute behind it."""
    before = InputPosition(event=1, offset=1)
    feed = feed_with(event_time=EventTime("time"), begin=before)
    feed.end()
    feed.resume(before)
    assert feed.lag == 1
    assert feed.latest(2, None, 0) == 2
    assert feed.lag == 0
    assert feed.finished


def test_a_feed_is_finished_when_all_of_it_has_left():
    """A feed is finished once it has ended and all its rows have left: then it holds back no join."""
    feed = feed_with()
    feed.push(rows(1))
    feed.end()
    assert not feed.finished
    feed.latest(0, None, 0)
    feed.put_out()
    assert feed.finished


def test_an_input_that_has_ended_holds_back_no_other():
    """Its last punctuation counts as delivered: the query does not look for it again and again."""
    ended, other = feed_with(), feed_with()
    ended.punctuate(1)
    ended.end()
    other.punctuate(5)
    assert completed([ended, other]) == 5
    assert not ended.undelivered
    assert not other.undelivered

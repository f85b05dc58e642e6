"""The log: what passes, under offsets."""

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import EndOfStream, Punctuation
from exop.errors import MeshError, NotStorable, StateError, StoredStateError
from exop.runtime.channels.log import LogChannel
from exop.runtime.dataflow.entry import Unwind
from exop.runtime.log import memory
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.memory import MemoryLog, Retention
from tests.rig import PATIENCE, eventually, rests
from tests.runtime.rig import Log, driven, finished, joined


def test_items_pass_and_keep_their_offsets():
    """Whatever form they come in, each item has the next offset."""
    channel, log = LogChannel("l"), Log()
    entry = joined(channel, log)
    entry.push("a")
    entry.push_batch(["b", "c"])
    entry.push_batch(pa.record_batch({"x": [1, 2]}))
    assert log.seen == ["a", "b", "c", {"x": 1}, {"x": 2}]
    assert (channel.start, channel.end) == (0, 5)
    assert channel.replay(1) == ["b", "c", {"x": 1}, {"x": 2}]
    assert channel.replay(2, 4) == ["c", {"x": 1}]
    assert channel.metrics() == {"start": 0, "end": 5}


def test_a_record_batch_is_kept_as_it_is():
    """Columns are kept as columns: nothing is converted before somebody asks for rows."""
    batch = pa.record_batch({"x": [1, 2, 3]})
    log = MemoryLog()
    log.append(batch)
    assert log.events(1, 3)[0].equals(batch.slice(1, 2))


def test_what_is_too_old_is_forgotten_and_asking_for_it_is_an_error():
    """At least the last `keep` items are there; whole batches are forgotten."""
    channel = LogChannel("l", keep=3)
    entry = joined(channel, Log())
    for number in range(10):
        entry.push(number)
    assert (channel.start, channel.end) == (7, 10)
    with pytest.raises(MeshError, match="kept are 7 to 10"):
        channel.replay(5)
    with pytest.raises(MeshError, match="at least 1"):
        LogChannel("l", keep=0)


def test_a_log_in_memory_that_has_only_a_size_keeps_as_much_as_one_without_bounds(monkeypatch):
    """The size is for the disk; memory is not filled."""
    monkeypatch.setattr("exop.runtime.channels.log.KEPT", 50)
    channel = LogChannel("l", size=1000)
    entry = joined(channel, Log())
    for number in range(200):
        entry.push(number)
    assert (channel.start, channel.end) == (150, 200)


def test_trimming_by_hand():
    """Who has read everything up to an offset lets go of what is before it."""
    channel = LogChannel("l")
    joined(channel, Log()).push_batch([1, 2, 3])
    channel.trim(2)
    assert channel.start == 0
    channel.trim(3)
    assert (channel.start, channel.end) == (3, 3)
    assert channel.replay(3) == []


def test_capture_and_restore_keep_the_offsets():
    """A restored log goes on under the same offsets."""
    channel = LogChannel("l", keep=2)
    entry = joined(channel, Log())
    for number in range(5):
        entry.push(number)
    other = LogChannel("l", keep=2)
    other.restore(channel.capture())
    joined(other, Log()).push(5)
    assert other.replay(4) == [4, 5]
    assert other.end == 6
    assert channel.capture() == {"began": 0, "end": 5, "items": [3, 4]}


@given(st.lists(st.one_of(st.integers(0, 5), st.tuples(st.just("trim"), st.integers(0, 30))), max_size=30))
def test_a_log_is_a_list_of_which_the_front_may_be_missing(steps):
    """For any order of appending and trimming, what is kept is what was appended, by offset."""
    log, everything = MemoryLog(), []
    for step in steps:
        if isinstance(step, tuple):
            log.trim(step[1])
        else:
            batch = list(range(len(everything), len(everything) + step))
            everything += batch
            assert log.append(batch) == len(everything)
        kept = [item for batch in log.events(log.start, log.end) for item in batch]
        assert kept == everything[log.start :]
        middle = (log.start + log.end) // 2
        assert [item for batch in log.events(middle, log.end) for item in batch] == everything[middle:]


@pytest.fixture
def disk(tmp_path):
    """Makes the channel on disk, again and again; the one before is closed, as if its process had ended."""
    made: list[LogChannel] = []

    def make(**settings):
        for one in made:
            one.close()
        made.append(LogChannel("l", path=tmp_path / "log", **settings))
        made[-1].open()
        return made[-1]

    yield make
    made[-1].close()


def test_a_log_on_disk_goes_on_where_it_ended(disk):
    """Another process finds the items, each under its offset."""
    joined(disk(), Log()).push_batch(["a", ("b", 2)])
    channel = disk()
    joined(channel, Log()).push_batch(pa.record_batch({"x": [1]}))
    assert (channel.start, channel.began, channel.end) == (0, 2, 3)
    assert channel.replay(0) == ["a", ("b", 2), {"x": 1}]
    assert set(channel.metrics()) == {"start", "end", "bytes", "folder"}


def test_in_the_state_directory_it_is_on_disk_without_a_path(tmp_path):
    """The platform gives every channel a folder of its own; without one a log is in memory."""
    channel = LogChannel("l")
    channel.home = tmp_path / "home"
    channel.open()
    joined(channel, Log()).push(1)
    channel.close()
    assert list(channel.home.glob("*.log"))


@pytest.mark.parametrize("batches", [[[2], [3], [4], [5]], [[2, 3, 4, 5, 6]], [[2, 3], [4, 5, 6]]])
def test_what_comes_once_more_after_a_crash_is_not_appended_twice(disk, batches):
    """The log was ahead of the checkpoint: consumers are given the items again, however they are cut into batches."""
    channel = disk()
    entry = joined(channel, Log())
    entry.push_batch([0, 1])
    held = channel.capture()
    assert held == {"began": 0, "end": 2, "marks": [0, 0], "start": 0}
    entry.push_batch([2, 3])
    entry.push(4)
    channel, log = disk(), Log()
    channel.restore(held)
    assert channel.end == 2
    entry = joined(channel, log)
    for batch in batches:
        entry.push_batch(batch)
    assert log.seen == [item for batch in batches for item in batch]
    assert channel.replay(0) == [0, 1, *log.seen]
    assert disk().replay(0) == [0, 1, *log.seen]


def test_control_items_keep_their_places_and_come_once_more_after_a_crash(disk):
    """They are passed on and kept, compared like rows after a crash, and cut off where the stream differs."""
    channel, log = disk(), Log()
    entry = joined(channel, log)
    entry.push(0)
    entry.control(Punctuation(1))
    held = channel.capture()
    assert held == {"began": 0, "end": 1, "marks": [0, 1], "start": 0}
    for mark in (Punctuation(2), Punctuation(3)):
        entry.control(mark)
    entry.push_batch(["a", "b"])
    entry.control(Punctuation(4))
    assert channel.replay(0) == [0, "a", "b"]
    before = [[0], *map(Punctuation, (1, 2, 3)), ["a", "b"], Punctuation(4)]
    assert channel.events(0) == before
    channel = disk()
    channel.restore(held)
    assert channel.position == (1, 1)
    entry = joined(channel, log)
    for mark in (Punctuation(2), Punctuation(3)):
        entry.control(mark)
    entry.push("a")
    assert disk().events(0) == before
    channel = disk()
    channel.restore(held)
    entry = joined(channel, log)
    entry.control(Punctuation(2))
    entry.push("a")
    entry.control(EndOfStream())
    assert channel.events(0) == [[0], Punctuation(1), Punctuation(2), ["a"], EndOfStream()]
    assert disk().origin == (2, 1)


def test_a_log_in_memory_captures_its_control_items():
    """They come back in their places."""
    channel, other = LogChannel("l"), LogChannel("l")
    entry = joined(channel, Log())
    for number in (1, 2):
        entry.push(number)
        entry.control(Punctuation(number + 4))
    other.restore(channel.capture())
    assert other.events(0) == channel.events(0) == [[1], Punctuation(5), [2], Punctuation(6)]
    assert other.position == channel.position


def test_a_long_replay_reads_the_log_in_large_pieces(disk, monkeypatch):
    """Rows that come once more one by one do not each search the log for their own."""
    channel, reads = disk(), []
    entry = joined(channel, Log())
    held = channel.capture()
    entry.push_batch(list(range(2500)))
    channel = disk()
    channel.restore(held)
    read = DiskLog.events
    monkeypatch.setattr(DiskLog, "events", lambda log, *ends: reads.append(ends) or read(log, *ends))
    entry = joined(channel, Log())
    for item in range(2600):
        entry.push(item)
    assert len(reads) <= 3
    assert channel.replay(0) == list(range(2600))


def test_a_stream_that_takes_another_course_is_what_the_log_has_then(disk, capsys):
    """Producers may meet in another order than before: the rows behind the first difference are taken back."""
    channel = disk()
    entry = joined(channel, Log())
    entry.push(0)
    held = channel.capture()
    entry.push_batch(["a", "b", "c"])
    channel = disk()
    channel.restore(held)
    entry = joined(channel, Log())
    entry.push("a")
    entry.push("c")
    entry.push("b")
    assert channel.replay(0) == [0, "a", "c", "b"]
    assert "differs from the log" in capsys.readouterr().err


def test_a_stream_that_ends_earlier_ends_the_log(disk):
    """What did not come once more is not part of the stream."""
    channel = disk()
    entry = joined(channel, Log())
    held = channel.capture()
    entry.push_batch(["a", "b"])
    channel = disk()
    channel.restore(held)
    entry = joined(channel, Log())
    entry.push("a")
    entry.control(EndOfStream())
    assert channel.replay(0) == ["a"]
    assert disk().replay(0) == ["a"]


def test_a_log_that_lost_what_the_checkpoint_counts_is_refused(disk):
    """It is said which rows there are; nothing begins in the middle."""
    with pytest.raises(StoredStateError, match="holds the rows 0 to 0, and the checkpoint counts 5"):
        disk().restore({"began": 0, "end": 5, "marks": [0, 0], "start": 0})


def test_what_a_recovery_needs_is_kept_whatever_the_retention_says(disk):
    """Rows behind the last checkpoint are compared with what comes once more."""
    channel = disk(keep=1, segment=100)
    entry = joined(channel, Log())
    for number in range(10):
        entry.push(number)
    held = channel.capture()
    channel.committed()
    for number in range(10, 100):
        entry.push(number)
    assert channel.start <= 10
    channel.capture()
    channel.committed()
    entry.push(100)
    entry.push("x" * 100)
    entry.push("y")
    assert channel.start > 10
    assert held["end"] == 10


def test_items_that_are_old_are_forgotten(monkeypatch):
    """In memory, too: at least so many seconds are kept."""
    now = [0.0]
    monkeypatch.setattr("exop.runtime.log.memory.time.monotonic", lambda: now[0])
    channel = LogChannel("l", seconds=10)
    entry = joined(channel, Log())
    for number in range(30):
        now[0] = number
        entry.push(number)
    assert channel.start == 19
    assert LogChannel("l", keep="all")._retention.items is None


def test_a_newcomer_is_given_what_is_kept_if_that_is_asked_for():
    """By default it begins with what comes. The end comes from the wiring, which knows whether this run has ended."""
    for replay, first in ((False, []), (True, [1, 2, Punctuation(3)])):
        channel = LogChannel("l", replay=replay)
        entry = joined(channel, Log())
        entry.push_batch([1, 2])
        for mark in (Punctuation(3), EndOfStream()):
            entry.control(mark)
        assert channel.kept_for("late.item") == first


def test_who_pushes_waits_for_a_disk_that_is_full(disk, monkeypatch):
    """Nothing is lost: the driver is at its safe point with the item in hand, the channel says why, and goes on."""
    monkeypatch.setattr("exop.runtime.channels.base.AGAIN", 0.01)
    channel, log = disk(), Log()
    entry = joined(channel, log)
    full = threading.Event()
    full.set()
    append = channel._disk.append

    def failing(*given):
        if full.is_set():
            raise StateError("the log could not be written: No space left on device")
        return append(*given)

    monkeypatch.setattr(channel._disk, "append", failing)

    def work(driver):
        driver.busy = True
        for number in range(3):
            try:
                entry.push(number)
            except Unwind as unwound:
                driver.unwound(unwound)
        entry.push_batch([3, 4])

    driver = driven(work)
    eventually(lambda: channel.trouble and driver.held_by)
    driver.close()
    assert rests(driver, PATIENCE)
    assert log.seen == []
    driver.open()
    full.clear()
    finished(driver)
    assert log.seen == channel.replay(0) == [0, 1, 2, 3, 4]
    assert channel.trouble is None


def test_without_a_driver_the_error_is_the_callers(disk):
    """An item that cannot be stored, pushed by hand."""
    with pytest.raises(NotStorable):
        joined(disk(), Log()).push(object())


def test_what_no_checkpoint_has_counted_is_put_there_once_by_a_change_that_is_made_again(disk):
    """The change that added the log was lost by a crash: the sources replay what had come there."""
    channel = disk()
    channel.begin_anew()
    joined(channel, Log()).push_batch([0, 1])
    channel = disk()
    channel.begin_anew()
    assert (channel.began, channel.end) == (0, 0)
    joined(channel, Log()).push_batch([0, 1, 2])
    channel.capture()
    channel.committed()
    channel = disk()
    channel.begin_anew()
    assert (channel.began, channel.replay(0)) == (3, [0, 1, 2])


def test_a_batch_that_could_not_be_appended_whole_comes_again_whole(disk, monkeypatch):
    """After a crash, with a part of it in the log already: that part is not appended twice."""
    channel = disk()
    held = channel.capture()
    joined(channel, Log()).push_batch([0, 1])
    channel = disk()
    channel.restore(held)
    entry = joined(channel, Log())
    with monkeypatch.context() as full:
        full.setattr(channel._disk, "append", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            entry.push_batch([0, 1, 2])
    entry.push_batch([0, 1, 2])
    assert channel.replay(0) == [0, 1, 2]


def test_punctuations_alone_do_not_grow_a_log_with_retention(monkeypatch):
    """Of many in a row the newest replaces the one before; rows and the first of them stay."""
    monkeypatch.setattr(memory, "_MOST_MARKS", 3)
    log = MemoryLog(0, Retention(items=2))
    log.append([1])
    for time in range(10):
        log.append(Punctuation(time))
    log.append([2])
    assert log.events(0, log.end) == [[1], Punctuation(0), Punctuation(1), Punctuation(9), [2]]

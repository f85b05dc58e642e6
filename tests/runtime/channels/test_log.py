"""The log: what passes, under offsets."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.errors import MeshError
from exop.runtime.channels.log import LogChannel
from exop.runtime.log.memory import OffsetLog
from tests.runtime.rig import Log, joined


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
    log = OffsetLog()
    log.append(batch)
    assert log.read(1, 3)[0].equals(batch.slice(1, 2))


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


@given(st.lists(st.one_of(st.integers(0, 5), st.tuples(st.just("trim"), st.integers(0, 30))), max_size=30))
def test_a_log_is_a_list_of_which_the_front_may_be_missing(steps):
    """For any order of appending and trimming, what is kept is what was appended, by offset."""
    log, everything = OffsetLog(), []
    for step in steps:
        if isinstance(step, tuple):
            log.trim(step[1])
        else:
            batch = list(range(len(everything), len(everything) + step))
            everything += batch
            assert log.append(batch) == len(everything)
        kept = [item for batch in log.read(log.start, log.end) for item in batch]
        assert kept == everything[log.start :]
        middle = (log.start + log.end) // 2
        assert [item for batch in log.read(middle, log.end) for item in batch] == everything[middle:]

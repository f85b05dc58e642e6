"""The log in partitions: each key's rows in order in one of them, offsets that survive, rows elided for an engine."""

import errno
import math
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import EndOfStream, Punctuation
from exop.errors import MeshError, NotStorable, StateError
from exop.model.meshes.partitions import partition_of
from exop.runtime.channels.partitioned_log import PartitionedLogChannel
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.memory import Position
from exop.runtime.log.reader import LogReader
from exop.runtime.log.segment import Files
from tests.runtime.rig import Log, joined


def opened(path, **settings):
    """A channel with its log in a folder."""
    channel = PartitionedLogChannel("l", by="key", path=path, **settings)
    channel.open()
    return channel


def parts(channel):
    """The rows of each partition."""
    return [part.replay(0) for part in channel._parts]


def test_each_row_is_in_the_partition_of_its_key_and_passes_on_whole(tmp_path):
    """Items and columns are split by the same rule as everywhere; consumers get the payload as it came."""
    channel, log = opened(tmp_path), Log()
    entry = joined(channel, log)
    entry.push({"key": 7})
    entry.push_batch([{"key": "a"}, {"key": "b"}])
    entry.push_batch(pa.record_batch({"key": [1, 2, 3, 1]}))
    assert log.seen == [{"key": key} for key in (7, "a", "b", 1, 2, 3, 1)]
    for number, rows in enumerate(parts(channel)):
        assert all(partition_of(row["key"], 4) == number for row in rows)
    assert sum(channel.written().values()) == 7
    assert channel.metrics()["rows"] == 7
    channel.close()


def test_control_items_are_stored_in_every_partition(tmp_path):
    """A reader of one partition learns how far it is complete."""
    channel, log = opened(tmp_path, partitions=2), Log()
    entry = joined(channel, log)
    entry.push({"key": 1})
    entry.control(Punctuation(5))
    entry.control(EndOfStream())
    channel.close()
    for number in range(2):
        with LogReader(tmp_path / f"partition-{number:05d}") as reader:
            events, _ = reader.events(Position(0), 10)
            assert [one for one in events if not isinstance(one, list)] == [Punctuation(5), EndOfStream()]


def test_it_goes_on_behind_a_checkpoint_and_later_rows_come_again(tmp_path):
    """What an engine may read ends at the checkpoint: behind it a recovery may store other rows."""
    channel = opened(tmp_path, partitions=2)
    channel.take_part(on=True)
    entry = joined(channel, Log())
    entry.push_batch([{"key": key} for key in range(10)])
    held = channel.capture()
    channel.committed()
    entry.push_batch([{"key": key} for key in range(10, 15)])
    assert sum(channel.readable().values()) == 10
    assert sum(channel.written().values()) == 15
    channel.close()
    again = opened(tmp_path, partitions=2)
    again.restore(held)
    assert sum(again.written().values()) == 10
    joined(again, Log()).push_batch([{"key": key} for key in range(20, 25)])
    assert sorted(row["key"] for rows in parts(again) for row in rows) == [*range(10), *range(20, 25)]
    again.close()


def test_a_full_disk_stores_no_row_twice(tmp_path, monkeypatch):
    """The pusher tries again with the whole batch; partitions that have their rows already do not get them again."""
    channel = opened(tmp_path, partitions=4)
    entry, append, calls = joined(channel, Log()), DiskLog.append, []

    def failing(self, payload, *more):
        calls.append(payload)
        if len(calls) == 3:
            raise StateError("full")
        return append(self, payload, *more)

    monkeypatch.setattr(DiskLog, "append", failing)
    batch = [{"key": key} for key in range(100)]
    with pytest.raises(StateError, match="full"):
        channel._keep(batch)
    entry.push_batch(batch)
    assert sorted(row["key"] for rows in parts(channel) for row in rows) == [*range(100)]
    channel.close()


@pytest.mark.parametrize("recovers", [False, True])
def test_a_batch_with_a_row_that_cannot_be_stored_is_refused_by_all_partitions(tmp_path, recovers):
    """Its rows come again one by one: no partition has stored any, also after a recovery."""
    rows = [{"key": key} for key in range(20)]
    channel = opened(tmp_path)
    if recovers:
        held = channel.capture()
        joined(channel, Log()).push_batch(rows)
        channel.close()
        channel = opened(tmp_path)
        channel.restore(held)
    entry = joined(channel, Log())
    with pytest.raises(NotStorable):
        entry.push_batch([*rows, {"key": 3, "value": object()}])
    for row in rows:
        entry.push(row)
    assert sorted(row["key"] for rows in parts(channel) for row in rows) == [*range(20)]
    channel.close()


def test_the_number_of_partitions_is_fixed(tmp_path):
    """The error names both numbers."""
    channel = opened(tmp_path, partitions=3)
    joined(channel, Log()).push({"key": 7})
    channel.close()
    with pytest.raises(MeshError, match=r"has 4 partitions, and the log in .* has 3; give partitions=3"):
        opened(tmp_path, partitions=4)


def test_a_folder_of_others_is_left_as_it_is(tmp_path):
    """Its name begins as those of partitions do."""
    (tmp_path / "partition-2024").mkdir()
    (tmp_path / "partition-2024" / "data.csv").write_text("1")
    with pytest.raises(MeshError, match="has 1; give partitions=1, or another path"):
        opened(tmp_path)
    assert [*tmp_path.rglob("*.*")] == [tmp_path / "partition-2024" / "data.csv"]


def begun(path, partitions):
    """The channel; without one, the error tells what helps."""
    try:
        return opened(path, partitions=partitions)
    except StateError as problem:
        if "raise the limit of open files (ulimit -n)" not in str(problem):
            raise
        return None


@settings(max_examples=50, deadline=None)
@given(partitions=st.integers(1, 5), cuts=st.lists(st.integers(0, 25), max_size=6))
def test_openings_that_are_cut_short_are_repeated(partitions, cuts):
    """After an error the message tells what helps; after a kill, which leaves the same folders, nothing is needed."""
    names, rest, pushed = (Files.names, Files.open), [math.inf], 0

    def limited(number):
        def operation(files, path):
            rest[0] -= 1
            if rest[0] < 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return names[number](files, path)

        return operation

    with TemporaryDirectory() as folder, ExitStack() as patches:
        for number, name in enumerate(("names", "open")):
            patches.enter_context(mock.patch.object(Files, name, limited(number)))
        for cut in [*cuts, math.inf]:  # the first ones, and some behind those that have succeeded
            rest[0] = cut
            if (channel := begun(Path(folder), partitions)) is None:
                continue
            rest[0] = math.inf
            joined(channel, Log()).push_batch([{"key": pushed + number} for number in range(20)])
            pushed += 20
            channel.close()
        rows = parts(opened(Path(folder), partitions=partitions))
    assert all(one == sorted(one, key=itemgetter("key")) for one in rows)
    assert sorted(row["key"] for one in rows for row in one) == [*range(pushed)]


def test_an_engine_gets_the_folders_of_a_log_on_disk_only(tmp_path):
    """Nobody else can read the memory of this process."""
    memory = PartitionedLogChannel("l", by="key")
    memory.open()
    assert memory.native("spark") is None
    channel = opened(tmp_path, partitions=2)
    places = {"0": str(tmp_path / "partition-00000"), "1": str(tmp_path / "partition-00001")}
    assert channel.native("spark") == {"format": "log", "partitions": places}
    assert channel.native("duckdb") is None
    channel.close()


def test_rows_from_a_position_on_are_for_a_slet_that_reads_through_the_platform(tmp_path):
    """A successor on another engine goes on where an engine has stopped."""
    channel = opened(tmp_path, partitions=2, replay=True)
    entry = joined(channel, Log())
    entry.push_batch([{"key": key} for key in range(4)])
    since = channel.written()
    entry.push_batch([{"key": key} for key in range(4, 8)])
    assert sorted(row["key"] for rows in channel.rows(since) for row in rows) == [4, 5, 6, 7]
    assert channel.oldest() == {"0": 0, "1": 0}
    assert sorted(row["key"] for row in channel.kept_for("x.in")) == [*range(8)]
    channel.close()

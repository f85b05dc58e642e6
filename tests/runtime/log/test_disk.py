"""The log on disk: whatever breaks, what was appended is there, once, in its order, whole batches only."""

import os
import resource
import threading
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import EndOfStream, Punctuation
from exop.errors import MeshError, NotStorable, StateError, StoredStateError
from exop.model.items import CONTROL
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.memory import MemoryLog, Position, Retention, flat
from exop.runtime.log.reader import LogReader
from tests.rig import PATIENCE
from tests.runtime.log.breaking import BreakingFile, BreakingFiles, Crash

FOLDER = Path("/logs/a")
#: So small that a few batches fill a segment.
SMALL = Retention(segment=300)
#: The rows 1 and "a", the row 2 with the key ("p", 3), and no row with ("p", 4), by an earlier release.
EARLIER = """
RXhMMQAAAAAAAAAAAAAAAAAA8D8AAAAAAwAAAAAAAQDtB3X13xG67JIBgEV4TDEAAAAAAAAAAAAAAAAAAPA/AgAAAAQAAAAAAAAAYkBmui0uvZOSAaFh
RXhMMQIAAAAAAAAAAAAAAAAA8D8BAAAAAgAAAAQAAAB/ZAZDsXxs1ZKhcAORAkV4TDEDAAAAAAAAAAAAAAAAAPA/AAAAAAEAAAAEAAAAHcOhWNWte9uS
oXAEkA==
"""


def opened(files, retention=SMALL, clock=lambda: 0.0):
    """The log in the files."""
    return DiskLog(FOLDER, retention, files=files, clock=clock)


def rows(log, start=None):
    """What is kept, row by row."""
    return [row for row in everything(log, start) if not isinstance(row, CONTROL)]


def everything(log, start=None):
    """What is kept, rows and control items one by one."""
    return flat(log.events(log.start if start is None else start, log.position))


@pytest.fixture(params=["memory", "disk"])
def log(request, tmp_path):
    """Both logs, for what they have in common."""
    if request.param == "memory":
        yield MemoryLog()
        return
    found = DiskLog(tmp_path / "log", Retention(segment=200))
    yield found
    found.close()


def test_rows_keep_their_offsets(log):
    """Appended at the end, read from any offset; what is not there is an error."""
    assert log.append([1, 2]) == 2
    assert log.append([]) == 2
    assert log.append([{"a": (3, b"x")}, None]) == 4
    assert log.events(0, 4) == [[1, 2], [{"a": (3, b"x")}, None]]
    assert log.events(1, 3) == [[2], [{"a": (3, b"x")}]]
    assert log.events(4, 4) == []
    with pytest.raises(MeshError, match="rows 2 to 5 were asked for; kept are 0 to 4"):
        log.events(2, 5)


def test_control_items_stand_between_the_rows(log):
    """They take no offset, and are read in their places, from any position; rows are read without them."""
    mark, end = Punctuation(1.5, idle=2.0), EndOfStream()
    assert [log.append(one) for one in ([1, 2], mark, end, [3], mark)] == [2, 2, 2, 3, 3]
    assert (log.end, log.position) == (3, (3, 1))
    assert log.events(0, log.position) == [[1, 2], mark, end, [3], mark]
    assert log.events(1, 3) == [[2], mark, end, [3]]
    assert log.events(1, 3)[1].idle == 2.0
    assert log.events(2, 2) == []
    assert log.events(Position(2, 1), Position(3, 1)) == [end, [3], mark]
    assert log.events(1, Position(2, 1)) == [[2], mark]
    assert rows(log) == [1, 2, 3]
    with pytest.raises(MeshError, match="rows 3 to 3 were asked for; kept are 0 to 3"):
        log.events(3, Position(3, 2))
    log.trim(3)
    assert log.events(3, log.position)[-1:] == [mark]


def test_columns_stay_columns(log):
    """A record batch is cut without being converted."""
    batch = pa.record_batch({"x": [1, 2, 3]})
    log.append(batch)
    (found,) = log.events(1, 3)
    assert found.equals(batch.slice(1, 2))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_on_disk_it_is_what_it_is_in_memory(data):
    """For any order of appending, trimming, taking back and opening again, with control items in any place."""
    files, kept = BreakingFiles(), []  # kept: the position of each event, and the event
    log, end = opened(files), Position(0)

    def note(event):
        nonlocal end
        kept.append((end, event))
        mark = isinstance(event, Punctuation)
        end = Position(end.offset, end.marks + 1) if mark else Position(end.offset + 1)

    for _ in range(data.draw(st.integers(0, 25))):
        step = data.draw(st.sampled_from(["append", "append", "append", "mark", "trim", "cut", "open"]))
        if step == "append":
            batch = list(range(end.offset, end.offset + data.draw(st.integers(0, 40))))
            log.append(batch)
            for row in batch:
                note(row)
        elif step == "mark":
            log.append(Punctuation(len(kept)))
            note(Punctuation(len(kept)))
        elif step == "trim":
            log.trim(data.draw(st.integers(0, end.offset)))
        elif step == "cut":
            places = [place for place, _ in kept if place.offset >= log.start] + [end]
            end = data.draw(st.sampled_from(places))
            kept = [one for one in kept if one[0] < end]
            log.cut(end)
        else:
            log.close()
            log = opened(files)
        assert log.position == end
        there = [one for one in kept if one[0].offset >= log.start]
        whole = everything(log)
        # Control items before the first row that is kept may be gone with the segment before.
        assert whole == [event for _, event in there][len(there) - len(whole) :]
        assert rows(log) == [event for _, event in there if not isinstance(event, Punctuation)]
        if whole:
            place, _ = there[-len(whole) // 2]
            assert everything(log, place) == [event for at, event in there if at >= place][-len(whole) :]
        assert log.size == sum(len(found) for found in files.files.values())


def life(files, told, retention=SMALL):
    """Append batches of several sizes, and control items; tell what was acknowledged."""
    log = opened(files, retention)
    for number in range(8):
        batch = [f"{number}.{row}" for row in range(number % 3 + 1)]
        told.append(batch)
        log.append(batch)
        told.append(None)
        if number % 3:
            told.append([Punctuation(number)])
            log.append(Punctuation(number))
            told.append(None)
        if number == 5:
            log.sync()
    log.close()


def test_killed_at_every_byte():
    """What was acknowledged is there; what was under way is there whole or not at all; it can be tried again."""
    files = BreakingFiles()
    life(files, [])
    for budget in range(files.steps):
        files, told = BreakingFiles(), []
        files.left = budget
        with pytest.raises(Crash):
            life(files, told)
        files.restart()
        log = opened(files)
        acknowledged = [row for batch, done in zip(told[::2], told[1::2], strict=False) for row in batch]
        under_way = told[-1] if told and told[-1] is not None else []
        assert everything(log) in (acknowledged, acknowledged + under_way)
        assert log.append(["more"]) == log.end
        log.close()
        assert rows(opened(files))[-1] == "more"


@pytest.mark.parametrize("kept", [0.0, 0.3, 1.0])
def test_the_power_fails_at_every_step(kept):
    """With fsync="append" all that was acknowledged is there, whatever became of the rest."""
    retention = Retention(segment=300, fsync="append")
    files = BreakingFiles()
    life(files, [], retention)
    for budget in range(0, files.steps, 3):
        files, told = BreakingFiles(), []
        files.left = budget
        with pytest.raises(Crash):
            life(files, told, retention)
        files.lose_power(kept)
        log = opened(files, retention)
        acknowledged = [row for batch, done in zip(told[::2], told[1::2], strict=False) for row in batch]
        assert everything(log)[: len(acknowledged)] == acknowledged


@pytest.mark.parametrize("place", [Position(4), Position(3), Position(3, 1)])
def test_a_cut_that_is_killed_at_every_step(place):
    """What stands before the cut is never touched."""
    files = BreakingFiles()
    life(files, [])
    steps, whole = files.steps, everything(opened(files))
    files.restart()
    log = opened(files)
    before = log.events(0, place)
    log.cut(place)
    assert log.events(0, log.position) == before
    for budget in range(files.steps - steps):
        files = BreakingFiles()
        life(files, [])
        log = opened(files)
        files.left = budget
        try:
            log.cut(place)
        except Crash:
            files.restart()
            log = opened(files)
            found = everything(log)
            assert found == whole[: len(found)]
            assert log.position >= place


@pytest.mark.parametrize("torn", [["b" * 100], Punctuation(7)])
def test_a_torn_tail_is_cut_off_and_logged(capsys, torn):
    """Half a batch, or half a control item, at the end was never acknowledged."""
    files = BreakingFiles()
    log = opened(files)
    log.append(["a"])
    log.append(torn)
    log.close()
    (path,) = (path for path in files.files if path.suffix == ".log")
    del files.files[path][-20:]
    again = opened(files)
    assert everything(again) == ["a"]
    assert "a torn write at the end of a log was removed" in capsys.readouterr().err
    again.append(["c"])
    assert everything(again) == ["a", "c"]


@pytest.mark.parametrize(("segment", "marks"), [(0, 0), (-1, 0), (0, 9), (0, 15), (-1, 9)])
def test_damage_in_the_middle_is_an_error_and_nothing_is_changed(segment, marks):
    """Rows behind it are not given up: the error says where it is and what may be done.

    With many control items the damage is in one of these, also behind the last row of its segment.
    """
    files = BreakingFiles()
    log = opened(files)
    for number in range(20):
        log.append([number])
        for mark in range(marks):
            log.append(Punctuation(mark))
    log.close()
    paths = sorted(path for path in files.files if path.suffix == ".log")
    assert len(paths) > 2
    damaged = files.files[paths[segment]]
    damaged[len(damaged) // 2] ^= 1
    before = {path: bytes(data) for path, data in files.files.items()}
    with pytest.raises(StoredStateError, match=r"damaged at .*restore .*\.log from a copy"):
        everything(opened(files))
    assert {path: bytes(data) for path, data in files.files.items()} == before


def test_a_gap_behind_what_a_checkpoint_counts_is_cut_off():
    """When the power fails, the disk may have later pages and not earlier ones; the sources send these rows again."""
    files = BreakingFiles()
    log = opened(files, Retention())
    for number in range(20):
        log.append([number])
        if number == 9:
            log.settle(10)
    log.close()
    (path,) = (path for path in files.files if path.suffix == ".log")
    data = files.files[path]
    place = len(data) * 3 // 4
    data[place : place + 60] = bytes(60)
    assert rows(opened(files, Retention())) == list(range(14))


def test_a_full_disk_is_an_error_and_the_append_can_be_tried_again():
    """Nothing of the batch stays; what is there can be read."""
    files = BreakingFiles()
    log = opened(files)
    for number in range(5):
        log.append([number])
    for room in range(0, 400, 7):
        files.room = room
        with pytest.raises(StateError, match="No space left on device; its content is unchanged; make room there"):
            log.append(["x" * 500])
        assert rows(log) == [0, 1, 2, 3, 4]
        assert log.end == 5
    files.room = None
    log.append(["y"])
    log.close()
    assert rows(opened(files)) == [0, 1, 2, 3, 4, "y"]


@pytest.mark.parametrize("room", [0, 30])
def test_a_disk_that_is_full_at_the_first_checkpoint_leaves_the_log_usable(room):
    """Nothing counts yet; a later checkpoint is noted."""
    files = BreakingFiles()
    log = opened(files)
    log.append([1, 2])
    files.room = room
    with pytest.raises(StateError, match="No space left on device"):
        log.settle(1)
    log.close()
    files.room = None
    log = opened(files)
    assert log.settled is None
    log.settle(2)
    assert log.settled == (2, 0)


def test_a_disk_that_does_not_say_that_it_is_done_is_not_relied_upon():
    """After a failed fsync nobody knows what is on the disk: the batch is taken back, and nothing is appended."""
    files = BreakingFiles()
    log = opened(files, Retention(fsync="append"))
    log.append([1])
    files.stuck = True
    with pytest.raises(StateError, match="Input/output error"):
        log.append([2])
    files.stuck = False
    with pytest.raises(StateError, match="cannot be used any more"):
        log.append([2])
    log.close()
    assert rows(opened(files)) == [1]


def test_a_closed_log_does_not_blame_its_disk():
    """Nothing is wrong with it."""
    log = opened(BreakingFiles())
    log.close()
    with pytest.raises(StateError, match=r"cannot be used any more: it is closed$"):
        log.append([1])


def test_a_full_segment_that_is_not_on_the_disk_is_not_forgotten():
    """The system reports a failed fsync once: a later one that succeeds says nothing about the rows before."""
    files = BreakingFiles()
    log = opened(files)
    log.append(["x" * 300])
    files.stuck = True
    with pytest.raises(StateError, match="Input/output error; make its disk usable, and restart the platform"):
        log.append(["y"])
    files.stuck = False
    for work in (lambda: log.append(["y"]), log.sync):
        with pytest.raises(StateError, match="cannot be used any more: Input/output error; make its disk usable"):
            work()


def test_files_of_others_in_the_folder_stay(tmp_path):
    """A file that only ends as a segment does is neither read nor removed."""
    (tmp_path / "nohup.log").write_text("not a segment")
    with closing(DiskLog(tmp_path)) as log:
        log.append([1, 2])
    with closing(DiskLog(tmp_path)) as log:
        assert (log.start, log.end) == (0, 2)
    with LogReader(tmp_path) as reader:
        assert (reader.start, reader.read(0, 9)) == (0, [1, 2])
    assert (tmp_path / "nohup.log").exists()


def test_one_at_a_time_has_it_open(tmp_path):
    """Two writers would overwrite each other."""
    log = DiskLog(tmp_path)
    with pytest.raises(StateError, match="is in use"):
        DiskLog(tmp_path)
    kept = os.dup(log._lock.number)  # as in a child that was forked
    log.close()
    DiskLog(tmp_path).close()
    os.close(kept)


def test_what_cannot_be_stored_is_refused_before_anything_is_written(log):
    """An item that crosses the border to the disk is of a type that comes back."""
    if isinstance(log, DiskLog):
        with pytest.raises(NotStorable):
            log.append([object()])
    assert log.end == 0


def test_retention_by_items_and_age_and_size():
    """Whole segments are given up: what is younger, or among the last, stays; a size is a bound for all."""
    files, now = BreakingFiles(), [0.0]
    log = opened(files, Retention(segment=300, items=10), lambda: now[0])
    for number in range(100):
        log.append([number])
    assert log.end - 20 < log.start <= log.end - 10
    log.close()
    log = opened(files, Retention(segment=300, seconds=60), lambda: now[0])
    log.append(["young"])
    now[0] = 61.0
    log.append(["new segment"])
    log.retain()
    assert rows(log)[-2:] == ["young", "new segment"]
    assert len(rows(log)) < 16
    now[0] = 122.0
    log.append(["another"])
    assert rows(log)[-2:] == ["new segment", "another"]
    assert "young" not in rows(log)
    log.close()
    log = opened(files, Retention(segment=300, size=1000), lambda: now[0])
    for number in range(100):
        log.append([number])
    assert log.size < 1400
    log.hold = log.start
    for number in range(100):
        log.append([number])
    assert log.size > 2000


@pytest.mark.parametrize("size", [1000, 5000])
def test_a_log_never_takes_more_than_its_size(size):
    """A file is a quarter of it at most, and the newest one has room to be filled."""
    log, sizes = opened(BreakingFiles(), Retention(size=size)), []
    for number in range(500):
        log.append([number])
        sizes.append(log.size)
    assert size / 2 < max(sizes) <= size
    assert rows(log)[-1] == 499


def test_a_log_may_have_more_files_than_a_process_may_have_open(tmp_path):
    """All are looked at when it is opened, one after the other."""
    with closing(DiskLog(tmp_path / "log", Retention(segment=1, fsync="never"))) as log:
        for number in range(50):
            log.append([number])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(number) for number in os.listdir("/proc/self/fd"))  # other tests leave gaps below it
    gaps = [os.dup(0) for _ in range(highest - len(os.listdir("/proc/self/fd")))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    try:
        with closing(DiskLog(tmp_path / "log")) as log:
            assert rows(log) == list(range(50))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in gaps:
            os.close(number)


def test_a_bound_that_keeps_nothing_is_refused():
    """A mistake is told where it is made."""
    with pytest.raises(MeshError, match="items=0 keeps nothing"):
        Retention(items=0)


def test_a_log_of_an_earlier_release_is_read_and_goes_on():
    """It has rows and keys, no control items, and a note of what a checkpoint counts without any."""
    files = BreakingFiles()
    files.open(FOLDER / "00000000000000000000.log").write(0, b64decode(EARLIER))
    files.open(FOLDER / "committed").write(0, b"%020d%020d" % (2, 0))
    log = opened(files)
    assert (log.settled, log.position) == ((2, 0), (3, 0))
    log.append(Punctuation(1))
    log.close()
    assert everything(opened(files)) == [1, "a", 2, Punctuation(1)]


def test_a_log_of_a_newer_release_is_refused(monkeypatch):
    """Nothing is changed that is not understood."""
    files = BreakingFiles()
    monkeypatch.setattr("exop.runtime.log.segment.FORMAT", 2)
    opened(files).append([1])
    monkeypatch.undo()
    files.restart()
    with pytest.raises(StoredStateError, match="form 2, this release reads 1"):
        opened(files)


def test_who_appends_does_not_wait_for_the_disk(monkeypatch):
    """A checkpoint forces the log to the disk while the stream runs; only the end of a segment waits for that."""
    files, begun, go_on = BreakingFiles(), threading.Event(), threading.Event()
    log = opened(files)
    log.append([0])
    force = BreakingFile.sync

    def slow(file):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert go_on.wait(PATIENCE)
        force(file)

    monkeypatch.setattr(BreakingFile, "sync", slow)
    with ThreadPoolExecutor(1) as pool:
        forcing = pool.submit(log.sync)
        assert begun.wait(PATIENCE)
        assert log.append([1]) == 2
        go_on.set()
        forcing.result(PATIENCE)
    for number in range(2, 50):
        log.append([number])
    assert rows(log) == list(range(50))

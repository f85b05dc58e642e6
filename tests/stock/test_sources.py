"""The stock sources: every cut of them, what does not fit, logs that another process writes, and files of a folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from exop import Application, EndOfStream, Platform, Punctuation
from exop.engine import Reference
from exop.errors import ComponentFailed, MeshError, SettingError, StateError, StoredStateError
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.memory import Retention
from exop.runtime.log.reader import LogReader
from exop.stock.sources import Emitted, Offset, Position, read_csv, read_lines, read_log, read_parquet
from exop.testing import check_source, feed
from tests.rig import PATIENCE, collector, eventually


def test_reading_lines(tmp_path):
    """Lines without their ends, the last one also without a line feed; it goes on behind the lines it has emitted."""
    path = tmp_path / "in.txt"
    path.write_bytes("a\nß\r\n\nlast".encode("latin-1"))
    assert check_source(read_lines, path=path, encoding="latin-1") == ["a", "ß", "", "last"]
    assert feed(read_lines, path=path, encoding="latin-1", position=Position(number=3)) == ["last"]
    assert feed(read_lines, path=path, encoding="latin-1", position=Position(number=9)) == []


def test_reading_rows(tmp_path):
    """Rows as dictionaries, also those that go over several lines; it goes on behind the rows it has emitted."""
    path = tmp_path / "in.csv"
    path.write_text('n,text\n1,"two\nlines"\n2,\n\n3,"a ""b"""\n', encoding="utf-8")
    rows = [{"n": "1", "text": "two\nlines"}, {"n": "2", "text": ""}, {"n": "3", "text": 'a "b"'}]
    assert check_source(read_csv, path=path) == rows


def test_rows_without_a_head(tmp_path):
    """The names of the columns are given, and another delimiter."""
    path = tmp_path / "in.csv"
    path.write_text("1;a\n2;b\n", encoding="utf-8")
    found = check_source(read_csv, path=path, columns=["n", "text"], delimiter=";")
    assert found == [{"n": "1", "text": "a"}, {"n": "2", "text": "b"}]


@pytest.mark.parametrize("line", ["1", "1,2,3"])
def test_a_row_that_does_not_fit_is_an_error(tmp_path, line):
    """Too few or too many fields are refused."""
    path = tmp_path / "in.csv"
    path.write_text(f"a,b\n0,0\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 3: it needs as many fields"):
        feed(read_csv, path=path)


@pytest.fixture
def log(tmp_path):
    """A log in small segments."""
    found = DiskLog(tmp_path / "log", Retention(segment=200))
    yield found
    found.close()


def test_every_cut_goes_on_with_the_next_row(log):
    """Also inside of a batch, and over segments."""
    log.append(pa.record_batch({"x": [1, 2]}))
    for number in range(20):
        log.append([number, (number, "a")])
    rows = [{"x": 1}, {"x": 2}, *(row for number in range(20) for row in (number, (number, "a")))]
    assert [row for batch in check_source(read_log, path=log.folder) for row in batch] == rows
    assert feed(read_log, path=log.folder, offset=Offset(offset=40)) == rows[40:]


def test_batches_come_as_they_were_and_single_items_in_small_ones(log):
    """So a replay is not slower than a file source, and a change does not wait for long."""
    for batch in ([1, 2, 3], *([n] for n in range(100)), pa.record_batch({"x": [1, 2]})):
        log.append(batch)
    found = check_source(read_log, path=log.folder)
    assert (found[0], found[-1]) == ([1, 2, 3], [{"x": 1}, {"x": 2}])
    assert [row for batch in found[1:-1] for row in batch] == list(range(100))
    assert max(map(len, found[1:-1])) == 32


def test_punctuations_are_emitted_in_their_places(log):
    """From any position, over segments, also behind the last row. Another run may go on behind the end of a stream."""
    for number in range(9):
        log.append([number, "x" * 50])
        log.append(Punctuation(number))
        log.append(Punctuation(number + 0.5))
        log.append(EndOfStream())
    wanted = [one for n in range(9) for one in (n, "x" * 50, Punctuation(n), Punctuation(n + 0.5))]
    assert feed(read_log, path=log.folder) == wanted
    for done in range(1, len(wanted)):
        run, which = divmod(done, 4)
        at, marks = ((0, 3), (1, 0), (2, 0), (2, 1))[which]
        assert feed(read_log, path=log.folder, offset=Offset(offset=2 * run + at, marks=marks)) == wanted[done:]


def test_it_reads_beside_the_writer(log):
    """What is appended is seen by the next look, also in segments that are new; half a batch is not."""
    with LogReader(log.folder) as reader:
        assert reader.read(0, 10) == []
        for number in range(100):
            log.append([number])
            assert reader.read(number, 10) == [number]
        with (log.folder / "00000000000000000000.log").open("ab") as torn:
            torn.write(b"ExL1 and half of a batch")
        assert reader.read(95, 10) == [95, 96, 97, 98, 99]
        assert reader.read(100, 10) == []


def test_what_is_not_kept_any_more_is_an_error(log):
    """A reader that is too late is told, not given other rows."""
    for number in range(100):
        log.append([number])
    log.trim(50)
    with LogReader(log.folder) as reader:
        assert reader.read(reader.start, 1) == [reader.start]
        with pytest.raises(MeshError, match="rows from 3 on were asked for; kept are those from"):
            reader.read(3, 1)


def test_what_no_checkpoint_counts_is_not_read_yet(log):
    """Rows behind the last checkpoint of a durable application may be taken back; `replay()` returns them."""
    log.append([1, 2, 3])
    log.settle(2)
    assert [row for batch in log.events(0, log.end) for row in batch] == [1, 2, 3]  # what replay() returns
    assert feed(read_log, path=log.folder) == [1, 2]
    log.settle(3)
    assert feed(read_log, path=log.folder) == [1, 2, 3]
    log.append([4])
    log.settle(None)
    assert feed(read_log, path=log.folder) == [1, 2, 3, 4]


def test_what_was_taken_back_after_a_crash_is_not_read(log):
    """Also where a reader has the file open: a cut inside of a batch writes it anew."""
    log.append([1, 2, 3, 4])
    log.settle(1)
    with LogReader(log.folder) as reader:
        assert reader.read(0, 10) == [1]
        log.cut(2)
        log.append([5, 6])
        log.settle(log.end)
        assert reader.read(1, 10) == [2, 5, 6]


@pytest.mark.parametrize("counted", [None, 90])
def test_damage_in_the_newest_file_is_an_error(tmp_path, counted):
    """It is not taken for the end of the log; rows that no checkpoint counts do not matter."""
    with closing(DiskLog(tmp_path / "log")) as log:
        for number in range(100):
            log.append([number])
        log.settle(counted)
    (path,) = (tmp_path / "log").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with LogReader(tmp_path / "log") as reader, pytest.raises(StoredStateError, match="damaged at byte|it ends at row"):
        reader.read(0, 1000)
    if counted is not None:
        (tmp_path / "log" / "committed").write_bytes(b"%020d" % 30)
        with LogReader(tmp_path / "log") as reader:
            assert reader.read(0, 1000) == list(range(30))


def test_a_folder_without_a_log(tmp_path):
    """Nothing is made there."""
    with pytest.raises(StateError, match="there is no log in"):
        LogReader(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(StateError, match="there is no log in"):
        LogReader(tmp_path)


def test_an_application_follows_the_log_of_another(tmp_path):
    """Two applications are joined by a log: each goes at its own pace."""
    seen = []
    with Platform() as platform:
        writer = Application("writer")
        kept = writer.channel("kept", kind="log", path=tmp_path / "log")
        writer.add("count", "stock:count_up", to=500, out=kept)
        platform.apply(writer.build())
        reader = Application("reader")
        reader.add("sink", collector(seen), item=reader.add("follow", read_log, path=tmp_path / "log", follow=True))
        platform.apply(reader.build())
        eventually(lambda: len(seen) == 500)
        platform.end("reader")
        assert platform.wait("reader", PATIENCE)
    assert seen == list(range(500))


def test_a_log_is_one_channels(tmp_path):
    """Two that would write into one folder are refused."""
    app = Application("two")
    for name in "ab":
        channel = app.channel(name, kind="log", path=tmp_path / "log")
        app.add(f"count-{name}", "stock:count_up", to=5, out=channel)
    with Platform() as platform, pytest.raises((StateError, ComponentFailed), match="is in use"):
        platform.apply(app.build())


def write_file(folder: Path, name: str, *keys: int) -> Reference:
    """Write a file of rows."""
    parquet.write_table(pa.table({"key": pa.array(keys, pa.int64())}), folder / name)
    return Reference((folder / name).as_uri(), len(keys))


def test_each_file_is_emitted_once_in_the_order_of_the_names(tmp_path):
    """It goes on behind the files that it has emitted; unfinished and empty ones are skipped."""
    wanted = [[write_file(tmp_path, f"{number}.parquet", number, 7)] for number in (1, 2, 3)]
    write_file(tmp_path, "0.parquet")
    for name in (".4.parquet", "_5.parquet", "readme.txt"):
        write_file(tmp_path, name, 4)
    settings: dict[str, Any] = {"path": tmp_path, "columns": "key bigint"}
    assert check_source(read_parquet, **settings) == wanted
    emitted = Emitted(names=["1.parquet", "2.parquet", "gone.parquet"])
    assert feed(read_parquet, emitted=emitted, **settings) == wanted[2:]


def test_a_followed_folder_is_a_stream_of_rows(tmp_path):
    """New files are found; slets that name no references get the rows."""
    write_file(tmp_path, "a.parquet", 1, 2)
    app, seen = Application("a"), list[Any]()
    rows = app.add("files", "stock:read_parquet", path=tmp_path, columns="key bigint", follow=True)
    app.add("see", collector(seen), item=rows)
    with Platform() as platform:
        platform.apply(app.build())
        eventually(lambda: seen == [{"key": 1}, {"key": 2}])
        write_file(tmp_path, "b.parquet.new", 3)
        (tmp_path / "b.parquet.new").rename(tmp_path / "b.parquet")
        eventually(lambda: seen == [{"key": 1}, {"key": 2}, {"key": 3}])


def test_files_that_do_not_fit_are_an_error(tmp_path):
    """Other columns, by name or type; columns that nobody can read; no folder."""
    write_file(tmp_path, "a.parquet", 1)
    with pytest.raises(ValueError, match="a.parquet has the columns key int64, not key int32"):
        feed(read_parquet, path=tmp_path, columns="key int")
    with pytest.raises(SettingError, match="'key what' is no column"):
        Application("a").add("files", read_parquet, path=tmp_path, columns="key what")
    with pytest.raises(NotADirectoryError, match="correct the setting `path`"):
        feed(read_parquet, path=tmp_path / "none", columns="key int")

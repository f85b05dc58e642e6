"""Checkpoints behind a file system of Hadoop's: a mounted view stands for the stores of a cluster."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from exop_spark import EventTime, Input, query
from exop_spark.session.engine import lease
from exop_spark.storage.folders import RemotePath, copy_folder, local_path, remove_folder

from exop import EndOfStream, Punctuation, Tie

ROWS = pa.schema([pa.field("time", pa.int32()), pa.field("value", pa.int32())])
WINDOWS = """
SELECT CAST(unix_seconds(window.end) AS INT) AS time, CAST(sum(value) AS INT) AS value
FROM rows GROUP BY window(event, '10 seconds')
"""
sums = query("sums", WINDOWS, inputs={"rows": Input(ROWS, EventTime("time"))}, out=ROWS, warm_up=0)


@pytest.fixture
def view(tmp_path) -> Iterator[RemotePath]:
    """A folder of another scheme, which is *tmp_path* in the end."""
    name = tmp_path.name.lower().replace("_", "-")
    share = lease()  # that of all tests may be in a Spark that a test before this one has killed
    settings = share.engine._session.sparkContext._jsc.hadoopConfiguration()
    settings.set(f"fs.viewfs.mounttable.{name}.link./data", tmp_path.as_uri())
    yield share.engine.folder(f"viewfs://{name}/data")
    share.release()


def test_a_setting_is_a_path_or_the_uri_of_one_or_elsewhere():
    """Only what is elsewhere needs Hadoop."""
    assert local_path("/a/b") == local_path("file:///a/b") == Path("/a/b")
    assert local_path("file:///a%20b") == Path("/a b")
    assert local_path("s3a://bucket/a") is None
    with pytest.raises(ValueError, match="names the host 'other', and a file is on this one"):
        local_path("file://other/a")


@pytest.mark.spark
def test_a_folder_elsewhere_is_copied_there_and_back(view, tmp_path):
    """Files, folders in it, and what is unfinished, which stays behind."""
    here = tmp_path / "here"
    (here / "in").mkdir(parents=True)
    (here / "in" / "1").write_text("one")
    (here / ".2.uuid.tmp").write_text("unfinished")
    copy_folder(here, view / "there")
    copy_folder(view / "there", view / "again")
    copy_folder(view / "again", tmp_path / "back")
    assert [one.relative_to(tmp_path / "back") for one in (tmp_path / "back").rglob("*")] == [Path("in"), Path("in/1")]
    found = view / "again" / "in" / "1"
    assert (found.exists(), found.is_dir(), found.read_text(), found.name) == (True, False, "one", "1")
    found.with_name("2").write_text("two")
    assert [one.name for one in (view / "again" / "in").glob("*")] == ["1", "2"]
    found.unlink()
    found.unlink(missing_ok=True)
    for missing in (found.unlink, found.read_text):
        with pytest.raises(FileNotFoundError):
            missing()
    assert list((view / "nowhere").glob("*")) == []
    remove_folder(view / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.edges
@pytest.mark.spark
def test_a_query_keeps_its_state_elsewhere_and_hands_it_over(view, tmp_path, noted):
    """Its checkpoint is at the URI of the setting; another one goes on with an archive of it, at a URI of its own."""
    place = tmp_path / "state"
    first, second = noted(), noted()
    with sums(out=first, checkpoints=f"{view}/state") as slet:
        feed(slet, 3, 4)
        slet.quiesce()
        (folder,) = place.iterdir()
        assert (folder / "offsets" / "0").exists()
        data = slet.pack()
    assert list(place.iterdir()) == []
    tie = Tie()
    tie.inherits = data
    with sums(out=second, tie=tie, checkpoints=f"{view}/state") as slet:
        slet.inherit(data)
        feed(slet, 5, 15)
        slet.rows(EndOfStream())
        second.wait_for(lambda: second.ended)
    assert (first.table(), second.table()) == ([], [(10, 12), (20, 15)])


def feed(slet, *times) -> None:
    """Rows whose values are their times, then the last time."""
    slet.rows(pa.RecordBatch.from_pydict({"time": times, "value": times}, schema=ROWS))
    slet.rows(Punctuation(times[-1]))

"""A query of a plan, without Spark."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from exop_spark.errors import EngineLost, QueryFailed, SparkError
from exop_spark.execution import run as module
from exop_spark.execution.run import Run
from exop_spark.plan import Plan

from exop.runtime.log import segment


def test_a_damaged_checkpoint_is_told_with_its_folder_and_the_cure(tmp_path):
    """It is not the query that is wrong."""
    offsets = tmp_path / "spark" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "3").write_text("v1\n{no json")
    run = Run(Plan("sums", "SELECT 1", {}, pa.schema([])), SimpleNamespace(engine=SimpleNamespace(master="local[2]")))
    run._session = object()
    with pytest.raises(SparkError, match=rf"sums: the checkpoint {tmp_path}/spark cannot be used: .*lose_state=True"):
        run.start(lambda *_: True, tmp_path)


def test_a_checkpoint_for_which_there_is_no_room_is_told_in_one_line(tmp_path, monkeypatch):
    """A copy fails for each file."""
    run = Run(Plan("sums", "SELECT 1", {}, pa.schema([])), SimpleNamespace(engine=SimpleNamespace(master="local[2]")))
    run._session = object()

    def full(*_):
        raise shutil.Error([(f"a{n}", f"b{n}", f"[Errno 28] No space left on device: 'b{n}'") for n in range(2)])

    monkeypatch.setattr(module, "carry", full)
    with pytest.raises(SparkError, match=r"used: \[Errno 28\] No space left on device: 'b0'; make room"):
        run.start(lambda *_: True, tmp_path, SimpleNamespace(directory=tmp_path))


def test_a_query_whose_heap_is_exhausted_says_so():
    """py4j says only that there was no answer."""
    engine = SimpleNamespace(alive=False, reason=lambda: "OutOfMemoryError: Java heap space")
    run = Run(Plan("sums", "SELECT 1", {}, pa.schema([])), SimpleNamespace(engine=engine))
    run._query = SimpleNamespace(exception=lambda: RuntimeError("Answer from Java side is empty"))
    with pytest.raises(EngineLost, match=r"has ended \(OutOfMemoryError: Java heap space\)"):
        run.check()


def test_a_checkpoint_that_is_gone_is_told(tmp_path):
    """Spark would begin anew, at rows that are gone, too."""
    run = Run(Plan("sums", "SELECT 1", {}, pa.schema([])), SimpleNamespace(engine=SimpleNamespace(master="local[2]")))
    run._session = object()
    with pytest.raises(SparkError, match="spark cannot be used: it is missing, and micro-batch 2 has been computed"):
        run.start(lambda *_: True, tmp_path, None, 2)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: assertion failed", True),
        ("[STREAM_FAILED] Query failed: [CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] An error", True),
        ("[STREAMING_CHECKPOINT_MISSING_METADATA_FILE] Checkpoint location file:/x is in an inconsistent state", True),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: [DIVIDE_BY_ZERO] Division by zero", False),
    ],
)
def test_a_query_that_cannot_continue_names_its_checkpoint(tmp_path, problem, told):
    """Spark says of a lost file no more than `assertion failed`; a mistake of the query has a condition."""
    run = Run(Plan("sums", "SELECT 1", {}, pa.schema([])), SimpleNamespace(engine=SimpleNamespace(alive=True)))
    run.directory, run._resumes = tmp_path, True
    run._query = SimpleNamespace(exception=lambda: RuntimeError(problem))
    with pytest.raises(QueryFailed) as caught:
        run.check()
    assert (f"the checkpoint {tmp_path}; if it is damaged, restore" in str(caught.value)) is told


def test_a_full_disk_is_told_with_the_folders(tmp_path):
    """Java names neither."""
    plan = Plan("sums", "SELECT 1", {}, pa.schema([]), stage="file:///staged")
    run = Run(plan, SimpleNamespace(engine=SimpleNamespace(alive=True)))
    run.directory = tmp_path
    problem = "[STREAM_FAILED] Query [id = 1] terminated with exception: java.io.IOException: No space left on device"
    run._query = SimpleNamespace(exception=lambda: RuntimeError(problem))
    with pytest.raises(
        QueryFailed, match=f"device. Spark writes its checkpoint to {tmp_path} and its output to file:///s"
    ):
        run.check()


def test_closing_releases_spark_even_if_the_checkpoint_cannot_be_removed(monkeypatch):
    """Otherwise Spark would never stop."""
    released = []
    share = SimpleNamespace(engine=SimpleNamespace(), release=lambda: released.append(True))
    run = Run(Plan("sums", "SELECT 1", {}, pa.schema([])), share)
    run._scratch = "hdfs://away/checkpoint"

    def remove_folder(place):
        raise OSError(f"{place} does not answer")

    monkeypatch.setattr(module, "remove_folder", remove_folder)
    with pytest.raises(OSError, match="does not answer"):
        run.close()
    assert released == [True]


def test_no_call_into_java_comes_between_the_emission_and_the_commit():
    """If Java ended there, the results would be sent, and the state of the batch would be missing."""
    calls = []
    run = Run(Plan("sums", "SELECT 1", {}, pa.schema([])), SimpleNamespace(engine=SimpleNamespace()))
    run._known.set()
    run._feeds = {}
    run._emit = lambda *_: calls.append("emit") or True
    run.progress = SimpleNamespace(learn=lambda _: calls.append("Java"), delivered=lambda *_: None)
    run._put_out(0, pa.schema([]).empty_table(), None)
    assert calls == ["Java", "emit"]


def test_the_place_of_a_checkpoint_is_noted_whole_or_not_at_all(tmp_path, monkeypatch):
    """An empty note would name the folder in which the process was started."""
    plan = Plan("sums", "SELECT 1", {}, pa.schema([]), checkpoints="file:///shared")
    engine = SimpleNamespace(checkpoint=lambda _: Path("/shared/one"), folder=str)
    run = Run(plan, SimpleNamespace(engine=engine))

    def killed(*_):
        raise OSError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(segment.Files, "rename", killed)
        with pytest.raises(OSError, match="killed"):
            run._folder(tmp_path)
    assert not (tmp_path / module.NOTE).exists()
    assert run._folder(tmp_path) == run._folder(tmp_path) == "file:///shared/one"


def test_another_number_of_key_groups_is_not_told_as_an_error_of_the_query(tmp_path):
    """The error names the fixed number alone."""
    offsets = tmp_path / "spark" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{"conf": {"spark.sql.shuffle.partitions": "4"}}\n{}')
    plan = Plan("sums", "SELECT 1", {}, pa.schema([]), key_groups=2)
    run = Run(plan, SimpleNamespace(engine=SimpleNamespace(master="local[2]", alive=True)))
    run._session = object()
    with pytest.raises(SparkError, match=r"\Asums: its state is in 4 key groups"):
        run.start(lambda *_: True, tmp_path)

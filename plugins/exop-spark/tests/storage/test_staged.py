"""Staged output: files of the tasks, and one manifest for each micro-batch, whatever is done again."""

import json
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from exop_spark.errors import SparkError
from exop_spark.storage import staged, staging
from exop_spark.storage.receipt import Receipt
from exop_spark.storage.staged import Stage

COLUMNS = pa.schema([("key", pa.int64()), pa.field("n", pa.int64(), nullable=False)])


@dataclass
class Frame:
    """Stands for the result of a micro-batch: one list of rows for each task."""

    tasks: list[list[dict]]
    computed: list[int] = field(default_factory=list)

    def mapInArrow(self, function, columns):  # noqa: N802 - Spark's name
        """Let the tasks run; one attempt more of the first, whose receipt is lost."""
        found = []
        for number, rows in enumerate(self.tasks):
            batch = pa.RecordBatch.from_pylist(rows, schema=COLUMNS)
            receipts = [*function([batch])]
            if not number:
                [*function([batch])]
            found += [one.set_column(0, "partition", pa.array([number], pa.int32())) for one in receipts]
        self.computed.append(len(found))
        return pa.Table.from_batches(found, schema=staging.RECEIPT) if found else staging.RECEIPT.empty_table()


class Spark(Frame):
    """The same, with Spark's way to collect."""

    def mapInArrow(self, function, columns):  # noqa: N802
        """Return what has `toArrow`."""
        table = super().mapInArrow(function, columns)
        return type("Receipts", (), {"toArrow": lambda self: table})()


@pytest.mark.parametrize("wrong", ["away://x", "folder", "file://{}/file", "file:///proc/none"])
def test_a_folder_that_cannot_be_used_is_told_before_the_first_row(tmp_path, wrong):
    """An unknown scheme, no scheme, a file, a folder that cannot be made: the error names setting and cure."""
    (tmp_path / "file").touch()
    with pytest.raises(SparkError, match=r"double: stage='.*' is no folder that can be used: .*; write file"):
        staging.check_folder(wrong.format(tmp_path), "double", create=True)


def test_a_folder_is_made_when_the_query_starts_and_not_when_it_is_checked(tmp_path):
    """A check has no effect."""
    folder = tmp_path / "new"
    staging.check_folder(folder.as_uri(), "double")
    assert not folder.exists()
    staging.check_folder(folder.as_uri(), "double", create=True)
    assert folder.is_dir()


@pytest.fixture
def stage(tmp_path):
    """A stage in a local folder."""
    return Stage(f"file://{tmp_path}", "counts-1")


@pytest.fixture
def again(monkeypatch):
    """How often Spark has computed for its state alone."""
    calls = []
    monkeypatch.setattr(staged, "compute", calls.append)
    return calls


def rows(receipts):
    """Return the rows of the receipts."""
    return [row for one in receipts for row in one.read().to_pylist()]


def files(tmp_path):
    """Return the files that are there."""
    return sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file())


def test_receipts_stand_for_the_rows_and_files_of_lost_attempts_go(stage, tmp_path):
    """A partition without rows has no receipt; the manifest is visible once the batch is sent."""
    frame = Spark([[{"key": 1, "n": 2}], [], [{"key": 3, "n": 4}]])
    found = stage.put(frame, 5, COLUMNS, {"rows": {"0": 9}})
    assert [(one.batch, one.partition, one.rows, one.offsets) for one in found] == [
        (5, 0, 1, {"rows": {"0": 9}}),
        (5, 2, 1, {"rows": {"0": 9}}),
    ]
    assert not [*tmp_path.rglob("*.json")]
    assert len([*tmp_path.rglob("*.parquet")]) == 3
    stage.settle(5, sent=True)
    (manifest,) = tmp_path.rglob("*.json")
    assert [Receipt(**one) for one in json.loads(manifest.read_text())] == found
    assert len([*tmp_path.rglob("*.parquet")]) == 2
    assert rows(found) == [{"key": 1, "n": 2}, {"key": 3, "n": 4}]


def test_a_batch_that_is_done_again_has_the_receipts_of_then(stage, tmp_path, again):
    """Before it was sent, and after: Spark computes for its state, and no file is written."""
    frame = Spark([[{"key": 1, "n": 2}]])
    found = stage.put(frame, 0, COLUMNS, {})
    assert Stage(f"file://{tmp_path}", "counts-1").put(frame, 0, COLUMNS, {}) == found
    stage.settle(0, sent=True)
    before = files(tmp_path)
    assert Stage(f"file://{tmp_path}", "counts-1").put(frame, 0, COLUMNS, {}) == found
    stage.settle(0, sent=True)
    assert files(tmp_path) == before
    assert len(again) == 2


def test_a_batch_that_is_not_sent_leaves_nothing(stage, tmp_path):
    """Its slet was replaced: the successor computes these rows."""
    stage.put(Spark([[{"key": 1, "n": 2}]]), 3, COLUMNS, {})
    stage.settle(3, sent=False)
    assert files(tmp_path) == []


def test_a_killed_attempt_leaves_a_file_that_the_next_one_does_not_count(stage, tmp_path):
    """Its receipt never came."""
    (tmp_path / "counts-1" / "0").mkdir(parents=True)
    (tmp_path / "counts-1" / "0" / "part-00000-0-dead.parquet").write_bytes(b"half")
    found = stage.put(Spark([[{"key": 1, "n": 2}]]), 0, COLUMNS, {})
    stage.settle(0, sent=True)
    assert len([*tmp_path.rglob("*.parquet")]) == 1
    assert rows(found) == [{"key": 1, "n": 2}]


def test_a_value_that_does_not_fit_fails_the_task(stage):
    """As it does where rows leave by the driver."""
    batch = pa.record_batch({"key": [1], "n": pa.array([None], pa.int64())})
    with pytest.raises(pa.ArrowInvalid, match="'n' has 1 empty values"):
        staging.write([batch], COLUMNS, stage.folder, "x.parquet")

"""Copies of checkpoints, without Spark."""

import shutil

import pytest
from exop_spark.errors import SparkError
from exop_spark.storage import carried
from exop_spark.storage.carried import check_committed, copy_of_live, without_later


def written(folder, names):
    """Make files with these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_the_state_of_later_batches_does_not_stay(tmp_path):
    """After batch 3 the state has the version 4; Spark would load a later snapshot as soon as it has that number."""
    kept = [
        "commits/3",
        "offsets/3",
        "state/0/0/4.delta",
        "state/0/0/4.snapshot",
        "state/0/0/left-keyWithIndex/4.delta",
        "state/0/_metadata/v2/9",
        "state/1/0/000012-1.sst",
        "state/1/0/4.changelog",
        "state/1/0/4_ab-1.zip",
    ]
    later = [
        "commits/4",
        "offsets/.4.crc",
        "offsets/4",
        "state/0/0/.5.snapshot.crc",
        "state/0/0/5.delta",
        "state/0/0/5.snapshot",
        "state/0/0/left-keyWithIndex/12.delta",
        "state/1/0/5.changelog",
        "state/1/0/5_ab-1.zip",
    ]
    written(tmp_path, kept + later)
    without_later(tmp_path, 3)
    assert sorted(one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*") if one.is_file()) == kept


def test_a_batch_that_spark_has_not_committed_is_told_with_the_cure(tmp_path):
    """Its process has ended after the platform has sent the results."""
    written(tmp_path, ["commits/2"])
    with pytest.raises(SparkError, match=r"micro-batch 3 are sent, .*open the application again.*lose_state=True"):
        check_committed(tmp_path, 3)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("[Errno 28] No space left on device: 'b'", r"live cannot be copied to .*copy: \[Errno 28\] No space left"),
        ("[Errno 2] No such file or directory: 'a'", "changes faster than it can be copied"),
    ],
)
def test_a_disk_without_room_is_not_told_as_a_checkpoint_that_changes(tmp_path, monkeypatch, problem, told):
    """Only a file that Spark has removed is a reason to copy again."""
    written(tmp_path / "live", ["commits/3", "offsets/3"])

    def fails(*_):
        raise shutil.Error([("a", "b", problem)])

    monkeypatch.setattr(carried, "copy_folder", fails)
    with pytest.raises(SparkError, match=told):
        copy_of_live(tmp_path / "live", tmp_path / "copy")

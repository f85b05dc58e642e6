"""A folder that was saved is noticed once, when its files rest."""

from __future__ import annotations

import os
from pathlib import Path

from exop.bundle.dev import WatchedFolder


def test_an_edit_is_noticed_once_when_it_rests(tmp_path: Path):
    """Two looks in a row see the same before it counts; after it was told it is not told again."""
    file = tmp_path / "a.py"
    file.write_text("1")
    folder = WatchedFolder(tmp_path)
    assert not folder.changed()
    file.write_text("22")
    assert not folder.changed()
    file.write_text("333")
    assert not folder.changed()
    assert folder.changed()
    assert not folder.changed()


def test_a_file_that_is_renamed_into_place_is_an_edit(tmp_path: Path):
    """As editors do it: also with the length and time of the one before."""
    file = tmp_path / "a.py"
    file.write_text("1")
    os.utime(file, ns=(1, 1))
    folder = WatchedFolder(tmp_path)
    (tmp_path / ".a.py.swp").write_text("2")
    assert not folder.changed()
    os.utime(tmp_path / ".a.py.swp", ns=(1, 1))
    (tmp_path / ".a.py.swp").rename(file)
    assert [folder.changed(), folder.changed()] == [False, True]


def test_files_that_come_and_go_count(tmp_path: Path):
    """Modules and manifests, in folders below too; caches, data and hidden files do not."""
    folder = WatchedFolder(tmp_path)
    for name in ("__pycache__/a.py", "data.csv", ".git/x.py", "a.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    assert not any([folder.changed(), folder.changed()])
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.py").write_text("1")
    assert [folder.changed(), folder.changed()] == [False, True]
    (tmp_path / "below" / "a.py").unlink()
    assert [folder.changed(), folder.changed()] == [False, True]

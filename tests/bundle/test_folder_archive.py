"""A folder becomes an archive: the same bytes for the same content, nothing that does not belong, no links."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from exop.errors import ArchiveRefused
from exop.remoting.api.folder_archive import LARGEST_CONTENT, archive_of
from tests.bundle.folders import speeds, write


def names(data: bytes) -> list[str]:
    """The files of an archive."""
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_what_belongs_to_it_is_packed(tmp_path: Path):
    """Modules, the manifest, and the files that it names; neither caches nor hidden files nor other data."""
    folder = speeds(tmp_path, more='files = ["data/*.csv"]')
    more = {".git/x.py": "", "__pycache__/a.pyc": "", "big.bin": "", "data/b.csv": "1", "below/m.py": "", "c.pyc": ""}
    write(folder, more)
    data = archive_of(folder)
    assert names(data) == ["bundle.toml", "helpers.py", "slets.py", "below/m.py", "data/b.csv"]
    assert archive_of(folder) == data


def test_links_are_refused(tmp_path: Path):
    """Of files and of folders: what they lead to is not the author's to send."""
    for target in ("slets.py", "."):
        folder = speeds(tmp_path / target.strip("."))
        (folder / "linked.py").symlink_to(folder / target)
        with pytest.raises(ArchiveRefused, match=r"linked.py is a symbolic link"):
            archive_of(folder)


def test_what_is_too_large_or_not_there_is_refused(tmp_path: Path):
    """Before it is read as a whole."""
    folder = speeds(tmp_path)
    with (folder / "large.py").open("wb") as file:
        file.truncate(LARGEST_CONTENT + 1)
    with pytest.raises(ArchiveRefused, match="leave data out of it"):
        archive_of(folder)
    with pytest.raises(ArchiveRefused, match="no such file or folder"):
        archive_of(tmp_path / "nowhere")

"""What is installed is kept as a whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exop.bundle.store import BundleStore, read_archive, stored_bundles
from exop.errors import StateError
from tests.bundle.folders import GOOD, zipped


def test_what_is_put_is_read_back(tmp_path: Path):
    """Also by the next process; with what was started, in its order."""
    archive = read_archive(zipped(GOOD), "a")
    store = BundleStore(tmp_path / "bundles")
    home = store.put(archive)
    assert home == tmp_path / "bundles" / "speeds@1.0.0"
    store.remember({"b@1": (), "a@1": ("b@1",)})
    again = BundleStore(tmp_path / "bundles")
    ((folder, found),) = stored_bundles(again.folder)[0].items()
    assert (found.digest, folder) == (archive.digest, home)
    assert list(again.started().items()) == [("b@1", ()), ("a@1", ("b@1",))]
    again.remove("speeds@1.0.0")
    assert stored_bundles(again.folder) == ({}, {})


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error says so, and what was there before is there still."""
    store = BundleStore(tmp_path)
    store.remember({"a@1": ()})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    for force in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, force, full)
    with pytest.raises(StateError, match="cannot be used for bundles: No space left on device"):
        store.put(read_archive(zipped(GOOD), "a"))
    with pytest.raises(StateError, match="No space left"):
        store.remember({})
    monkeypatch.undo()
    assert store.started() == {"a@1": ()}
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".new"} == {"started.json"}
    assert stored_bundles(store.folder) == ({}, {})


def test_a_temporary_shelf_goes(tmp_path: Path):
    """Without a state directory nothing stays."""
    store = BundleStore(None)
    store.put(read_archive(zipped(GOOD), "a"))
    store.remember({"speeds@1.0.0": ()})
    store.close()
    assert not store.folder.exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path):
    """With the place and the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"file.* cannot be used for bundles: "):
        BundleStore(tmp_path / "file" / "bundles")

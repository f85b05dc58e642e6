"""Bundle archives are checked as a whole, and the store keeps bundles, or says which of them are damaged."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from exop.bundle.store import BundleStore, read_archive, remembered, stored_bundles
from exop.errors import ArchiveRefused, BundleError, StateError
from exop.remoting.api.folder_archive import LARGEST_ARCHIVE, MOST_FILES
from tests.bundle.folders import GOOD, manifest, zipped


def refused(data: bytes) -> str:
    """Why an archive is refused."""
    with pytest.raises(ArchiveRefused) as caught:
        read_archive(data, "sent.zip")
    assert str(caught.value).startswith("sent.zip is refused: ")
    return str(caught.value)


def special(path: str, mode: int) -> bytes:
    """An archive with an entry that is no plain file."""
    buffer = io.BytesIO(zipped(GOOD))
    with zipfile.ZipFile(buffer, "a") as archive:
        entry = zipfile.ZipInfo(path)
        entry.external_attr = mode << 16
        archive.writestr(entry, "/etc/passwd")
    return buffer.getvalue()


def test_a_bundle_is_read():
    """Also one whose files stand in a folder of the archive; the digest is that of the files."""
    flat, below = read_archive(zipped(GOOD), "a"), read_archive(zipped(GOOD, head="speeds/"), "b")
    assert flat.manifest.key == below.manifest.key == "speeds@1.0.0"
    assert flat.digest == below.digest
    assert set(flat.files) == set(GOOD)


def test_what_the_manifest_does_not_name_is_left_out():
    """Modules and named files are kept; data that nobody named, and hidden files, are not."""
    more = {"notes.txt": "n", ".secret.py": "s", "tariff.csv": "1", "data/a/b.bin": "2"}
    text = manifest(more='files = ["tariff.csv", "data"]')
    found = read_archive(zipped({**GOOD, **more, "bundle.toml": text}), "a")
    assert set(found.files) == {*GOOD, "tariff.csv", "data/a/b.bin"}


@pytest.mark.parametrize(
    "path", ["../evil.py", "a/../../evil.py", "/evil.py", "C:/evil.py", "a//evil.py", "./evil.py", "a\\..\\evil.py"]
)
def test_paths_that_lead_out_are_refused(path: str):
    """Zip-slip: absolute paths, parent folders, drives and foreign separators."""
    assert repr(path)[1:-1] in refused(zipped({**GOOD, path: "x"}))


def test_a_name_that_is_cut_is_refused():
    """A NUL in a name would make it another one than it seems."""
    data = zipped({**GOOD, "evilXpy": "x"}).replace(b"evilXpy", b"evil\0py")
    assert "it holds a file called" in refused(data)


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o644, stat.S_IFCHR | 0o644])
def test_what_is_no_plain_file_is_refused(mode: int):
    """A link would read what is outside, a device or a pipe would block."""
    assert "no plain file" in refused(special("link.py", mode))


def test_two_files_of_one_name_are_refused():
    """One of them would be checked, the other used; a difference in case is none on some disks."""
    buffer = io.BytesIO(zipped(GOOD))
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("slets.py", "import os")
    assert "two of its files are called 'slets.py'" in refused(buffer.getvalue())
    assert "two of its files" in refused(zipped({**GOOD, "SLETS.py": "x"}))


def test_a_file_in_a_file_is_refused():
    """One of the two could not be written."""
    assert "is a file, too" in refused(zipped({**GOOD, "slets.py/more.py": "x"}))


def test_bombs_are_refused():
    """What unpacks to far more than it is, as a whole or by its number of files, is never unpacked."""
    assert "would become" in refused(zipped({**GOOD, "zeros.py": b"0" * 50_000_000}))
    assert "the bound is" in refused(zipped({f"m{number}.py": "" for number in range(MOST_FILES + 1)}))
    assert "the bound is" in refused(b"0" * (LARGEST_ARCHIVE + 1))


def test_a_size_that_is_a_lie_is_found():
    """No more is read than an entry says that it has."""
    data = bytearray(zipped({**GOOD, "zeros.py": b"0" * 900_000}))
    # The size stands twice: before the content, and in the table at the end.
    for signature, offset, find in ((b"PK\x01\x02", 24, data.rindex), (b"PK\x03\x04", 22, data.index)):
        start = data.rindex(signature, 0, find(b"zeros.py"))
        data[start + offset : start + offset + 4] = (10).to_bytes(4, "little")
    assert "larger than" in refused(bytes(data)) or "damaged" in refused(bytes(data))


def test_a_manifest_is_short():
    """Reading one takes long when it is made for that."""
    text = manifest(more="\n".join(f"# {number}" for number in range(20_000)))
    assert "the bound is 64000" in refused(zipped({**GOOD, "bundle.toml": text}))


def test_compiled_and_encrypted_files_are_refused():
    """A bundle holds sources that one can read."""
    assert "compiled" in refused(zipped({**GOOD, "fast.so": "x"}))
    assert "compiled" in refused(zipped({**GOOD, "__pycache__/slets.py": "x"}))
    data = bytearray(zipped(GOOD))
    place = data.rindex(b"PK\x01\x02")
    data[place + 8] |= 1
    assert "encrypted" in refused(bytes(data))


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06", b"no archive at all", zipped(GOOD)[:-30], zipped(GOOD)[40:]])
def test_damaged_archives_are_refused(data: bytes):
    """Whatever bytes come, the answer is that they are refused."""
    assert "damaged" in refused(data)


def test_bytes_behind_the_archive_are_no_damage():
    """The zip module accepts them as well."""
    assert read_archive(zipped(GOOD) + b"\n\n", "a") == read_archive(zipped(GOOD), "a")


def test_a_file_without_a_name_is_refused():
    """The zip module itself fails at one: it looks at the last letter."""
    buffer = io.BytesIO(zipped(GOOD))
    with zipfile.ZipFile(buffer, "a") as archive:
        entry = zipfile.ZipInfo("x")
        entry.filename = entry.orig_filename = ""
        archive.writestr(entry, "1")
    assert "the path '' leads out of it" in refused(buffer.getvalue())


def test_any_damage_is_refused_by_name():
    """One byte after the other is changed: the archive is as it was, or it is refused."""
    data = zipped(GOOD)
    whole = read_archive(data, "x")
    for place in range(len(data)):
        with suppress(BundleError):
            assert read_archive(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :], "x") == whole


def test_an_archive_without_a_manifest_is_refused():
    """And one whose manifest names what is not there says which."""
    assert "it holds no bundle.toml" in refused(zipped({"slets.py": "x"}))
    with pytest.raises(BundleError, match=r"speeds@1.0.0 offers 'slets:add_up', but has no module slets.py"):
        read_archive(zipped({"bundle.toml": manifest()}), "a")
    with pytest.raises(BundleError, match=r"names the files 'tariff.csv', but has none"):
        read_archive(zipped({**GOOD, "bundle.toml": manifest(more='files = ["tariff.csv"]')}), "a")


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
    assert list(remembered(again.folder).items()) == [("b@1", ()), ("a@1", ("b@1",))]
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
    with pytest.raises(StateError, match="for bundles: No space left on device; make room there.* repeat the command"):
        store.put(read_archive(zipped(GOOD), "a"))
    with pytest.raises(StateError, match="No space left"):
        store.remember({})
    monkeypatch.undo()
    assert remembered(store.folder) == {"a@1": ()}
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

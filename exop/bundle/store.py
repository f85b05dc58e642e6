"""The store of a platform's installed bundles: each in a folder of its name and version, written atomically."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from exop.bundle.archive import Archive, checked_archive
from exop.errors import ArchiveRefused, BundleError, StateError
from exop.remoting.api.folder_archive import files_of
from exop.runtime.log.segment import DISK, replace_file

#: The prefix of folders that are being written or removed; after a crash they are removed when the store is opened.
_UNFINISHED: Final = ".unfinished-"
_STARTED: Final = "started.json"


class BundleStore:
    """The bundles in a folder of the state directory, or in a temporary folder that `close` removes."""

    def __init__(self, folder: Path | None) -> None:
        self._temporary = folder is None
        with _written(folder or "the directory for temporary files"):
            self.folder = Path(tempfile.mkdtemp(prefix="exop-bundles-")) if folder is None else folder.resolve()
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in self.folder.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)

    def put(self, archive: Archive) -> Path:
        """Store a bundle: completely when this returns, or not at all."""
        home = self.folder / archive.manifest.key
        with _written(self.folder):
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
            try:
                for path, content in archive.files.items():
                    place = unfinished / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    _write(place, content)
                for root, _, _ in os.walk(unfinished):
                    DISK.sync(Path(root))
                _write(_digest(home), archive.digest.encode())
                unfinished.rename(home)
                DISK.sync(self.folder)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
        return home

    def remove(self, key: str) -> None:
        """Remove a bundle."""
        with _written(self.folder):
            # Renamed first: after a crash in between, no half of a bundle is left.
            doomed = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
            (self.folder / key).rename(doomed / "bundle")
            _digest(self.folder / key).unlink(missing_ok=True)
        shutil.rmtree(doomed, ignore_errors=True)

    def remember(self, started: Mapping[str, tuple[str, ...]]) -> None:
        """Store which bundles are started, in order, each with the bundles that it imports from."""
        if self._temporary:
            return
        with _written(self.folder):
            replace_file(DISK, self.folder / _STARTED, json.dumps(dict(started), indent=2).encode())

    def started(self) -> dict[str, tuple[str, ...]]:
        """The bundles that were started when the platform closed, each with the bundles that it imported from."""
        try:
            found = json.loads((self.folder / _STARTED).read_text(encoding="utf-8"))
            return {str(key): tuple(str(wire) for wire in wires) for key, wires in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as problem:
            raise StateError(
                f"{self.folder / _STARTED} cannot be read ({problem}); remove it, and start the bundles again"
            ) from problem

    def close(self) -> None:
        """Remove the folder, if it is temporary."""
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


def stored_bundles(folder: Path) -> tuple[dict[Path, Archive], dict[str, BundleError]]:
    """Read the bundles in a folder: the whole ones by their folders, and the errors of the damaged ones by name."""
    whole: dict[Path, Archive] = {}
    broken: dict[str, BundleError] = {}
    for home in sorted(folder.iterdir()) if folder.is_dir() else ():
        if home.is_dir() and not home.name.startswith("."):
            try:
                whole[home] = _read(home)
            except BundleError as problem:
                broken[home.name] = problem
    return whole, broken


def _read(home: Path) -> Archive:
    """The bundle in a folder."""
    try:
        archive = checked_archive({str(path): (home / path).read_bytes() for path in files_of(home)}, home.name)
    except (KeyError, OSError) as problem:
        cure = f"remove the folder {home}, and install it again"
        raise BundleError(bundle=home.name, problem=f"cannot be read: {problem}", cure=cure) from problem
    if archive.manifest.key != home.name:
        cure = "uninstall it, and install it again"
        raise ArchiveRefused(archive=str(home), problem=f"it holds {archive.manifest.key}", cure=cure)
    noted = _digest(home)
    if noted.exists() and noted.read_bytes() != archive.digest.encode():
        cure = f"remove the folder {home} and {noted}, and install it again"
        raise BundleError(bundle=home.name, problem="is not what was installed: a file is damaged", cure=cure)
    return archive


def _digest(home: Path) -> Path:
    """Return the file with the digest of a bundle; bundles installed by the previous release have none."""
    return home.with_name(f".{home.name}.digest")


@contextmanager
def _written(place: object) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise StateError(f"{place} cannot be used for bundles: {problem.strerror or problem}") from problem


def _write(place: Path, content: bytes) -> None:
    with place.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())

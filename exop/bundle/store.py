"""Bundle archives, checked as a whole before a byte is written, and the store that keeps installed bundles on disk."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

from exop.bundle.manifest import MANIFEST, Manifest, read_manifest
from exop.errors import ArchiveRefused, BundleError, StateError
from exop.remoting.api.folder_archive import LARGEST_ARCHIVE, LARGEST_CONTENT, MOST_FILES, belongs, files_of, matches
from exop.runtime.log.segment import DISK, replace_file

#: The largest ratio of the size of a file to its size in the archive, against bombs; small files may exceed it.
_RATIO: Final = 200
_SMALL: Final = 1_000_000
_LONGEST_PATH: Final = 240
_LARGEST_MANIFEST: Final = 64_000
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_COMPILED: Final = (".pyc", ".pyo", ".so", ".pyd", ".dylib")
#: The prefix of folders that are being written or removed; after a crash they are removed when the store is opened.
_UNFINISHED: Final = ".unfinished-"
STARTED: Final = "started.json"
OFFERED: Final = "offered.json"


@dataclass(frozen=True)
class Archive:
    """The content of a bundle: its manifest, its files, and a digest of these."""

    manifest: Manifest
    files: Mapping[str, bytes]
    digest: str


def read_archive(data: bytes, name: str) -> Archive:
    """Read a zip archive with a `bundle.toml` at its top, or in its only folder. Errors refer to it by *name*."""
    if len(data) > LARGEST_ARCHIVE:
        _refuse(name, f"it has {len(data)} bytes, the bound is {LARGEST_ARCHIVE}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            at = data.rindex(b"PK\5\6") + 10  # the number of entries, which the zip module does not look at
            if len(archive.infolist()) != int.from_bytes(data[at : at + 2], "little"):
                raise zipfile.BadZipFile("entries are missing")
            files = _read(name, archive)
    except ArchiveRefused:
        raise
    except Exception as problem:  # noqa: BLE001 (the zip module may raise anything for forged bytes)
        _refuse(name, f"it is no zip archive, or it is damaged ({problem})")
    if MANIFEST not in files and len({path.partition("/")[:2] for path in files}) == 1:  # made of a folder itself
        files = {path.partition("/")[2]: content for path, content in files.items()}
    if MANIFEST not in files:
        _refuse(name, f"it holds no {MANIFEST}")
    return checked_archive(files, name)


def checked_archive(files: Mapping[str, bytes], name: str) -> Archive:
    """Check the files of a bundle; those that its manifest does not name are left out."""
    if len(files[MANIFEST]) > _LARGEST_MANIFEST:
        _refuse(name, f"its {MANIFEST} has {len(files[MANIFEST])} bytes, the bound is {_LARGEST_MANIFEST}")
    try:
        text = files[MANIFEST].decode("utf-8")
    except UnicodeDecodeError:
        raise BundleError(bundle=name, problem=f"has a {MANIFEST} that is no UTF-8", cure="save it as UTF-8") from None
    manifest = read_manifest(text, name)
    files = {path: content for path, content in files.items() if belongs(path, manifest.files)}
    for offer in (*manifest.slets, *manifest.channels, *manifest.builders):
        path = offer.module.replace(".", "/")
        if f"{path}.py" not in files and f"{path}/__init__.py" not in files:
            problem = f"offers {str(offer)!r}, but has no module {path}.py"
            raise BundleError(bundle=manifest.key, problem=problem, cure=f"add the module, or correct its {MANIFEST}")
    for pattern in manifest.files:
        if not any(matches(pattern, file) for file in files):
            problem = f"names the files {pattern!r}, but has none"
            raise BundleError(bundle=manifest.key, problem=problem, cure=f"add them, or correct its {MANIFEST}")
    digest = sha256()
    for path in sorted(files):
        digest.update(f"{len(path.encode())}:{path}:{len(files[path])}:".encode())
        digest.update(files[path])
    return Archive(manifest, files, digest.hexdigest())


def _read(name: str, archive: zipfile.ZipFile) -> dict[str, bytes]:
    if len(entries := [one for one in archive.infolist() if not one.filename.endswith("/")]) > MOST_FILES:
        _refuse(name, f"it holds {len(entries)} files, the bound is {MOST_FILES}")
    taken: set[str] = set()
    for entry in entries:
        _check_entry(name, entry)
        # Names that differ in case alone are one file on some disks.
        if entry.filename.casefold() in taken:
            _refuse(name, f"two of its files are called {entry.filename!r}")
        taken.add(entry.filename.casefold())
    for path in taken:
        if any(str(parent) in taken for parent in PurePosixPath(path).parents):
            _refuse(name, f"a folder of {path!r} is a file, too")
    total, files = 0, {}
    for entry in entries:
        # The stated size may be false: at most one byte beyond it is read.
        with archive.open(entry) as stream:
            content = stream.read(min(entry.file_size, LARGEST_CONTENT - total) + 1)
        total += len(content)
        if len(content) != entry.file_size or total > LARGEST_CONTENT:
            _refuse(name, f"unpacked it is larger than {LARGEST_CONTENT} bytes, or than its entries state")
        files[entry.filename] = content
    return files


def _check_entry(name: str, entry: zipfile.ZipInfo) -> None:
    path = entry.filename
    # zipfile cuts a name at a NUL and converts the separators of other systems; the original name shows that.
    written = entry.orig_filename
    parts = path.split("/")
    if path != written or "\\" in path or not path.isprintable() or len(path) > _LONGEST_PATH:
        _refuse(name, f"it holds a file called {written!r:.300}")
    if path.startswith("/") or ":" in path or any(part in ("", ".", "..") for part in parts):
        _refuse(name, f"the path {path!r} leads out of it")
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        _refuse(name, f"{path!r} is no plain file (a link, or a device)")
    if entry.flag_bits & 0x1:
        _refuse(name, f"{path!r} is encrypted")
    if entry.compress_type not in _METHODS:
        _refuse(name, f"{path!r} is compressed in a way that bundles do not use")
    if path.endswith(_COMPILED) or "__pycache__" in parts:
        _refuse(name, f"{path!r} is compiled; a bundle holds sources")
    if entry.file_size > max(_SMALL, _RATIO * entry.compress_size):
        _refuse(name, f"{path!r} would become {entry.file_size} bytes out of {entry.compress_size}")


def _refuse(name: str, problem: str) -> NoReturn:
    raise ArchiveRefused(archive=name, problem=problem, cure="make one of a folder that `exop bundle new` has made")


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
        with _written(self.folder), tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=self.folder) as unfinished:
            for path, content in archive.files.items():
                place = Path(unfinished, path)
                place.parent.mkdir(parents=True, exist_ok=True)
                with closing(DISK.open(place)) as file:
                    file.write(0, content)
                    file.sync()
            for root, _, _ in os.walk(unfinished):
                DISK.sync(Path(root))
            replace_file(DISK, _digest(home), archive.digest.encode())
            os.rename(unfinished, home)
            DISK.sync(self.folder)
        return home

    def remove(self, key: str) -> None:
        """Remove a bundle."""
        with _written(self.folder):
            # Renamed first: after a crash in between, no half of a bundle is left.
            doomed = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
            (self.folder / key).rename(doomed / "bundle")
            _digest(self.folder / key).unlink(missing_ok=True)
        shutil.rmtree(doomed, ignore_errors=True)

    def remember(self, lists: Mapping[str, Sequence[str]], file: str = STARTED) -> None:
        """Store a list of names for each bundle: which are started, or what bundles have offered."""
        if not self._temporary:
            with _written(self.folder):
                replace_file(DISK, self.folder / file, json.dumps(dict(lists), indent=2).encode())

    def close(self) -> None:
        """Remove the folder, if it is temporary."""
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


def remembered(folder: Path, file: str = STARTED) -> dict[str, tuple[str, ...]]:
    """Return what `BundleStore.remember` has stored in a folder, in its order."""
    try:
        found = json.loads((folder / file).read_text(encoding="utf-8"))
        return {str(key): tuple(map(str, names)) for key, names in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as problem:
        cure = "remove it, and start the bundles again"
        raise StateError(f"{folder / file} cannot be read ({problem}); {cure}") from problem


def stored_bundles(folder: Path) -> tuple[dict[Path, Archive], dict[str, BundleError]]:
    """Read the bundles in a folder: the whole ones by their folders, and the errors of the damaged ones by name."""
    whole: dict[Path, Archive] = {}
    broken: dict[str, BundleError] = {}
    for home in sorted(folder.iterdir()) if folder.is_dir() else ():
        if home.is_dir() and not home.name.startswith("."):
            try:
                whole[home] = _stored(home)
            except BundleError as problem:
                broken[home.name] = problem
    return whole, broken


def _stored(home: Path) -> Archive:
    """The bundle in a folder."""
    try:
        archive = checked_archive({str(path): (home / path).read_bytes() for path in files_of(home)}, home.name)
    except (KeyError, OSError) as problem:
        cure = f"remove the folder {home}, and install it again"
        raise BundleError(bundle=home.name, problem=f"cannot be read: {problem}", cure=cure) from problem
    if archive.manifest.key != home.name:
        cure = "uninstall it, and install it again"
        raise ArchiveRefused(archive=str(home), problem=f"it holds {archive.manifest.key}", cure=cure)
    if (noted := _digest(home)).exists() and noted.read_bytes() != archive.digest.encode():
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
        cure = "make room there, or make it usable, and repeat the command"
        raise StateError(f"{place} cannot be used for bundles: {problem.strerror or problem}; {cure}") from problem

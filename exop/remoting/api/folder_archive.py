"""A folder as one archive of bounded size: the form in which a bundle is sent to a platform, also of this process."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from exop.errors import ArchiveRefused
from exop.model.values.depth import read_toml

#: Bytes of an archive: one request over the control connection can hold it.
LARGEST_ARCHIVE: Final = 3_500_000
#: Bytes of its files together.
LARGEST_CONTENT: Final = 64_000_000
#: Files in it.
MOST_FILES: Final = 2_000
_CACHE: Final = "__pycache__"


def archive_of(path: Path) -> bytes:
    """The archive of a folder, or a zip file as it is; the same content gives the same bytes.

    Of a folder with a `bundle.toml`, the archive holds that file, the modules, and its `files`, but no hidden files.
    """
    try:
        if path.is_dir():
            return _packed(path)
        if path.is_file():
            if path.stat().st_size > LARGEST_ARCHIVE:
                raise _too_large(path, path.stat().st_size)
            return path.read_bytes()
    except OSError as problem:
        why = f"{problem.filename or path}: {problem.strerror}"
        raise ArchiveRefused(archive=str(path), problem=why, cure="make it readable") from problem
    cure = "name a folder with a bundle.toml, or a zip archive of one"
    raise ArchiveRefused(archive=str(path), problem="there is no such file or folder", cure=cure)


def files_of(folder: Path) -> Iterator[PurePosixPath]:
    """The files of a folder that belong to it, in a fixed order, relative to it."""
    wanted = _patterns(folder)
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != _CACHE)
        for name in (*sorted(names), *folders):
            relative = PurePosixPath(Path(root, name).relative_to(folder).as_posix())
            if name not in folders and not belongs(str(relative), wanted):
                continue
            if (folder / relative).is_symlink():
                problem, cure = f"{relative} is a symbolic link", "put the file itself in its place"
                raise ArchiveRefused(archive=str(folder), problem=problem, cure=cure)
            if name not in folders:
                yield relative


def belongs(path: str, patterns: Sequence[str] | None) -> bool:
    """Whether a file belongs to a bundle with these `files`; with `None`, every file that is not hidden does."""
    parts = path.split("/")
    if any(part.startswith(".") or part == _CACHE for part in parts) or path.endswith((".pyc", ".pyo")):
        return False
    if patterns is None or path.endswith(".py") or path == "bundle.toml":
        return True
    return any(matches(one, path) for one in patterns)


def matches(pattern: str, path: str) -> bool:
    """Whether an entry of `files` matches a file: a path, a folder, or a pattern whose `*` crosses folders."""
    return fnmatchcase(path, pattern) or path.startswith(f"{pattern.rstrip('/')}/")


def _packed(folder: Path) -> bytes:
    buffer = io.BytesIO()
    total = 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, relative in enumerate(files_of(folder), 1):
            content = (folder / relative).read_bytes()
            total += len(content)
            if number > MOST_FILES or total > LARGEST_CONTENT:
                raise _too_large(folder, total)
            info = zipfile.ZipInfo(str(relative))  # dated 1980
            info.external_attr = 0o644 << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    if len(buffer.getvalue()) > LARGEST_ARCHIVE:
        raise _too_large(folder, len(buffer.getvalue()))
    return buffer.getvalue()


def _patterns(folder: Path) -> list[str] | None:
    """Return the patterns in `files`; `None` if unreadable: all files are sent, and the platform reports the error."""
    try:
        found = read_toml((folder / "bundle.toml").read_text(encoding="utf-8")).get("files", [])
    except (OSError, ValueError):
        return None
    return [str(one) for one in found] if isinstance(found, list) else None


def _too_large(path: Path, size: int) -> ArchiveRefused:
    problem = f"it has {size} bytes: an archive has at most {LARGEST_ARCHIVE}, {MOST_FILES} files, and "
    problem += f"{LARGEST_CONTENT} bytes unpacked"
    return ArchiveRefused(archive=str(path), problem=problem, cure="leave data out of it, and name it in a setting")

"""The files of a log that moves to another host: copies beside what is there, until all of them have come."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from exop.errors import StateError
from exop.runtime.log.segment import DISK

_COPY: Final = ".copy"
_SEGMENT: Final = re.compile(r"(partition-[0-9]{5}/)?[0-9]{20}\.log")
_FILE: Final = re.compile(rf"{_SEGMENT.pattern}(\{_COPY})?|(partition-[0-9]{{5}}/)?(lock|committed)")


def write(folder: Path | None, parts: Iterable[tuple[str, int, bytes]], names: Collection[str] | None = None) -> None:
    """Write parts of files, each with its name and position; with the *names* of all, these replace what is there."""
    if folder is None:
        raise StateError("a log on disk moves to a platform without a state directory; start that with --state")
    try:
        for name, position, data in parts:
            if not _SEGMENT.fullmatch(name):
                raise StateError(f"{name!r} is no name of a file of a log")
            (path := folder / f"{name}{_COPY}").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("r+b" if position else "wb") as file:
                file.seek(position)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        if names is not None:
            for path in _files(folder, {f"{name}{_COPY}" for name in names}):
                path.unlink()
            for name in names:
                DISK.rename(folder / f"{name}{_COPY}", path := folder / name)
                DISK.sync(path.parent)
    except OSError as problem:
        cure = "make room there, or make it usable, and make the change again"
        raise StateError(f"a log cannot be copied to {folder}: {problem.strerror or problem}; {cure}") from problem


def remove(folder: Path) -> None:
    """Remove a log that has left, or a copy that is not used; other files in its folder stay."""
    with suppress(OSError):  # the next copy begins with this, too
        for path in _files(folder):
            path.unlink(missing_ok=True)
        for path in (*folder.glob("partition-*"), folder):
            path.rmdir()


def _files(folder: Path, keep: Collection[str] = ()) -> list[Path]:
    found = [(path, path.relative_to(folder).as_posix()) for path in folder.glob("**/*")]
    return [path for path, name in found if _FILE.fullmatch(name) and name not in keep]

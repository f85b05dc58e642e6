"""The files of logs that move to another host: beside those that are there until the copy is complete."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from exop.errors import StateError
from exop.runtime.log.segment import DISK

if TYPE_CHECKING:
    from exop.runtime.log.disk import DiskLog

#: A part of a file: its name in the folder of the channel, the position, and the bytes.
Part: TypeAlias = tuple[str, int, bytes]
#: What is added to the name of a file that is not complete.
_COPY: Final = ".copy"
_SEGMENT: Final = re.compile(r"(partition-[0-9]{5}/)?[0-9]{20}\.log")
_FILE: Final = re.compile(rf"{_SEGMENT.pattern}(\{_COPY})?|(partition-[0-9]{{5}}/)?(lock|committed)")


def parts(logs: Mapping[str, DiskLog], *, anew: bool = False) -> Iterator[Part]:
    """Yield the parts of the files of logs, by their folders, that a copy lacks, or begin *anew* with all of them."""
    for place, log in logs.items():
        if anew:
            log.copied.clear()
        yield from ((place + name, position, data) for name, position, data in log.parts())


def check_free(folder: Path, *, given: bool) -> None:
    """Refuse a folder that a setting has *given* and that has a log already."""
    if given and any(_SEGMENT.fullmatch(name) for name, _ in _files(folder)):
        raise StateError(f"there is another log in {folder}; move this folder away, unless a platform uses it")


def write(folder: Path | None, found: Iterable[Part], names: Collection[str] | None = None) -> None:
    """Write parts of files; with the *names* of all, these replace what is there."""
    if folder is None:
        raise StateError("a log on disk moves to a platform without a state directory; start that with --state")
    try:
        for name, position, data in found:
            if not _SEGMENT.fullmatch(name):
                raise StateError(f"{name!r} is no name of a file of a log")
            (path := folder / f"{name}{_COPY}").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = DISK.open(path)
            try:
                file.truncate(position)
                file.write(position, data)
                file.sync()
            finally:
                file.close()
        if names is not None:
            for name, path in [*_files(folder)]:
                if name.removesuffix(_COPY) not in names or name in names:
                    path.unlink()
            for name in names:
                DISK.rename(folder / f"{name}{_COPY}", path := folder / name)
                DISK.sync(path.parent)
    except OSError as problem:
        cure = "make room there, or make it usable, and make the change again"
        raise StateError(f"a log cannot be copied to {folder}: {problem.strerror or problem}; {cure}") from problem


def remove(folder: Path) -> None:
    """Remove a log that has left, or a copy that is not used; other files in its folder stay."""
    with suppress(OSError):
        for _, path in [*_files(folder)]:
            path.unlink()
        for path in (*folder.glob("partition-*"), folder):
            path.rmdir()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    found = ((path.relative_to(folder).as_posix(), path) for path in folder.glob("**/*"))
    return ((name, path) for name, path in found if _FILE.fullmatch(name))

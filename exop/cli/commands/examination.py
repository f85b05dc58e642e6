"""Examination of a state directory that no platform uses: its content and any damage; nothing is changed."""

from __future__ import annotations

import fcntl
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from exop.errors import StateError, StoredStateError
from exop.runtime.durable.database import FILE, GENERATION, GenerationFile, accept, contents_of, inspect, opened
from exop.runtime.log.files import DISK
from exop.runtime.log.segment import Segment, check_start, segment_names, settled

#: A state directory holds at least one of these, however damaged it is.
_MARKS: Final = (FILE, GENERATION, "lock")


def examine(directory: Path) -> dict[str, Any]:
    """Return the content as plain data: `damage` lists what is damaged, each with the cure.

    Raises:
        StateError: there is no such directory, it is not a state directory, or a platform uses it.
    """
    with _unused(directory):
        damage: list[str] = []
        found: dict[str, Any] = {"directory": str(directory), "version": None, "generation": None, "noted": None}
        try:
            noted = GenerationFile(directory).read()
            found["noted"] = noted._asdict() if noted is not None else None
            inspect(directory)
        except StateError as problem:
            damage.append(str(problem))
        found["applications"] = _applications(directory, found, damage)
        found["engines"] = [
            {
                "application": place.parent.parent.name,
                "node": place.parent.name,
                "place": place.name,
                "bytes": _size(place),
            }
            for place in sorted((directory / "engines").glob("*/*/*"))
        ]
        found["logs"] = [_log(folder, damage) for folder in _log_folders(directory)]
        return found | {"damage": damage}


def take_as_it_is(directory: Path) -> int:
    """Take the database for the newest state, whatever the generation file says; returns the generation it holds.

    Raises:
        StateError: there is none, it is damaged, or a platform uses the directory.
    """
    with _unused(directory):
        return accept(directory).number


def _unused(directory: Path) -> ExitStack:
    """Keep platforms away while the block lasts.

    Raises:
        StateError: there is no such directory, it is not a state directory, or a platform uses it.
    """
    if not directory.is_dir():
        raise StateError(f"there is no state directory {directory}; name the one that was given by --state DIR")
    if not any((directory / name).exists() for name in _MARKS):
        raise StateError(
            f"{directory} is not a state directory: it holds none of {', '.join(_MARKS)}; name the one that was given "
            f"by --state DIR"
        )
    for path in (directory / name for name in _MARKS):
        if path.exists() and not path.is_file():
            raise StateError(f"{path} is no file; nothing was changed; move it away, or restore the whole directory")
    held = ExitStack()
    path = directory / "lock"
    if path.exists():
        lock = held.enter_context(path.open())
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read().strip() or "unknown"
            held.close()
            raise StateError(
                f"the state directory {directory} is in use by the platform with process id {holder}, and changes all "
                f"the time; ask that one by `exop ps`, or stop it first"
            ) from None
    return held


def _applications(directory: Path, found: dict[str, Any], damage: list[str]) -> list[dict[str, Any]]:
    """The applications of a database that can be read, whether or not it is the newest."""
    path = directory / FILE
    try:
        contents = contents_of(path)
    except StateError:  # told by inspect() already
        return []
    if contents is None:
        return []
    found["version"] = contents.version
    found["generation"] = contents.generation.number
    damage.extend(contents.damaged.values())
    listed = []
    with opened(path) as database:
        query = (
            "SELECT a.name, a.revision, a.active, c.number, c.taken FROM applications a "
            "LEFT JOIN checkpoints c ON c.application = a.name ORDER BY a.name"
        )
        for name, revision, active, number, taken in database.execute(query).fetchall():
            if name in contents.damaged:
                continue
            size = 0
            cure = f"restore the whole state directory from one copy, or give it up by `exop remove {name}`"
            query = "SELECT kind, name, sum, content FROM parts WHERE application = ?"
            for kind, part, known, content in database.execute(query, (name,)):
                size += len(content)
                if zlib.crc32(content) != known:
                    damage.append(f"the checkpoint of {name}: its {kind} {part!r} is damaged; {cure}")
            checkpoint = None
            if number is not None:
                checkpoint = {"number": number, "taken": datetime.fromtimestamp(taken, UTC).isoformat(), "bytes": size}
            listed.append({"name": name, "revision": revision, "active": bool(active), "checkpoint": checkpoint})
    return listed


def _log_folders(directory: Path) -> list[Path]:
    return sorted({path.parent for path in directory.rglob("*.log") if segment_names([path.name])})


def _log(folder: Path, damage: list[str]) -> dict[str, Any]:
    start = end = None
    try:
        start, end = _range_of_log(folder)
    except (StoredStateError, OSError) as problem:
        damage.append(str(problem))
    return {"folder": str(folder), "start": start, "end": end, "bytes": _size(folder)}


def _range_of_log(folder: Path) -> tuple[int, int]:
    """Read all of a log that is not open: from which offset to which it reaches. Nothing is changed.

    Raises:
        StoredStateError: it is damaged, but for a torn tail, which is cut off when the log is opened.
        OSError: it cannot be read.
    """
    segments = [Segment(DISK, folder / name) for name in segment_names(path.name for path in folder.iterdir())]
    try:
        for one in segments:
            one.scan()
        for one, after in pairwise(segments):
            if one.end != after.base or one.rest(one.size):
                raise one.damaged(f"damaged at row {one.end}")
        check_start(folder, DISK, segments[0].base)
        segments[-1].check_tail(settled(folder, DISK))
    finally:
        for one in segments:
            one.close()
    return segments[0].base, segments[-1].end


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())

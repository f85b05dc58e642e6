"""Whether the database of a state directory may be used: whole, of this release, and the newest. Nothing is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exop.errors import StateError
from exop.runtime.state.generation import Generation, GenerationFile
from exop.runtime.state.tables import (
    FILE,
    FORMER,
    FORMER_CHECKPOINTS,
    ROWS_OF_ALL,
    ROWS_OF_APPLICATION,
    SECOND,
    VERSION,
    digest_of,
    opened,
    sum_of,
)

_NAMES: Final = (
    "SELECT name FROM applications UNION SELECT application FROM digests "
    "UNION SELECT application FROM checkpoints UNION SELECT application FROM parts"
)
_MAGIC: Final = b"SQLite format 3\0"


@dataclass(frozen=True)
class Inspected:
    """A database that may be used.

    Attributes:
        generation: Of its last transaction.
        damaged: Applications whose rows do not fit to their digest, each with the error that says so.
        version: Of its tables.
    """

    generation: Generation
    damaged: dict[str, str] = field(default_factory=dict)
    version: int = VERSION

    @property
    def former(self) -> bool:
        """It has no digests, and is to be built anew from its two files."""
        return self.version == FORMER


def inspect(directory: Path) -> Inspected | None:
    """Find out whether the database of a directory may be used; `None`: there is none, and never was. Changes nothing.

    Raises:
        StateError: it is damaged, older than the generation file says, or of another version.
    """
    path, noted = directory / FILE, GenerationFile(directory).read()
    found = contents_of(path)
    if found is None:
        if noted is not None and (noted.number > 1 or noted.committed):
            raise _lost(path, f"{noted_as(noted)}, and the database is missing or empty")
        if left := [name for name in (f"{FILE}-wal", FORMER_CHECKPOINTS) if _holds(directory / name)]:
            raise _lost(path, f"it is missing or empty beside {left[0]}")
        return None
    if found.former:
        if noted is not None and (noted.number > 1 or noted.committed):
            raise _lost(path, f"{noted_as(noted)}, and the database is of the release before")
        _check_former(directory)
        return found
    if noted is None:
        raise _lost(path, f"{directory / 'generation'}, which tells whether it is the newest, is missing", accept=True)
    before = found.generation.number == noted.number - 1 and not noted.committed
    if found.generation != noted._replace(committed=True) and not before:
        problem = f"{noted_as(noted)}, and the database holds the generation {found.generation.number}"
        raise _lost(path, problem, accept=True)
    return found


def accept(directory: Path) -> Generation:
    """Take the database for the newest state, whatever the generation file says; returns the generation it holds.

    Raises:
        StateError: there is none, or it is damaged.
    """
    path = directory / FILE
    found = contents_of(path)
    if found is None or found.former:
        raise _lost(path, "it is missing or empty, or of the release before: there is nothing to accept")
    noted = GenerationFile(directory)
    noted.write(found.generation)
    noted.close()
    return found.generation


def contents_of(path: Path) -> Inspected | None:
    """Return the content of a database, whether or not it is the newest; `None` if it is missing or empty.

    Raises:
        StateError: it is damaged, or of another version.
    """
    try:
        version = _version(path)
        if version is None:
            return None
        if version == FORMER:
            return Inspected(Generation(0, "", committed=False), version=FORMER)
        if version not in (SECOND, VERSION):
            raise StateError(
                f"{path} is of version {version}, this release reads version {VERSION}; nothing was changed; "
                f"use the release that wrote it, or give another directory, --state DIR"
            )
        with opened(path) as database:
            _check_structure(database)
            number, digest = database.execute("SELECT generation, digest FROM platform").fetchone()
            if digest_of(database, ROWS_OF_ALL) != digest:
                raise sqlite3.DatabaseError("its rows do not fit to their digest")
            damaged = dict(_damaged(database, path, version))
            return Inspected(Generation(number, digest, committed=True), damaged, version)
    except (sqlite3.Error, OSError, TypeError, ValueError) as problem:
        raise unusable(path, problem) from problem


def noted_as(noted: Generation) -> str:
    """Describe the content of the generation file, for a message."""
    return f"the generation {noted.number} was {'committed' if noted.committed else 'begun'} here"


def unusable(path: Path, problem: Exception) -> StateError:
    """The error on a database that cannot be opened: because of what is in it, or of where it is."""
    outside = isinstance(problem, (OSError, sqlite3.OperationalError)) and not str(problem).startswith("no such")
    if outside:
        return StateError(
            f"{path} cannot be used ({problem}); nothing was changed; make room there, or make it writable, or give "
            f"another directory, --state DIR"
        )
    return StateError(
        f"{path} is no state of ExoP, or it is damaged ({problem}); nothing was changed; restore the whole state "
        f"directory from one copy, or move it away to start afresh, or give another directory, --state DIR"
    )


def _lost(path: Path, problem: str, *, accept: bool = False) -> StateError:
    """The error on a database that is not the newest, or may not be."""
    cure = f", or accept the database as it is by `exop state accept {path.parent}`" if accept else ""
    return StateError(
        f"{path} is not what it was: {problem}; going on could lose or double items; nothing was changed; restore the "
        f"whole state directory from one copy, or move it away to start afresh{cure}"
    )


def _check_former(directory: Path) -> None:
    """Verify the two files of the release before, as far as that can be.

    Raises:
        StateError: one of them is damaged, or missing.
    """
    for path in (directory / FILE, directory / FORMER_CHECKPOINTS):
        if not _holds(path):
            raise _lost(path, "it is missing or empty")
        try:
            check_header(path)
            with opened(path) as database:
                _check_structure(database)
                version = database.execute("PRAGMA user_version").fetchone()[0] if path.name != FILE else FORMER
                if version != FORMER:
                    raise sqlite3.DatabaseError(f"it is of version {version}, this release reads version {FORMER}")
        except (sqlite3.Error, OSError) as problem:
            raise unusable(path, problem) from problem


def _damaged(database: sqlite3.Connection, path: Path, version: int) -> Iterator[tuple[str, str]]:
    """The applications whose rows do not fit to their digest, or whose sections do not fit to their sum."""
    sums = dict(database.execute("SELECT name, sum FROM applications").fetchall()) if version == VERSION else {}
    digests = dict(database.execute("SELECT * FROM digests").fetchall())
    for (name,) in database.execute(_NAMES).fetchall():
        whole = version != VERSION or sum_of(database, name) == sums.get(name, 0)
        if not whole or digest_of(database, ROWS_OF_APPLICATION, name) != digests.get(name, ""):
            yield (
                name,
                (
                    f"what {path} holds of the application {name!r} is damaged; nothing was changed; restore the whole "
                    f"state directory from one copy, or give the application up by `exop remove {name}`"
                ),
            )


def _check_structure(database: sqlite3.Connection) -> None:
    (told,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if told != "ok":
        raise sqlite3.DatabaseError(" ".join(told.replace("*** in database main ***", "").split()))


def check_header(path: Path) -> None:
    """Refuse a file that is none of SQLite's; SQLite itself takes one of a few bytes for empty, and overwrites it.

    Raises:
        sqlite3.DatabaseError: it begins otherwise.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise sqlite3.DatabaseError("it does not begin as a database does")


def _version(path: Path) -> int | None:
    """The version of the tables; `None` when there are none yet.

    Raises:
        sqlite3.Error, OSError: the file is no database, or belongs to another program.
    """
    if not _holds(path):
        return None
    check_header(path)
    with opened(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "platform" not in tables:
            raise sqlite3.DatabaseError(f"it holds the tables {', '.join(sorted(tables))}")
        if not tables:
            return None
        (version,) = database.execute("SELECT version FROM platform").fetchone() or (0,)
        return int(version)


def _holds(path: Path) -> bool:
    """There is something in a file; a folder in its place counts, and cannot be used."""
    return path.exists() and (path.is_dir() or path.stat().st_size > 0)

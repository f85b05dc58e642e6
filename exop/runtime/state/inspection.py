"""Whether the database of a state directory may be used: whole, of this release, and the newest. Nothing is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exop.errors import StateError
from exop.runtime.state.tables import (
    FILE,
    FORMER_CHECKPOINTS,
    GENERATION,
    ROWS_OF_ALL,
    ROWS_OF_APPLICATION,
    SECOND,
    VERSION,
    Generation,
    GenerationFile,
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
    damaged: dict[str, str]
    version: int


def inspect(directory: Path) -> Inspected | None:
    """Find out whether the database of a directory may be used; `None` if there is none, and never was.

    Raises:
        StateError: it is damaged, older than the generation file says, or of another version.
    """
    path, noted = directory / FILE, GenerationFile(directory).read()
    found = contents_of(path)
    told = "" if noted is None else f"the generation {noted.number} was {'committed' if noted.committed else 'begun'}"
    if found is None:
        if noted is not None and (noted.number > 1 or noted.committed):
            raise _lost(path, f"{told} here, and the database is missing or empty")
        if left := [name for name in (f"{FILE}-wal", FORMER_CHECKPOINTS) if _holds(directory / name)]:
            raise _lost(path, f"it is missing or empty beside {left[0]}")
        return None
    if noted is None:
        raise _lost(path, f"{directory / GENERATION}, which tells whether it is the newest, is missing", accept=True)
    before = found.generation.number == noted.number - 1 and not noted.committed
    if found.generation != noted._replace(committed=True) and not before:
        problem = f"{told} here, and the database holds the generation {found.generation.number}"
        raise _lost(path, problem, accept=True)
    return found


def accept(directory: Path) -> Generation:
    """Take the database for the newest state, whatever the generation file says; return the generation it holds.

    Raises:
        StateError: there is none, or it is damaged.
    """
    found = contents_of(directory / FILE)
    if found is None:
        raise _lost(directory / FILE, "it is missing or empty: there is nothing to accept")
    with closing(GenerationFile(directory)) as noted:
        noted.write(found.generation)
    return found.generation


def contents_of(path: Path) -> Inspected | None:
    """Inspect a database, whether or not it is the newest; `None` if it is missing or empty.

    Raises:
        StateError: it is damaged, or of another version.
    """
    try:
        version = _version(path)
        if version is None:
            return None
        if version not in (SECOND, VERSION):
            older = "start it once with the release before this one, which migrates it"
            raise StateError(
                f"{path} is of version {version}, this release reads version {VERSION}; nothing was changed; "
                f"{older if version < SECOND else 'use the release that wrote it'}, or give another directory, "
                f"--state DIR"
            )
        with opened(path) as database:
            (told,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if told != "ok":
                raise sqlite3.DatabaseError(" ".join(told.replace("*** in database main ***", "").split()))
            number, digest = database.execute("SELECT generation, digest FROM platform").fetchone()
            if digest_of(database, ROWS_OF_ALL) != digest:
                raise sqlite3.DatabaseError("its rows do not fit to their digest")
            damaged = dict(_damaged(database, path, version))
            return Inspected(Generation(number, digest, committed=True), damaged, version)
    except (sqlite3.Error, OSError, TypeError, ValueError) as problem:
        raise unusable(path, problem) from problem


def unusable(path: Path, problem: Exception) -> StateError:
    """Return the error on a database that cannot be opened: because of its contents, or of its place."""
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
    """Return the error on a database that is not the newest, or may not be."""
    cure = f", or accept the database as it is by `exop state accept {path.parent}`" if accept else ""
    return StateError(
        f"{path} is not what it was: {problem}; going on could lose or double items; nothing was changed; restore the "
        f"whole state directory from one copy, or move it away to start afresh{cure}"
    )


def _damaged(database: sqlite3.Connection, path: Path, version: int) -> Iterator[tuple[str, str]]:
    """The applications whose rows do not fit to their digest, or whose sections do not fit to their sum."""
    sums = dict(database.execute("SELECT name, sum FROM applications").fetchall()) if version == VERSION else {}
    digests = dict(database.execute("SELECT * FROM digests").fetchall())
    for (name,) in database.execute(_NAMES).fetchall():
        whole = version != VERSION or sum_of(database, name) == sums.get(name, 0)
        if not whole or digest_of(database, ROWS_OF_APPLICATION, name) != digests.get(name, ""):
            problem = f"what {path} holds of the application {name!r} is damaged; nothing was changed"
            cure = "restore the whole state directory from one copy, or give the application up by"
            yield name, f"{problem}; {cure} `exop remove {name}`"


def _version(path: Path) -> int | None:
    """Return the version of the tables; `None` when there are none yet.

    Raises:
        sqlite3.Error, OSError: the file is no database, or belongs to another program.
    """
    if not _holds(path):
        return None
    with path.open("rb") as file:
        # SQLite itself takes a file of a few bytes for an empty one, and overwrites it.
        if file.read(len(_MAGIC)) != _MAGIC:
            raise sqlite3.DatabaseError("it does not begin as a database does")
    with opened(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "platform" not in tables:
            raise sqlite3.DatabaseError(f"it holds the tables {', '.join(sorted(tables))}")
        if not tables:
            return None
        (version,) = database.execute("SELECT version FROM platform").fetchone() or (0,)
        return int(version)


def _holds(path: Path) -> bool:
    """Whether there is something in a file; a folder in its place counts, and cannot be used."""
    return path.exists() and (path.is_dir() or path.stat().st_size > 0)

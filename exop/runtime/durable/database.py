"""The database of a state directory: applications, checkpoints, plugins; each transaction has a number and a digest.

A start takes the state that the last transaction has left, or refuses by name a state that may be older, or damaged:

- The number and the digest of a transaction are in the generation file, on the disk, before it is committed; and that
  it is committed, before anything outside (a sink, an engine) can know of it.
- A digest for each application covers its rows and the checksums of the parts of its checkpoint; one over all covers
  these, the plugins and the number.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from exop.errors import StateError, StoredStateError
from exop.logs import logger
from exop.runtime.durable import tables
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.snapshot import Key, Snapshot
from exop.runtime.durable.tables import Generation, GenerationFile

_NAMES: Final = (
    "SELECT name FROM applications UNION SELECT application FROM digests "
    "UNION SELECT application FROM checkpoints UNION SELECT application FROM parts"
)
_NEXT: Final = "(SELECT coalesce(max(number), 0) + 1 FROM checkpoints WHERE application = ?)"

#: Rows of the history over all applications, those included that were removed.
_MOST_ENTRIES: Final = 100_000
_OLD_ENTRIES: Final = (
    "DELETE FROM history WHERE (application = ? AND number <= ?) OR rowid <= (SELECT max(rowid) FROM history) - ?"
)
ENTRIES: Final = "SELECT number, content FROM history WHERE application = ? ORDER BY number"
_LAST_ENTRY: Final = "SELECT coalesce(max(number), 0) FROM history WHERE application = ?"


class Database:
    """The connection of a running platform; it locks the database.

    Attributes:
        damaged: Applications whose rows are damaged: kept as they are until they are forgotten.

    Raises:
        StateError: it is damaged, older than the generation file says, or of another version; nothing was changed.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / tables.FILE
        self._turn = threading.RLock()
        self._noted = GenerationFile(directory)
        found = inspect(directory)
        try:
            if found is None or found.version == tables.FORMER:
                found = Inspected(tables.build(directory, former=found is not None), {}, tables.VERSION)
            for left in directory.glob(f"{tables.FORMER_CHECKPOINTS}*"):
                left.unlink()
            self.connection, self.damaged = tables.connect(self.path), found.damaged
            try:
                for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
                    self.connection.execute(f"PRAGMA {pragma}")
                self.connection.execute(tables.HISTORY)
                self._noted.write(found.generation._replace(committed=True))
                if found.version == tables.SECOND:
                    names = [name for (name,) in self.rows("SELECT name FROM applications") if name not in self.damaged]
                    with self.transaction(*names) as database:
                        tables.upgrade(database)
            except BaseException:
                self.close()
                raise
        except (sqlite3.Error, OSError) as problem:
            raise unusable(self.path, problem) from problem

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        try:
            with self._turn:
                return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as problem:
            raise StateError(
                f"{self.path} could not be read: {problem}; nothing was changed; restore the whole state directory "
                f"from one copy, or give another one, --state DIR"
            ) from problem

    @contextmanager
    def transaction(self, *applications: str, forget: bool = False) -> Iterator[sqlite3.Connection]:
        """Change the rows of some applications, or those of none; all of it is committed, or nothing.

        Rows that are damaged stay as they are, unless they are to be forgotten.
        """
        with self._turn:
            for application in applications:
                if application in self.damaged and not forget:
                    raise StateError(self.damaged[application])
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                generation = tables.seal(self.connection, self._noted, *applications)
                failpoint("generation-written")
                self.connection.execute("COMMIT")
            except BaseException as problem:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                if isinstance(problem, (sqlite3.Error, OSError)):
                    raise StateError(f"{self.path} could not be written: {problem}") from problem
                raise
            failpoint("generation-committed")
            try:
                self._noted.write(generation._replace(committed=True))
            except OSError as error:  # a start cannot tell a loss of this transaction from a crash then
                path = str(self._noted.path)
                logger("exop.runtime").error("the generation file was not written", path=path, error=str(error))
            for application in applications:
                self.damaged.pop(application, None)

    def append(self, application: str, content: str, most: int) -> None:
        """Append a row to the history of an application, of which the *most* newest stay.

        No digest covers the history: no start depends on it.
        """
        try:
            with self._turn, self.connection as database:
                database.execute("BEGIN IMMEDIATE")
                ((number,),) = database.execute(_LAST_ENTRY, (application,)).fetchall()
                database.execute("INSERT INTO history VALUES (?, ?, ?)", (application, number + 1, content))
                database.execute(_OLD_ENTRIES, (application, number + 1 - most, _MOST_ENTRIES))
        except sqlite3.Error as problem:
            raise StateError(f"{self.path} could not be written: {problem}") from problem

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            self.connection.close()
            self._noted.close()


class Checkpoints:
    """The last checkpoint of each application; only the parts that have changed since the one before are written."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._written: dict[str, dict[Key, bytes]] = {}

    def write(self, snapshot: Snapshot) -> int:
        """Replace the last checkpoint of an application, in one transaction; return the bytes that were written.

        Raises:
            StateError: it cannot be written (a full disk, a directory that is gone); the last one stands.
        """
        name, parts = snapshot.application, snapshot.parts
        digests = {key: blake2b(content, digest_size=16).digest() for key, content in parts.items()}
        try:
            with self._database.transaction(name) as database:
                known = self._written.pop(name, {})
                if not known:
                    database.execute("DELETE FROM parts WHERE application = ?", (name,))
                gone = [(name, *key) for key in known.keys() - digests.keys()]
                database.executemany("DELETE FROM parts WHERE application = ? AND kind = ? AND name = ?", gone)
                differing = [key for key, digest in digests.items() if known.get(key) != digest]
                changed = [(name, *key, zlib.crc32(parts[key]), parts[key]) for key in differing]
                database.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)", changed)
                reasons = json.dumps(snapshot.reasons)
                row = (name, name, time.time(), snapshot.revision, snapshot.topology, reasons)
                database.execute(f"INSERT OR REPLACE INTO checkpoints VALUES (?, {_NEXT}, ?, ?, ?, ?)", row)
                failpoint("checkpoint-writing")
        except StateError as problem:
            raise StateError(
                f"the checkpoint of {name} could not be written ({problem}); the one before it stands; make room "
                f"there, or make it writable"
            ) from problem
        self._written[name] = digests
        failpoint("checkpoint-committed")
        return sum(len(row[-1]) for row in changed)

    def read(self, application: str) -> Snapshot | None:
        """Return the last checkpoint of an application, or `None`.

        Raises:
            StoredStateError: it is damaged.
        """
        what = f"the checkpoint of {application}"
        cure = "restore the whole state directory from one copy, or remove the application"
        if application in self._database.damaged:
            raise StoredStateError(what=what, problem=self._database.damaged[application], cure=cure)
        query = "SELECT revision, topology, reasons FROM checkpoints WHERE application = ?"
        found = self._database.rows(query, application)
        if not found:
            return None
        parts: dict[Key, bytes] = {}
        query = "SELECT kind, name, sum, content FROM parts WHERE application = ?"
        for kind, name, known, content in self._database.rows(query, application):
            if zlib.crc32(content) != known:
                raise StoredStateError(what=what, problem=f"its {kind} {name!r} is damaged", cure=cure)
            parts[kind, name] = content
        ((revision, topology, reasons),) = found
        return Snapshot(application, revision, topology, json.loads(reasons), parts)

    def number(self, application: str) -> int:
        """Return the number of the last checkpoint of an application; 0 if there is none."""
        query = "SELECT coalesce(max(number), 0) FROM checkpoints WHERE application = ?"
        ((number,),) = self._database.rows(query, application)
        return int(number)

    def has(self, application: str) -> bool:
        """Whether an application has a checkpoint; one that cannot be read counts."""
        try:
            return self.number(application) > 0
        except StateError:
            return True

    def discard(self, application: str) -> None:
        """Delete the checkpoint of an application."""
        if self.has(application):
            with self._database.transaction(application) as database:
                self.drop(database, application)

    def drop(self, database: sqlite3.Connection, application: str) -> None:
        """Delete it as part of a transaction."""
        self._written.pop(application, None)
        for table in ("checkpoints", "parts"):
            database.execute(f"DELETE FROM {table} WHERE application = ?", (application,))


class Inspected(NamedTuple):
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
    path, noted = directory / tables.FILE, GenerationFile(directory).read()
    found = contents_of(path)
    told = "" if noted is None else f"the generation {noted.number} was {'committed' if noted.committed else 'begun'}"
    if found is None:
        if noted is not None and (noted.number > 1 or noted.committed):
            raise _lost(path, f"{told} here, and the database is missing or empty")
        if left := [name for name in (f"{tables.FILE}-wal", tables.FORMER_CHECKPOINTS) if _holds(directory / name)]:
            raise _lost(path, f"it is missing or empty beside {left[0]}")
        return None
    if noted is None and found.version != tables.FORMER:
        problem = f"{directory / tables.GENERATION}, which tells whether it is the newest, is missing"
        raise _lost(path, problem, accept=True)
    noted = noted or found.generation
    number = found.generation.number
    if found.generation != noted._replace(committed=True) and (noted.committed or number != noted.number - 1):
        holds = f"holds the generation {number}" if number else "is of the release before"
        raise _lost(path, f"{told} here, and the database {holds}", accept=True)
    return found


def accept(directory: Path) -> Generation:
    """Take the database for the newest state, whatever the generation file says; return the generation it holds."""
    found = contents_of(directory / tables.FILE)
    if found is None:
        raise _lost(directory / tables.FILE, "it is missing or empty: there is nothing to accept")
    with closing(GenerationFile(directory)) as noted:
        noted.write(found.generation)
    return found.generation


def contents_of(path: Path) -> Inspected | None:
    """Inspect a database as `inspect` does, whether or not it is the newest; `None` if it is missing or empty."""
    try:
        version = _version(path)
        if version is None:
            return None
        if version not in (tables.FORMER, tables.SECOND, tables.VERSION):
            raise StateError(
                f"{path} is of version {version}, this release reads version {tables.VERSION}; nothing was changed; "
                f"use the release that wrote it, or give another directory, --state DIR"
            )
        if version == tables.FORMER:
            path = path.with_name(tables.FORMER_CHECKPOINTS)
            if not _holds(path):
                raise _lost(path, "it is missing or empty")
            tables.check(path)
            return Inspected(Generation(0, "none", committed=True), {}, version)
        with tables.opened(path) as database:
            number, digest = database.execute("SELECT generation, digest FROM platform").fetchone()
            if tables.digest_of(database, tables.ROWS_OF_ALL) != digest:
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
    sums = dict(database.execute("SELECT name, sum FROM applications").fetchall()) if version == tables.VERSION else {}
    digests = dict(database.execute("SELECT * FROM digests").fetchall())
    for (name,) in database.execute(_NAMES).fetchall():
        whole = version != tables.VERSION or tables.sum_of(database, name) == sums.get(name, 0)
        if not whole or tables.digest_of(database, tables.ROWS_OF_APPLICATION, name) != digests.get(name, ""):
            problem = f"what {path} holds of the application {name!r} is damaged; nothing was changed"
            cure = "restore the whole state directory from one copy, or give the application up by"
            yield name, f"{problem}; {cure} `exop remove {name}`"


def _version(path: Path) -> int | None:
    """Return the version of the tables; `None` when there are none yet."""
    if not _holds(path):
        return None
    tables.check(path)
    with tables.opened(path) as database:
        found = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if found and "platform" not in found:
            raise sqlite3.DatabaseError(f"it holds the tables {', '.join(sorted(found))}")
        if not found:
            return None
        (version,) = database.execute("SELECT version FROM platform").fetchone() or (0,)
        return int(version)


def _holds(path: Path) -> bool:
    """Whether there is something in a file; a folder in its place counts, and cannot be used."""
    return path.exists() and (path.is_dir() or path.stat().st_size > 0)


def read_history(directory: Path, application: str) -> dict[int, dict[str, Any]]:
    """The history of an application in a directory that no platform uses; empty in one of an earlier release.

    Raises:
        StateError: there is no database, or it cannot be read.
    """
    path = directory / tables.FILE
    try:
        tables.check(path)
        with tables.opened(path) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'history'").fetchone():
                return {}
            return {number: json.loads(content) for number, content in database.execute(ENTRIES, (application,))}
    except (OSError, sqlite3.Error, ValueError) as problem:
        raise StateError(f"{path} could not be read: {problem}; see `exop state check {directory}`") from problem

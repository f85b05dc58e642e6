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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from exop.errors import StateError, StoredStateError
from exop.logs import logger
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.snapshot import Key, Snapshot
from exop.runtime.state.inspection import Inspected, inspect, unusable
from exop.runtime.state.tables import FILE, SECOND, VERSION, GenerationFile, build, connect, seal, upgrade

_PART: Final = "application = ? AND kind = ? AND name = ?"
_NEXT: Final = "(SELECT coalesce(max(number), 0) + 1 FROM checkpoints WHERE application = ?)"


class Database:
    """The connection of a running platform; it locks the database.

    Attributes:
        damaged: Applications whose rows are damaged: kept as they are until they are forgotten.

    Raises:
        StateError: it is damaged, older than the generation file says, or of another version; nothing was changed.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._turn = threading.RLock()
        self._noted = GenerationFile(directory)
        found = inspect(directory)
        try:
            if found is None:
                found = Inspected(build(directory), {}, VERSION)
            self.connection, self.damaged = connect(self.path), found.damaged
            try:
                for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
                    self.connection.execute(f"PRAGMA {pragma}")
                self._noted.write(found.generation._replace(committed=True))
                if found.version == SECOND:
                    names = [name for (name,) in self.rows("SELECT name FROM applications") if name not in self.damaged]
                    with self.transaction(*names) as database:
                        upgrade(database)
            except BaseException:
                self.connection.close()
                raise
        except (sqlite3.Error, OSError) as problem:
            raise unusable(self.path, problem) from problem

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query.

        Raises:
            StateError: it cannot be read.
        """
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

        Raises:
            StateError: it cannot be written; everything is as it was.
        """
        with self._turn:
            for application in applications:
                if application in self.damaged and not forget:
                    raise StateError(self.damaged[application])
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                generation = seal(self.connection, self._noted, *applications)
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

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            self.connection.close()
            self._noted.close()


class Checkpoints:
    """The last checkpoint of each application; only the parts that have changed since the one before are written."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._written: dict[str, dict[Key, int]] = {}

    def write(self, snapshot: Snapshot) -> int:
        """Replace the last checkpoint of an application, in one transaction; return the bytes that were written.

        Raises:
            StateError: it cannot be written (a full disk, a directory that is gone); the last one stands.
        """
        name, parts = snapshot.application, snapshot.parts
        sums = {key: zlib.crc32(content) for key, content in parts.items()}
        try:
            with self._database.transaction(name) as database:
                known = self._written.pop(name, None)
                if known is None:
                    database.execute("DELETE FROM parts WHERE application = ?", (name,))
                    known = {}
                gone = [(name, *key) for key in known.keys() - sums.keys()]
                database.executemany(f"DELETE FROM parts WHERE {_PART}", gone)
                changed = []
                for key, content in parts.items():
                    if known.get(key) == sums[key]:  # equal sums alone prove nothing
                        query = f"SELECT content FROM parts WHERE {_PART}"
                        if database.execute(query, (name, *key)).fetchone() == (content,):
                            continue
                    changed.append((name, *key, sums[key], content))
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
        self._written[name] = sums
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
        """Delete the checkpoint of an application.

        Raises:
            StateError: it cannot be written.
        """
        if self.has(application):
            with self._database.transaction(application) as database:
                self.drop(database, application)

    def drop(self, database: sqlite3.Connection, application: str) -> None:
        """Delete it as part of a transaction."""
        self._written.pop(application, None)
        for table in ("checkpoints", "parts"):
            database.execute(f"DELETE FROM {table} WHERE application = ?", (application,))

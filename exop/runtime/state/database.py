"""The database of a state directory: applications, checkpoints, plugins; each transaction has a number and a digest.

A start takes what the last transaction has left, or refuses by name what may be older, or damaged:

- The number and the digest of a transaction are in the generation file, on the disk, before it is committed; and that
  it is committed, before anything outside (a sink, an engine) can know of it.
- A digest for each application covers its rows and the checksums of the parts of its checkpoint; one over all covers
  these, the plugins and the number.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exop.errors import StateError
from exop.logs import logger
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.state.generation import Generation, GenerationFile
from exop.runtime.state.inspection import Inspected, inspect, unusable
from exop.runtime.state.tables import FILE, FORMER_CHECKPOINTS, SECOND, advance, build, connect, seal, upgrade


class Database:
    """The connection of a running platform; the directory is locked by it.

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
            if found is None or found.former:
                found = Inspected(build(directory, former=found is not None))
            for left in directory.glob(f"{FORMER_CHECKPOINTS}*"):
                left.unlink()
            self.connection, self.damaged = connect(self.path), found.damaged
            try:
                for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
                    self.connection.execute(f"PRAGMA {pragma}")
                self._noted.write(Generation(found.generation.number, found.generation.digest, committed=True))
                if found.version == SECOND:
                    with self.transaction() as database:
                        upgrade(database, self.damaged)
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
                for application in applications:
                    seal(self.connection, application)
                generation = advance(self.connection)
                self._noted.write(generation)
                failpoint("generation-written")
                self.connection.execute("COMMIT")
            except BaseException as problem:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                if isinstance(problem, (sqlite3.Error, OSError)):
                    raise StateError(f"{self.path} could not be written: {problem}") from problem
                raise
            failpoint("generation-committed")
            self._confirm(generation)
            for application in applications:
                self.damaged.pop(application, None)

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            self.connection.close()
            self._noted.close()

    def _confirm(self, generation: Generation) -> None:
        """Note that it is committed. Without the note a start cannot tell a loss of this transaction from a crash."""
        try:
            self._noted.write(Generation(generation.number, generation.digest, committed=True))
        except OSError as problem:
            logger("exop.runtime").error(
                "the generation file was not written", path=str(self._noted.path), error=str(problem)
            )

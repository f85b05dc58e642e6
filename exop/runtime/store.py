"""What a platform remembers: the configuration, wiring and activity of every component, in its state directory."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from exop.errors import StateError
from exop.logs import logger
from exop.model.mesh import Mesh
from exop.runtime.durable.checkpoints import Checkpoints, check_header, unusable
from exop.runtime.tied.places import EnginePlaces

#: The version of the tables; a directory of another version is refused, never changed.
VERSION = 1

SCHEMA = """
CREATE TABLE platform (version INTEGER NOT NULL);
CREATE TABLE plugins (name TEXT PRIMARY KEY, folder TEXT NOT NULL);
CREATE TABLE applications (
    name TEXT PRIMARY KEY, revision INTEGER NOT NULL, topology TEXT NOT NULL, active INTEGER NOT NULL);
CREATE TABLE components (
    application TEXT NOT NULL REFERENCES applications(name) ON DELETE CASCADE,
    node TEXT NOT NULL, slet TEXT NOT NULL, settings TEXT NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (application, node));
CREATE TABLE wiring (
    application TEXT NOT NULL REFERENCES applications(name) ON DELETE CASCADE,
    node TEXT NOT NULL, port TEXT NOT NULL, channel TEXT NOT NULL,
    PRIMARY KEY (application, node, port));
"""


@dataclass(frozen=True)
class StoredApplication:
    """An application as it was stored: its topology (TOML), and whether it ran."""

    name: str
    revision: int
    topology: str
    active: bool


class Store:
    """The state directory of one platform; it is locked while the platform runs.

    Raises:
        StateError: the directory cannot be made, read or written, is of another version, or another platform has it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._unwritten: dict[str, tuple[Mesh, str]] = {}
        self._turn = threading.Lock()  # one connection, one transaction at a time: drivers note the end of applications
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._locked(directory / "lock")
        except OSError as problem:
            raise StateError(
                f"the state directory {directory} cannot be used: {problem.strerror}; give another one, --state DIR"
            ) from problem
        try:
            self._database = self._opened(directory / "platform.sqlite")
            try:
                self.checkpoints = Checkpoints(directory / "checkpoints.sqlite")
                self.engines = EnginePlaces(directory / "engines")
            except BaseException:
                self._database.close()
                raise
        except BaseException:
            self._lock.close()
            raise

    def save(self, mesh: Mesh, topology: str, *, active: bool | None, anew: bool = False) -> None:
        """Store an application with its components and connections, in one transaction.

        Whether it is *active* stays as it is with `None`. With *anew* it begins from the beginning: the checkpoint of
        one that had its name is given up.
        """
        if anew:
            self.checkpoints.discard(mesh.name)
            self.engines.discard(mesh.name)
        with self._transaction() as database:
            if active is None:
                found = database.execute("SELECT active FROM applications WHERE name = ?", (mesh.name,)).fetchone()
                active = found is None or bool(found[0])
            database.execute("DELETE FROM applications WHERE name = ?", (mesh.name,))
            database.execute(
                "INSERT INTO applications VALUES (?, ?, ?, ?)", (mesh.name, mesh.revision, topology, active)
            )
            for node in mesh.nodes.values():
                settings = json.dumps(dict(node.settings), default=str)
                state = "suspended" if node.suspended else "active"
                database.execute(
                    "INSERT INTO components VALUES (?, ?, ?, ?, ?)",
                    (mesh.name, node.name, node.slet.identity, settings, state),
                )
                database.executemany(
                    "INSERT INTO wiring VALUES (?, ?, ?, ?)",
                    [(mesh.name, node.name, port, channel) for port, channel in node.ports.items()],
                )

    def note(self, mesh: Mesh, topology: str) -> StateError | None:
        """Store what an application that runs has become; what cannot be written now is, with the next thing that is.

        Returns the problem, if there is one: the application runs all the same.
        """
        self._unwritten[mesh.name] = mesh, topology
        try:
            self.catch_up()
        except StateError as problem:
            return problem
        return None

    def catch_up(self) -> None:
        """Write what could not be written before.

        Raises:
            StateError: it still cannot.
        """
        for name, (mesh, topology) in list(self._unwritten.items()):
            self.save(mesh, topology, active=None)
            self._unwritten.pop(name, None)

    def set_active(self, application: str, *, active: bool) -> None:
        """Note whether an application is to be started again by itself."""
        with self._transaction() as database:
            database.execute("UPDATE applications SET active = ? WHERE name = ?", (active, application))

    def forget(self, application: str) -> None:
        """Remove an application, and its checkpoint."""
        with self._transaction() as database:
            database.execute("DELETE FROM applications WHERE name = ?", (application,))
        self._unwritten.pop(application, None)
        # In this order: killed in between, the platform does not begin anew what was to be removed.
        self.checkpoints.discard(application)
        self.engines.discard(application)

    def remember_plugin(self, name: str, folder: Path) -> None:
        """Note a plugin that was loaded from a folder, so that its slets are found again."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO plugins VALUES (?, ?)", (name, str(folder)))

    def plugins(self) -> dict[str, Path]:
        """The plugins that were loaded from folders."""
        return {name: Path(folder) for name, folder in self._rows("SELECT name, folder FROM plugins")}

    def applications(self) -> list[StoredApplication]:
        """All stored applications, by name."""
        rows = self._rows("SELECT name, revision, topology, active FROM applications ORDER BY name")
        return [StoredApplication(name, revision, topology, bool(active)) for name, revision, topology, active in rows]

    def close(self) -> None:
        """Close the database and let go of the directory; what could not be written before is tried once more."""
        try:
            self.catch_up()
        except StateError as problem:
            logger("exop.runtime").error("a change was not stored", applications=[*self._unwritten], error=str(problem))
        self.checkpoints.close()
        self._database.close()
        self._lock.close()

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with self._turn:
                return self._database.execute(query).fetchall()
        except sqlite3.Error as problem:
            raise StateError(
                f"the state directory {self.directory} could not be read: {problem}; nothing was changed; "
                f"restore it from a copy, or give another directory, --state DIR"
            ) from problem

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._turn, self._database:
                yield self._database
        except sqlite3.Error as problem:
            raise StateError(f"the state directory {self.directory} could not be written: {problem}") from problem

    def _locked(self, path: Path) -> IO[str]:
        lock = path.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise StateError(
                f"the state directory {self.directory} is in use by the platform with process id {holder}; "
                f"stop that one, or give another directory, --state DIR"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock

    def _opened(self, path: Path) -> sqlite3.Connection:
        database: sqlite3.Connection | None = None
        try:
            check_header(path)
            database = sqlite3.connect(path, check_same_thread=False)
            version = _version(database)
            if version in (None, VERSION):
                database.execute("PRAGMA foreign_keys = ON")
                database.execute("PRAGMA journal_mode = WAL")
            if version is None:
                # In one transaction: a process that is killed here leaves no half-made tables.
                database.executescript(f"BEGIN; {SCHEMA} INSERT INTO platform VALUES ({VERSION}); COMMIT;")
        except (sqlite3.Error, OSError) as problem:
            if database is not None:
                database.close()
            cure = "move it away to start afresh, or give another directory, --state DIR"
            raise unusable(path, problem, "is no state of ExoP, or it is damaged", cure) from problem
        if version not in (None, VERSION):
            database.close()
            raise StateError(
                f"{path} is of version {version}, this release reads version {VERSION}; nothing was changed; "
                f"use the release that wrote it, or give another directory, --state DIR"
            )
        return database


def _version(database: sqlite3.Connection) -> int | None:
    """The version of the tables; `None` when there are none yet.

    Raises:
        sqlite3.Error: the file is no database, or one of somebody else's.
    """
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and "platform" not in tables:
        raise sqlite3.DatabaseError(f"it holds the tables {', '.join(sorted(tables))}")
    if not tables:
        return None
    (told,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if told != "ok":
        raise sqlite3.DatabaseError(" ".join(told.replace("*** in database main ***", "").split()))
    (version,) = database.execute("SELECT version FROM platform").fetchone() or (0,)
    return int(version)

"""The checkpoints of a state directory: the last one of each application, replaced in one transaction."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import zlib
from pathlib import Path

from exop.errors import StateError, StoredStateError
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.snapshot import Key, Snapshot

#: For so long does a writer wait for another one of the same database, in seconds.
WAIT = 30.0
#: The version of the tables; a file of another version is refused, never changed.
VERSION = 1
#: Large pages halve what it costs to write states of megabytes.
PAGE = 65536
SCHEMA = """
CREATE TABLE checkpoints (
    application TEXT PRIMARY KEY, number INTEGER NOT NULL, taken REAL NOT NULL,
    revision INTEGER NOT NULL, topology TEXT NOT NULL, reasons TEXT NOT NULL);
CREATE TABLE parts (
    application TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, sum INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (application, kind, name));
"""


class Checkpoints:
    """The file of a state directory that holds them; it is apart from that of the platform, for its large pages.

    Only the parts that have changed since the last checkpoint are written.

    Raises:
        StateError: it is damaged, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._database = _opened(path)
        self._written: dict[str, dict[Key, int]] = {}

    def write(self, snapshot: Snapshot) -> int:
        """Put a snapshot in the place of the application's last one; returns the bytes that had to be written.

        Raises:
            StateError: it cannot be written (a full disk, a directory that is gone); the last one stands.
        """
        sums = {key: zlib.crc32(content) for key, content in snapshot.parts.items()}
        with self._lock:
            known = self._written.pop(snapshot.application, None)
            changed = [key for key in sums if known is None or not self._is_there(snapshot, key, sums, known)]
            try:
                self._database.execute("BEGIN IMMEDIATE")
                self._replace(snapshot, sums, changed, fresh=known is None)
                failpoint("checkpoint-writing")
                self._database.execute("COMMIT")
            except sqlite3.Error as problem:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise StateError(
                    f"the checkpoint of {snapshot.application} could not be written to {self._path}: {problem}; "
                    f"the one before it stands; make room there, or make it writable"
                ) from problem
            self._written[snapshot.application] = sums
        failpoint("checkpoint-committed")
        return sum(len(snapshot.parts[key]) for key in changed)

    def read(self, application: str) -> Snapshot | None:
        """The last checkpoint of an application, or `None`.

        Raises:
            StoredStateError: it is damaged.
        """
        what = f"the checkpoint of {application}"
        try:
            with self._lock:
                found = self._database.execute(
                    "SELECT revision, topology, reasons FROM checkpoints WHERE application = ?", (application,)
                ).fetchone()
                rows = self._database.execute(
                    "SELECT kind, name, sum, content FROM parts WHERE application = ?", (application,)
                ).fetchall()
        except sqlite3.Error as problem:
            cure = "restore the state directory from a copy"
            raise StoredStateError(what=what, problem=str(problem), cure=cure) from problem
        if found is None:
            return None
        parts: dict[Key, bytes] = {}
        for kind, name, known, content in rows:
            if zlib.crc32(content) != known:
                cure = "restore the state directory from a copy, or remove the application"
                raise StoredStateError(what=what, problem=f"its {kind} {name!r} is damaged", cure=cure)
            parts[kind, name] = content
        revision, topology, reasons = found
        return Snapshot(application, revision, topology, json.loads(reasons), parts)

    def number(self, application: str) -> int:
        """The number of the last checkpoint of an application; 0: there is none."""
        with self._lock:
            query = "SELECT coalesce(max(number), 0) FROM checkpoints WHERE application = ?"
            (number,) = self._database.execute(query, (application,)).fetchone()
            return int(number)

    def has(self, application: str) -> bool:
        """There is a checkpoint of an application; where nobody can tell, there is."""
        query = "SELECT 1 FROM checkpoints WHERE application = ?"
        try:
            with self._lock:
                return self._database.execute(query, (application,)).fetchone() is not None
        except sqlite3.Error:
            return True

    def discard(self, application: str) -> None:
        """Give up the checkpoint of an application.

        Raises:
            StateError: it cannot be written.
        """
        with self._lock:
            self._written.pop(application, None)
            try:
                self._database.execute("BEGIN IMMEDIATE")
                for table in ("checkpoints", "parts"):
                    self._database.execute(f"DELETE FROM {table} WHERE application = ?", (application,))
                self._database.execute("COMMIT")
            except sqlite3.Error as problem:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise StateError(f"{self._path} could not be written: {problem}") from problem

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._database.close()

    def _is_there(self, snapshot: Snapshot, key: Key, sums: dict[Key, int], known: dict[Key, int]) -> bool:
        """A part stands in the file as it is now; equal sums alone prove nothing."""
        if known.get(key) != sums[key]:
            return False
        query = "SELECT content FROM parts WHERE application = ? AND kind = ? AND name = ?"
        row = self._database.execute(query, (snapshot.application, *key)).fetchone()
        return row is not None and row[0] == snapshot.parts[key]

    def _replace(self, snapshot: Snapshot, sums: dict[Key, int], changed: list[Key], *, fresh: bool) -> None:
        run, name = self._database.execute, snapshot.application
        if fresh:
            run("DELETE FROM parts WHERE application = ?", (name,))
        else:
            stored = run("SELECT kind, name FROM parts WHERE application = ?", (name,)).fetchall()
            gone = [(name, *key) for key in stored if key not in sums]
            self._database.executemany("DELETE FROM parts WHERE application = ? AND kind = ? AND name = ?", gone)
        for kind, part in changed:
            row = (name, kind, part, sums[kind, part], snapshot.parts[kind, part])
            run("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)", row)
        (number,) = run("SELECT coalesce(max(number), 0) FROM checkpoints WHERE application = ?", (name,)).fetchone()
        reasons = json.dumps(snapshot.reasons)
        run(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)",
            (name, number + 1, time.time(), snapshot.revision, snapshot.topology, reasons),
        )


def check_header(path: Path) -> None:
    """Refuse a file that is none of SQLite's; SQLite itself takes one of a few bytes for empty, and overwrites it.

    Raises:
        sqlite3.DatabaseError: it is not empty, and begins otherwise.
        OSError: it cannot be read.
    """
    if path.exists():
        with path.open("rb") as file:
            begins = file.read(len(_MAGIC))
        if begins and begins != _MAGIC:
            raise sqlite3.DatabaseError("it does not begin as a database does")


_MAGIC = b"SQLite format 3\0"


def unusable(path: Path, problem: Exception, damaged: str, cure: str) -> StateError:
    """The error on a database that cannot be opened: because of what is in it, or of where it is."""
    outside = isinstance(problem, (OSError, sqlite3.OperationalError)) and not str(problem).startswith("no such")
    if outside:
        return StateError(
            f"{path} cannot be used ({problem}); nothing was changed; make room there, or make it writable, or give "
            f"another directory, --state DIR"
        )
    return StateError(f"{path} {damaged} ({problem}); nothing was changed; {cure}")


def _opened(path: Path) -> sqlite3.Connection:
    database: sqlite3.Connection | None = None
    try:
        check_header(path)
        database = sqlite3.connect(path, timeout=WAIT, check_same_thread=False, isolation_level=None)
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == VERSION:  # a damaged table is told now, not when it is written to
            database.execute("SELECT 1 FROM checkpoints LEFT JOIN parts USING (application) LIMIT 1").fetchall()
        if version == 0:
            database.execute(f"PRAGMA page_size = {PAGE}")
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
    except (sqlite3.Error, OSError) as problem:
        if database is not None:
            database.close()
        damaged = "is no file of checkpoints, or it is damaged"
        raise unusable(path, problem, damaged, "restore it from a copy, or move it away to begin anew") from problem
    if version not in (0, VERSION):
        database.close()
        raise StateError(
            f"{path} is of version {version}, this release reads version {VERSION}; nothing was changed; "
            f"use the release that wrote it"
        )
    return database

"""The checkpoints of a state directory: the last one of each application, replaced in one transaction."""

from __future__ import annotations

import json
import sqlite3
import time
import zlib

from exop.errors import StateError, StoredStateError
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.snapshot import Key, Snapshot
from exop.runtime.state.database import Database


class Checkpoints:
    """The checkpoints in the database; only the parts that have changed since the last one are written."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._written: dict[str, dict[Key, int]] = {}

    def write(self, snapshot: Snapshot) -> int:
        """Put a snapshot in the place of the application's last one; returns the bytes that had to be written.

        Raises:
            StateError: it cannot be written (a full disk, a directory that is gone); the last one stands.
        """
        name = snapshot.application
        sums = {key: zlib.crc32(content) for key, content in snapshot.parts.items()}
        try:
            with self._database.transaction(name) as database:
                known = self._written.pop(name, None)
                changed = [key for key in sums if known is None or not _is_there(database, snapshot, key, sums, known)]
                _replace(database, snapshot, sums, changed, known)
                failpoint("checkpoint-writing")
        except StateError as problem:
            raise StateError(
                f"the checkpoint of {name} could not be written ({problem}); the one before it stands; make room "
                f"there, or make it writable"
            ) from problem
        self._written[name] = sums
        failpoint("checkpoint-committed")
        return sum(len(snapshot.parts[key]) for key in changed)

    def read(self, application: str) -> Snapshot | None:
        """The last checkpoint of an application, or `None`.

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
        """The number of the last checkpoint of an application; 0: there is none."""
        query = "SELECT coalesce(max(number), 0) FROM checkpoints WHERE application = ?"
        ((number,),) = self._database.rows(query, application)
        return int(number)

    def has(self, application: str) -> bool:
        """There is a checkpoint of an application; where that cannot be read, there is."""
        try:
            return bool(self._database.rows("SELECT 1 FROM checkpoints WHERE application = ?", application))
        except StateError:
            return True

    def discard(self, application: str) -> None:
        """Give up the checkpoint of an application.

        Raises:
            StateError: it cannot be written.
        """
        if self.has(application):
            with self._database.transaction(application) as database:
                self.drop(database, application)

    def drop(self, database: sqlite3.Connection, application: str) -> None:
        """The same, as part of a transaction."""
        self._written.pop(application, None)
        for table in ("checkpoints", "parts"):
            database.execute(f"DELETE FROM {table} WHERE application = ?", (application,))


def _is_there(
    database: sqlite3.Connection, snapshot: Snapshot, key: Key, sums: dict[Key, int], known: dict[Key, int]
) -> bool:
    """A part is stored as it is now; equal sums alone prove nothing."""
    if known.get(key) != sums[key]:
        return False
    query = "SELECT content FROM parts WHERE application = ? AND kind = ? AND name = ?"
    row = database.execute(query, (snapshot.application, *key)).fetchone()
    return row is not None and row[0] == snapshot.parts[key]


def _replace(
    database: sqlite3.Connection,
    snapshot: Snapshot,
    sums: dict[Key, int],
    changed: list[Key],
    known: dict[Key, int] | None,
) -> None:
    run, name = database.execute, snapshot.application
    if known is None:
        run("DELETE FROM parts WHERE application = ?", (name,))
    else:
        gone = [(name, *key) for key in known.keys() - sums.keys()]
        database.executemany("DELETE FROM parts WHERE application = ? AND kind = ? AND name = ?", gone)
    for kind, part in changed:
        row = (name, kind, part, sums[kind, part], snapshot.parts[kind, part])
        run("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)", row)
    (number,) = run("SELECT coalesce(max(number), 0) FROM checkpoints WHERE application = ?", (name,)).fetchone()
    reasons = json.dumps(snapshot.reasons)
    run(
        "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)",
        (name, number + 1, time.time(), snapshot.revision, snapshot.topology, reasons),
    )

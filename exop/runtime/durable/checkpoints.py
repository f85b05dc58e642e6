"""The checkpoints in a state directory: the last one of each application, replaced in one transaction."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from pathlib import Path

from exop.errors import StateError, StoredStateError
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.snapshot import Key, Snapshot

#: For so long does a writer wait for another one of the same database, in seconds.
WAIT = 30.0
#: The tables; `store` makes them.
SCHEMA = """
CREATE TABLE checkpoints (
    application TEXT PRIMARY KEY, number INTEGER NOT NULL, taken REAL NOT NULL,
    revision INTEGER NOT NULL, topology TEXT NOT NULL, reasons TEXT NOT NULL);
CREATE TABLE parts (
    application TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, digest BLOB NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (application, kind, name));
"""


class Checkpoints:
    """Writes and reads checkpoints by a connection of its own: a writer holds up nobody who changes applications.

    Only the parts that have changed since the last checkpoint are written.
    """

    def __init__(self, database: Path) -> None:
        self._path = database
        self._lock = threading.Lock()
        self._database = sqlite3.connect(database, timeout=WAIT, check_same_thread=False, isolation_level=None)
        self._written: dict[str, dict[Key, bytes]] = {}

    def write(self, snapshot: Snapshot) -> int:
        """Put a snapshot in the place of the application's last one; returns the bytes that had to be written.

        Raises:
            StateError: it cannot be written (a full disk, a directory that is gone); the last one stands.
        """
        digests = {key: hashlib.blake2b(content, digest_size=16).digest() for key, content in snapshot.parts.items()}
        with self._lock:
            known = self._written.pop(snapshot.application, {})
            changed = [key for key, digest in digests.items() if known.get(key) != digest]
            try:
                self._database.execute("BEGIN IMMEDIATE")
                self._replace(snapshot, digests, changed, fresh=not known)
                failpoint("checkpoint-writing")
                self._database.execute("COMMIT")
            except sqlite3.Error as problem:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise StateError(
                    f"the checkpoint of {snapshot.application} could not be written to {self._path}: {problem}; "
                    f"the one before it stands; make room there, or make it writable"
                ) from problem
            self._written[snapshot.application] = digests
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
                    "SELECT kind, name, digest, content FROM parts WHERE application = ?", (application,)
                ).fetchall()
        except sqlite3.Error as problem:
            cure = "restore the state directory from a copy"
            raise StoredStateError(what=what, problem=str(problem), cure=cure) from problem
        if found is None:
            return None
        parts: dict[Key, bytes] = {}
        for kind, name, digest, content in rows:
            if hashlib.blake2b(content, digest_size=16).digest() != digest:
                cure = "restore the state directory from a copy, or remove the application"
                raise StoredStateError(what=what, problem=f"its {kind} {name!r} is damaged", cure=cure)
            parts[kind, name] = content
        revision, topology, reasons = found
        return Snapshot(application, revision, topology, json.loads(reasons), parts)

    def has(self, application: str) -> bool:
        """There is a checkpoint of an application."""
        with self._lock:
            query = "SELECT 1 FROM checkpoints WHERE application = ?"
            return self._database.execute(query, (application,)).fetchone() is not None

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._database.close()

    def _replace(self, snapshot: Snapshot, digests: dict[Key, bytes], changed: list[Key], *, fresh: bool) -> None:
        run, name = self._database.execute, snapshot.application
        if fresh:
            run("DELETE FROM parts WHERE application = ?", (name,))
        else:
            stored = run("SELECT kind, name FROM parts WHERE application = ?", (name,)).fetchall()
            gone = [(name, *key) for key in stored if key not in digests]
            self._database.executemany("DELETE FROM parts WHERE application = ? AND kind = ? AND name = ?", gone)
        for kind, part in changed:
            content = snapshot.parts[kind, part]
            row = (name, kind, part, digests[kind, part], content)
            run("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)", row)
        (number,) = run("SELECT coalesce(max(number), 0) FROM checkpoints WHERE application = ?", (name,)).fetchone()
        reasons = json.dumps(snapshot.reasons)
        run(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)",
            (name, number + 1, time.time(), snapshot.revision, snapshot.topology, reasons),
        )

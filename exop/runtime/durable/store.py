"""The state directory of a platform: its applications, plugins, checkpoints and history."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
import time
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from exop.errors import StateError, StoredStateError, UnknownName
from exop.logs import logger
from exop.model.meshes.entries import keeps_order, missing, touched
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.topology import section_text, sections
from exop.runtime.durable.database import ANOTHER, FILE, GENERATION, Database, check, checksum, opened
from exop.runtime.durable.engine_journal import EngineFolders
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.durable.snapshot import Key, Snapshot, engine_positions
from exop.runtime.log.segment import DISK

#: The files read from a state directory; others, such as `lost+found`, are ignored.
_READ: Final = (FILE, f"{FILE}-wal", GENERATION, "lock", "engines", "channels", "bundles")
_PARTS: Final = ("channels", "nodes")
_SECTION: Final = "FROM sections WHERE application = ? AND kind = ? AND name = ?"
_PUT: Final = (
    "INSERT INTO sections (application, kind, name, content) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (application, kind, name) DO UPDATE SET content = excluded.content"
)
_NUMBER: Final = "SELECT coalesce(max(number), 0) FROM checkpoints WHERE application = ?"
#: The number of rows of the history of all applications, including removed ones.
_MOST_ENTRIES: Final = 100_000
_OLD_ENTRIES: Final = (
    "DELETE FROM history WHERE (application = ? AND number <= ?) OR rowid <= (SELECT max(rowid) FROM history) - ?"
)
_PUT_ENTRY: Final = (
    "INSERT INTO history (application, number, content) VALUES (?, ?, ?) "
    "ON CONFLICT (application, number) DO UPDATE SET content = excluded.content"
)
_ENTRIES: Final = "SELECT number, content FROM history WHERE application = ? ORDER BY number"


@dataclass(frozen=True)
class StoredApplication:
    """An application as it was stored: its topology (TOML), and whether it ran."""

    name: str
    revision: int
    topology: str
    active: bool


class Checkpoints:
    """The last checkpoint of each application; only parts that differ from the previous one are written."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._written: dict[str, dict[Key, bytes]] = {}

    def write(self, snapshot: Snapshot) -> int:
        """Replace the last checkpoint of an application, in one transaction; return the bytes that were written."""
        name, parts = snapshot.application, snapshot.parts
        digests = {key: _digest(content) for key, content in parts.items()}
        try:
            with self._database.transaction(name) as database:
                if not (known := self._written.pop(name, {})):
                    database.execute("DELETE FROM parts WHERE application = ?", (name,))
                gone = [(name, *key) for key in known.keys() - digests.keys()]
                database.executemany("DELETE FROM parts WHERE application = ? AND kind = ? AND name = ?", gone)
                differing = [key for key, digest in digests.items() if known.get(key) != digest]
                changed = [(name, *key, zlib.crc32(parts[key]), parts[key]) for key in differing]
                database.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)", changed)
                row = (name, name, time.time(), snapshot.revision, snapshot.topology, json.dumps(snapshot.reasons))
                database.execute(f"INSERT OR REPLACE INTO checkpoints VALUES (?, ({_NUMBER}) + 1, ?, ?, ?, ?)", row)
                failpoint("checkpoint-writing")
        except StateError as problem:
            stands = "the one before it stands"
            raise StateError(f"the checkpoint of {name} could not be written ({problem}); {stands}") from problem
        self._written[name] = digests
        failpoint("checkpoint-committed")
        return sum(len(row[-1]) for row in changed)

    def changes(self, snapshot: Snapshot, *, anew: bool) -> dict[str, Any]:
        """Return as plain data in which parts a snapshot differs from the last checkpoint, for `promote`.

        If *anew*, all parts are new, since the last checkpoint is that of an earlier application.
        """
        known = {} if anew else self._written.get(snapshot.application, {})
        parts = [(*key, part if known.get(key) != _digest(part) else None) for key, part in snapshot.parts.items()]
        return {"reasons": snapshot.reasons, "parts": parts}

    def promote(self, application: str, revision: int, topology: str, changes: Mapping[str, Any]) -> None:
        """Write what `changes` returned as the last checkpoint, after a restart, unless a later one was written."""
        if (last := self.read(application)) is None or last.revision < revision:
            parts = {(kind, name): part for kind, name, part in changes["parts"]}
            parts = {key: last.parts[key] if part is None and last else part for key, part in parts.items()}
            self.write(Snapshot(application, revision, topology, changes["reasons"], parts))

    def read(self, application: str) -> Snapshot | None:
        """Return the last checkpoint of an application, or `None`."""
        what = f"the checkpoint of {application}"
        cure = "restore the whole state directory from one copy, or remove the application"
        if application in self._database.damaged:
            raise StoredStateError(what=what, problem=self._database.damaged[application], cure=cure)
        query = "SELECT revision, topology, reasons FROM checkpoints WHERE application = ?"
        if not (found := self._database.rows(query, application)):
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
        ((number,),) = self._database.rows(_NUMBER, application)
        return int(number)

    def revision(self, application: str) -> int:
        """Return the revision of the mesh in the last checkpoint of an application; -1 if there is none."""
        found = self._database.rows("SELECT revision FROM checkpoints WHERE application = ?", application)
        return int(found[0][0]) if found else -1

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
        """Delete the checkpoint of an application in a running transaction."""
        self._written.pop(application, None)
        for table in ("checkpoints", "parts"):
            database.execute(f"DELETE FROM {table} WHERE application = ?", (application,))


class Store:
    """The state directory of one platform, locked while the platform runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writing = threading.RLock()
        self._stored: dict[str, Mesh] = {}
        self._unwritten: dict[str, Mesh] = {}
        # Entries of the history that wait until they can be written.
        self._entries: deque[tuple[str, Mapping[str, Any], int, int | None]] = deque(maxlen=1000)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(directory)
            self._lock = DISK.lock(directory / "lock")
            if self._lock is None:
                holder = (directory / "lock").read_text().strip() or "unknown"
                what = f"the state directory {directory} is in use by the platform with process id {holder}"
                raise StateError(f"{what}; stop that one, or give another one, --state DIR")
            os.fchmod(self._lock.number, 0o600)  # no other user can open, and so lock, the file
            self._lock.truncate(0)
            self._lock.write(0, str(os.getpid()).encode())
        except OSError as problem:
            raise StateError(
                f"the state directory {directory} cannot be used: {problem.strerror}; give another one, --state DIR"
            ) from problem
        try:
            self.database = Database(directory)
        except BaseException:
            self._lock.close()
            raise
        self.checkpoints = Checkpoints(self.database)
        self.engines = EngineFolders(directory / "engines")

    def save(self, mesh: Mesh, *, active: bool, anew: bool = False) -> None:
        """Store an application in one transaction; *anew* drops the checkpoint of an earlier one of this name."""
        with self._writing:
            with self.database.transaction(mesh.name) as database:
                if anew:
                    self.checkpoints.drop(database, mesh.name)
                # Where this fails, all of the mesh is written the next time.
                row = (mesh.revision, int(active), _write_mesh(database, mesh, self._stored.pop(mesh.name, None)))
                database.execute("INSERT OR REPLACE INTO applications VALUES (?, ?, ?, ?)", (mesh.name, *row))
            self._stored[mesh.name] = mesh
        if anew:  # after the transaction, since folders to which no checkpoint refers are harmless
            self.engines.discard(mesh.name)

    def update(self, *meshes: Mesh) -> None:
        """Store the changes of applications in one transaction; do not store removed ones again."""
        names = [mesh.name for mesh in meshes]
        with self._writing:
            with self.database.transaction(*names) as database:
                stored = {name for (name,) in database.execute("SELECT name FROM applications")}
                there = [mesh for mesh in meshes if mesh.name in stored]
                for mesh in there:
                    row = (mesh.revision, _write_mesh(database, mesh, self._stored.pop(mesh.name, None)), mesh.name)
                    database.execute("UPDATE applications SET revision = ?, sum = ? WHERE name = ?", row)
            self._stored |= {mesh.name: mesh for mesh in there}
            for name in names:
                self._unwritten.pop(name, None)

    def tidy(self, snapshot: Snapshot) -> None:
        """Remove the folders of engines that an unfinished change has created, to which a checkpoint does not refer."""
        name = snapshot.application
        named = [self.engines.folder(name, node, held["place"]) for node, held in engine_positions(snapshot).items()]
        self.engines.keep(name, named)

    def note(self, mesh: Mesh) -> StateError | None:
        """Store the changes of a running application; on failure, return the problem and retry later."""
        with self._writing:  # a newer mesh is noted before or after
            self._unwritten[mesh.name] = mesh
            try:
                self.catch_up()
            except StateError as problem:
                return problem
            return None

    def catch_up(self) -> None:
        """Write the changes that could not be written earlier. Raises `StateError` if this fails again."""
        for mesh in list(self._unwritten.values()):
            self.update(mesh)

    def set_active(self, application: str, *, active: bool) -> None:
        """Store whether the next start of a platform restarts an application."""
        if self.database.rows("SELECT 1 FROM applications WHERE name = ? AND active != ?", application, int(active)):
            with self.database.transaction(application) as database:
                database.execute("UPDATE applications SET active = ? WHERE name = ?", (int(active), application))

    def is_active(self, application: str) -> bool:
        """Return whether the next start of a platform restarts an application."""
        return bool(self.database.rows("SELECT 1 FROM applications WHERE name = ? AND active", application))

    def forget(self, application: str) -> None:
        """Remove an application, and its checkpoint."""
        with self.database.transaction(application, forget=True) as database:
            self._stored.pop(application, None)
            database.execute("DELETE FROM applications WHERE name = ?", (application,))
            database.execute("DELETE FROM sections WHERE application = ?", (application,))
            self.checkpoints.drop(database, application)
        self._unwritten.pop(application, None)
        self.engines.discard(application)

    def remember_plugin(self, name: str, folder: Path) -> None:
        """Store a plugin that was loaded from a folder, for the next start."""
        if self.plugins().get(name) != folder:
            with self.database.transaction() as database:
                database.execute("INSERT OR REPLACE INTO plugins VALUES (?, ?)", (name, str(folder)))

    def plugins(self) -> dict[str, Path]:
        """Return the plugins that were loaded from folders."""
        return {name: Path(folder) for name, folder in self.database.rows("SELECT name, folder FROM plugins")}

    def remember_peer(self, name: str, address: str | None) -> None:
        """Store the address of a peer, for the next start; `None` forgets the peer."""
        with self.database.transaction(sealed=False) as database:
            database.execute("DELETE FROM peers WHERE name = ?", (name,))
            if address is not None:
                database.execute("INSERT INTO peers VALUES (?, ?)", (name, address))

    def peers(self) -> dict[str, str]:
        """Return the addresses of the peers by their names."""
        return dict(self.database.rows("SELECT name, address FROM peers"))

    def applications(self) -> list[StoredApplication]:
        """Return all applications by name; one with damaged rows counts as active, so that its damage is reported."""
        found = {}
        for name, revision, active in self.database.rows("SELECT name, revision, active FROM applications"):
            query = "SELECT content FROM sections WHERE application = ? ORDER BY kind, place"
            topology = "\n".join(text for (text,) in self.database.rows(query, name))
            found[name] = StoredApplication(name, revision, topology, bool(active))
        found |= {name: StoredApplication(name, 0, "", active=True) for name in self.database.damaged}
        return [found[name] for name in sorted(found)]

    def record(self, application: str, entry: Mapping[str, Any], most: int, number: int | None = None) -> int | None:
        """Append an entry to the history of an application, or replace entry *number*, and return its number.

        The *most* newest stay. An entry that cannot be written waits, as the caller goes on to change it, until the
        next one is written, or until the directory is closed. While entries wait, none with a count is replaced:
        replacements must not displace the entries that wait.
        """
        with self._writing:
            waits = any(one is entry for _, one, *_ in self._entries)
            if not waits and (number is None or "count" not in entry or not self._entries):
                self._entries.append((application, entry, most, number))
            return self._write_entries()

    def _write_entries(self) -> int | None:
        number = None
        with self._writing:
            if not self._entries:
                return number
            with self.database.transaction(sealed=False) as database:
                for application, entry, most, replaced in self._entries:
                    query = "SELECT coalesce(max(number), 0) + 1 FROM history WHERE application = ?"
                    ((free,),) = database.execute(query, (application,)).fetchall()
                    number = replaced or free
                    database.execute(_PUT_ENTRY, (application, number, json.dumps({**entry})))
                    database.execute(_OLD_ENTRIES, (application, number - most, _MOST_ENTRIES))
            self._entries.clear()
        return number

    def history(self, application: str) -> dict[int, dict[str, Any]]:
        """Return the history of an application by number, oldest first; also after its removal."""
        with self._writing:
            found = {number: json.loads(content) for number, content in self.database.rows(_ENTRIES, application)}
            for name, entry, _, replaced in self._entries:
                if name == application:
                    found[replaced or max(found, default=0) + 1] = {**entry}
            return found

    def close(self) -> None:
        """Write pending changes if possible, close the database, and unlock the directory."""
        try:
            self.catch_up()
            self._write_entries()
        except StateError as problem:
            facts = {"applications": [*self._unwritten], "history_entries": len(self._entries), "error": str(problem)}
            logger("exop.runtime").error("a change was not stored", **facts)
        self.database.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def check_private(directory: Path) -> None:
    """Refuse a state directory to which another user could have written, since its content decides which code runs."""
    entered = directory.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
    for path in (directory, *(directory / name for name in _READ)):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            what = f"{path} is neither a file nor a folder, and reading it may wait for ever"
            raise StateError(f"{what}; nothing was changed; move it away, or {ANOTHER}")
        if found.st_uid != os.geteuid():
            what = f"{path} belongs to the user with the id {found.st_uid}, and this platform would run what it says as"
            cure = f"run the platform as its owner, or {ANOTHER}"
            raise StateError(f"{what} the user {os.geteuid()}; nothing was changed; {cure}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and (path == directory or entered):
            raise StateError(
                f"other users than its owner may write to {path}, and decide which code runs; nothing was changed; "
                f"check that the files are yours, then `chmod -R go-w {directory}`, or give another one, --state DIR"
            )


def read_history(directory: Path, application: str) -> dict[int, dict[str, Any]]:
    """Return the history of an application in a directory that no platform uses; `UnknownName` if it has none."""
    path = directory / FILE
    try:
        check(path)
        with opened(path) as database:
            if (rows := database.execute(_ENTRIES, (application,)).fetchall()) or not application:
                return {number: json.loads(content) for number, content in rows}
            known = [name for (name,) in database.execute("SELECT DISTINCT application FROM history") if name]
    except (OSError, sqlite3.Error, ValueError) as problem:
        raise StateError(f"{path} could not be read: {problem}; see `exop state check {directory}`") from problem
    raise UnknownName(place=f"the history in {directory}", kind="application", name=application, known=known)


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def _write_mesh(database: sqlite3.Connection, mesh: Mesh, stored: Mesh | None) -> int:
    """Write the rows in which a mesh differs from the one that is *stored*; return the sum of all checksums.

    Without *stored*, or if the order of the nodes or channels differs, all rows are written.
    """
    pairs = {} if stored is None else {kind: (getattr(stored, kind), getattr(mesh, kind)) for kind in _PARTS}
    total, gone = 0, list[tuple[str, str]]()
    if stored is None or not all(keeps_order(*pair) for pair in pairs.values()):
        database.execute("DELETE FROM sections WHERE application = ?", (mesh.name,))
        changed = list(sections(mesh))
    else:
        (total,) = database.execute("SELECT sum FROM applications WHERE name = ?", (mesh.name,)).fetchone()
        changed = [("application", "")] if stored.durable != mesh.durable else []
        for kind, (before, after) in pairs.items():
            changed += [(kind, name) for name in touched(before, after)]
            gone += [(kind, name) for name in missing(before, after)]
        for key in (*changed, *gone):
            found = database.execute(f"SELECT content {_SECTION}", (mesh.name, *key)).fetchone()
            total -= checksum(*key, found[0]) if found else 0
    database.executemany(f"DELETE {_SECTION}", [(mesh.name, *key) for key in gone])
    rows = [(*key, section_text(mesh, *key)) for key in changed]
    database.executemany(_PUT, [(mesh.name, *row) for row in rows])
    return int(total) + sum(checksum(*row) for row in rows)

"""The state directory of a platform: its applications, their activity, plugins and checkpoints."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from exop.errors import StateError
from exop.logs import logger
from exop.model.meshes.mesh import Mesh
from exop.runtime.durable.database import ENTRIES, Checkpoints, Database
from exop.runtime.durable.engine_journal import EnginePlaces
from exop.runtime.durable.snapshot import Snapshot, ties
from exop.runtime.durable.tables import FILE, FORMER_CHECKPOINTS, GENERATION, write_mesh

#: The files read from a state directory; others, such as `lost+found`, are ignored.
_READ: Final = (FILE, f"{FILE}-wal", FORMER_CHECKPOINTS, GENERATION, "lock", "engines", "channels", "bundles")
_THERE: Final = "SELECT 1 FROM applications WHERE name = ?"


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
        StateError: the directory cannot be made, read or written, is of another version or not its owner's alone, or
            another platform has it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writing = threading.RLock()
        self._stored: dict[str, Mesh] = {}
        self._unwritten: dict[str, Mesh] = {}
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(directory)
            self._lock = self._locked(directory / "lock")
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
        self.engines = EnginePlaces(directory / "engines")

    def save(self, mesh: Mesh, *, active: bool, anew: bool = False) -> None:
        """Store an application, in one transaction; *anew* drops the checkpoint of one that had its name."""
        with self._writing:
            with self.database.transaction(mesh.name) as database:
                if anew:
                    self.checkpoints.drop(database, mesh.name)
                # Where this fails, all of the mesh is written the next time.
                row = (mesh.revision, int(active), write_mesh(database, mesh, self._stored.pop(mesh.name, None)))
                database.execute("INSERT OR REPLACE INTO applications VALUES (?, ?, ?, ?)", (mesh.name, *row))
            self._stored[mesh.name] = mesh
        if anew:  # behind the transaction: folders that no checkpoint names do no harm
            self.engines.discard(mesh.name)

    def update(self, *meshes: Mesh) -> None:
        """Store the changes of applications, in one transaction: all, or none. One that was removed stays so.

        Raises:
            StateError: it cannot be written; everything is as it was.
        """
        names = [mesh.name for mesh in meshes]
        with self._writing:
            with self.database.transaction(*names) as database:
                there = [mesh for mesh in meshes if database.execute(_THERE, (mesh.name,)).fetchone()]
                for mesh in there:
                    row = (mesh.revision, write_mesh(database, mesh, self._stored.pop(mesh.name, None)), mesh.name)
                    database.execute("UPDATE applications SET revision = ?, sum = ? WHERE name = ?", row)
            self._stored |= {mesh.name: mesh for mesh in there}
        for name in names:
            self._unwritten.pop(name, None)

    def tidy(self, snapshot: Snapshot) -> None:
        """Remove the folders of engines that a checkpoint does not name: of a change that has not come to its end."""
        name = snapshot.application
        named = [self.engines.folder(name, node, held["place"]) for node, held in ties(snapshot).items()]
        self.engines.keep(name, named)

    def note(self, mesh: Mesh) -> StateError | None:
        """Store the changes of an application that runs; return the problem if they are to be written with the next."""
        self._unwritten[mesh.name] = mesh
        try:
            self.catch_up()
        except StateError as problem:
            return problem
        return None

    def catch_up(self) -> None:
        """Write the changes that could not be written before, or raise `StateError` again."""
        for mesh in list(self._unwritten.values()):
            self.update(mesh)

    def set_active(self, application: str, *, active: bool) -> None:
        """Note whether an application is to be started again by itself."""
        if self.database.rows("SELECT 1 FROM applications WHERE name = ? AND active != ?", application, int(active)):
            with self.database.transaction(application) as database:
                database.execute("UPDATE applications SET active = ? WHERE name = ?", (int(active), application))

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
        """Note a plugin that was loaded from a folder, so that its slets are found again."""
        if self.plugins().get(name) != folder:
            with self.database.transaction() as database:
                database.execute("INSERT OR REPLACE INTO plugins VALUES (?, ?)", (name, str(folder)))

    def plugins(self) -> dict[str, Path]:
        """The plugins that were loaded from folders."""
        return {name: Path(folder) for name, folder in self.database.rows("SELECT name, folder FROM plugins")}

    def applications(self) -> list[StoredApplication]:
        """All stored applications, by name; one whose rows are damaged counts as active, so that its damage shows."""
        found = {}
        for name, revision, active in self.database.rows("SELECT name, revision, active FROM applications"):
            sections = self.database.rows(
                "SELECT content FROM sections WHERE application = ? ORDER BY kind, place", name
            )
            topology = "\n".join(text for (text,) in sections)
            found[name] = StoredApplication(name, revision, topology, bool(active))
        found |= {name: StoredApplication(name, 0, "", active=True) for name in self.database.damaged}
        return [found[name] for name in sorted(found)]

    def record(self, application: str, entry: Mapping[str, Any], most: int) -> None:
        """Append an entry to the history of an application; the *most* newest are kept."""
        self.database.append(application, json.dumps(entry), most)

    def history(self, application: str) -> dict[int, dict[str, Any]]:
        """The history of an application, by number, the oldest first; it stays when the application is removed."""
        return {number: json.loads(content) for number, content in self.database.rows(ENTRIES, application)}

    def close(self) -> None:
        """Close the database and unlock the directory; a last attempt is made for changes that are not written."""
        try:
            self.catch_up()
        except StateError as problem:
            logger("exop.runtime").error("a change was not stored", applications=[*self._unwritten], error=str(problem))
        self.database.close()
        if not self._lock.closed:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that a slet has forked holds the file open, too
            self._lock.close()

    def _locked(self, path: Path) -> IO[str]:
        """Lock the directory; the lock goes with the process. Others cannot read the file, and so cannot lock it."""
        lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        try:
            os.fchmod(lock.fileno(), 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise StateError(
                f"the state directory {self.directory} is in use by the platform with process id {holder}; "
                f"stop that one, or give another one, --state DIR"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock


def check_private(directory: Path) -> None:
    """Refuse a state directory that another user could have written to: its content decides which code runs.

    Raises:
        StateError: it belongs to another user, a group or everybody may write there, or a pipe or device is in the way.
        OSError: it cannot be read.
    """
    entered = directory.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
    for path in (directory, *(directory / name for name in _READ)):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise StateError(
                f"{path} is neither a file nor a folder, and reading it may wait for ever; nothing was changed; "
                f"move it away, or give another directory, --state DIR"
            )
        if found.st_uid != os.geteuid():
            raise StateError(
                f"{path} belongs to the user with the id {found.st_uid}, and this platform would run what it says as "
                f"the user {os.geteuid()}; nothing was changed; run the platform as its owner, or give another "
                f"directory, --state DIR"
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and (path == directory or entered):
            raise StateError(
                f"other users than its owner may write to {path}, and decide which code runs; nothing was changed; "
                f"check that the files are yours, then `chmod -R go-w {directory}`, or give another one, --state DIR"
            )

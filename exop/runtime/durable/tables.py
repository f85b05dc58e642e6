"""The tables of a state directory and its generation file: schema, digests, rows of a mesh.

A mesh is stored in one row for each table of its topology file, so that a change writes only the rows that it changes.
The row of an application holds the sum of the checksums of these rows: its digest covers them without reading them.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from exop.errors import StateError
from exop.model.meshes.entries import keeps_order, missing, touched
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.topology import section_text, sections
from exop.runtime.log.files import DISK
from exop.runtime.log.segment import replace_file

#: The version of the tables; those before it are migrated, and a directory of any other version is refused.
VERSION: Final = 3
#: Each topology was one text.
SECOND: Final = 2
#: There was a second file for the checkpoints, and there were no digests.
FORMER: Final = 1
FILE: Final = "platform.sqlite"
GENERATION: Final = "generation"
FORMER_CHECKPOINTS: Final = "checkpoints.sqlite"
_MAGIC: Final = b"SQLite format 3\0"
#: Large pages halve the cost of writing states of megabytes.
_PAGE: Final = 65536
_APPLICATIONS: Final = """
CREATE TABLE applications (
    name TEXT PRIMARY KEY, revision INTEGER NOT NULL, active INTEGER NOT NULL, sum INTEGER NOT NULL);"""
_SECTIONS: Final = """
CREATE TABLE sections (
    place INTEGER PRIMARY KEY, application TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL,
    UNIQUE (application, kind, name));"""
_OTHERS: Final = """
CREATE TABLE platform (version INTEGER NOT NULL, generation INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE digests (application TEXT PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE plugins (name TEXT PRIMARY KEY, folder TEXT NOT NULL);
CREATE TABLE checkpoints (
    application TEXT PRIMARY KEY, number INTEGER NOT NULL, taken REAL NOT NULL,
    revision INTEGER NOT NULL, topology TEXT NOT NULL, reasons TEXT NOT NULL);
CREATE TABLE parts (
    application TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, sum INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (application, kind, name));"""
#: Made where it is missing: a release that does not know it leaves it alone.
HISTORY: Final = """
CREATE TABLE IF NOT EXISTS history (
    application TEXT NOT NULL, number INTEGER NOT NULL, content TEXT NOT NULL, PRIMARY KEY (application, number));"""
#: The rows of version 1, but for its applications; a removed application may have left a checkpoint.
_ROWS_OF_FORMER: Final = """
INSERT INTO plugins SELECT name, folder FROM former.plugins;
INSERT INTO checkpoints SELECT * FROM held.checkpoints WHERE application IN (SELECT name FROM former.applications);
INSERT INTO parts SELECT * FROM held.parts WHERE application IN (SELECT name FROM former.applications);"""
_PARTS: Final = ("channels", "nodes")
_SECTION: Final = "FROM sections WHERE application = ? AND kind = ? AND name = ?"
_PUT: Final = (
    "INSERT INTO sections (application, kind, name, content) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (application, kind, name) DO UPDATE SET content = excluded.content"
)
#: The rows under the digest of one application; the sum in the first stands for its sections.
ROWS_OF_APPLICATION: Final = (
    "SELECT * FROM applications WHERE name = ?",
    "SELECT * FROM checkpoints WHERE application = ?",
    "SELECT kind, name, sum FROM parts WHERE application = ? ORDER BY kind, name",
)
ROWS_OF_ALL: Final = (
    "SELECT version, generation FROM platform",
    "SELECT * FROM plugins ORDER BY name",
    "SELECT * FROM digests ORDER BY application",
)


class Generation(NamedTuple):
    """A transaction of the database.

    Attributes:
        number: Transactions are numbered from 1.
        digest: Over everything that the database holds after it.
        committed: It is known to have been committed; otherwise the process may have died before that.
    """

    number: int
    digest: str
    committed: bool

    def as_line(self) -> bytes:
        """Return the content of the file: always of the same length, so that it is overwritten in place."""
        state = "committed" if self.committed else "written"
        text = f"ExoP generation {self.number:020d} {state:9} {self.digest:32}"
        return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


class GenerationFile:
    """The generation file tells a database that has lost its last transactions, or is gone, from a new one."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / GENERATION
        self._number: int | None = None

    def read(self) -> Generation | None:
        """Read the file; `None` if there is none. Raises `StateError` if it is damaged."""
        try:
            line = self.path.read_bytes()
            _, _, number, state, digest, _ = line.decode("ascii").split()
            found = Generation(int(number), digest, state == "committed")
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise self._damaged(str(problem.strerror)) from problem
        except ValueError as problem:
            raise self._damaged(f"{len(line)} bytes that are no generation") from problem
        if found.as_line() != line:
            raise self._damaged("its checksum does not fit")
        return found

    def write(self, generation: Generation) -> None:
        """Overwrite the file; it is on the disk when this returns."""
        line = generation.as_line()
        if self._number is None:
            if not self.path.exists():
                replace_file(DISK, self.path, line)
                return
            self._number = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._number, len(line))
        if os.pwrite(self._number, line, 0) != len(line):
            raise OSError(errno.ENOSPC, "it was written in part")
        os.fdatasync(self._number)

    def close(self) -> None:
        """Close the file."""
        if self._number is not None:
            os.close(self._number)
            self._number = None

    def _damaged(self, problem: str) -> StateError:
        return StateError(
            f"{self.path} is damaged ({problem}): it tells whether the database beside it is the newest; nothing was "
            f"changed; restore the whole state directory from one copy, or accept the database as it is by "
            f"`exop state accept {self.path.parent}`"
        )


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Connect without implicit transactions; text that is not UTF-8 is returned as it is, for the digest to detect."""
    address = _address(path, "ro" if read_only else "rw")
    database = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return database


def _address(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


@contextmanager
def opened(path: Path, *, former: bool = False) -> Iterator[sqlite3.Connection]:
    """Read a database as it is, or both files of version 1; the files that SQLite makes beside them are removed."""
    files = (path, path.with_name(FORMER_CHECKPOINTS)) if former else (path,)
    names = [file.with_name(file.name + end) for file in files for end in ("-wal", "-shm")]
    made = [beside for beside in names if not beside.exists()]
    try:
        with closing(connect(path, read_only=True)) as database:
            for file in files[1:]:
                database.execute("ATTACH ? AS held", (_address(file, "ro"),))
            yield database
    finally:
        for beside in made:
            beside.unlink(missing_ok=True)


def check(path: Path) -> None:
    """Verify the structure of a database; raises `sqlite3.DatabaseError`, or `OSError` where it cannot be read."""
    with path.open("rb") as file:
        # SQLite itself takes a file of a few bytes for an empty one, and overwrites it.
        if file.read(len(_MAGIC)) != _MAGIC:
            raise sqlite3.DatabaseError("it does not begin as a database does")
    with opened(path) as database:
        (told,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if told != "ok":
            raise sqlite3.DatabaseError(" ".join(told.replace("*** in database main ***", "").split()))


def build(directory: Path, *, former: bool = False) -> Generation:
    """Make the database, empty or from the files of version 1; it is there whole, or not at all."""
    path, unfinished = directory / FILE, directory / f"{FILE}.new"
    for left in directory.glob(f"{unfinished.name}*"):
        left.unlink()
    unfinished.touch(mode=0o600)
    with closing(connect(unfinished)) as database:
        database.execute(f"PRAGMA page_size = {_PAGE}")
        # From the beginning: a process that is killed while a mode changes leaves what no reader can roll back.
        database.execute("PRAGMA journal_mode = WAL")
        schema = f"{_OTHERS}{_APPLICATIONS}{_SECTIONS} INSERT INTO platform VALUES ({VERSION}, 0, '');"
        for name, file in (("former", FILE), ("held", FORMER_CHECKPOINTS)) if former else ():
            database.execute(f"ATTACH ? AS {name}", (_address(directory / file, "ro"),))
        database.executescript(f"BEGIN; {schema} {_ROWS_OF_FORMER if former else ''}")
        names = _take_applications(database, "former.applications") if former else []
        with closing(GenerationFile(directory)) as noted:
            generation = seal(database, noted, *names)
        database.execute("COMMIT")
    if former:  # its -wal must not be applied to its successor
        with closing(connect(path)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    unfinished.replace(path)
    DISK.sync(directory)
    return generation


def upgrade(database: sqlite3.Connection) -> None:
    """Bring the tables of version 2 to this one, in the running transaction."""
    run = database.execute
    run("ALTER TABLE applications RENAME TO second")
    run(_APPLICATIONS)
    run(_SECTIONS)
    _take_applications(database, "second")
    run("DROP TABLE second")
    run("UPDATE platform SET version = ?", (VERSION,))


def _take_applications(database: sqlite3.Connection, source: str) -> list[str]:
    """Take the applications from a table of versions 1 and 2: each topology is one section; return their names."""
    database.execute(f"INSERT INTO applications SELECT name, revision, active, 0 FROM {source}")
    columns = "(application, kind, name, content)"
    database.execute(f"INSERT INTO sections {columns} SELECT name, 'application', '', topology FROM {source}")
    names = [name for (name,) in database.execute("SELECT name FROM applications").fetchall()]
    for name in names:
        database.execute("UPDATE applications SET sum = ? WHERE name = ?", (sum_of(database, name), name))
    return names


def digest_of(database: sqlite3.Connection, queries: tuple[str, ...], *values: str) -> str:
    """Return the digest over all rows that some queries find; empty if they find none."""
    found = [database.execute(query, values).fetchall() for query in queries]
    return blake2b(repr(found).encode("ascii", "backslashreplace"), digest_size=16).hexdigest() if any(found) else ""


def seal(database: sqlite3.Connection, noted: GenerationFile, *applications: str) -> Generation:
    """Make the running transaction ready for its commit: digests of these applications and over all, number, note."""
    for application in applications:
        digest = digest_of(database, ROWS_OF_APPLICATION, application)
        if digest:
            database.execute("INSERT OR REPLACE INTO digests VALUES (?, ?)", (application, digest))
        else:
            database.execute("DELETE FROM digests WHERE application = ?", (application,))
    database.execute("UPDATE platform SET generation = generation + 1")
    digest = digest_of(database, ROWS_OF_ALL)
    (number,) = database.execute("UPDATE platform SET digest = ? RETURNING generation", (digest,)).fetchone()
    generation = Generation(number, digest, committed=False)
    noted.write(generation)
    return generation


def write_mesh(database: sqlite3.Connection, mesh: Mesh, stored: Mesh | None) -> int:
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


def sum_of(database: sqlite3.Connection, application: str) -> int:
    """Return the sum of the checksums of all rows of a stored mesh, as they are."""
    query = "SELECT kind, name, content FROM sections WHERE application = ?"
    return sum(checksum(*row) for row in database.execute(query, (application,)))


def checksum(kind: str, name: str, content: str) -> int:
    """Return the checksum of one row; the sum of millions of them fits into a column."""
    data = "\0".join((kind, name, content)).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(data, digest_size=5).digest())

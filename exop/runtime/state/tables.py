"""The tables of a state directory: their schema, the digests over their rows, how the file is opened and made.

A mesh is stored in one row for each table of its topology file, so that a change writes only the rows that it changes.
The row of an application holds the sum of the checksums of all its tables: its digest covers them without reading them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from exop.model.diff import touched
from exop.model.mesh import Mesh
from exop.model.topology import section_text, sections
from exop.runtime.log.files import DISK
from exop.runtime.state.generation import Generation, GenerationFile

#: The version of the tables; those before it are migrated, and a directory of any other version is refused.
VERSION: Final = 3
#: Each topology was one text.
SECOND: Final = 2
#: There was a second file, and no digests.
FORMER: Final = 1
FILE: Final = "platform.sqlite"
#: The release before had a second file.
FORMER_CHECKPOINTS: Final = "checkpoints.sqlite"
#: Large pages halve what it costs to write states of megabytes.
PAGE: Final = 65536
SCHEMA: Final = """
CREATE TABLE platform (version INTEGER NOT NULL, generation INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE digests (application TEXT PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE plugins (name TEXT PRIMARY KEY, folder TEXT NOT NULL);
CREATE TABLE applications (
    name TEXT PRIMARY KEY, revision INTEGER NOT NULL, active INTEGER NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE sections (
    place INTEGER PRIMARY KEY, application TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL,
    UNIQUE (application, kind, name));
CREATE TABLE checkpoints (
    application TEXT PRIMARY KEY, number INTEGER NOT NULL, taken REAL NOT NULL,
    revision INTEGER NOT NULL, topology TEXT NOT NULL, reasons TEXT NOT NULL);
CREATE TABLE parts (
    application TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, sum INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (application, kind, name));
"""
_SECTION: Final = "FROM sections WHERE application = ? AND kind = ? AND name = ?"
ROWS_OF_APPLICATION: Final = (
    "SELECT * FROM applications WHERE name = ?",  # the sum in it stands for the sections
    "SELECT * FROM checkpoints WHERE application = ?",
    "SELECT kind, name, sum FROM parts WHERE application = ? ORDER BY kind, name",
)
ROWS_OF_ALL: Final = (
    "SELECT version, generation FROM platform",
    "SELECT * FROM plugins ORDER BY name",
    "SELECT * FROM digests ORDER BY application",
)


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection without implicit transactions; text that is no UTF-8 is given as it is, for its digest to tell."""
    address = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    database = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return database


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Read a database as it is, with its -wal; what SQLite makes beside it for that is removed."""
    made = [beside for end in ("-wal", "-shm") if not (beside := path.with_name(path.name + end)).exists()]
    try:
        with closing(connect(path, read_only=True)) as database:
            yield database
    finally:
        for beside in made:
            beside.unlink(missing_ok=True)


def digest_of(database: sqlite3.Connection, queries: tuple[str, ...], *values: str) -> str:
    """The digest over all that some queries find; empty if they find nothing."""
    found = [database.execute(query, values).fetchall() for query in queries]
    return blake2b(repr(found).encode("ascii", "backslashreplace"), digest_size=16).hexdigest() if any(found) else ""


def seal(database: sqlite3.Connection, application: str) -> None:
    """Put the digest of an application in the place of the one before its rows were changed."""
    digest = digest_of(database, ROWS_OF_APPLICATION, application)
    if digest:
        database.execute("INSERT OR REPLACE INTO digests VALUES (?, ?)", (application, digest))
    else:
        database.execute("DELETE FROM digests WHERE application = ?", (application,))


def take_topologies(database: sqlite3.Connection, source: str) -> None:
    """Take the applications of a former version from the table *source*, their topologies as one text."""
    query = f"SELECT name, revision, active, topology FROM {source} ORDER BY name"
    for name, revision, active, topology in database.execute(query).fetchall():
        section = ("application", "", topology)
        row = (name, revision, active, checksum(*section))
        database.execute("INSERT INTO applications VALUES (?, ?, ?, ?)", row)
        columns = "(application, kind, name, content)"
        database.execute(f"INSERT INTO sections {columns} VALUES (?, ?, ?, ?)", (name, *section))


def upgrade(database: sqlite3.Connection, damaged: Container[str]) -> None:
    """Bring the tables of version 2 to this one, in the running transaction; what is *damaged* stays damaged."""
    database.execute("ALTER TABLE applications RENAME TO second")
    for statement in SCHEMA.split(";"):
        if "TABLE applications" in statement or "TABLE sections" in statement:
            database.execute(statement)
    take_topologies(database, "second")
    database.execute("DROP TABLE second")
    for (name,) in database.execute("SELECT name FROM applications").fetchall():
        if name not in damaged:
            seal(database, name)
    database.execute("UPDATE platform SET version = ?", (VERSION,))


def advance(database: sqlite3.Connection) -> Generation:
    """Give the running transaction its number and the digest over all."""
    database.execute("UPDATE platform SET generation = generation + 1")
    digest = digest_of(database, ROWS_OF_ALL)
    (number,) = database.execute("UPDATE platform SET digest = ? RETURNING generation", (digest,)).fetchone()
    return Generation(number, digest, committed=False)


def build(directory: Path, *, former: bool) -> Generation:
    """Make the database, with what the two files of the release before hold; it is there whole, or not at all.

    Raises:
        sqlite3.Error, OSError: it cannot be written.
    """
    path, unfinished = directory / FILE, directory / f"{FILE}.new"
    for left in directory.glob(f"{unfinished.name}*"):
        left.unlink()
    unfinished.touch(mode=0o600)
    with closing(connect(unfinished)) as database:
        database.execute(f"PRAGMA page_size = {PAGE}")
        # From the beginning: a process that is killed while a mode changes leaves what no reader can roll back.
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"BEGIN; {SCHEMA} INSERT INTO platform VALUES ({VERSION}, 0, ''); COMMIT;")
        if former:
            for name, file in (("former", path), ("held", directory / FORMER_CHECKPOINTS)):
                database.execute(f"ATTACH ? AS {name}", (f"{file.absolute().as_uri()}?mode=ro",))
        database.execute("BEGIN")
        if former:
            database.execute("INSERT INTO plugins SELECT name, folder FROM former.plugins")
            take_topologies(database, "former.applications")
            for table in ("checkpoints", "parts"):
                kept = "application IN (SELECT name FROM applications)"
                database.execute(f"INSERT INTO {table} SELECT * FROM held.{table} WHERE {kept}")
            for (name,) in database.execute("SELECT name FROM applications").fetchall():
                seal(database, name)
        generation = advance(database)
        database.execute("COMMIT")
    if path.exists():
        with closing(connect(path)) as database:  # what its -wal holds must not be applied to its successor
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    noted = GenerationFile(directory)
    noted.write(generation)
    noted.close()
    unfinished.replace(path)
    DISK.sync(directory)
    return generation


def write_mesh(database: sqlite3.Connection, mesh: Mesh, stored: Mesh | None) -> int:
    """Put a mesh in the place of the one that is *stored*; returns the sum of the checksums.

    Without *stored*, or where the order of the nodes or channels is another one, all of it is written.
    """
    run = database.execute
    if stored is None or not (_same_order(stored.nodes, mesh.nodes) and _same_order(stored.channels, mesh.channels)):
        run("DELETE FROM sections WHERE application = ?", (mesh.name,))
        rows = [(mesh.name, *key, section_text(mesh, *key)) for key in sections(mesh)]
        database.executemany("INSERT INTO sections (application, kind, name, content) VALUES (?, ?, ?, ?)", rows)
        return sum(checksum(*row[1:]) for row in rows)
    (total,) = run("SELECT sum FROM applications WHERE name = ?", (mesh.name,)).fetchone()
    head = [("application", "")] if stored.durable != mesh.durable else []
    changed = [("channels", name) for name in touched(stored.channels, mesh.channels)]
    changed += [("nodes", name) for name in touched(stored.nodes, mesh.nodes)]
    gone = [("channels", name) for name in _gone(stored.channels, mesh.channels)]
    gone += [("nodes", name) for name in _gone(stored.nodes, mesh.nodes)]
    for key in (*head, *changed, *gone):
        found = run(f"SELECT content {_SECTION}", (mesh.name, *key)).fetchone()
        total -= checksum(*key, found[0]) if found else 0
        if key in gone:
            run(f"DELETE {_SECTION}", (mesh.name, *key))
            continue
        content = section_text(mesh, *key)
        total += checksum(*key, content)
        put = (
            "UPDATE sections SET content = ? WHERE application = ? AND kind = ? AND name = ?"
            if found
            else "INSERT INTO sections (content, application, kind, name) VALUES (?, ?, ?, ?)"
        )
        run(put, (content, mesh.name, *key))
    return int(total)


def sum_of(database: sqlite3.Connection, application: str) -> int:
    """The sum of the checksums of all tables of a stored mesh, as they are."""
    query = "SELECT kind, name, content FROM sections WHERE application = ?"
    return sum(checksum(*row) for row in database.execute(query, (application,)))


def checksum(kind: str, name: str, content: str) -> int:
    """The checksum of one table; the sum of millions of them fits into a column."""
    data = "\0".join((kind, name, content)).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(data, digest_size=5).digest())


def _gone(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [] if before is after else sorted(before.keys() - after.keys())


def _same_order(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """What stays is in the same order, and what is new stands behind it."""
    kept = [name for name in before if name in after]
    return before is after or list(after)[: len(kept)] == kept

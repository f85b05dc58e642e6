"""The database of a state directory: its tables, its transactions, and the generation file with their numbers.

A start loads the state after the last transaction, or refuses with an error a state that may be older, or damaged:

- The number and the digest of a transaction are on disk in the generation file before the commit. The commit is
  recorded there before a sink or an engine can learn of it.
- A digest for each application covers its rows and the checksums of the parts of its checkpoint; one over all covers
  these, the plugins and the number.
- A mesh is stored in one row for each table of its topology file, so that a change writes only the rows that it
  changes. The row of an application holds the sum of the checksums of these rows: its digest covers them unread.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from exop.errors import StateError
from exop.logs import logger
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.log.segment import DISK, File, replace_file

#: The version of the tables, and of what checkpoints contain; other versions are refused.
VERSION: Final = 4
FILE: Final = "platform.sqlite"
GENERATION: Final = "generation"
_MAGIC: Final = b"SQLite format 3\0"
_TABLES: Final = """
CREATE TABLE applications (
    name TEXT PRIMARY KEY, revision INTEGER NOT NULL, active INTEGER NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE sections (
    place INTEGER PRIMARY KEY, application TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL,
    UNIQUE (application, kind, name));
CREATE TABLE platform (version INTEGER NOT NULL, generation INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE digests (application TEXT PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE plugins (name TEXT PRIMARY KEY, folder TEXT NOT NULL);
CREATE TABLE checkpoints (
    application TEXT PRIMARY KEY, number INTEGER NOT NULL, taken REAL NOT NULL,
    revision INTEGER NOT NULL, topology TEXT NOT NULL, reasons TEXT NOT NULL);
CREATE TABLE parts (
    application TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, sum INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (application, kind, name));
CREATE TABLE history (
    application TEXT NOT NULL, number INTEGER NOT NULL, content TEXT NOT NULL, PRIMARY KEY (application, number));"""
#: Came later than the other tables; no digest covers it.
_PEERS: Final = "CREATE TABLE IF NOT EXISTS peers (name TEXT PRIMARY KEY, address TEXT NOT NULL)"
#: The rows that the digest of one application covers; the sum in the first row represents the sections.
_ROWS_OF_APPLICATION: Final = (
    "SELECT * FROM applications WHERE name = ?",
    "SELECT * FROM checkpoints WHERE application = ?",
    "SELECT kind, name, sum FROM parts WHERE application = ? ORDER BY kind, name",
)
_ROWS_OF_ALL: Final = (
    "SELECT version, generation FROM platform",
    "SELECT * FROM plugins ORDER BY name",
    "SELECT * FROM digests ORDER BY application",
)
_NAMES: Final = (
    "SELECT name FROM applications UNION SELECT application FROM digests "
    "UNION SELECT application FROM checkpoints UNION SELECT application FROM parts"
)
#: Parts of the errors: what was done, and cures.
ANOTHER: Final = "give another directory, --state DIR"
_ROOM: Final = "make room there, or make it writable"
_RESTORE: Final = "nothing was changed; restore the whole state directory from one copy"
_ACCEPT: Final = "accept the database as it is by `exop state accept {}`"


class Generation(NamedTuple):
    """A transaction: its number, the digest of the database after it, and whether its commit is recorded."""

    number: int
    digest: str
    committed: bool

    def as_line(self) -> bytes:
        """Return the content of the file, which always has the same length, so that it can be overwritten in place."""
        state = "committed" if self.committed else "written"
        text = f"ExoP generation {self.number:020d} {state:9} {self.digest:32}"
        return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


class GenerationFile:
    """The generation file distinguishes a database that has lost its last transactions, or is lost, from a new one."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / GENERATION
        self._file: File | None = None

    def read(self) -> Generation | None:
        """Read the file; return `None` if it does not exist, and raise `StateError` if it is damaged."""
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
        """Overwrite the file, and return when it is on disk."""
        line = generation.as_line()
        if self._file is None:
            if not self.path.exists():
                replace_file(DISK, self.path, line)
                return
            self._file = DISK.open(self.path)
            self._file.truncate(len(line))
        self._file.write(0, line)
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _damaged(self, problem: str) -> StateError:
        what = f"{self.path} is damaged ({problem}): it records the newest state of the database beside it"
        return StateError(f"{what}; {_RESTORE}, or {_ACCEPT.format(self.path.parent)}")


class Database:
    """The connection of a running platform, which locks the database.

    Attributes:
        damaged: Applications whose rows are damaged; these rows remain unchanged until the application is removed.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._turn = threading.RLock()
        self._noted = GenerationFile(directory)
        found = inspect(directory)
        try:
            found = found or Inspected(build(directory), {})
            self.connection, self.damaged = _connect(self.path), found.damaged
            try:
                for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
                    self.connection.execute(f"PRAGMA {pragma}")
                self.connection.execute("PRAGMA wal_autocheckpoint = 256")  # pages: a log of 16 MiB
                self.connection.execute(_PEERS)
                self._noted.write(found.generation._replace(committed=True))
            except BaseException:
                self.close()
                raise
        except (sqlite3.Error, OSError) as problem:
            raise _unusable(self.path, problem) from problem

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        try:
            with self._turn:
                return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as problem:
            raise StateError(f"{self.path} could not be read: {problem}; {_RESTORE}, or {ANOTHER}") from problem

    @contextmanager
    def transaction(self, *names: str, forget: bool = False, sealed: bool = True) -> Iterator[sqlite3.Connection]:
        """Change rows of applications, or other rows, in one transaction: all changes are committed, or none.

        Damaged rows remain unchanged unless *forget* is set. A transaction that is not *sealed* gets no number: no
        digest covers its rows, on which no start depends.
        """
        with self._turn:
            for name in names:
                if name in self.damaged and not forget:
                    raise StateError(self.damaged[name])
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                if sealed:
                    generation = seal(self.connection, self._noted, *names)
                    failpoint("generation-written")
                self.connection.execute("COMMIT")
            except BaseException as problem:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                if isinstance(problem, sqlite3.Error) and problem.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    with suppress(sqlite3.Error):  # gives the room of the log back; the error itself is raised below
                        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                if isinstance(problem, (sqlite3.Error, OSError)):
                    raise StateError(f"{self.path} could not be written: {problem}; {_ROOM}") from problem
                raise
            if sealed:
                failpoint("generation-committed")
                try:
                    self._noted.write(generation._replace(committed=True))
                except OSError as error:  # a start cannot tell a loss of this transaction from a crash then
                    path = str(self._noted.path)
                    logger("exop.runtime").error("the generation file was not written", path=path, error=str(error))
            for name in names:
                self.damaged.pop(name, None)

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            self.connection.close()
            self._noted.close()


class Inspected(NamedTuple):
    """A database that may be used: its last transaction, the errors of damaged applications, its version."""

    generation: Generation
    damaged: dict[str, str]
    version: int = VERSION


def inspect(directory: Path) -> Inspected | None:
    """Check whether the database of a directory may be used; return `None` if the directory is new."""
    path, noted = directory / FILE, GenerationFile(directory).read()
    found = contents_of(path)
    told = "" if noted is None else f"the generation {noted.number} was {'committed' if noted.committed else 'begun'}"
    if found is None:
        if noted is not None and (noted.number > 1 or noted.committed):
            raise _lost(path, f"{told} here, and the database is missing or empty")
        if _has_content(directory / f"{FILE}-wal"):
            raise _lost(path, f"it is missing or empty beside {FILE}-wal")
        return None
    if noted is None:
        raise _lost(path, f"{directory / GENERATION}, which records the newest state, is missing", accept=True)
    number = found.generation.number
    if found.generation != noted._replace(committed=True) and (noted.committed or number != noted.number - 1):
        raise _lost(path, f"{told} here, and the database holds the generation {number}", accept=True)
    return found


def accept(directory: Path) -> Generation:
    """Accept the database as the newest state, without regard to the generation file; return its generation."""
    if (found := contents_of(directory / FILE)) is None:
        raise _lost(directory / FILE, "it is missing or empty: there is nothing to accept")
    with closing(GenerationFile(directory)) as noted:
        noted.write(found.generation)
    return found.generation


def contents_of(path: Path) -> Inspected | None:
    """Inspect a database as `inspect` does, whether or not it is the newest; `None` if it is missing or empty."""
    try:
        if not _has_content(path):
            return None
        check(path)
        with opened(path) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables:
                return None
            if "platform" not in tables:
                raise sqlite3.DatabaseError(f"it holds the tables {', '.join(sorted(tables))}")
            (version,) = database.execute("SELECT version FROM platform").fetchone() or (0,)
            if version != VERSION:
                problem = f"is of version {version}, this release reads version {VERSION}"
                raise StateError(f"{path} {problem}; nothing was changed; use the release that wrote it, or {ANOTHER}")
            number, digest = database.execute("SELECT generation, digest FROM platform").fetchone()
            if _digest_of(database, _ROWS_OF_ALL) != digest:
                raise sqlite3.DatabaseError("its rows do not fit to their digest")
            return Inspected(Generation(number, digest, committed=True), dict(_damaged(database, path)))
    except (sqlite3.Error, OSError, TypeError, ValueError) as problem:
        raise _unusable(path, problem) from problem


def check(path: Path) -> None:
    """Verify the structure of a database, or raise `sqlite3.DatabaseError`, or `OSError` if it cannot be read."""
    with path.open("rb") as file:
        # SQLite itself treats a file of a few bytes as empty, and overwrites it.
        if file.read(len(_MAGIC)) != _MAGIC:
            raise sqlite3.DatabaseError("its header is not that of a database")
    with opened(path) as database:
        (told,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if told != "ok":
            raise sqlite3.DatabaseError(" ".join(told.replace("*** in database main ***", "").split()))


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading; the files that SQLite creates beside it are removed at the end."""
    made = [file for end in ("-wal", "-shm") if not (file := path.with_name(path.name + end)).exists()]
    try:
        with closing(_connect(path, mode="ro")) as database:
            yield database
    finally:
        for file in made:
            file.unlink(missing_ok=True)


def build(directory: Path) -> Generation:
    """Create an empty database atomically."""
    unfinished = directory / f"{FILE}.new"
    for left in directory.glob(f"{unfinished.name}*"):
        left.unlink()
    unfinished.touch(mode=0o600)
    with closing(_connect(unfinished)) as database:
        database.execute("PRAGMA page_size = 65536")  # halves the cost of writing states of megabytes
        # From the beginning: a process that is killed while a mode changes leaves what no reader can roll back.
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"BEGIN; {_TABLES} INSERT INTO platform VALUES ({VERSION}, 0, '');")
        with closing(GenerationFile(directory)) as noted:
            generation = seal(database, noted)
        database.execute("COMMIT")
    unfinished.replace(directory / FILE)
    DISK.sync(directory)
    return generation


def seal(database: sqlite3.Connection, noted: GenerationFile, *applications: str) -> Generation:
    """Prepare the running transaction for its commit: write digests and number, also to the generation file."""
    for application in applications:
        if digest := _digest_of(database, _ROWS_OF_APPLICATION, application):
            database.execute("INSERT OR REPLACE INTO digests VALUES (?, ?)", (application, digest))
        else:
            database.execute("DELETE FROM digests WHERE application = ?", (application,))
    database.execute("UPDATE platform SET generation = generation + 1")
    digest = _digest_of(database, _ROWS_OF_ALL)
    (number,) = database.execute("UPDATE platform SET digest = ? RETURNING generation", (digest,)).fetchone()
    generation = Generation(number, digest, committed=False)
    noted.write(generation)
    return generation


def checksum(kind: str, name: str, content: str) -> int:
    """Return the checksum of one row of a mesh, small enough that the sum of millions fits into a column."""
    data = "\0".join((kind, name, content)).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(data, digest_size=5).digest())


def _digest_of(database: sqlite3.Connection, queries: tuple[str, ...], *values: str) -> str:
    """Return the digest over all rows that the queries return; empty if there are none."""
    found = [database.execute(query, values).fetchall() for query in queries]
    return blake2b(repr(found).encode("ascii", "backslashreplace"), digest_size=16).hexdigest() if any(found) else ""


def _damaged(database: sqlite3.Connection, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the applications whose rows do not match their digest, or whose sections do not match their sum."""
    sums = dict(database.execute("SELECT name, sum FROM applications").fetchall())
    digests = dict(database.execute("SELECT * FROM digests").fetchall())
    for (name,) in database.execute(_NAMES).fetchall():
        rows = database.execute("SELECT kind, name, content FROM sections WHERE application = ?", (name,))
        whole = sum(checksum(*row) for row in rows) == sums.get(name, 0)
        if not whole or _digest_of(database, _ROWS_OF_APPLICATION, name) != digests.get(name, ""):
            cure = f"{_RESTORE}, or give it up by `exop remove {name}`"
            yield name, f"{path}: the application {name!r} is damaged; {cure}"


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Connect without implicit transactions; strings that are not UTF-8 are returned unchanged, and fail the digest."""
    address = f"{path.absolute().as_uri()}?mode={mode}"
    database = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
    database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    return database


def _has_content(path: Path) -> bool:
    """Whether a file has content; a folder in its place counts as content, and cannot be used."""
    return path.exists() and (path.is_dir() or path.stat().st_size > 0)


def _unusable(path: Path, problem: Exception) -> StateError:
    """Return the error for a database that cannot be opened, because of its content or its location."""
    if isinstance(problem, (OSError, sqlite3.OperationalError)) and not str(problem).startswith("no such"):
        return StateError(f"{path} cannot be used ({problem}); nothing was changed; {_ROOM}, or {ANOTHER}")
    what = f"{path} is no state of ExoP, or it is damaged ({problem})"
    return StateError(f"{what}; {_RESTORE}, or move it away to start afresh, or {ANOTHER}")


def _lost(path: Path, problem: str, *, accept: bool = False) -> StateError:
    """Return the error for a database that may not be the newest."""
    cure = f", or {_ACCEPT.format(path.parent)}" if accept else ""
    what = f"{path} may not be the newest state: {problem}; a start could lose or double items"
    return StateError(f"{what}; {_RESTORE}, or move it away to start afresh{cure}")

"""The stock sinks: `write_lines`, and those that write with checkpoints: `write_sqlite` and `write_parquet`."""

from __future__ import annotations

import os
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import field
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self

from exop.errors import StoredStateError
from exop.model.items import EndOfStream
from exop.model.slets.memento import Memento
from exop.model.slets.slet import Slet, input_port
from exop.runtime.dataflow.batches import as_row
from exop.stock.sources import UTF_8, Encoding

#: The table of the lots that are in the other tables.
NOTES = "exop_lots"


class Written(Memento):
    """The number of bytes written to the output file `path`, which is the file `real`, and to the files `before` it."""

    size: int = 0
    path: str = ""
    real: str = ""
    before: dict[str, int] = field(default_factory=dict)


class WriteLines(Slet, name="write_lines"):
    """Write every item as a line of a text file. Other processes can read each line within a second.

    An existing file is truncated before the first line, or at the end of an empty stream. After a replacement or a
    crash, the slet truncates the file to the size in the memento and appends, so that no line is written twice. When
    `path` changes, the slet begins the other file, or appends to it if it has written the file before.

    Args:
        path: The path of the file.
        encoding: The encoding of the file.
    """

    reopens: ClassVar[bool] = True
    path: Path
    written: Written
    encoding: Encoding = UTF_8

    def __enter__(self) -> WriteLines:
        self._file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666), "wb")
        self._placed = False
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    @input_port
    def item(self, item: Any | EndOfStream) -> None:
        """Take one item."""
        if not self._placed:
            self._place()
        if isinstance(item, EndOfStream):
            self._file.flush()
        else:
            self.written.size += self._file.write(f"{item}\n".encode(self.encoding))

    def _place(self) -> None:
        """Truncate the file to the counted bytes, at the first item, when an old slet no longer writes."""
        written, path, here = self.written, str(self.path), os.path.realpath(self.path)
        # An equal `path` is the same file also in a working directory that was moved.
        if written.path not in ("", path) and (real := written.real or os.path.realpath(written.path)) != here:
            if os.path.exists(real) and os.path.getsize(real) > written.size:
                os.truncate(real, written.size)  # after a crash: what follows comes again, and goes to the other file
            written.before = {os.path.realpath(name): size for name, size in written.before.items()}
            written.before[real] = written.size
            written.size = written.before.pop(here, 0)
        written.path, written.real = path, here
        if (there := os.fstat(self._file.fileno()).st_size) < written.size:
            raise OSError(f"{self.path} has {there} bytes, and {written.size} were written to it: put it back")
        self._file.truncate(written.size)
        self._file.seek(written.size)
        self._placed = True

    def flush(self) -> None:
        """Pass buffered lines to the operating system before a checkpoint counts them."""
        self._file.flush()

    #: Buffered lines become readable for others. The lock of the file permits concurrent calls of `item`.
    make_visible = flush

    def sync(self) -> None:
        """Force the file to disk."""
        os.fsync(self._file.fileno())


class Held(Memento):
    """The rows that are not written yet.

    Attributes:
        run: The identifier of this stream, which differs from those of other streams with the same destination.
        number: The number of the last lot. A lot is written atomically and once.
        rows: The rows since the last lot.
        sealed: The rows of the last lot, until they are written.
        place: The destination of the last lot.
    """

    run: str = ""
    number: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    sealed: list[dict[str, Any]] = field(default_factory=list)
    place: list[str] = field(default_factory=list)


class HoldingSink(Slet, ABC):
    """Writes rows in lots, each exactly once: with every checkpoint or, without checkpoints, after every `lot` rows.

    A lot is part of the memento until the lot is written. After a crash, the memento contains the lot of the last
    checkpoint; the number of the lot shows whether the lot has been written. When the destination changes, rows that
    are not written yet go to the new one.
    """

    reopens: ClassVar[bool] = True
    held: Held
    lot: int = 1000
    path: Path

    def __enter__(self) -> Self:
        self._turn = threading.RLock()
        self._place = [os.path.realpath(self.path)]
        self._written_here = False
        return self

    def __exit__(self, *exc: object) -> None:
        # After a replacement, the memento belongs to the new slet, and `flush` has written the rows of this slet.
        if self._written_here and not self.checkpointed:
            self._write_all()

    @abstractmethod
    def write_lot(self, rows: list[dict[str, Any]]) -> None:
        """Write the last lot with its number, atomically."""

    @abstractmethod
    def last_lot(self, place: list[str]) -> int:
        """Return the number of the last written lot of this stream at a destination; 0 if no lot is written."""

    def is_written(self, place: list[str]) -> bool:
        """Whether the last lot is written to a destination."""
        return self.last_lot(place) >= self.held.number

    def check_place(self, place: object) -> None:
        """Refuse a checkpoint that is older than the rows at *place*. Call this method at the end of `__enter__`.

        Raises:
            StoredStateError: *place* contains a lot of a later checkpoint, whose rows would be written twice.
        """
        if (out := self.last_lot(self._place) if self.held.run else 0) > self.held.number:
            raise StoredStateError(
                what=f"the checkpoint with the lot {self.held.number} of the rows for {place}",
                problem=f"the lot {out} is there already, so the checkpoint is not the newest",
                cure=f"restore the state directory and {place} from copies of the same time, or remove the application",
            )
        for row in ([] if self._is_out() else [*self.held.sealed]) + [*self.held.rows]:
            self.check(row)

    def check(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row to write, or raise an error if the row could not be written."""
        return row

    @input_port
    def item(self, item: Any | EndOfStream) -> None:
        """Take one item, or the end of the stream."""
        if isinstance(item, EndOfStream):
            self.flush()
            return
        rows = self.held.rows
        try:
            row = as_row(item)
        except TypeError:
            row = {"value": item}
        rows.append(self.check(row))
        self._written_here = True
        if not self.checkpointed and len(rows) >= self.lot:
            self._write_all()

    def flush(self) -> None:
        """Write the remaining rows if no checkpoints are taken."""
        if not self.checkpointed:
            self._write_all()
            self._written_here = False

    def prepare_checkpoint(self, number: int) -> None:
        """Make the rows so far the lot of this checkpoint."""
        held = self.held
        with self._turn:
            if self._is_out():
                held.sealed = []  # it was written before the crash
            held.place = self._place
            # With the first checkpoint, before the first row: a recovery from it recognizes later lots as its own.
            held.run = held.run or uuid.uuid4().hex
            if held.rows:
                held.number += 1
                held.sealed, held.rows = held.sealed + held.rows, []

    def commit_checkpoint(self, number: int) -> None:
        """Write the lot of the committed checkpoint."""
        held = self.held
        with self._turn:
            # The lot of another destination becomes part of the next lot, unless it is written there.
            if held.sealed and held.place in ([], self._place):
                if not self.is_written(self._place):
                    self.write_lot(held.sealed)
                held.sealed = []

    def _is_out(self) -> bool:
        """Whether the last lot is written, here or at the destination before a change."""
        places = self.held.place, self._place
        return bool(self.held.sealed) and any(self.is_written(place) for place in places if place)

    def _write_all(self) -> None:
        self.prepare_checkpoint(0)
        self.commit_checkpoint(0)


class WriteParquet(HoldingSink, name="write_parquet"):
    """Write the items as rows of Parquet files in a folder; the fields of the items are the columns.

    In a durable application, one file is written for each checkpoint with new items, exactly once. Otherwise, a file is
    written after every `lot` items and at the end of the stream. Files are named `RUN-NUMBER.parquet`, and never
    change. The slet requires pyarrow.

    Args:
        path: The path of the folder, which is created if it does not exist.
        lot: The number of rows in a file if no checkpoints are taken.
    """

    lot: int = 100_000

    def __enter__(self) -> Self:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as problem:
            cure = "install it with: pip install 'exop[columns]'"
            raise ImportError(f"write_parquet needs pyarrow, which is not installed; {cure}") from problem
        super().__enter__()
        self._table, self._parquet = pa.Table, parquet
        self.path.mkdir(parents=True, exist_ok=True)
        self.check_place(self.path)
        return self

    def write_lot(self, rows: list[dict[str, Any]]) -> None:
        """Write the file under a temporary name, and rename the file when it is on disk."""
        # Imported lazily: with it comes msgspec, which an application without this slet does not need.
        from exop.runtime.log.segment import DISK

        place = self._file(self._place)
        unfinished = place.with_name(f".{place.name}.unfinished")
        names = dict.fromkeys(name for row in rows for name in row)  # `from_pylist` takes those of the first row only
        table = self._table.from_pydict({name: [row.get(name) for row in rows] for name in names})
        self._parquet.write_table(table, unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(place)
        DISK.sync(self.path)

    def last_lot(self, place: list[str]) -> int:
        """Return the number of the last file."""
        names = (path.stem.partition("-")[2] for path in Path(place[0]).glob(f"{self.held.run[:8]}-*.parquet"))
        return max((int(number) for number in names if number.isdecimal()), default=0)

    def is_written(self, place: list[str]) -> bool:
        """Whether the file exists."""
        return self._file(place).exists()

    def _file(self, place: list[str]) -> Path:
        return Path(place[0]) / f"{self.held.run[:8]}-{self.held.number:08d}.parquet"


class WriteSqlite(HoldingSink, name="write_sqlite"):
    """Write every item as a row of a table of an SQLite database.

    The fields of the item are the columns. An item without fields is written into the column `value`. If the table does
    not exist, it is created with the first row. In a durable application, rows are written with the checkpoints,
    exactly once; otherwise after every `lot` rows, and at the end of the stream.

    Args:
        path: The path of the database file.
        table: The name of the table.
        lot: The number of rows in a transaction if no checkpoints are taken.
    """

    table: str = "items"

    def __enter__(self) -> Self:
        # Imported lazily: only applications that write to SQLite need it.
        import sqlite3

        super().__enter__()
        self._place.append(self.table)
        self._database = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        try:
            self._columns = _columns(self._database, self.path, self.table)
            self.check_place(f"the table {self.table} of {self.path}")
        except BaseException:
            self._database.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with closing(self._database):
            super().__exit__(*exc)

    def check(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compare the row with the columns of the table, and create the table if needed."""
        if not (self._columns and row.keys() <= {*self._columns}):
            with self._turn:  # the table may have been altered since
                columns = ", ".join(map(_quoted, row))
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(self.table)} ({columns})")
                self._columns = _columns(self._database, self.path, self.table, row)
        return {name: _cell(name, value) for name, value in row.items()}

    def write_lot(self, rows: list[dict[str, Any]]) -> None:
        """Insert the rows and the number of the lot in one transaction."""
        self.check(rows[0])  # held rows may be the first ones of another table
        execute = self._database.execute
        with self._database:  # commits at the end of the block, or rolls back
            execute("BEGIN IMMEDIATE")
            for row in rows:
                names, marks = ", ".join(map(_quoted, row)), ", ".join("?" * len(row))
                execute(f"INSERT INTO {_quoted(self.table)} ({names}) VALUES ({marks})", tuple(row.values()))
            columns = "sink TEXT, run TEXT, number INTEGER, PRIMARY KEY (sink, run)"
            execute(f"CREATE TABLE IF NOT EXISTS {NOTES} ({columns})")
            execute(f"INSERT OR REPLACE INTO {NOTES} VALUES (?, ?, ?)", (self.table, self.held.run, self.held.number))

    def last_lot(self, place: list[str]) -> int:
        """Return the number of the last inserted lot."""
        path, table = place
        if not os.path.exists(path):
            return 0
        with closing(type(self._database)(path)) as base:
            if not base.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (NOTES,)).fetchone():
                return 0
            query = f"SELECT max(number) FROM {NOTES} WHERE sink = ? AND run = ?"
            return int(base.execute(query, (table, self.held.run)).fetchone()[0] or 0)

    @classmethod
    def deep_check(cls, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Refuse items with fields that are no columns of the table, if there is a table."""
        import sqlite3

        if "item" in inputs and os.path.exists(settings["path"]):
            with closing(sqlite3.connect(settings["path"])) as database:
                _columns(database, settings["path"], settings["table"], inputs["item"].items.fields)


def _columns(database: Any, path: Path, table: str, fields: Iterable[str] = ()) -> list[str]:
    """Return the columns of a table; raise `ValueError` if the table exists and has no column for one of *fields*."""
    found = [row[1] for row in database.execute(f"PRAGMA table_info({_quoted(table)})")]
    if found and (strange := [name for name in fields if name not in found]):
        cures = "; ".join(f"ALTER TABLE {_quoted(table)} ADD COLUMN {_quoted(name)}" for name in strange)
        lacks = f"the table {table} of {path} has no column {', '.join(strange)}"
        raise ValueError(f"{lacks}; it has {', '.join(found)}; add what it lacks: `{cures}`")
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cell(name: str, value: Any) -> Any:
    """Return a value in a type of SQLite."""
    if value is None or isinstance(value, (int, float, str, bytes)):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"the column {name} cannot hold a {type(value).__name__}; make it a number, a text or bytes before")

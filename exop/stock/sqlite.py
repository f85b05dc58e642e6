"""`write_sqlite`: a table of an SQLite database; rows and the number of their lot are one transaction."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from exop.model.items import EndOfStream
from exop.model.slets.slet import input_port
from exop.stock.held import HoldingSink

#: The table that records which lots are in the tables.
NOTES = "exop_lots"


class WriteSqlite(HoldingSink, name="write_sqlite"):
    """Write every item as a row of a table: its fields are the columns, a plain value is the column `value`.

    A table that is not there is made for the first row. In a durable application rows come into the table with the
    checkpoints, exactly once; otherwise after every `lot` rows.
    """

    path: Path
    table: str = "items"

    def __enter__(self) -> Self:
        # Imported lazily: only applications that write to SQLite need it.
        import sqlite3

        super().__enter__()
        self._database = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        try:
            self._columns = self._read_columns()
            self.check_place(f"the table {self.table} of {self.path}")
        except BaseException:
            self._database.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__(*exc)
        finally:
            self._database.close()

    @input_port
    def item(self, item: Any | EndOfStream) -> None:
        """Take one item."""
        self.take(item)

    def check(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compare the row with the table, which is made if it is not there."""
        if not self._columns:
            with self._turn:
                columns = ", ".join(map(_quoted, row))
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(self.table)} ({columns})")
                self._columns = self._read_columns()
        if strange := [name for name in row if name not in self._columns]:
            raise ValueError(
                f"the table {self.table} of {self.path} has no column {', '.join(strange)}; "
                f"it has {', '.join(self._columns)}"
            )
        return {name: _cell(name, value) for name, value in row.items()}

    def put_out(self, run: str, number: int, rows: list[dict[str, Any]]) -> None:
        """Insert the rows, and note their number, in one transaction."""
        execute = self._database.execute
        execute("BEGIN IMMEDIATE")
        try:
            for row in rows:
                names, marks = ", ".join(map(_quoted, row)), ", ".join("?" * len(row))
                execute(f"INSERT INTO {_quoted(self.table)} ({names}) VALUES ({marks})", tuple(row.values()))
            columns = "sink TEXT, run TEXT, number INTEGER, PRIMARY KEY (sink, run)"
            execute(f"CREATE TABLE IF NOT EXISTS {NOTES} ({columns})")
            execute(f"INSERT OR REPLACE INTO {NOTES} VALUES (?, ?, ?)", (self.table, run, number))
            execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                execute("ROLLBACK")
            raise

    def last_out(self, run: str) -> int:
        """The number that has been noted with the last rows."""
        if not self._names(NOTES):
            return 0
        query = f"SELECT number FROM {NOTES} WHERE sink = ? AND run = ?"
        found = self._database.execute(query, (self.table, run)).fetchone()
        return int(found[0]) if found is not None else 0

    def _read_columns(self) -> list[str]:
        return self._names(self.table)

    def _names(self, table: str) -> list[str]:
        return [row[1] for row in self._database.execute(f"PRAGMA table_info({_quoted(table)})")]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cell(name: str, value: Any) -> Any:
    """A value as SQLite has it."""
    if value is None or isinstance(value, (int, float, str, bytes)):
        return value
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"the column {name} cannot hold a {type(value).__name__}; make it a number, a text or bytes before")

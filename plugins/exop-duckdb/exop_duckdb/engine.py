"""`DuckDb`: one query on a DuckDB of its own, in memory and locked down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from math import floor, inf, nextafter
from typing import Any, Final

import duckdb
import pyarrow as pa

from exop.engine import Engine
from exop.engine.columns import check_times
from exop.engine.pull import MICROSECONDS
from exop.errors import QueryError, SettingError
from exop.model.values.columns import stream_of

from . import spark
from .queries import WINDOW, declared, parsed, position

#: The units of an event time, in nanoseconds.
UNITS: Final = {"ns": 1, **{unit: 1_000 * length for unit, length in MICROSECONDS.items()}}
#: The seconds from 1970 to the year 9999, where the calendars of most engines end.
_YEARS: Final = 253_402_300_799
#: A whole number after every time, in each unit.
_FAR: Final = 10**24
#: The types whose values Arrow changes, and what keeps the rows of a snapshot from being inserted again.
_LOST: Final = re.compile(r"\b(BIT|UHUGEINT|TIME WITH TIME ZONE)\b")
_UNRESTORED: Final = re.compile(r"\bFOREIGN KEY|\bGENERATED ALWAYS")
_LOCKED: Final = {
    "enable_external_access": "false",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",  # beyond its memory, a query fails instead of writing files
}
#: The prefixes of the tables with the batch that arrives at a port, and with rows of windows that are not complete; the
#: table from which a snapshot is restored.
_ARRIVING: Final = "_exop_arriving_"
_RESTORED: Final = "_exop_restored"
_WAITING: Final = "_exop_waiting_"
#: The key in the metadata of rows of a window that has failed: the time up to which it was complete.
_TAKEN_OUT: Final = b"exop:window"


def connected(memory: str, threads: int) -> Any:
    """Open a database in memory, which reads and writes no files, loads no extensions, and cannot be configured.

    Raises:
        SettingError: one of the limits is none.
    """
    try:
        base = duckdb.connect(":memory:", config={**_LOCKED, "memory_limit": memory, "threads": str(threads)})
    except duckdb.Error as error:
        setting = "threads" if "thread" in str(error) else "memory"
        raise SettingError(place="", setting=setting, problem=str(error).splitlines()[0]) from None
    base.execute("SET lock_configuration = true")
    return base


@lru_cache(maxsize=128)
def schema_of(columns: str, setting: str) -> pa.Schema:
    """Read `"time bigint, speed double"`.

    Raises:
        SettingError: it is no list of columns.
    """
    base = connected("64MB", 1)
    try:
        tables = declared(f"CREATE TABLE read ({columns})")
        base.execute(tables[0])
        return base.sql("SELECT * FROM read").to_arrow_table().schema
    except (QueryError, duckdb.Error) as error:
        problem = str(error).splitlines()[0]
        raise SettingError(place="", setting=setting, problem=f"{columns!r} is no list of columns: {problem}") from None
    finally:
        base.close()


@contextmanager
def transaction(base: Any) -> Iterator[None]:
    """Make the statements of a block one transaction."""
    base.execute("BEGIN")
    try:
        yield
    except BaseException:
        try:
            base.execute("ROLLBACK")
        except duckdb.InterruptException:  # the interrupt came between two statements
            base.execute("ROLLBACK")
        raise
    base.execute("COMMIT")


class Arriving:
    """The table of an input: the batch that arrives, and otherwise empty.

    It is registered once, since that costs a quarter of the time of a query over 10 000 rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._empty = self._batch = schema.empty_table()

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._batch.schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows for one scan."""
        return self._batch.__arrow_c_stream__(requested_schema)

    @contextmanager
    def holding(self, batch: pa.RecordBatch) -> Iterator[None]:
        """Contain a batch within a block."""
        self._batch = batch
        try:
            yield
        finally:
            self._batch = self._empty


@contextmanager
def reported(query: str = "") -> Iterator[None]:
    """Turn errors of DuckDB and Arrow into the first line of their message, with the position in the query."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        problem = str(error).split("\n\nLINE")[0].split("\n")[0]
        raise QueryError(problem=problem, position=position(query, problem)) from error


class DuckDb(Engine):
    """Answers a query over each batch or, with an event time, over the rows that punctuations complete."""

    name = "duckdb"

    def __init__(
        self,
        inputs: Mapping[str, str],
        out: pa.Schema,
        event_time: Mapping[str, str],
        tables: str,
        dialect: str,
        memory: str,
        threads: int,
    ) -> None:
        self._inputs, self._out, self._times = inputs, out, {port: text.split() for port, text in event_time.items()}
        self._tables, self._dialect = tables, dialect
        self._base = connected(memory, threads)
        self._late, self._complete = 0, -inf
        self._arriving: dict[str, Arriving] = {}

    def compile(self, query: str) -> None:
        """Create the tables, and analyse the query without running it."""
        self._query = query
        if self._dialect == spark.DIALECT:
            self._base.execute(spark.MACROS)
        try:
            with reported():
                for statement in declared(self._tables):
                    self._base.execute(statement)
                self._check_tables()
        except QueryError as error:  # its position is not one of the query
            raise QueryError(problem=f"the setting `tables`: {error.facts['problem']}") from error
        found = parsed(query, self._dialect)
        self._statements, self._seconds = found.statements, found.seconds
        self._changes = len(found.statements) > 1 or not found.selects
        if self._seconds and not self._times:
            raise QueryError(problem="a window needs the setting `event_time`", position=max(0, query.find("window")))
        for port, columns in self._inputs.items():
            arriving = self._arriving[port] = Arriving(schema_of(columns, "columns"))
            self._base.register(_ARRIVING + port if self._times else port, arriving)
            if self._times:
                self._base.execute(f"CREATE TABLE {quoted(_WAITING + port)} ({columns})")
                self._show(port, "true")
        with reported(self._query):
            for statement in self._statements[:-1]:
                self._base.execute(f"EXPLAIN {statement}")
            self._base.execute(f"{'DESCRIBE' if found.selects else 'EXPLAIN'} {self._statements[-1]}")
            if found.selects:
                self._check_columns([(name, kind) for name, kind, *_ in self._base.fetchall()])

    def _check_tables(self) -> None:
        """Refuse tables that a snapshot would change, or that could not be restored from it."""
        columns = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
        for table, column, kind in self._base.execute(columns).fetchall():
            if table in self._inputs or table.startswith("_exop"):
                raise QueryError(problem=f"{table!r} is the name of an input; give the table another one")
            if lost := _LOST.search(kind):
                raise QueryError(
                    problem=f"{table}.{column} is {lost[0]}, which snapshots do not keep; use another type"
                )
        for table, sql in self._base.execute("SELECT table_name, sql FROM duckdb_tables()").fetchall():
            if wrong := _UNRESTORED.search(sql):
                raise QueryError(
                    problem=f"{table} has {wrong[0]}, which cannot be restored from a snapshot; leave it out"
                )

    def push(self, port: str, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Answer the query over the batch or, with an event time, store the rows that are not late."""
        if self._times:
            self._store(port, batch)
            return []
        change = transaction(self._base) if self._changes else nullcontext()
        with self._arriving[port].holding(batch), reported(self._query), change:
            return self._answer()

    def _store(self, port: str, batch: pa.RecordBatch) -> None:
        column, unit = self._times[port]
        check_times(batch, column, _YEARS * 1e9 / UNITS[unit], unit)
        names = ", ".join(map(quoted, schema_of(self._inputs[port], "columns").names))
        with self._arriving[port].holding(batch), reported(self._query), transaction(self._base):
            rows = f"SELECT {names} FROM {quoted(_ARRIVING + port)}"
            if _TAKEN_OUT not in (batch.schema.metadata or {}):
                rows += f" WHERE NOT {self._ended(port)}"
            self._base.execute(f"INSERT INTO {quoted(_WAITING + port)} ({names}) {rows}")
            stored = self._base.fetchone()[0]
        self._late += batch.num_rows - stored

    def advance(self, time: float) -> list[pa.RecordBatch]:
        """Answer the query over the rows that are complete, and drop them."""
        before, self._complete = self._complete, time
        if not self._times:
            return []
        try:
            with reported(self._query), transaction(self._base):
                for port in self._inputs:
                    self._show(port, self._ended(port))
                results = self._answer()
                for port in self._inputs:
                    self._base.execute(f"DELETE FROM {quoted(_WAITING + port)} WHERE {self._ended(port)}")
                return results
        except BaseException:
            self._complete = before
            raise

    def windows(self, time: float) -> list[float]:
        """Return the times at which the windows with complete rows end; without windows, a punctuation is one."""
        before, self._complete = self._complete, time
        try:
            parts = [
                f"SELECT {self._end(port)} FROM {quoted(_WAITING + port)} WHERE {self._ended(port)}"
                for port in (self._inputs if self._seconds else ())
            ]
            ends = self._base.execute(" UNION ".join(parts) + " ORDER BY 1").fetchall() if parts else []
        finally:
            self._complete = before
        return [*(self._before(end) for (end,) in ends[:-1]), time]

    def take_out(self, time: float) -> list[tuple[str, pa.RecordBatch]]:
        """Remove the rows that are complete, marked so that they are not late if they are pushed again."""
        before, self._complete, found = self._complete, time, list[tuple[str, pa.RecordBatch]]()
        try:
            with reported(), transaction(self._base):
                for port in self._inputs if self._times else ():
                    ended = f"FROM {quoted(_WAITING + port)} WHERE {self._ended(port)}"
                    for batch in self._base.sql(f"SELECT * {ended}").to_arrow_table().combine_chunks().to_batches():
                        found.append((port, batch.replace_schema_metadata({_TAKEN_OUT: str(time)})))
                    self._base.execute(f"DELETE {ended}")
        except BaseException:
            self._complete = before
            raise
        return found

    def snapshot(self) -> bytes:
        """Return all tables in Arrow's format, and the time, behind a line that describes them."""
        parts = {name: self._base.sql(f"SELECT * FROM {quoted(name)}").to_arrow_table() for name in self._all()}
        written = {name: bytes(stream_of(table)) for name, table in parts.items()}
        time = None if self._complete == -inf else str(self._complete)  # JSON has no infinity
        head = {"time": time, "late": self._late, "tables": {name: len(part) for name, part in written.items()}}
        return b"".join([json.dumps(head).encode(), b"\n", *written.values()])

    def restore(self, state: bytes, version: int) -> None:
        """Fill the tables; those of the snapshot have to be those of this query."""
        line, _, rest = state.partition(b"\n")
        head = json.loads(line)
        found = {}
        for name, size in head["tables"].items():
            found[name], rest = pa.ipc.open_stream(rest[:size]).read_all(), rest[size:]
        known = {name: self._base.sql(f"SELECT * FROM {quoted(name)}").to_arrow_table().schema for name in self._all()}
        for name, table in found.items():
            if name not in known or not table.schema.equals(known[name]):
                shown, columns = name.removeprefix(_WAITING), ", ".join(map(_column, table.schema))
                problem = f"the state has a table {shown} ({columns}), and the query has none like that"
                raise QueryError(problem=f"{problem}; start without state (`exop replace APP.NODE SLET --lose-state`)")
        with transaction(self._base):
            for name in known:
                self._base.execute(f"DELETE FROM {quoted(name)}")
                if name in found:
                    self._base.register(_RESTORED, found[name])
                    self._base.execute(f"INSERT INTO {quoted(name)} SELECT * FROM {_RESTORED}")
                    self._base.unregister(_RESTORED)
        time = head["time"]
        self._late, self._complete = head["late"], -inf if time is None else _number(time)

    def interrupt(self) -> None:
        """Interrupt the statement in progress."""
        self._base.interrupt()

    def close(self) -> None:
        """Close the database."""
        self._base.close()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of late rows, which were dropped."""
        return {"late_rows": self._late}

    def _answer(self) -> list[pa.RecordBatch]:
        """Run all statements, and return the results of the last one in the declared columns."""
        for statement in self._statements[:-1]:
            self._base.execute(statement).fetchall()  # a result that is left would be in the way of the next statement
        table = self._base.sql(self._statements[-1]).to_arrow_table()
        if not table.schema.equals(self._out):
            self._check_columns([(field.name, field.type) for field in table.schema])
            table = table.select(self._out.names).cast(self._out)
        return [batch for batch in table.combine_chunks().to_batches() if batch.num_rows]

    def _check_columns(self, found: list[tuple[str, Any]]) -> None:
        if sorted(name for name, _ in found) != sorted(self._out.names):
            columns = ", ".join(f"{name} {kind}" for name, kind in found)
            problem = f"it returns the columns {columns}, not those of `out_columns` ({', '.join(self._out.names)})"
            raise QueryError(problem=problem)

    def _show(self, port: str, condition: str) -> None:
        """Make the view that the query reads: rows of the input, with the columns `event` and window."""
        columns = ["*"]
        if port in self._times:
            columns.append(f"make_timestamp({self._event(port)}) AS event")
        if self._seconds:
            start, end = (f"make_timestamp({self._end(port)} - {less})" for less in (self._length, 0))
            columns.append(f"{{'start': {start}, 'end': {end}}} AS {WINDOW}")
        rows = f"SELECT {', '.join(columns)} FROM {quoted(_WAITING + port)} WHERE {condition}"
        self._base.execute(f"CREATE OR REPLACE VIEW {quoted(port)} AS {rows}")

    def _event(self, port: str) -> str:
        """Return the expression for the event time of a row in whole microseconds, rounded down."""
        column, unit = self._times[port]
        if self._whole(port):
            number = f"CAST({quoted(column)} AS BIGINT)"
            return _down(number, 1_000) if unit == "ns" else f"{number} * {UNITS[unit] // 1_000}"
        return f"CAST(floor({quoted(column)} * {UNITS[unit] / 1_000!r}) AS BIGINT)"

    def _end(self, port: str) -> str:
        """Return the expression for the end of the window of a row, in microseconds."""
        return f"({_down(self._event(port), self._length)} + 1) * {self._length}"

    def _before(self, end: int) -> float:
        """Return the time at which windows that end then, in microseconds, are complete, and no later ones."""
        _, unit = next(iter(self._times.values()))  # the inputs have one time, to which all are complete
        nanoseconds = end * 1_000
        if all(map(self._whole, self._times)):
            return -(-nanoseconds // UNITS[unit]) - 1
        return nextafter(nanoseconds / UNITS[unit], -inf)

    def _ended(self, port: str) -> str:
        """Return the condition for the rows that are complete, or whose windows, without their end, are."""
        column, unit = self._times[port]
        if self._whole(port):  # exactly: as floating-point numbers, nanoseconds of today are in steps of 256
            last = floor(max(-_FAR, min(self._complete, _FAR)))
            if self._seconds:
                return f"({self._end(port)} <= CAST('{(last + 1) * UNITS[unit] // 1_000}' AS HUGEINT))"
            return f"({quoted(column)} <= CAST('{last}' AS HUGEINT))"
        if not self._seconds:
            return f"(CAST({quoted(column)} AS DOUBLE) <= CAST('{self._complete}' AS DOUBLE))"
        # The same number as that of the window, so that both always agree.
        end, bound = f"CAST({self._end(port)} AS DOUBLE)", nextafter(self._complete, inf)
        until = f"{end} * 1000" if unit == "ns" else f"{end} / {UNITS[unit] // 1_000}"
        return f"({until} <= CAST('{bound}' AS DOUBLE))"

    def _whole(self, port: str) -> bool:
        column, _ = self._times[port]
        return bool(pa.types.is_integer(schema_of(self._inputs[port], "columns").field(column).type))

    @property
    def _length(self) -> int:
        """The length of a window in microseconds."""
        return round(self._seconds * 1_000_000)

    def _all(self) -> list[str]:
        """The names of all tables."""
        found = self._base.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall()
        return [name for (name,) in found]


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _number(text: str) -> float:
    """Return the number that a snapshot has written: a whole one exactly."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _down(number: str, parts: int) -> str:
    """Return the expression for a whole number divided by another, rounded down also below zero."""
    return number if parts == 1 else f"(({number} - mod(mod({number}, {parts}) + {parts}, {parts})) // {parts})"


def _column(field: pa.Field) -> str:
    return f"{field.name} {field.type}"

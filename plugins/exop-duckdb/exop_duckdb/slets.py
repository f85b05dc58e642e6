"""`duckdb:sql`: a SQL query over batches, on DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from exop import EndOfStream, Punctuation, input_port
from exop.engine import Engine, EngineSlet
from exop.engine.slet import accepted, texts_by_input
from exop.errors import SettingError
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec

_ROWS = "rows"


class DuckDbSql(EngineSlet, name="sql"):
    """Answer a SQL query over record batches, on a DuckDB in the memory of this process.

    The input is the table `rows`; for several inputs, `columns` is a table of their names and columns. Without an event
    time, the query is answered for each batch. With an event time, the query is answered at each punctuation, over the
    rows that the punctuation completes; rows that arrive after that are dropped.

    Args:
        query: One statement or several, of which the last one returns the results.
        columns: The columns of the input or inputs: `"time bigint, speed double"`.
        out_columns: The columns of the output.
        event_time: The column with the time of a row and its unit, `"time s"`; gives the query the timestamp `event`.
        tables: `CREATE TABLE` statements for the state of the query.
        dialect: The SQL dialect of the query, such as `spark`; see sqlglot.
        memory: The memory limit of the database.
        threads: The number of threads of the database.
    """

    columns: str | dict[str, str]
    out_columns: str
    event_time: str | dict[str, str] = ""
    tables: str = ""
    dialect: str = "duckdb"
    memory: str = "1GB"
    threads: int = 1

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return an input for each table, with its columns, and the columns of the output."""
        # Imported lazily: duckdb and pyarrow are loaded with the first node that needs them.
        from .engine import schema_of

        tables = texts_by_input("columns", settings["columns"], _ROWS)
        _times(settings["event_time"], {port: schema_of(text, "columns").names for port, text in tables.items()})
        spec = spec_of(cls)
        given = {
            port: PortType(Any, "columns", schema_of(text, "columns"), True, True) for port, text in tables.items()
        }
        ports = tuple(PortSpec(name, "in", accepted(one, inputs.get(name)), name) for name, one in given.items())
        out = PortType(Any, "columns", schema_of(settings["out_columns"], "out_columns"), True)
        return replace(
            spec, inputs=ports, outputs=(PortSpec("out", "out", out),), results={port.name: "many" for port in ports}
        )

    @classmethod
    def differences(cls, before: Any, after: Any) -> Iterator[str]:
        """Describe what a query means in another way if it moves between DuckDB and Spark; for the plan of a change."""
        here, there = (before, after) if before.slet.factory is cls else (after, before)
        text = there.settings.get("query") if _is_on_spark(there.slet.factory) else None
        if not isinstance(text, str):
            return
        # Imported lazily: sqlglot is loaded with the first node that needs it.
        from .queries import differences

        for name, how in differences(text, here.settings["dialect"]).items():
            yield f"warning: {before.name}: {name} in the query differs between DuckDB and Spark: {how}"

    def __getattr__(self, name: str) -> Any:
        """Return the method of an input."""
        if name in self.__dict__.get("inputs", ()):
            return partial(self.take, name)
        raise AttributeError(name=name, obj=self)

    @input_port
    def rows(self, rows: Any | Punctuation | EndOfStream) -> Iterator[Any | Punctuation]:
        """Take a batch or a control item."""
        return self.take(_ROWS, rows)

    def make_engine(self) -> Engine:
        """Return a new database with the tables of this query."""
        from .engine import DuckDb, schema_of

        tables = texts_by_input("columns", self.columns, _ROWS)
        times = _times(self.event_time, {port: schema_of(text, "columns").names for port, text in tables.items()})
        out = schema_of(self.out_columns, "out_columns")
        return DuckDb(tables, out, times, self.tables, self.dialect, self.memory, self.threads)


def _is_on_spark(factory: Any) -> bool:
    kinds = getattr(factory, "__mro__", (factory,))
    return any(str(kind.__module__).startswith("exop_spark.") for kind in kinds)


def _times(text: str | dict[str, str], columns: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the event time of each input; that of all of them is one text."""
    from .engine import UNITS

    found = {port: time for port, time in texts_by_input("event_time", text, "").items() if time.strip()}
    if "" in found:
        found = dict.fromkeys(columns, found[""])
    for port, time in found.items():
        column, _, unit = time.partition(" ")
        if port not in columns or column not in columns[port] or unit not in UNITS:
            known = "; ".join(f"{port} has {', '.join(names)}" for port, names in columns.items())
            problem = f"{time!r} of {port!r} is no `column unit`, with one of the units {', '.join(UNITS)}; {known}"
            raise SettingError(place="", setting="event_time", problem=problem)
    if found and len(found) < len(columns):
        missing = next(port for port in columns if port not in found)
        raise SettingError(place="", setting="event_time", problem=f"give one for {missing!r}, too")
    return found

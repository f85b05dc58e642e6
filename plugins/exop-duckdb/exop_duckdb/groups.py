"""`DuckDbGroups`: computes keyed aggregates by SQL; the partial results of each batch are rows of a table."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from exop.engine import Engine
from exop.engine.aggregation import FIRST, FORM, ROWS, VERSION, WINDOW, Accumulator, Aggregation

from .engine import connected, quoted, reported, transaction

#: The number of rows up to which partial results are only collected.
_FEW: Final = 100_000


class DuckDbGroups(Engine):
    """Groups each batch, and merges these partial results when they are needed, or have become many."""

    name = FORM
    version = VERSION

    def __init__(self, aggregation: Aggregation, memory: str, threads: int) -> None:
        self._of = aggregation
        self._base = connected(memory, threads)
        self._complete, self._late, self._most = FIRST, 0, _FEW
        #: No sum over all partial results is larger.
        self._bound = 0
        keys = [quoted(WINDOW), *map(quoted, aggregation.keys)]
        merged = [f"{one.merge}({quoted(one.name)})" for one in aggregation.accumulators]
        self._merge = f"SELECT {', '.join([*keys, *map(_typed, merged, aggregation.accumulators)])} FROM groups"
        values = [_typed(_accumulated(one), one) for one in aggregation.accumulators]
        number, source = self._number()
        chosen = ", ".join([f"{number} AS {keys[0]}", *keys[1:], *values])
        self._group = f"SELECT {chosen} FROM {source} WHERE {number} > %d GROUP BY ALL"
        self._same = " AND ".join(f"groups.{one} IS NOT DISTINCT FROM part.{one}" for one in keys)

    def compile(self, query: str) -> None:
        """Create the table of the state."""
        self._base.register("part", self._of.state.empty_table())
        self._base.execute("CREATE TABLE groups AS SELECT * FROM part")

    def push(self, port: str, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Group the rows that are not late; without windows, return the new values of their groups."""
        of = self._of
        if of.window:
            of.check_times(batch)
        self._base.register("arriving", pa.table(batch))
        with reported(), transaction(self._base):
            part = self._base.sql(self._group % self._complete).to_arrow_table()
            self._insert(part)
            if not of.window:
                held = f"{self._merge} WHERE EXISTS (SELECT 1 FROM part WHERE {self._same}) GROUP BY ALL"
                results = of.results(self._read(held))
            else:
                results = []
            bound = self._compact(self._bound + of.largest(part))
        self._bound = bound
        self._late += batch.num_rows * of.windows - sum(part.column(ROWS).to_pylist())
        return results

    def advance(self, time: float) -> list[pa.RecordBatch]:
        """Return the results of the windows that are complete, and drop them."""
        complete, results = self._of.complete(time), []
        if self._of.window and complete != self._complete:
            ended = f"WHERE {quoted(WINDOW)} <= {complete}"
            with reported(), transaction(self._base):
                results = self._of.results(self._read(f"{self._merge} {ended} GROUP BY ALL"))
                self._base.execute(f"DELETE FROM groups {ended}")
        self._complete = complete
        return results

    def snapshot(self) -> bytes:
        """Return the groups in the form of all aggregates."""
        return self._of.write(self._read(f"{self._merge} GROUP BY ALL"), self._complete, self._late)

    def restore(self, state: bytes, version: int) -> None:
        """Continue with the groups of another aggregate."""
        groups, complete, late = self._of.read(state)
        with transaction(self._base):
            self._base.execute("DELETE FROM groups")
            self._insert(groups)
        self._complete, self._late, self._bound = complete, late, self._of.largest(groups)

    def interrupt(self) -> None:
        """Interrupt the statement in progress."""
        self._base.interrupt()

    def close(self) -> None:
        """Close the database."""
        self._base.close()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of late rows, which were dropped."""
        return {"late_rows": self._late}

    def _number(self) -> tuple[str, str]:
        """Return the expression for the number of a row's window, and the rows, once for each of their windows."""
        of = self._of
        if not of.window:
            return "0", "arriving"
        time, slide = f"CAST({quoted(of.time)} AS {'BIGINT' if of.exact else 'DOUBLE'})", f"{of.slide!r}"
        if of.exact:  # of the two divisions of whole numbers, none rounds down
            before = f"({time} - mod(mod({time}, {slide}) + {slide}, {slide})) // {slide}"
        else:
            before = f"CAST(floor({time} / CAST({slide} AS DOUBLE)) AS BIGINT)"
        if of.windows == 1:
            return f"({before} + 1)", "arriving"
        # No column that arrives has a colon.
        return f'({before} + "step:")', f'arriving, range(1, {of.windows + 1}) AS steps("step:")'

    def _insert(self, part: pa.Table) -> None:
        self._base.register("part", part)
        self._base.execute("INSERT INTO groups SELECT * FROM part")

    def _compact(self, bound: int) -> int:
        """Merge the partial results if they are many, or a sum may exceed 64 bits; return the bound after it."""
        ((rows,),) = self._base.execute("SELECT count(*) FROM groups").fetchall()
        if rows > self._most or bound >> 63:
            merged = self._read(f"{self._merge} GROUP BY ALL")
            self._base.execute("DELETE FROM groups")
            self._insert(merged)
            self._most = max(_FEW, 2 * merged.num_rows)
            return self._of.largest(merged)
        return bound

    def _read(self, query: str) -> pa.Table:
        return self._base.sql(query).to_arrow_table().rename_columns(self._of.state.names).cast(self._of.state)


def _accumulated(one: Accumulator) -> str:
    """Return the expression for an accumulator over rows."""
    if one.name == ROWS:
        return "count(*)"
    column = quoted(one.column)
    if one.kind == "sum" and pa.types.is_floating(one.type):
        column = f"CAST({column} AS DOUBLE)"
    return f"{'count' if one.kind == 'n' else one.kind}({column})"


def _typed(expression: str, one: Accumulator) -> str:
    """Return an expression of the type of an accumulator; DuckDB adds whole numbers in 128 bits."""
    whole = one.kind in ("n", "sum") and pa.types.is_integer(one.type)
    return f"{f'CAST({expression} AS BIGINT)' if whole else expression} AS {quoted(one.name)}"

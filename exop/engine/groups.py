"""`Groups`: an `Engine` that computes keyed aggregates by the functions of Arrow, without any other library."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from exop.engine.aggregation import FIRST, FORM, ROWS, VERSION, WINDOW, Aggregation
from exop.engine.engine import Engine

#: The number of rows up to which partial results are only collected.
_FEW: Final = 100_000
_MERGE: Final = {"n": "sum", "sum": "sum", "min": "min", "max": "max"}
_ROW: Final = {"n": "count", "sum": "sum", "min": "min", "max": "max"}
_FRESH: Final = "fresh:"


class Groups(Engine):
    """Groups each batch, and merges these partial results when they are needed, or have become many."""

    name = FORM
    version = VERSION

    def __init__(self, aggregation: Aggregation) -> None:
        self._of = aggregation
        self._groups = aggregation.state.empty_table()
        self._parts: list[pa.Table] = []
        self._waiting = 0
        self._complete, self._late = FIRST, 0

    def compile(self, query: str) -> None:
        """The settings declare everything."""

    def push(self, port: str, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Group the rows that are not late; without windows, return the new values of their groups."""
        part, late = self._grouped(batch)
        self._late += late
        if not self._of.window:
            found = self._merged([self._groups, part], fresh=True)
            self._groups = found.select(self._of.state.names)
            return self._of.results(found.filter(found.column(_FRESH)))
        self._parts.append(part)
        self._waiting += part.num_rows
        if self._waiting > max(_FEW, self._groups.num_rows):
            self._collect()
        return []

    def advance(self, time: float) -> list[pa.RecordBatch]:
        """Return the results of the windows that are complete, and drop them."""
        self._complete = self._of.complete(time)
        if not self._of.window:
            return []
        self._collect()
        ended = np.asarray(self._groups.column(WINDOW)) <= self._complete
        done, self._groups = self._groups.filter(pa.array(ended)), self._groups.filter(pa.array(~ended))
        return self._of.results(done)

    def snapshot(self) -> bytes:
        """Return the groups in the form of all aggregates."""
        self._collect()
        return self._of.write(self._groups, self._complete, self._late)

    def restore(self, state: bytes, version: int) -> None:
        """Continue with the groups of another aggregate."""
        self._groups, self._complete, self._late = self._of.read(state)
        self._parts, self._waiting = [], 0

    def interrupt(self) -> None:
        """A call takes milliseconds, and cannot be interrupted."""

    def close(self) -> None:
        """There is nothing to release."""

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of groups (a group counts once for each batch that is not merged yet) and of late rows."""
        return {"groups": self._groups.num_rows + self._waiting, "late_rows": self._late}

    def _grouped(self, batch: pa.RecordBatch) -> tuple[pa.Table, int]:
        """Return the partial results of a batch, and the number of late rows."""
        of, table, late = self._of, pa.table(batch), 0
        numbers = np.zeros(batch.num_rows, np.int64)
        if of.window:
            of.check_times(batch)
            ends = np.asarray(batch.column(of.time))
            ends = ends.astype(np.int64) // of.slide if of.exact else np.floor(ends.astype(np.float64) / of.slide)
            rows, steps = np.arange(batch.num_rows), np.arange(1, of.windows + 1)
            numbers = np.add.outer(ends.astype(np.int64), steps).ravel()
            timely = numbers > self._complete
            late = int(len(numbers) - timely.sum())
            if late or of.windows > 1:
                table, numbers = table.take(pa.array(rows.repeat(of.windows)[timely])), numbers[timely]
        table = table.append_column(WINDOW, pa.array(numbers))
        wanted = [([], "count_all") if one.name == ROWS else (one.column, _ROW[one.kind]) for one in of.accumulators]
        found = table.group_by([WINDOW, *of.keys], use_threads=False).aggregate(wanted)
        names = ["count_all" if one.name == ROWS else f"{one.column}_{_ROW[one.kind]}" for one in of.accumulators]
        return found.select([WINDOW, *of.keys, *names]).rename_columns(of.state.names).cast(of.state), late

    def _collect(self) -> None:
        if self._parts:
            self._groups = self._merged([self._groups, *self._parts])
            self._parts, self._waiting = [], 0

    def _merged(self, parts: list[pa.Table], *, fresh: bool = False) -> pa.Table:
        """Merge partial results; *fresh* adds a column that tells the groups that are in the last part."""
        of, wanted = self._of, [(one.name, _MERGE[one.kind]) for one in self._of.accumulators]
        names = of.state.names
        if fresh:
            marks = [pa.array(np.full(one.num_rows, one is parts[-1])) for one in parts]
            parts = [one.append_column(_FRESH, mark) for one, mark in zip(parts, marks, strict=True)]
            wanted, names = [*wanted, (_FRESH, "any")], [*names, _FRESH]
        found = pa.concat_tables(parts).group_by([WINDOW, *of.keys], use_threads=False).aggregate(wanted)
        chosen: Any = found.select([WINDOW, *of.keys, *(f"{name}_{how}" for name, how in wanted)])
        return chosen.rename_columns(names)

"""`Groups`: an `Engine` that computes keyed aggregates by the functions of Arrow, without any other library."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exop.engine.aggregation import FIRST, FORM, LAST, ROWS, VERSION, WINDOW, Aggregation
from exop.engine.engine import Engine

#: The number of rows up to which partial results are only collected.
_FEW: Final = 100_000
_ROW: Final = {"n": "count", "sum": "sum", "min": "min", "max": "max"}
_FRESH: Final = "fresh:"
#: All bits of a 64-bit integer but its sign.
_POSITIVE: Final = (1 << 63) - 1


class Groups(Engine):
    """Groups each batch, and merges these partial results when they are needed, or have become many.

    A row is grouped once for all windows that it belongs to: by the first of them, which is the number of its *pane*.
    The panes of a window are merged when it is complete (Li et al., "No pane, no gain", 2005).
    """

    name = FORM
    version = VERSION

    def __init__(self, aggregation: Aggregation) -> None:
        self._of = aggregation
        self._groups = aggregation.state.empty_table()
        #: The groups of whole windows, from another engine.
        self._given = aggregation.state.empty_table()
        self._parts: list[pa.Table] = []
        self._waiting = 0
        #: No sum over all groups and partial results is larger.
        self._bound = 0
        self._complete, self._late = FIRST, 0

    def compile(self, query: str) -> None:
        """The settings declare everything."""

    def push(self, port: str, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Group the rows that are not late; without windows, return the new values of their groups."""
        part, late = self._grouped(batch)
        if not self._of.window:
            found = self._merged([self._groups, part], fresh=True)
            self._groups = found.select(self._of.state.names)
            return self._of.results(found.filter(found.column(_FRESH)))
        bound = self._bound + self._of.largest(part)
        if self._waiting + part.num_rows > max(_FEW, self._groups.num_rows) or bound * self._of.windows >> 63:
            self._collect(part)
        else:
            self._parts.append(part)
            self._waiting += part.num_rows
            self._bound = bound
        self._late += late
        return []

    def advance(self, time: float) -> list[pa.RecordBatch]:
        """Return the results of the windows that are complete, and drop them."""
        if not self._of.window or self._complete == (complete := self._of.complete(time)):
            return []
        self._collect()
        done = self._of.results(self._windows(self._groups, complete))
        last = complete - self._of.windows + 1
        self._groups, self._given = _after(self._groups, last), _after(self._given, complete)
        self._complete = complete
        return done

    def snapshot(self) -> bytes:
        """Return the groups in the form of all aggregates."""
        self._collect()
        return self._of.write(self._windows(self._groups, LAST), self._complete, self._late)

    def restore(self, state: bytes, version: int) -> None:
        """Continue with the groups of another aggregate."""
        groups, self._complete, self._late = self._of.read(state)
        empty = self._of.state.empty_table()
        self._groups, self._given = (groups, empty) if self._of.windows == 1 else (empty, groups)
        self._parts, self._waiting, self._bound = [], 0, self._of.largest(groups)

    def interrupt(self) -> None:
        """A call takes milliseconds, and cannot be interrupted."""

    def close(self) -> None:
        """There is nothing to release."""

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of groups and of late rows.

        A group counts once for each pane, and for each batch that is not merged yet.
        """
        groups = self._groups.num_rows + self._given.num_rows + self._waiting
        return {"groups": groups, "late_rows": self._late}

    def _grouped(self, batch: pa.RecordBatch) -> tuple[pa.Table, int]:
        """Return the partial results of a batch, and the number of late rows."""
        of, table, late = self._of, pa.table(batch), 0
        numbers = np.zeros(batch.num_rows, np.int64)
        if of.window:
            of.check_times(batch)
            numbers = first_windows(of, batch)
            missed = np.clip(self._complete - numbers + 1, 0, of.windows)
            if late := int(missed.sum()):
                timely = missed < of.windows
                table, numbers = table.filter(pa.array(timely)), numbers[timely]
        table = table.append_column(WINDOW, pa.array(numbers))
        wanted = [([], "count_all") if one.name == ROWS else (one.column, _ROW[one.kind]) for one in of.accumulators]
        return _aggregated(table, [WINDOW, *of.keys], wanted).rename_columns(of.state.names).cast(of.state), late

    def _collect(self, *more: pa.Table) -> None:
        if self._parts or more:
            groups = self._merged([self._groups, *self._parts, *more])
            bound = self._of.largest(groups) + self._of.largest(self._given)
            if bound * self._of.windows >> 63:
                self._windows(groups, LAST)  # which fails if a sum is too large
            self._groups, self._parts, self._waiting, self._bound = groups, [], 0, bound

    def _windows(self, panes: pa.Table, most: int) -> pa.Table:
        """Return the groups of the open windows up to the number *most*."""
        count, firsts = self._of.windows, np.asarray(panes.column(WINDOW))
        if count == 1:
            return panes.filter(pa.array(firsts <= most))
        low, high = np.maximum(firsts, self._complete + 1), np.minimum(firsts + count - 1, most)
        each = np.clip(high - low + 1, 0, count)
        if each.sum() > 2 * count.bit_length() * len(firsts) and not self._of.largest(panes) * count >> 63:
            found = self._by_doubling(panes, most)
        else:
            rows = np.arange(len(firsts)).repeat(each)
            numbers = np.arange(len(rows)) - (np.cumsum(each) - each)[rows] + low[rows]
            found = panes.take(pa.array(rows)).set_column(0, WINDOW, pa.array(numbers))
        given = self._given.filter(pa.array(np.asarray(self._given.column(WINDOW)) <= most))
        return self._merged([given, found])

    def _by_doubling(self, panes: pa.Table, most: int) -> pa.Table:
        """Return the groups of the open windows up to *most*, several times, to merge them.

        Merged two by two, and these again, the panes take memory for each window once, not for each of its panes.
        """
        parts, length, offset, count = list[pa.Table](), 1, 0, self._of.windows
        while True:
            if count & length:
                parts.append(_after(_later(panes, offset, most), self._complete))
                offset += length
            if (length := 2 * length) > count:
                return pa.concat_tables(parts)
            panes = self._merged([panes, _later(panes, length // 2, most)])

    def _merged(self, parts: list[pa.Table], *, fresh: bool = False) -> pa.Table:
        """Merge partial results; *fresh* adds a column that tells the groups that are in the last part."""
        of, wanted = self._of, [(one.name, one.merge) for one in self._of.accumulators]
        names = of.state.names
        if fresh:
            parts = [one.append_column(_FRESH, pa.array(np.full(one.num_rows, one is parts[-1]))) for one in parts]
            wanted, names = [*wanted, (_FRESH, "any")], [*names, _FRESH]
        return _aggregated(pa.concat_tables(parts), [WINDOW, *of.keys], wanted).rename_columns(names)


def _later(panes: pa.Table, distance: int, most: int) -> pa.Table:
    """Return panes with numbers that are higher by a distance, up to the number *most*."""
    numbers = np.asarray(panes.column(WINDOW)) + distance
    return panes.set_column(0, WINDOW, pa.array(numbers)).filter(pa.array(numbers <= most))


def _after(groups: pa.Table, number: int) -> pa.Table:
    return groups.filter(pa.array(np.asarray(groups.column(WINDOW)) > number))


def first_windows(of: Aggregation, batch: pa.RecordBatch) -> Any:
    """Return the numbers of the first windows of the rows, as an array of NumPy."""
    times = np.asarray(batch.column(of.time))
    if of.exact:
        return (times.astype(np.int64) - of.offset) // of.slide + 1
    return np.floor((times.astype(np.float64) - of.offset) / of.slide).astype(np.int64) + 1


def late_rows(of: Aggregation, batch: pa.RecordBatch, time: float) -> pa.RecordBatch:
    """Return the rows all of whose windows are complete if the stream is complete up to *time*."""
    return batch.filter(pa.array(first_windows(of, batch) + (of.windows - 1) <= of.complete(time)))


def _aggregated(table: pa.Table, keys: list[str], wanted: list[tuple[Any, str]]) -> pa.Table:
    """Group *table*; as in SQL, and unlike in Arrow, NaN is greater than all numbers, and sums do not overflow.

    Args:
        table: The rows.
        keys: The columns by which they are grouped; the first columns of the result.
        wanted: The column and the function for each further column of the result.

    Raises:
        OverflowError: a sum of integers is beyond 64 bits.
    """
    chosen, ordered, summed = list(wanted), list[int](), list[int]()
    for number, (name, how) in enumerate(wanted):
        kind = table.schema.field(name).type if name else pa.null()
        if how in ("min", "max") and pa.types.is_floating(kind) and pc.any(pc.is_nan(table.column(name))).as_py():
            ordered.append(number)
            chosen[number] = (f"{number}:", how)
            table = table.append_column(f"{number}:", _ordered(table.column(name)))
        elif how == "sum" and pa.types.is_integer(kind) and _may_overflow(table.column(name)):
            summed.append(number)
            chosen.append((f"{number}:", how))
            table = table.append_column(f"{number}:", table.column(name).cast(pa.float64(), safe=False))
    columns, first = table.group_by(keys, use_threads=False).aggregate(chosen).columns, len(keys)
    for place, number in enumerate(summed, first + len(wanted)):
        exact, near = (np.asarray(column.fill_null(0)) for column in (columns[first + number], columns[place]))
        if (np.abs(exact.astype(np.float64) - near) > 2.0**62).any():
            raise OverflowError(f"the sum of {wanted[number][0].removeprefix('sum:')!r} is beyond 64 bits")
    for number in ordered:
        columns[first + number] = _floats(columns[first + number], table.schema.field(wanted[number][0]).type)
    return pa.table(columns[: first + len(wanted)], names=[str(place) for place in range(first + len(wanted))])


def _may_overflow(column: pa.ChunkedArray) -> bool:
    low, high = pc.min_max(column).as_py().values()
    return low is not None and max(-low, high) * len(column) >= 1 << 63


def _ordered(column: pa.ChunkedArray) -> pa.Array:
    """Return integers in the order of floating-point numbers, with NaN as the last."""
    values = np.asarray(column.fill_null(0)).astype(np.float64)
    values[np.isnan(values)] = np.nan  # there are many, also negative ones
    bits = values.view(np.int64)
    return pa.array(bits ^ ((bits >> 63) & _POSITIVE), mask=np.asarray(column.is_null()))


def _floats(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return the floating-point numbers of which `_ordered` has made integers."""
    bits = np.asarray(column.fill_null(0))
    return pa.array((bits ^ ((bits >> 63) & _POSITIVE)).view(np.float64), mask=np.asarray(column.is_null())).cast(kind)

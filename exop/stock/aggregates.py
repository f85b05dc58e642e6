"""`stock:aggregate`: keyed aggregates over windows, by items or by columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Final, Literal, Self

from exop.engine.engine import Engine
from exop.engine.slet import AggregateSlet, aggregation_of
from exop.errors import SettingError
from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.ports import OUT, OutputPort, PortType
from exop.model.slets.slet import input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.model.values.columns import batch_type
from exop.stock.rows import result_type

#: The port of the rows.
_ROWS: Final = "rows"


class Aggregate(AggregateSlet, name="aggregate"):
    """Group rows by keys and windows, and emit counts, sums, means, minima and maxima.

    The results of a window are emitted when a punctuation passes its end, in the order of the keys; rows that arrive
    after that are late. Without windows, the new values of the groups are emitted after each item, or after each batch.
    As in SQL, missing values are skipped, and NaN is greater than all numbers. An item or a batch is refused if one of
    its rows has no finite time, or if a sum of integers exceeds 64 bits. The aggregates of all engines have the same
    settings, output and state: one replaces another while the stream runs.

    The slet processes items one by one if it receives items, and record batches as columns. `form` forces either; it
    can be changed while the stream runs.

    Args:
        columns: The columns of the input: `"time bigint, road int, spd double"`.
        values: The columns of the output: `{"cars": "count(*)", "speed": "avg(spd)"}`. There are `count`, `sum`, `avg`,
            `min` and `max`; for items also `first` and `last` in the order of the times, `stddev`, `distinct` (the
            number of different values), `collect` (a list of all), and `percentile(spd, 90)`.
        keys: The columns by which rows are grouped.
        time: The column with the time of a row. In the output, it has the end of the window.
        window: The length of a window in the unit of the time; 0: no windows.
        slide: The distance between two windows; by default the length of a window.
        offset: The end of a window, in the unit of the time; the ends of all others follow at distances of `slide`.
        gap: Instead of `window`, windows by inactivity, for items: rows of a group belong together if their times are
            nearer than this. The window ends at the last row plus the gap.
        form: Whether the rows are processed as `items` or as `columns`; by default as they arrive. Where unlike streams
            meet, that is not known; then, as columns unless `gap` or a function needs items.
        max_wait: With columns, the maximum number of seconds for which rows in a queue wait for a larger batch.
        time_limit: The maximum number of seconds for one call of the engine; 0: no limit.
        isolation: `process` runs the engine of columns in a worker process.
        memory_limit: The maximum number of bytes of the worker process; 0: no limit.
    """

    offset: float = 0.0
    gap: float = 0.0
    form: Literal["", "items", "columns"] = ""
    late: OutputPort[Any] = field(default=None)  # type: ignore[arg-type]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return the ports with the types of their rows, as items or as columns."""
        taken = inputs.get(_ROWS)
        if _form(settings, taken) == "columns":
            spec = super().specialised(settings, inputs)
            return spec.with_outputs({"late": replace(spec.ports[_ROWS].type, punctuation=False, end=False)})
        spec, of = spec_of(cls), aggregation_of(settings, items=True)
        if settings["isolation"] == "process":
            problem = "items are grouped in the process of the platform; set form='columns'"
            raise SettingError(place="", setting="isolation", problem=problem)
        if taken is None or taken.form == "columns":
            taken = PortType(dict)
        for name in of.used:
            taken.check_field("", "time" if name == of.time else "columns", name)
        rows = replace(spec.ports[_ROWS], type=PortType(taken.item, punctuation=True, end=True))
        kinds = {one.name: one.type.cls for one in PortType(batch_type(), "columns", of.out).items.fields.values()}
        sure = {name for name, (_, column) in of.values.items() if not column or not of.columns.field(column).nullable}
        sure |= {of.time, *(name for name, (call, _) in of.values.items() if call in ("count", "distinct", "collect"))}
        result = result_type("Aggregated", {n: kind if n in sure else kind | None for n, kind in kinds.items()})
        types = {OUT: PortType(result, "batch", punctuation=True), "late": PortType(taken.item)}
        return replace(spec, inputs=(rows,)).with_outputs(types)

    def __enter__(self) -> Self:
        port = getattr(self, "inputs", {}).get(_ROWS)
        self._by_items = _form(vars(self), port) == "items"
        self._of = aggregation_of(vars(self), items=self._by_items)
        return super().__enter__()

    @input_port
    def rows(self, rows: Any | Punctuation | EndOfStream) -> Iterable[Any | Punctuation]:
        """Take an item, a batch or a control item."""
        if isinstance(rows, CONTROL):
            return self.take(_ROWS, rows)
        if self._by_items:
            return self.engine.add(rows)  # type: ignore[attr-defined, no-any-return]
        found = self.take(_ROWS, rows)  # which refuses rows without a time
        if self._of.window and _ROWS in self.state.times:
            # Imported lazily: pyarrow is loaded with the first node that needs it.
            from exop.engine.groups import late_rows

            if (late := late_rows(self._of, rows, self.state.times[_ROWS])).num_rows:
                self.late.push_batch(late)
        return found

    def flush(self) -> None:
        """Take a snapshot into the memento."""
        self._changed = self._changed or self._by_items
        super().flush()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of groups and of late rows; for columns, also the calls of the engine."""
        return self.engine.metrics() if self._by_items else super().metrics()

    def make_engine(self) -> Engine:
        """Return an engine that groups items by a function of Python, or record batches by Arrow."""
        # Imported lazily: pyarrow is loaded with the first node that needs it.
        if getattr(self, "_by_items", False):
            from exop.stock.groups import RowGroups
            from exop.stock.sessions import SessionGroups

            return (SessionGroups if self._of.gap else RowGroups)(self._of, self.late.push)
        from exop.engine.groups import Groups

        return Groups(aggregation_of(vars(self)))


def _form(settings: Mapping[str, Any], taken: PortType | None) -> str:
    """Return the form in which rows are processed, given what arrives."""
    if settings["form"]:
        return str(settings["form"])
    if taken is not None:
        return "columns" if taken.form == "columns" else "items"
    # Where unlike streams meet, the type is not known; both forms take either.
    return "items" if aggregation_of(settings, items=True).needs_items else "columns"

"""`stock:aggregate`: a keyed aggregate over windows, in this process."""

from __future__ import annotations

from exop.engine.aggregate import AggregateSlet, aggregation_of
from exop.engine.engine import Engine


class Aggregate(AggregateSlet, name="aggregate"):
    """Group rows by keys and windows, and emit counts, sums, means, minima and maxima.

    The results of a window are emitted when a punctuation passes its end, in the order of the keys; rows that arrive
    after that are late, and are dropped. Without windows, the new values of the groups in a batch are emitted after
    each batch. As in SQL, NaN is greater than all numbers. A batch is refused if one of its rows has no finite time, or
    if a sum of integers exceeds 64 bits. The aggregates of all engines have the same settings, output and state: one
    replaces another while the stream runs.

    Args:
        columns: The columns of the input: `"time bigint, road int, spd double"`.
        values: The columns of the output: `{"cars": "count(*)", "speed": "avg(spd)"}`. There are `count`, `sum`, `avg`,
            `min` and `max`; as in SQL, they skip missing values.
        keys: The columns by which rows are grouped.
        time: The column with the time of a row. In the output, it has the end of the window.
        window: The length of a window in the unit of the time; 0: no windows.
        slide: The distance between two windows; by default the length of a window.
        max_wait: The maximum number of seconds for which rows in a queue wait for a larger batch.
        time_limit: The maximum number of seconds for one call of the engine; 0: no limit.
        isolation: `process` runs the engine in a worker process.
        memory_limit: The maximum number of bytes of the worker process; 0: no limit.
    """

    def make_engine(self) -> Engine:
        """Return an engine that groups record batches by Arrow."""
        # Imported lazily: pyarrow is loaded with the first node that needs it.
        from exop.engine.groups import Groups

        return Groups(aggregation_of(vars(self)))

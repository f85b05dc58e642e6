"""Made-up rows for a warm-up, so that every operator of a query runs once."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

ROWS: Final = 64


def made_up(columns: pa.Schema, time: str | None, moment: float) -> pa.RecordBatch:
    """Return rows with small numbers and short texts; the column *time* has the value *moment* in all rows."""
    arrays = [_values(field, moment if field.name == time else None) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _values(field: pa.Field, moment: float | None) -> pa.Array:
    kind = field.type
    if moment is not None:
        return pa.array([moment] * ROWS, pa.float64()).cast(kind, safe=False)
    if pa.types.is_boolean(kind):
        return pa.array([row % 2 == 0 for row in range(ROWS)], kind)
    step = 1_000 if getattr(kind, "unit", "") == "ns" else 1  # Spark's times are in microseconds
    numbers = pa.array([(1 + row % 8) * step for row in range(ROWS)], pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        narrow = numbers.cast(pa.int32()) if kind.bit_width == 32 else numbers
        return narrow.cast(kind) if not pa.types.is_floating(kind) else numbers.cast(kind)
    if pa.types.is_decimal(kind):
        return numbers.cast(pa.float64()).cast(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return numbers.cast(kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return numbers.cast(pa.string()).cast(kind)
    return pa.nulls(ROWS, kind)

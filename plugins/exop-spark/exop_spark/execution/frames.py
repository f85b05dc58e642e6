"""The streaming DataFrame of an input, and the comparison of a query's columns with the declared ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from exop.engine.feed import ROW, Feed
from exop.engine.pull import MICROSECONDS, EventTime

from ..feed.native import NativeFeed, register
from .types import NoSuchType, spark_type
from .window_time import WindowTime, moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..session.engine import Spark

#: The smallest timestamp, in microseconds.
_LEAST: Final = -(1 << 63)


def input_frame(session: SparkSession, engine: Spark, feed: Feed, key: str, *, delay: str, numbered: bool) -> DataFrame:
    """Return *feed* as a streaming DataFrame, with its timestamp column and watermark if it has an event time."""
    from pyspark.sql.functions import expr
    from pyspark.sql.pandas.types import from_arrow_schema

    options = engine.server.options(key) | {"max_rows": str(feed.max_rows)}
    kind = "exop"
    if isinstance(feed, NativeFeed):
        kind = register(session)
        options["time"] = feed.event_time.column if feed.event_time is not None else ""
    frame = session.readStream.format(kind).schema(from_arrow_schema(feed.schema)).options(**options).load()
    time = feed.event_time
    if time is not None:
        frame = frame.withColumn(time.alias, expr(timestamp(time))).withWatermark(time.alias, delay)
        # Markers move the watermark, and are dropped after it. The condition contains the event time (times zero):
        # otherwise the optimizer would push it below the watermark, so that markers would have no effect.
        frame = frame.where(expr(f"{ROW} >= unix_micros({time.alias}) * 0"))
        # For the same reason each column contains the event time: conditions of the query are pushed no further.
        there = f"unix_micros({time.alias}) >= {_LEAST}L"
        columns = [expr(f"if({there}, {quoted(name)}, NULL)").alias(name) for name in feed.schema.names]
        frame = frame.select(*columns, time.alias)
    return frame if numbered else frame.drop(ROW)


def timestamp(time: EventTime) -> str:
    """Return the SQL expression that makes a timestamp of the column of an event time.

    Joins and `dropDuplicates` on Spark drop rows at the watermark, too, although only earlier ones are late. The
    watermark is in whole milliseconds, therefore a row at a whole millisecond is given a timestamp behind it.
    """
    name = quoted(time.column)
    if isinstance(time, WindowTime):
        return f"CASE WHEN {ROW} < 0 THEN {moment(time.number(name))} ELSE timestamp_millis(0) END"
    exact = f"CAST({name} * {MICROSECONDS[time.unit]}L AS BIGINT)"
    return f"timestamp_micros({exact} + CAST({exact} % 1000 = 0 AS BIGINT))"


def watermark_of(time: EventTime, watermark: int) -> float:
    """Return a watermark, in milliseconds, in the unit of an event time."""
    if isinstance(time, WindowTime):
        return time.of_watermark(watermark)
    return watermark * 1_000 / MICROSECONDS[time.unit]


def differences(found: pa.Schema, declared: pa.Schema) -> list[str]:
    """Return the reasons for which rows with the columns *found* cannot be cast to those of *declared*."""
    reasons = [f"it has no column {name!r}" for name in declared.names if name not in found.names]
    reasons += [f"it has a column {name!r} that is not declared" for name in found.names if name not in declared.names]
    reasons += [f"it has {n} columns {name!r}" for name, n in Counter(found.names).items() if n > 1]
    for field in declared:
        if found.names.count(field.name) == 1 and not _fits(found.field(field.name).type, field.type):
            reasons.append(f"its column {field.name!r} is {found.field(field.name).type}, declared is {field.type}")
    return reasons


def _fits(found: pa.DataType, declared: pa.DataType) -> bool:
    """Numbers fit numbers (their values are checked later), times fit times; others must be the same on Spark."""
    try:
        same = found == spark_type(declared)
    except NoSuchType:
        same = False
    return bool(same or any(kind(found) and kind(declared) for kind in (_is_number, pa.types.is_timestamp)))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def quoted(name: str) -> str:
    """Return a name as SQL text."""
    return "`" + name.replace("`", "``") + "`"

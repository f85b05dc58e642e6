"""The queries on Spark, one without and one with state; an aggregate that changes its engine; slets around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Any, Final

import pyarrow as pa
from exop_spark import EventTime, Input, query

from exop import Application, EndOfStream, Memento, Punctuation, slet

#: Columns arrive in batches of so many rows, and what waits leaves before every punctuation.
ROWS: Final = 100
NUMBERS: Final = pa.schema([pa.field("number", pa.int64(), nullable=False)])
SUMS: Final = pa.schema([pa.field("time", pa.int64()), pa.field("key", pa.int64()), pa.field("total", pa.int64())])


class Held(Memento):
    """Numbers that have not left."""

    numbers: list[int] = field(default_factory=list)


@slet
def gathered(
    number: int | Punctuation | EndOfStream, held: Held
) -> Iterator[Annotated[pa.RecordBatch, NUMBERS] | Punctuation]:
    """Put numbers into columns."""
    if isinstance(number, int):
        held.numbers.append(number)
    if held.numbers and (len(held.numbers) == ROWS or not isinstance(number, int)):
        leaving, held.numbers = held.numbers, []
        yield pa.RecordBatch.from_arrays([pa.array(leaving, pa.int64())], schema=NUMBERS)
    if isinstance(number, Punctuation):
        yield number


spark_doubled = query(
    "spark_doubled",
    "SELECT 2 * number AS number FROM numbers WHERE number % 3 > 0",
    inputs={"numbers": NUMBERS},
    out=NUMBERS,
    warm_up=0,
)


@slet
def native_doubled(numbers: Annotated[pa.RecordBatch, NUMBERS]) -> Annotated[pa.RecordBatch, NUMBERS]:
    """The same without Spark: what it is replaced by, and back."""
    found = [2 * number for number in numbers.column("number").to_pylist() if number % 3]
    return pa.RecordBatch.from_arrays([pa.array(found, pa.int64())], schema=NUMBERS)


spark_sums = query(
    "spark_sums",
    """
    SELECT unix_seconds(window.end) AS time, number % 5 AS key, sum(number) AS total
    FROM numbers GROUP BY window(event, '300 seconds'), number % 5
    """,
    inputs={"numbers": Input(NUMBERS, EventTime("number"))},
    out=SUMS,
    warm_up=0,
)


KEYED: Final = pa.schema([("time", pa.int64()), ("key", pa.int64())])
#: The same groups as those of `spark_sums`; the engines take turns at them.
GROUPS: Final[dict[str, Any]] = {
    "columns": "time bigint, key bigint",
    "keys": ["key"],
    "values": {"total": "sum(time)"},
    "time": "time",
    "window": 300,
}


@slet
def with_keys(numbers: Annotated[pa.RecordBatch, NUMBERS]) -> Annotated[pa.RecordBatch, KEYED]:
    """Put the key of each number beside it."""
    times = numbers.column("number")
    return pa.RecordBatch.from_arrays(
        [times, pa.array([one % 5 for one in times.to_pylist()], pa.int64())], schema=KEYED
    )


class Parts(Memento):
    """What has come, by the thousand that it belongs to."""

    sums: dict[int, list[int]] = field(default_factory=dict)


@slet
def complete(row: dict[str, int] | Punctuation | EndOfStream, parts: Parts) -> Iterator[str]:
    """Emit for each thousand how many rows have come, and their sum, as soon as it is complete."""
    if isinstance(row, dict):
        moment, value = (row["time"], row["total"]) if "time" in row else (row["number"] // 2, row["number"])
        sums = parts.sums.setdefault(moment // 1000, [0, 0])
        sums[0] += 1
        sums[1] += value
        return
    through = row.time if isinstance(row, Punctuation) else float("inf")
    for part in [part for part in sorted(parts.sums) if part * 1000 + 999 <= through]:
        count, total = parts.sums.pop(part)
        yield f"{part} {count} {total}"


QUERIES: Final[list[Any]] = [gathered, spark_doubled, native_doubled, spark_sums, with_keys, complete]


def add_queries(app: Application, stream: Any) -> dict[str, Any]:
    """Add the queries behind *stream*; returns what is written of them, by the name of the file."""
    columns = app.add("gathered", gathered, number=stream)
    doubled = app.add("spark-doubled", spark_doubled, numbers=columns)
    sums = app.add("spark-sums", spark_sums, numbers=columns)
    groups = app.add("aggregate", "stock:aggregate", rows=app.add("keys", with_keys, numbers=columns), **GROUPS)
    return {
        "aggregate": app.add("complete-aggregate", complete, row=groups),
        "spark-doubled": app.add("complete-doubled", complete, row=doubled),
        "spark-sums": app.add("complete-sums", complete, row=sums),
    }

"""Columns and event times written as text, as a topology file has them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from exop.errors import QueryError, SettingError

_KINDS: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def schema_of(text: str, setting: str = "columns") -> pa.Schema:
    """Read `"time int, speed double not null"`, Spark's way to write columns.

    Raises:
        SettingError: a part is no column, or two have one name; the case of letters does not count, as in SQL.
    """
    fields = list[pa.Field]()
    for part in text.split(","):
        match part.split():
            case [name, kind, *rest] if kind.lower() in _KINDS and " ".join(rest).lower() in ("", "not null"):
                fields.append(pa.field(name, _KINDS[kind.lower()], nullable=not rest))
            case _:
                problem = f"{part.strip()!r} is no column; write `name type`, with one of the types {', '.join(_KINDS)}"
                raise SettingError(place="", setting=setting, problem=problem)
    folded = [field.name.lower() for field in fields]
    if twice := [field.name for field in fields if folded.count(field.name.lower()) > 1]:
        problem = f"{twice[0]!r} is there twice, or differs from another name by its case only"
        raise SettingError(place="", setting=setting, problem=problem)
    return pa.schema(fields)


def check_times(batch: pa.RecordBatch, column: str, most: float, unit: str, port: str = "") -> None:
    """Refuse a batch with a time that no calendar has: an engine would fail at it, and at it again after a restart.

    Raises:
        QueryError: a time is NaN, or further than *most* from 0.
    """
    times = pc.abs(batch.column(column).cast(pa.float64(), safe=False))
    if pc.all(pc.less_equal(times, float(most))).as_py() is False:
        problem = f"the column {column!r} has a time that is no number, or too far away; is its unit {unit!r}?"
        raise QueryError(port=port, problem=problem)

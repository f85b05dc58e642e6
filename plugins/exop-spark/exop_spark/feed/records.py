"""Records of a topic as rows. Each record is decoded alone, so that no other record decides whether it is a row.

Pickled by value together with `native_source`: it runs in Spark's worker processes, which need msgspec for it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

#: How a query continues that ends at a record that is not a row.
CURE = (
    "correct what writes the topic, and leave out the records that are not rows by `exop configure APP.NODE "
    "on_error=skip` (or on_error=dead-letter); or read the topic by `kafka:read` and a slet that decodes the values"
)
#: The maximum length of a reason: an error of Spark is cut, and its end is the cure.
_MOST = 160
#: The offset of a record, and its value.
Record = tuple[int, bytes]
#: The offset of a record that is not a row, the reason, and its value.
Refused = tuple[int, str, bytes]
#: The exceptions of msgspec and pyarrow for a value that is not a row.
_PROBLEMS = (msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError, ArithmeticError, RecursionError)
_PLAIN: dict[str, Any] = {
    "boolean": bool,
    "floating": int | float | bool,
    "string": str,
    "large_string": str,
    "binary": bytes,
    "large_binary": bytes,
    "timestamp": datetime,
    "date": date,
    "time": time,
    "decimal": Decimal,
}


def problem_with(topic: str, partition: str, refused: Refused) -> str:
    """Return where a record is, and why it is not a row."""
    place = f"the topic {topic!r}, partition {partition}, offset {refused[0]}"
    return f"{place}: the value is not one JSON object with the columns of the input: {refused[1]}"


def decoder(schema: pa.Schema) -> Callable[[Sequence[Record]], tuple[list[pa.RecordBatch], list[Refused]]]:
    """Return a function that decodes records, in order: their rows, and the records that are not one row.

    A value is one JSON object (UTF-8) with all columns of *schema*; other fields are ignored. The function decodes
    many records at once: this succeeds exactly if it succeeds for each of them. If it fails, it divides them.
    """
    decode = msgspec.json.Decoder(_row_type(schema, top=True)).decode

    def decoded(records: Sequence[Record]) -> tuple[list[pa.RecordBatch], list[Refused]]:
        found, refused, parts = list[pa.RecordBatch](), list[Refused](), [records] if records else []
        while parts:
            part = parts.pop()
            try:
                rows = [decode(value.decode()) for _, value in part]  # as text: fields without a column are UTF-8, too
                columns = [_column([row[one.name] for row in rows], one.type) for one in schema]
                found.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            except _PROBLEMS as problem:
                middle = len(part) // 2
                if middle:
                    parts += [part[middle:], part[:middle]]
                else:
                    refused.append((part[0][0], str(problem)[:_MOST], part[0][1]))
        return found, refused

    return decoded


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array; 2.0 is an integer, and 1.5 is not, which pyarrow alone would cut to 1."""
    if pa.types.is_integer(kind) and float in set(map(type, values)):
        for value in values:
            if type(value) is float and not value.is_integer():
                raise ValueError(f"{value} is not an integer")
    return pa.array(values, kind)


def _row_type(fields: Any, *, top: bool = False) -> Any:
    return typing.TypedDict("Row", {one.name: _type(one, top=top) for one in fields})  # type: ignore[operator]


def _type(field: pa.Field, *, top: bool = False) -> Any:
    """Return the type of the values of a column in JSON; if pyarrow alone checks them, any."""
    kind, known = field.type, pa.types
    found: Any
    if known.is_integer(kind):
        found = int | float if top else int
    elif known.is_struct(kind):
        found = _row_type(kind)
    elif known.is_list(kind) or known.is_large_list(kind):
        found = list[_type(kind.value_field)]  # type: ignore[misc]
    elif known.is_map(kind):
        found = dict[str, _type(kind.item_field)]  # type: ignore[misc]
    else:
        found = next((one for name, one in _PLAIN.items() if getattr(known, f"is_{name}")(kind)), Any)
    return found | None if field.nullable and found is not Any else found

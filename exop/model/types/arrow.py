"""Arrow schemas as descriptions of types; pyarrow itself is not imported for it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from exop.model.types.description import Field, Type, built

#: The types of Arrow by the begin of their name, longest first.
_ARROW: Final[dict[str, type]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), int),
    **dict.fromkeys(("halffloat", "float", "double"), float),
    **dict.fromkeys(("string", "large_string", "string_view"), str),
    **dict.fromkeys(("binary", "large_binary", "binary_view", "fixed_size_binary"), bytes),
    **dict.fromkeys(("date32", "date64"), date),
    **dict.fromkeys(("time32", "time64"), time),
    **dict.fromkeys(("decimal32", "decimal64", "decimal128", "decimal256"), Decimal),
    "bool": bool,
    "timestamp": datetime,
    "duration": timedelta,
}


def columns_of(schema: Iterable[Any]) -> dict[str, Field]:
    """Describe the columns of a schema, by name."""
    return {column.name: _column(column) for column in schema}


def _column(column: Any) -> Field:
    """A field of an Arrow schema; one that may be null says so in its type."""
    return Field(column.name, _of_arrow(column.type), not column.nullable, written=str(column.type))


def _of_arrow(arrow: Any) -> Type:
    text = str(arrow)
    head = text.partition("[")[0].partition("(")[0].partition("<")[0]
    if head in _ARROW:
        return Type("scalar", text, _ARROW[head], text)
    if head == "dictionary":
        return _of_arrow(arrow.value_type)
    if head in ("list", "large_list", "fixed_size_list", "list_view"):
        return built("list", text, list, arguments=(_of_arrow(arrow.value_type),))
    if head == "struct":
        columns = [_column(arrow.field(place)) for place in range(arrow.num_fields)]
        return built("record", text, dict, fields=columns)
    return Type("none" if head == "null" else "open", text)

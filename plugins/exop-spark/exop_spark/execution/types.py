"""The types in which Spark takes the columns of an input."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from ..session.engine import check_installed

#: What takes the place of a type that Spark does not have, and holds all its values.
_INSTEAD: Final = {
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "decimal128(20, 0)",
    "halffloat": "float",
    "time32[s]": "int32",
    "time32[ms]": "int32",
    "time64[us]": "int64",
    "time64[ns]": "int64",
    "date64[ms]": "timestamp[ms]",
    "string_view": "string",
    "binary_view": "binary",
}


class NoSuchType(ValueError):
    """Spark has no type for the values of a column."""


@lru_cache(maxsize=128)
def spark_columns(columns: pa.Schema) -> pa.Schema:
    """Return columns with the types in which Spark takes them, which hold the same values.

    Raises:
        NoSuchType: Spark has no type for a column; the text names it, and what to do.
    """
    return pa.schema([field.with_type(spark_type(field.type, f"the column {field.name!r}")) for field in columns])


def spark_type(kind: pa.DataType, what: str = "it") -> pa.DataType:
    """Return the type in which Spark takes values of *kind*, which are those of *what*.

    Spark has one type for texts and one for bytes, timestamps in microseconds (those with a time zone in UTC), and no
    dictionaries.

    Raises:
        NoSuchType: there is none.
    """
    check_installed()
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

    try:
        if "time64[" in str(kind):
            raise TypeError("its TIME is not for streams")
        return to_arrow_type(from_arrow_type(kind), timezone="UTC")
    except Exception as error:
        instead = _INSTEAD.get(str(kind), "a type that Spark has")
        problem = f"{what} is {kind}, for which Spark has no type"
        raise NoSuchType(f"{problem}; declare it as {instead}, here and where its rows come from") from error

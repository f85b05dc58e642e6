"""Whether two outputs are the same: values of Python, arrays, columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from exop.shown import RAISED


def same(old: Any, new: Any) -> bool:
    """Tell whether two values are equal: NaN equals NaN, and classes of the same name count as one.

    A bundle's two versions have classes of their own; what they put out is compared by its fields.
    """
    if old is new:
        return True
    if isinstance(old, float) and isinstance(new, float) and old != old and new != new:
        return True
    if is_columns(old) and is_columns(new):
        return same_columns(old, new)
    if hasattr(old, "dtype") and hasattr(new, "dtype"):
        return _same_arrays(old, new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(same(value, new[key]) for key, value in old.items())
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        alike = isinstance(old, list) is isinstance(new, list) and type(old).__qualname__ == type(new).__qualname__
        return alike and len(old) == len(new) and all(map(same, old, new))
    if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new) and not isinstance(old, type):
        return _same_fields(old, new)
    try:
        return bool(old == new)
    except RAISED:  # values that cannot even be compared are not equal
        return False


def is_columns(value: Any) -> bool:
    """A record batch or a table."""
    return hasattr(value, "num_rows") and hasattr(value, "schema")


def same_columns(old: Any, new: Any) -> bool:
    """Tell whether two record batches hold the same rows in columns of the same names and types."""
    if old.num_rows != new.num_rows or not same_kind(old, new):
        return False
    for name in old.schema.names:
        mine, other = old.column(name), new.column(name)
        if not mine.equals(other) and not same(mine.to_pylist(), other.to_pylist()):  # Arrow's NaN is not equal to NaN
            return False
    return True


def same_kind(old: Any, new: Any) -> bool:
    """Columns of the same names and types, in any order."""
    return {one.name: one.type for one in old.schema} == {one.name: one.type for one in new.schema}


def _same_arrays(old: Any, new: Any) -> bool:
    if old.dtype != new.dtype or getattr(old, "shape", ()) != getattr(new, "shape", ()):
        return False
    equal = (old == new) | ((old != old) & (new != new))
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def _same_fields(old: Any, new: Any) -> bool:
    if type(old).__qualname__ != type(new).__qualname__:
        return False
    names = [entry.name for entry in dataclasses.fields(old) if entry.compare]
    return names == [entry.name for entry in dataclasses.fields(new) if entry.compare] and all(
        same(getattr(old, name), getattr(new, name)) for name in names
    )

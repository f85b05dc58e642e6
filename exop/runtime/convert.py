"""Between rows and columns: items to record batches and back, lazily, only where two ports differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from exop.errors import WiringError
from exop.model.ports import PortType


def weight(batch: Any) -> int:
    """How many items a batch holds: the length of a list, the rows of a record batch."""
    return len(batch) if isinstance(batch, list) else int(batch.num_rows)


def cut(batch: Any, low: int, high: int) -> Any:
    """The items of a batch from *low* up to *high*; of a record batch without a copy."""
    return batch[low:high] if isinstance(batch, list) else batch.slice(low, high - low)


def to_items(batch: Any, item: Any = dict) -> list[Any]:
    """The items of a batch: a list as it is; rows of columns as *item* (dataclass, named tuple, else dictionary)."""
    if isinstance(batch, list):
        return batch
    rows: list[dict[str, Any]] = batch.to_pylist()
    if isinstance(item, type) and (dataclasses.is_dataclass(item) or hasattr(item, "_fields")):
        make: Callable[..., Any] = item
        return [make(**row) for row in rows]
    return rows


def to_columns(items: Any, port: PortType) -> Any:
    """A record batch out of items: dataclasses, named tuples or dictionaries; a record batch as it is.

    Raises:
        WiringError: the items have no fields, or do not fit the declared schema.
    """
    if not isinstance(items, list):
        return items
    # pyarrow is the plugin's or the user's: a platform without columns runs without it.
    import pyarrow as pa

    try:
        return pa.RecordBatch.from_pylist([as_row(item) for item in items], schema=port.schema)
    except (pa.ArrowException, TypeError) as problem:
        raise WiringError(f"the items do not fit the columns of the port: {problem}") from problem


def as_row(item: Any) -> dict[str, Any]:
    """One item as a dictionary of its fields.

    Raises:
        TypeError: it has none.
    """
    if isinstance(item, dict):
        return item
    if hasattr(item, "_asdict"):
        return dict(item._asdict())
    names: Iterable[str] | None = getattr(item, "__struct_fields__", None)
    if dataclasses.is_dataclass(item):
        names = [entry.name for entry in dataclasses.fields(item)]
    if names is None:
        raise TypeError(f"{type(item).__name__} has no fields")
    return {name: getattr(item, name) for name in names}

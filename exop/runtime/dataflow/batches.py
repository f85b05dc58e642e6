"""Batches: size, slices, and conversion between rows and columns where two ports differ."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import repeat
from math import inf
from numbers import Real
from typing import Any, Final, cast

from exop.errors import WiringError
from exop.model.items import Reference
from exop.model.slets.ports import PortType, names_references
from exop.model.types.description import type_of
from exop.model.values.columns import declared

_MISMATCH: Final = "the items do not match the columns of the port"
#: The forms of the batches with several consumers, by `id` of the batch.
_SHARED: dict[int, dict[Any, Any]] = {}


def weight(batch: Any) -> int:
    """Return the number of items in a batch: a list, or a record batch."""
    return len(batch) if isinstance(batch, list) else int(batch.num_rows)


def cut(batch: Any, low: int, high: int) -> Any:
    """Return the items of a batch from *low* up to *high*; a record batch is not copied."""
    return batch[low:high] if isinstance(batch, list) else batch.slice(low, high - low)


def to_items(batch: Any, item: Any = None) -> list[Any]:
    """Return the items of a batch: a list unchanged, rows of columns as *item* (a class with fields, or `dict`).

    Items of a type other than their own are the rows for which references stand.

    Raises:
        WiringError: the rows of references cannot be read.
    """
    if isinstance(batch, list):
        if item is None or not are_references(batch) or names_references(item, type(batch[0])):
            return batch
        batch = opened(batch)
    item = dict if item is None else item
    return [*_shared(batch, item, lambda: _rows(batch, item))]  # each consumer gets its own list of the shared items


def to_columns(items: Any, port: PortType) -> Any:
    """Make a record batch of items (dataclasses, named tuples or dictionaries).

    A record batch is returned unchanged if it has the columns of the port. Otherwise these are chosen by their names,
    and converted to their types if no value is changed by that.

    Raises:
        WiringError: the items have no fields, or do not match the declared schema; or references cannot be read.
    """
    if not isinstance(items := opened(items), list):
        return items if port.schema is None or items.schema.equals(port.schema) else _converted(items, port.schema)
    if id(items) not in _SHARED:
        return _batch(items, port)
    columns = None if port.schema is None else port.schema.serialize().to_pybytes()
    return _shared(items, columns, lambda: _batch(items, port))


def are_references(batch: Any) -> bool:
    """Whether a batch consists of references to rows."""
    return isinstance(batch, list) and bool(batch) and isinstance(batch[0], Reference)


def opened(batch: Any) -> Any:
    """Return the rows of references as one record batch, or raise `WiringError`; return any other batch unchanged."""
    return _shared(batch, Reference, lambda: _read(batch)) if are_references(batch) else batch


def _read(references: list[Reference]) -> Any:
    import pyarrow as pa

    try:
        table = pa.concat_tables([one.read() for one in references])
    except (OSError, pa.ArrowException) as problem:
        paths = ", ".join(one.path for one in references)
        cure = "bring the files back and resume the slet, or skip the item"
        raise WiringError(f"the rows in {paths} cannot be read: {problem}; {cure}") from problem
    if not table.num_rows:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return table.combine_chunks().to_batches()[0]


@contextmanager
def shared(batch: Any) -> Iterator[None]:
    """Within the block, convert a batch with several consumers once for all that need the same form.

    Conversions of a record batch are stored for its lifetime (it may wait in queues).
    """
    forms: dict[Any, Any] = {}
    outermost, lasts = _SHARED.setdefault(id(batch), forms) is forms, not isinstance(batch, list)
    if outermost and lasts:
        weakref.finalize(batch, _SHARED.pop, id(batch), None)
    try:
        yield
    finally:
        if outermost and not lasts:
            del _SHARED[id(batch)]


def _shared(batch: Any, form: Any, convert: Callable[[], Any]) -> Any:
    """Return the batch in another form, which is made once for all consumers of a shared batch."""
    if (forms := _SHARED.get(id(batch))) is None:
        return convert()
    if form not in forms:
        forms[form] = convert()
    return forms[form]


def _rows(batch: Any, item: Any) -> list[Any]:
    if (described := type_of(item)).kind != "record" or described.is_row:
        return cast("list[Any]", batch.to_pylist())
    names = [name for name in batch.schema.names if name in described.fields]
    if 0 < len(names) < batch.num_columns:  # the other columns are not needed
        batch = batch.select(names)
    make: Callable[..., Any] = described.cls
    return [make(**row) for row in batch.to_pylist()]


def _converted(batch: Any, schema: Any) -> Any:
    """Return the columns of *schema* of a record batch."""
    import pyarrow as pa

    for name, kind in zip(schema.names, schema.types, strict=True):
        if (place := batch.schema.get_field_index(name)) < 0:
            there = ", ".join(map(repr, batch.schema.names)) or "none"
            raise WiringError(f"{_MISMATCH}: there is no single column {name!r}; there are {there}")
        if batch.column(place).type != kind:
            try:
                batch = batch.set_column(place, name, batch.column(place).cast(kind))
            except pa.ArrowException as problem:
                was = batch.column(place).type
                raise WiringError(f"{_MISMATCH}: the column {name!r} is {was}, not {kind}: {problem}") from problem
    return batch if batch.schema.names == schema.names else batch.select(schema.names)


def _batch(items: list[Any], port: PortType) -> Any:
    # pyarrow is optional: a platform without columns runs without it.
    import pyarrow as pa

    try:
        rows = [as_row(item) for item in items]
        schema = port.schema
        # `from_pylist` would read a missing field as null; without a schema, it takes the names of the first item only.
        names = dict.fromkeys(name for row in rows for name in row) if schema is None else schema.names
        kinds = repeat(None) if schema is None else schema.types
        columns = [_column([row[name] for row in rows], kind) for name, kind in zip(names, kinds, strict=False)]
        found = pa.RecordBatch.from_arrays(columns, [*names] if schema is None else None, schema)
    except KeyError as problem:
        raise WiringError(f"{_MISMATCH}: an item lacks the field {problem}") from problem
    except (pa.ArrowException, TypeError, OverflowError) as problem:
        raise WiringError(f"{_MISMATCH}: {problem}") from problem
    classes = {type(item) for item in items}
    return declared(found, type_of(classes.pop())) if port.schema is None and len(classes) == 1 else found


def _column(values: list[Any], kind: Any) -> Any:
    import pyarrow as pa

    for value in values if kind is not None and pa.types.is_integer(kind) else ():
        fractional = value.__class__ is not int and isinstance(value, (Real, Decimal))
        if fractional and not (abs(value) < inf and value % 1 == 0):  # pyarrow alone would cut 1.5 to 1 silently
            raise TypeError(f"{value} is not an integer, but the column is {kind}")
    return pa.array(values, kind)


def as_row(item: Any) -> dict[str, Any]:
    """Return an item as a dictionary of its fields; raise `TypeError` if it has none."""
    if isinstance(item, dict):
        return item
    if not (fields := type_of(type(item)).fields):
        raise TypeError(f"{type(item).__name__} has no fields")
    return {name: getattr(item, name) for name in fields}

"""NumPy arrays and Arrow tables as bytes and back; both libraries are imported only when such a value occurs."""

from __future__ import annotations

import io
import re
import struct
import sys
import threading
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Final

from exop.errors import NotStorable
from exop.model.types.description import Type

#: The Arrow types of values that have the same one whatever their values are.
_SCALARS: Final = {int: "int64", float: "float64", bool: "bool_", str: "string", bytes: "binary", date: "date32"}
#: The classes of NumPy and Arrow that tell their values, by library, once it is loaded.
_CLASSES: Final[dict[str, tuple[type, ...]]] = {}
#: Bytes up to which a part of a message is copied.
_SHORT: Final = 4096
#: Thread-local: the writer of the latest record batch, and the latest schema without a dictionary.
_LOCAL: Final = threading.local()
_TYPE: Final = re.compile(r"[<>=|][?bBhHiIlLqQefdgFDGiufcmMSUV]\d{0,9}(\[[0-9a-zA-Zµμ/]{1,20}\])?")


def is_columns(value: Any) -> bool:
    """Whether the value is a record batch or a table; an attribute `num_rows` alone is not enough."""
    return isinstance(value, _CLASSES.get("pyarrow") or _loaded("pyarrow", "RecordBatch", "Table"))


def _loaded(module: str, *names: str) -> tuple[type, ...]:
    """Return these classes of a module; none unless it is loaded: there is no such value while a thread imports it."""
    if (found := _CLASSES.get(module)) is None and (there := sys.modules.get(module)) is not None:
        found = tuple(getattr(there, name) for name in names if hasattr(there, name))
        if len(found) == len(names):
            _CLASSES[module] = found
    return found or ()


def batch_type() -> Any:
    """Return the class of record batches."""
    import pyarrow as pa

    return pa.RecordBatch


def read_file(uri: str) -> Any:
    """Return the rows of a Parquet file as a table; raise `OSError` if it cannot be read."""
    from pyarrow import fs, parquet

    system, path = fs.FileSystem.from_uri(uri)
    return parquet.read_table(path, filesystem=system)


def rows_of_file(path: Path, declared: Any) -> int:
    """Return the number of rows of a Parquet file; raise `ValueError` if its columns are not the declared ones."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        if (found := file.schema_arrow).names != declared.names or found.types != declared.types:
            named = (", ".join(f"{one.name} {one.type}" for one in schema) for schema in (found, declared))
            raise ValueError("{} has the columns {}, not {}".format(path, *named))
        return int(file.metadata.num_rows)


def write(value: Any) -> tuple[str, list[Any]] | None:
    """Return the tag and the content of an array, batch or table; `None` for any other value."""
    if isinstance(value, _loaded("numpy", "ndarray", "generic")):
        numpy = sys.modules["numpy"]
        array, kind = numpy.asarray(value), type(value)
        if kind not in (numpy.ndarray, array.dtype.type):
            cure = "store `numpy.asarray(value)`; of a masked array its mask, too, as an array of its own"
            name = f"a value of {kind.__module__}.{kind.__qualname__}"
            raise NotStorable(value=name, problem="a plain array does not hold all of it", cure=cure)
        return "ARRAY" if kind is numpy.ndarray else "SCALAR", _array(array)
    if is_columns(value):
        return "RECORD_BATCH" if isinstance(value, batch_type()) else "TABLE", [bytes(stream_of(value))]
    return None


def read_array(content: list[Any]) -> Any:
    """Decode an array; it is writable."""
    import numpy as np

    described, shape, order, data = content
    kind = np.dtype(_plain(described) if isinstance(described, str) else [_field(one) for one in described])
    return np.frombuffer(bytearray(data), dtype=kind).reshape(shape, order=order)


def stream_of(value: Any) -> Any:
    """Return a buffer with a record batch, or a table with its chunks, in Arrow's format; of a slice its rows alone."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as stream:
        stream.write(value)
    return sink.getvalue()


def read_arrow(data: bytes, *, table: bool, foreign: bool) -> Any:
    """Decode a record batch, or a table with its original chunks; *foreign* data is validated completely."""
    import pyarrow as pa

    if foreign:  # compressed columns are never written: a few bytes could expand without bound
        for part in pa.ipc.MessageReader.open_stream(data):
            _check_message(part)
    with pa.ipc.open_stream(data) as stream:
        found = stream.read_all() if table else stream.read_next_batch()
    return _validated(found, len(data)) if foreign else found


def message(batch: Any) -> tuple[bytes, list[Any]]:
    """Return the schema of a record batch, and the batch as one message of Arrow IPC, with long columns by reference.

    Both are messages of `pyarrow.ipc`.
    """
    writer: _Writer | None = getattr(_LOCAL, "writer", None)
    _LOCAL.writer = None  # a writer that fails is not used again
    if writer is None or not writer.schema.equals(batch.schema, check_metadata=True):
        writer = _Writer(batch)
    found, small = list[Any](), list[bytes]()
    for part in writer.parts(batch):
        if len(part) < _SHORT:
            small.append(bytes(part))
        else:
            found += [b"".join(small), part] if small else [part]
            small = []
    _LOCAL.writer = writer
    return writer.described, [*found, b"".join(small)] if small else found


def allocate(size: int) -> memoryview:
    """Return memory for a message; with pyarrow, it is not cleared first, and is reused."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        return memoryview(bytearray(size))
    return memoryview(pa.allocate_buffer(size)).cast("B")


def read_message(data: memoryview, schema: Any) -> Any:
    """Decode a record batch of a schema from one message of a peer, and validate the batch completely."""
    import pyarrow as pa

    if (found := pa.ipc.read_message(pa.py_buffer(data))).type != "record batch":
        raise ValueError(f"a {found.type} is no record batch")
    _check_message(found)
    return _validated(pa.ipc.read_record_batch(found, schema), len(data))


def _validated(found: Any, size: int) -> Any:
    """Return a batch or table that was read from *size* bytes of a peer."""
    found.validate(full=True)
    if found.num_rows > 8 * size:  # columns of nulls alone take no bytes
        raise ValueError(f"{found.num_rows} rows in {size} bytes")
    return found


def read_schema(data: bytes) -> Any:
    """Decode the schema of record batches of a peer; raise `ValueError` if a column is encoded by a dictionary."""
    import pyarrow as pa

    if has_dictionary(found := pa.ipc.read_schema(pa.py_buffer(data))):
        raise ValueError("a column is encoded by a dictionary")
    return found


def has_dictionary(schema: Any) -> bool:
    """Whether a column, or a part of one, is encoded by a dictionary."""
    if (plain := getattr(_LOCAL, "plain", None)) is not None and schema.equals(plain):
        return False
    todo = list(schema.types)
    while todo:
        if hasattr(kind := todo.pop(), "index_type"):
            return True
        todo += [kind.field(place).type for place in range(kind.num_fields)]
        todo += [kind.storage_type] if hasattr(kind, "storage_type") else []
    _LOCAL.plain = schema
    return False


class _Writer:
    """Writes record batches of one schema.

    Attributes:
        described: The message with the schema.
    """

    def __init__(self, batch: Any) -> None:
        import pyarrow as pa

        self.schema, self.described = batch.schema, batch.schema.serialize().to_pybytes()
        self._sink = _Parts()
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), batch.schema)
        self.parts(batch.slice(0, 0))  # the message with the schema precedes the first batch

    def parts(self, batch: Any) -> list[Any]:
        """Return the parts of the message with a batch."""
        self._stream.write_batch(batch)
        found, self._sink.parts = self._sink.parts, []
        return found


class _Parts(io.RawIOBase):
    """A file that collects what is written, without copies."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def writable(self) -> bool:
        """Return that parts can be added; Arrow refuses other files."""
        return True

    def write(self, part: Any) -> None:
        """Add a part."""
        self.parts.append(part)


def declared(batch: Any, described: Type) -> Any:
    """Cast columns whose values do not determine a type (all `None`, integers) to the declared type of the rows."""
    import pyarrow as pa

    for place, column in enumerate(batch.schema):
        wanted = _arrow_type(pa, described.fields[column.name].type) if column.name in described.fields else None
        if wanted is not None and _is_narrower(pa, column.type, wanted):
            batch = batch.set_column(place, column.name, batch.column(place).cast(wanted, safe=False))
    return batch


def _arrow_type(arrow: Any, described: Type) -> Any:
    """The type of a column; `None` if it depends on the values."""
    if (sole := described.sole).kind == "scalar" and sole.cls in _SCALARS:
        return getattr(arrow, _SCALARS[sole.cls])()
    inner = _arrow_type(arrow, sole.element) if sole.cls in (list, tuple) else None
    return None if inner is None else arrow.list_(inner)


def _is_narrower(arrow: Any, found: Any, wanted: Any) -> bool:
    if (kinds := arrow.types).is_list(found) and kinds.is_list(wanted):
        return _is_narrower(arrow, found.value_type, wanted.value_type)
    return bool(kinds.is_null(found) or (kinds.is_integer(found) and kinds.is_floating(wanted)))


def _check_message(message: Any) -> None:
    """Refuse compressed columns."""
    head = message.metadata.to_pybytes()
    if (batch := _field_at(head, _follow(head, 0), 2)) is not None and message.type == "dictionary":
        batch = _field_at(head, _follow(head, batch), 1)
    if message.type != "schema" and batch is not None and _field_at(head, _follow(head, batch), 3) is not None:
        raise ValueError("its columns are compressed")


def _field_at(head: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a table in a flat buffer, or `None`."""
    fields, place = table - struct.unpack_from("<i", head, table)[0], 4 + 2 * number
    known = place < struct.unpack_from("<H", head, fields)[0]
    offset = struct.unpack_from("<H", head, fields + place)[0] if known else 0
    return table + offset if offset else None


def _follow(head: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", head, place)[0])


def _array(array: Any) -> list[Any]:
    if array.dtype.hasobject:
        cure = "keep objects in a list, or give the array a plain type"
        raise NotStorable(value=f"an array of {array.dtype}", problem="it holds Python objects", cure=cure)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    described = array.dtype.str if array.dtype.names is None else _described(array.dtype)
    return [described, list(array.shape), order, array.tobytes(order=order)]


def _described(kind: Any) -> Any:
    """Describe a structured type, if it is restored as it is."""
    import numpy as np

    with suppress(TypeError, ValueError):
        found = _lists(kind.descr)
        if (made := np.dtype([*map(_field, found)])) == kind and made.type is kind.type:
            return found
    problem = "its fields have gaps, titles, common bytes or a class of their own"
    cure = "use `numpy.array(value.tolist(), [(name, value.dtype[name]) for name in value.dtype.names])`"
    raise NotStorable(value=f"an array of {kind}", problem=problem, cure=cure)


def _lists(described: Any) -> Any:
    return [_lists(one) for one in described] if isinstance(described, (list, tuple)) else described


def _plain(described: str) -> str:
    """Check the name of a scalar type: NumPy would evaluate other texts, and object types are unsafe."""
    if not _TYPE.fullmatch(described):
        raise ValueError(f"{described!r:.80} is no type of an array")
    return described


def _field(one: list[Any]) -> tuple[Any, ...]:
    """Convert a field of a structured type to the tuples that NumPy expects."""
    name, kind, *shape = one
    inner = [_field(each) for each in kind] if isinstance(kind, (list, tuple)) else _plain(kind)
    return (name, inner, *(tuple(each) for each in shape))

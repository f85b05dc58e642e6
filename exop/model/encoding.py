"""Values as bytes and back: what mementos and items are made of, each with its exact type; no code, no pickle.

Numbers, text, bytes, lists and dicts are msgpack's own; everything else is an extension of it, one per `Tag`. An object
that is referred to from two places becomes two, and a `bytearray` comes back as `bytes`; dataclasses, named tuples and
enums are stored by the name of their class and the names of their fields.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgpack

from exop.errors import NotStorable, StoredStateError
from exop.model import columns
from exop.model.items import Batch, Window
from exop.model.named import class_named, factory_named, name_of

_LARGEST: Final = 2**31 - 1  # of an extension, in bytes: msgpack's own bound is above it


class Tag(enum.IntEnum):
    """The extensions: a number keeps its meaning for ever."""

    TUPLE = 1
    SET = 2
    FROZENSET = 3
    DEQUE = 4
    INT = 5
    DECIMAL = 6
    DATETIME = 7
    DATE = 8
    TIME = 9
    TIMEDELTA = 10
    ENUM = 11
    DATACLASS = 12
    NAMEDTUPLE = 13
    ARRAY = 14
    SCALAR = 15
    RECORD_BATCH = 16
    TABLE = 17
    COMPLEX = 18
    DEFAULTDICT = 19
    ORDERED = 20
    COUNTER = 21
    BATCH = 22
    UUID = 23
    PATH = 24
    WINDOW = 25


def encode(value: Any) -> bytes:
    """Write a value.

    Raises:
        NotStorable: something in it is of a type that is not known here, or refers to itself.
    """
    try:
        return _pack(value)
    except NotStorable:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as problem:
        cure = "a memento is a tree of plain values: take out what refers to itself"
        raise NotStorable(value=type(value).__name__, problem=str(problem), cure=cure) from problem


def decode(data: bytes) -> Any:
    """Read what `encode` wrote.

    Raises:
        StoredStateError: it is damaged, or names a class or a field that is not there any more.
    """
    try:
        return _unpack(data)
    except StoredStateError:
        raise
    except Exception as problem:  # whatever damaged bytes lead to
        cure = "it is damaged: take an older copy"
        told = f"{type(problem).__name__}: {problem}"
        raise StoredStateError(what="a stored value", problem=told, cure=cure) from problem


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_extended, strict_types=True, use_bin_type=True)
    return packed


def _unpack(data: bytes | memoryview) -> Any:
    return msgpack.unpackb(data, ext_hook=_read, strict_map_key=False, raw=False)


def _ext(tag: Tag, content: Any) -> msgpack.ExtType:
    data = content if isinstance(content, bytes) else _pack(content)
    if len(data) > _LARGEST:
        raise NotStorable(value=tag.name.lower(), problem="it is larger than 2 GB", cure="keep it in several fields")
    return msgpack.ExtType(int(tag), data)


def _extended(value: Any) -> msgpack.ExtType:
    kind = type(value)
    writer = _WRITERS.get(kind)
    if writer is not None:
        tag, content = writer
        return _ext(tag, content(value))
    if isinstance(value, enum.Enum):
        # Flags that are combined have no name of their own.
        return _ext(Tag.ENUM, [name_of(kind), value.name if value.name in kind.__members__ else value.value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _ext(Tag.DATACLASS, [name_of(kind), fields_of(value)])
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return _ext(Tag.NAMEDTUPLE, [name_of(kind), dict(zip(kind._fields, value, strict=True))])
    if isinstance(value, PurePath):
        return _ext(Tag.PATH, str(value))
    column = columns.write(value)
    if column is not None:
        return _ext(Tag[column[0]], column[1])
    raise NotStorable(
        value=f"a value of {kind.__module__}.{kind.__qualname__}",
        problem="its type is none of those that can be stored",
        cure="use plain values, collections, dataclasses, NumPy arrays or Arrow tables",
    )


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance, by name, as they are."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def filled(kind: Any, fields: Mapping[str, Any]) -> Any:
    """An instance of a dataclass with these fields; those that are new in the class have their defaults.

    Raises:
        StoredStateError: a field that the class does not have, or a new one without a default.
    """
    known = {field.name: field for field in dataclasses.fields(kind)}
    strange = [name for name in fields if name not in known]
    if strange:
        problem = f"{kind.__qualname__} has no field {', '.join(strange)}; it has {', '.join(known)}"
        cure = "use the code that wrote it"
        raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem, cure=cure)
    made = kind.__new__(kind)
    for name, field in known.items():
        object.__setattr__(made, name, fields[name] if name in fields else _default(kind, field))
    return made


def _default(kind: Any, field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is not dataclasses.MISSING:
        return field.default
    problem = f"its field {field.name} was not there when it was stored, and has no default"
    raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem, cure="give the field a default")


def _moment(value: datetime | time) -> list[Any]:
    zone = value.tzinfo
    plain = value.replace(tzinfo=None).isoformat()
    if zone is None:
        return [plain, value.fold, None, None]
    if isinstance(zone, ZoneInfo) and zone.key:
        return [plain, value.fold, "zone", zone.key]
    if isinstance(zone, timezone):
        return [plain, value.fold, "offset", zone.utcoffset(None) // timedelta(microseconds=1)]
    cure = "use datetime.timezone or zoneinfo.ZoneInfo"
    raise NotStorable(value=f"a moment of {type(zone).__name__}", problem="its time zone has no name", cure=cure)


def _read_moment(kind: Any, content: list[Any]) -> Any:
    plain, fold, how, zone = content
    found = kind.fromisoformat(plain).replace(fold=fold)
    if how == "zone":
        return found.replace(tzinfo=ZoneInfo(zone))
    return found.replace(tzinfo=timezone(timedelta(microseconds=zone))) if how == "offset" else found


_WRITERS: Final[dict[type, tuple[Tag, Callable[[Any], Any]]]] = {
    tuple: (Tag.TUPLE, list),
    set: (Tag.SET, list),
    frozenset: (Tag.FROZENSET, list),
    deque: (Tag.DEQUE, lambda v: [v.maxlen, list(v)]),
    int: (Tag.INT, lambda v: v.to_bytes(v.bit_length() // 8 + 1, "big", signed=True)),
    Decimal: (Tag.DECIMAL, str),
    datetime: (Tag.DATETIME, _moment),
    date: (Tag.DATE, date.isoformat),
    time: (Tag.TIME, _moment),
    timedelta: (Tag.TIMEDELTA, lambda v: [v.days, v.seconds, v.microseconds]),
    complex: (Tag.COMPLEX, lambda v: [v.real, v.imag]),
    defaultdict: (Tag.DEFAULTDICT, lambda v: [v.default_factory and name_of(v.default_factory), dict(v)]),
    OrderedDict: (Tag.ORDERED, dict),
    Counter: (Tag.COUNTER, dict),
    Batch: (Tag.BATCH, list),
    Window: (Tag.WINDOW, list),
    uuid.UUID: (Tag.UUID, str),
}


def _read_enum(content: list[Any]) -> Any:
    kind, name = class_named(content[0], "enum", lambda one: issubclass(one, enum.Enum)), content[1]
    try:
        return kind[name] if isinstance(name, str) else kind(name)
    except (KeyError, ValueError):
        problem = f"{kind.__qualname__} has no member {name!r}"
        raise StoredStateError(what="a stored value", problem=problem, cure="use the code that wrote it") from None


def _read_named_tuple(content: list[Any]) -> Any:
    kind = class_named(content[0], "named tuple", lambda one: issubclass(one, tuple) and hasattr(one, "_fields"))
    fields = content[1]
    try:
        return kind(**fields)
    except TypeError as problem:
        raise StoredStateError(
            what=f"a value of {kind.__qualname__}", problem=str(problem), cure="use the code that wrote it"
        ) from None


_READERS: Final[dict[int, Callable[[Any], Any]]] = {
    Tag.TUPLE: tuple,
    Tag.SET: set,
    Tag.FROZENSET: frozenset,
    Tag.DEQUE: lambda v: deque(v[1], v[0]),
    Tag.DECIMAL: Decimal,
    Tag.DATETIME: lambda v: _read_moment(datetime, v),
    Tag.DATE: date.fromisoformat,
    Tag.TIME: lambda v: _read_moment(time, v),
    Tag.TIMEDELTA: lambda v: timedelta(*v),
    Tag.ENUM: _read_enum,
    Tag.DATACLASS: lambda v: filled(class_named(v[0], "dataclass", dataclasses.is_dataclass), v[1]),
    Tag.NAMEDTUPLE: _read_named_tuple,
    Tag.ARRAY: columns.read_array,
    Tag.SCALAR: columns.read_scalar,
    Tag.COMPLEX: lambda v: complex(*v),
    Tag.DEFAULTDICT: lambda v: defaultdict(v[0] and factory_named(v[0]), v[1]),
    Tag.ORDERED: OrderedDict,
    Tag.COUNTER: Counter,
    Tag.BATCH: Batch,
    Tag.WINDOW: Window,
    Tag.UUID: uuid.UUID,
    Tag.PATH: Path,
}
#: Extensions whose content is bytes as they are.
_RAW: Final[dict[int, Callable[[bytes], Any]]] = {
    Tag.INT: lambda v: int.from_bytes(v, "big", signed=True),
    Tag.RECORD_BATCH: columns.read_record_batch,
    Tag.TABLE: columns.read_table,
}


def _read(tag: int, data: bytes) -> Any:
    raw = _RAW.get(tag)
    if raw is not None:
        return raw(data)
    reader = _READERS.get(tag)
    if reader is None:
        problem = f"it holds a value of the kind {tag}, which this release does not know"
        raise StoredStateError(what="a stored value", problem=problem, cure="use the release that wrote it")
    return reader(_unpack(data))

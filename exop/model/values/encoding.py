"""Values as bytes, each with its exact type: the content of mementos and logged items; no code, no pickle.

Numbers, text, bytes, lists and dicts are those of msgpack. Any other value is a list that begins with a mark, an
extension of msgpack with the `Tag`; so a single pass encodes or decodes a value however it is nested, without
recursion. An object that is referenced twice becomes two, and a `bytearray` becomes `bytes`; dataclasses, named tuples
and enums are stored by the names of their class and fields.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import msgpack

from exop.errors import NotStorable
from exop.model.items import Batch, Window
from exop.model.values import columns
from exop.model.values.classes import name_of
from exop.model.values.depth import AROUND, DEPTH, TooDeep, deep_place, is_shallow

#: The extension type of marks; older releases wrote one extension per tag, which contained the packed content.
MARK: Final = 64
#: The bytes that begin a list or a table. They also occur in other data, so their count is an upper bound.
_HEADERS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
#: Maximum number of bytes in which they are counted.
_COUNTED: Final = 4096
_READ: Final = 2**16
#: Bytes; a packer whose buffer has grown beyond this is not kept.
_LARGE: Final = 2**20
K = TypeVar("K")


class Tag(enum.IntEnum):
    """The types with a mark; a number never changes its meaning."""

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


def encode(value: Any, *, levels: int = DEPTH) -> bytes:
    """Encode a value."""
    try:
        packer = _packers.pop()
    except IndexError:  # a check beforehand would race with other threads
        packer = msgpack.Packer(default=_extended, strict_types=True, use_bin_type=True)
    try:
        data: bytes = packer.pack(value)
        # `check_nesting` copies the bytes; large values of few parts, such as arrays, are checked directly.
        if len(data) <= _LARGE or not is_shallow(value, levels):
            check_nesting(data, levels)
    except NotStorable:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as problem:
        place = deep_place(value, levels)
        what, text = type(value).__name__, str(problem)
        if place is not None:
            what, text = f"the value at {place}", f"it is nested more than {levels} levels deep, or refers to itself"
        cure = "a memento is a tree of plain values: remove the reference to itself, and keep a chain as a list"
        raise NotStorable(value=what, problem=text, cure=cure) from problem
    if len(data) <= _LARGE:
        _packers.append(packer)
    return data


def encode_each(values: Mapping[K, Any], place: Callable[[K], str], *, levels: int = DEPTH) -> dict[K, bytes]:
    """Encode several values; *place* returns the place of one, for errors."""
    found = {}
    for key, value in values.items():
        try:
            found[key] = encode(value, levels=levels)
        except NotStorable as problem:
            raise NotStorable(**{**problem.facts, "place": place(key)}) from problem
    return found


def check_nesting(data: bytes, levels: int = DEPTH) -> None:
    """Refuse msgpack that is nested more deeply than *levels*, or invalid, without decoding and recursion.

    Raises:
        TooDeep: it is nested more deeply.
        Exception: what msgpack raises for truncated or damaged bytes.
    """
    if len(data) <= levels:
        return
    if len(data) <= _COUNTED and len(data) - len(data.translate(None, _HEADERS)) <= levels:
        return
    # The bound of msgpack itself is larger: additional levels around the data make up the difference. The data is fed
    # in parts, since msgpack copies it.
    around, parts = [b"\x91" * (_own_bound() - levels)], io.BytesIO(data)
    passing = unpacker(SimpleNamespace(read=lambda size: around.pop() if around else parts.read(size)))
    try:
        passing.skip()
    except msgpack.StackError:
        raise TooDeep(levels) from None


@cache
def _own_bound() -> int:
    """The number of levels that msgpack itself skips, which depends on its release."""
    bound = 2 * (DEPTH + AROUND)
    while True:
        passing = unpacker()
        passing.feed(b"\x91" * (bound + 1) + b"\xc0")
        try:
            passing.skip()
        except msgpack.StackError:
            return bound
        bound += 1


def unpacker(file: Any = None, **hooks: Any) -> Any:
    """An unpacker for data, lists and tables of any size."""
    most = {"max_buffer_size": 0, "max_array_len": 2**32 - 1, "max_map_len": 2**32 - 1}
    return msgpack.Unpacker(file, read_size=_READ, strict_map_key=False, raw=False, **most, **hooks)


#: Free packers; each is used by one thread at a time, and is not reentrant.
_packers: Final[list[Any]] = []


def _extended(value: Any) -> list[Any]:
    """Convert a value that msgpack cannot represent to a marked list; the same packer encodes its parts."""
    kind = type(value)
    writer = WRITERS.get(kind)
    if writer is not None:
        tag, content = writer
        return [_MARKED[tag], *content(value)]
    if isinstance(value, enum.Enum):
        # Combined flags have no name.
        name = value.name if value.name in kind.__members__ else value.value
        return [_MARKED[Tag.ENUM], name_of(kind), name]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_MARKED[Tag.DATACLASS], name_of(kind), *flat(fields_of(value))]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return [_MARKED[Tag.NAMEDTUPLE], name_of(kind), *flat(dict(zip(kind._fields, value, strict=True)))]
    if isinstance(value, PurePath):
        return [_MARKED[Tag.PATH], str(value)]
    column = columns.write(value)
    if column is not None:
        return [_MARKED[Tag[column[0]]], *column[1]]
    raise NotStorable(
        value=f"a value of {kind.__module__}.{kind.__qualname__}",
        problem="its type is none of those that can be stored",
        cure="use plain values, collections, dataclasses, NumPy arrays or Arrow tables",
    )


def flat(table: Mapping[Any, Any]) -> list[Any]:
    """Alternating keys and values: a table in a marked list needs no level of its own."""
    return [one for pair in table.items() for one in pair]


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance by name, without copies."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


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


WRITERS: Final[dict[type, tuple[Tag, Callable[[Any], Iterable[Any]]]]] = {
    tuple: (Tag.TUPLE, iter),
    set: (Tag.SET, iter),
    frozenset: (Tag.FROZENSET, iter),
    deque: (Tag.DEQUE, lambda v: [v.maxlen, *v]),
    int: (Tag.INT, lambda v: [v.to_bytes(v.bit_length() // 8 + 1, "big", signed=True)]),
    Decimal: (Tag.DECIMAL, lambda v: [str(v)]),
    datetime: (Tag.DATETIME, _moment),
    date: (Tag.DATE, lambda v: [v.isoformat()]),
    time: (Tag.TIME, _moment),
    timedelta: (Tag.TIMEDELTA, lambda v: [v.days, v.seconds, v.microseconds]),
    complex: (Tag.COMPLEX, lambda v: [v.real, v.imag]),
    defaultdict: (Tag.DEFAULTDICT, lambda v: [v.default_factory and name_of(v.default_factory), *flat(v)]),
    OrderedDict: (Tag.ORDERED, flat),
    Counter: (Tag.COUNTER, flat),
    Batch: (Tag.BATCH, iter),
    Window: (Tag.WINDOW, iter),
    uuid.UUID: (Tag.UUID, lambda v: [str(v)]),
}
_MARKED: Final = {tag: msgpack.ExtType(MARK, bytes([tag])) for tag in Tag}
#: The bytes with which every mark begins.
SIGN: Final = msgpack.packb(_MARKED[Tag.TUPLE])[:2]

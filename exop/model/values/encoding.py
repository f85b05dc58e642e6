"""Values as bytes, each with its exact type, and back: encoding and decoding of mementos and logged items.

Numbers, text, bytes, lists and dicts are those of msgpack. Any other value is a list that begins with a mark, an
extension of msgpack with the `Tag`; so a single pass encodes or decodes a value however it is nested, without
recursion. An object that is referenced twice becomes two, and a `bytearray` becomes `bytes`; dataclasses, named tuples
and enums are stored by the names of their class and fields. There is no code in the bytes, and no pickle.

Classes are looked up in the loaded modules and instantiated without calling them. Data of unknown origin is decoded
with `declared`: only declared classes are found, and time and memory are bounded.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import sys
import time as clock
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, Final, cast
from zoneinfo import ZoneInfo, available_timezones

import msgpack

from exop.errors import NotStorable, StoredStateError
from exop.model.items import Batch, Window
from exop.model.types.description import is_named_tuple
from exop.model.values import columns
from exop.model.values.classes import Declared, class_named, factory_named, filled, name_of
from exop.model.values.depth import AROUND, DEPTH, TooDeep, deep_place, is_shallow

#: The extension type of marks.
MARK: Final = 64
#: The bytes that begin a list or a table. They also occur in other data, so their count is an upper bound.
_HEADERS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
#: Maximum number of bytes in which they are counted.
_COUNTED: Final = 4096
_READ: Final = 2**16
#: Bytes; a packer whose buffer has grown beyond this is not kept.
_LARGE: Final = 2**20


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
    PART = 26


class Part(tuple[Any, ...]):
    """Represents a value of which the reader has all parts: the number of one; or an empty dict, and several numbers.

    The dict then has the entries of these parts, each of which is a dict, in their order.
    """

    __slots__ = ()


def encode(
    value: Any, *, levels: int = DEPTH, parts: Mapping[int, Part] | None = None, place: str = "a stored value"
) -> bytes:
    """Encode a value; *parts* represent the record batches and tables that the reader has already, by `id`.

    *place* is named in errors.
    """
    try:
        packer = _packer(lambda one: _extended(parts.get(id(one), one))) if parts else _packers.pop()
    except IndexError:  # a check beforehand would race with other threads
        packer = _packer(_extended)
    try:
        data: bytes = packer.pack(value)
        # `check_nesting` copies the bytes; large values of few parts, such as arrays, are checked directly.
        if len(data) <= _LARGE or not is_shallow(value, levels):
            check_nesting(data, levels)
    except NotStorable as problem:
        raise NotStorable(**{**problem.facts, "place": place}) from problem
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as problem:
        deep = deep_place(value, levels)
        what, text = type(value).__name__, str(problem)
        if deep is not None:
            what, text = f"the value at {deep}", f"it is nested more than {levels} levels deep, or refers to itself"
        cure = "a memento is a tree of plain values: remove the reference to itself, and keep a chain as a list"
        if isinstance(problem, UnicodeEncodeError):
            what, text = f"the text {problem.object!r:.80}", "it contains a lone surrogate, which is no character"
            cure = "decode its bytes with errors='replace', or keep them as bytes"
        raise NotStorable(value=what, problem=text, cure=cure, place=place) from problem
    if len(data) <= _LARGE and not parts:
        _packers.append(packer)
    return data


def _packer(default: Callable[[Any], list[Any]]) -> Any:
    return msgpack.Packer(default=default, strict_types=True, use_bin_type=True)


def check_nesting(data: bytes, levels: int = DEPTH) -> None:
    """Refuse msgpack that is nested more deeply than *levels*, or invalid, without decoding and recursion.

    Raises:
        TooDeep: it is nested more deeply.
        Exception: what msgpack raises for truncated or damaged bytes.
    """
    if len(data) <= levels or (len(data) <= _COUNTED and len(data) - len(data.translate(None, _HEADERS)) <= levels):
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
    if (writer := WRITERS.get(kind := type(value))) is not None:
        tag, content = writer
        return [_MARKED[tag], *content(value)]
    if isinstance(value, enum.Enum):
        # Combined flags have no name.
        name = value.name if value.name in kind.__members__ else value.value
        return [_MARKED[Tag.ENUM], name_of(kind), name]
    if is_record(cast("Hashable", kind)):
        return [_MARKED[Tag.DATACLASS], name_of(kind), *flat(fields_of(value))]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return [_MARKED[Tag.NAMEDTUPLE], name_of(kind), *flat(dict(zip(kind._fields, value, strict=True)))]
    if kind in PATHS:
        return [_MARKED[Tag.PATH], str(value)]
    if (column := columns.write(value)) is not None:
        return [_MARKED[Tag[column[0]]], *column[1]]
    problem = "its type is none of those that can be stored"
    cure = "use plain values, collections, dataclasses, NumPy arrays or Arrow tables"
    if isinstance(value, Iterator):
        cure = "annotate the slet that returns it with `-> Iterator[T]`, so that its items are sent one by one"
    raise NotStorable(value=f"a value of {kind.__module__}.{kind.__qualname__}", problem=problem, cure=cure)


@lru_cache(maxsize=1024)
def is_record(kind: Any) -> bool:
    """Whether the instances of a class hold fields alone: those of a dataclass without a built-in type as a base."""
    return {*WRITERS, float, str, bytes, list, dict}.isdisjoint(kind.__mro__) and dataclasses.is_dataclass(kind)


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
    if type(zone) is ZoneInfo and zone.key:
        return [plain, value.fold, "zone", zone.key]
    if isinstance(zone, timezone):
        offset = zone.utcoffset(None)
        number, name = offset // timedelta(microseconds=1), zone.tzname(None)
        named = name != timezone(offset).tzname(None)
        return [plain, value.fold, *(("named offset", [number, name]) if named else ("offset", number))]
    cure = "use datetime.timezone or zoneinfo.ZoneInfo"
    raise NotStorable(value=f"a moment of {type(zone).__name__}", problem="its time zone has no name", cure=cure)


#: Both come back as the first; others are of another class, or of another system.
PATHS: Final = (type(Path()), type(PurePath()))
_MARKED: Final = {tag: msgpack.ExtType(MARK, bytes([tag])) for tag in Tag}
#: The bytes with which every mark begins.
SIGN: Final = msgpack.packb(_MARKED[Tag.TUPLE])[:2]


#: Bytes of memory that collections in untrusted data may take.
LARGEST: Final = 2**30
#: Bytes of a small part.
_SMALL: Final = 2**12
#: Keys in one timed step, the seconds after which a step is slow, and the number of slow steps permitted.
_KEYS, _SLOW, _PATIENCE = 512, 0.01, 8


def decode(
    data: bytes,
    *,
    levels: int = DEPTH,
    declared: Declared | None = None,
    parts: Mapping[int, Any] | None = None,
    most: int | None = None,
    count: Callable[[int], object] = bool,
) -> Any:
    """Decode what `encode` wrote, if it is nested at most *levels* deep; *parts* are those that came before, by number.

    Data from an untrusted source may name only the *declared* classes. With *most*, its collections take at most so
    many bytes of memory, and *count* is told how many.
    """
    try:
        if declared is None and not parts and most is None:
            return _OWN.read(data, levels)
        decoder = _Decoder(declared, parts, most)
        found = decoder.read(data, levels)
        count(decoder.made)
        return found
    except StoredStateError:
        raise
    except TooDeep as problem:
        cure = "use the release and the settings that wrote it, or an older copy"
        raise StoredStateError(what="a stored value", problem=str(problem), cure=cure) from None
    except Exception as problem:  # damaged bytes can raise anything
        cure = "it is damaged: take an older copy"
        text = f"{type(problem).__name__}: {problem}"[:200]
        raise StoredStateError(what="a stored value", problem=text, cure=cure) from problem


def decode_each(parts: Sequence[bytes], *, levels: int = DEPTH) -> list[Any]:
    """Decode each of *parts*; many small ones are decoded faster than one by one."""
    if len(parts) > 1 and len(data := b"".join(parts)) <= len(parts) * _SMALL:
        with suppress(Exception):  # damaged; decoded one by one to find out
            for part in parts:
                check_nesting(part, levels)
            reading = unpacker(ext_hook=_mark, list_hook=_OWN._listed if SIGN in data else None)
            reading.feed(data)
            return list(reading)
    return [decode(part, levels=levels) for part in parts]


def _read_moment(kind: Any, content: list[Any]) -> Any:
    """Decode a moment from its text, fold, and the kind and name of its zone; in JSON, from its text alone."""
    plain, fold, how, zone = content if len(content) > 1 else (*content, 0, None, None)
    found = kind.fromisoformat(plain).replace(fold=fold)
    if how == "offset":
        return found.replace(tzinfo=timezone(timedelta(microseconds=zone)))
    if how == "named offset":
        return found.replace(tzinfo=timezone(timedelta(microseconds=zone[0]), zone[1]))
    if zone is not None and zone not in zones():  # ZoneInfo would look for other names as files and modules
        raise ValueError(f"{zone!r:.80} is no time zone that is known here")
    return found if zone is None else found.replace(tzinfo=ZoneInfo(zone))


zones: Final = cache(available_timezones)


@dataclasses.dataclass(eq=False, slots=True)
class _Mark:
    """The first element of a list that represents a value of another type."""

    read: Callable[[list[Any], Any], Any]


class _Decoder:
    """Decodes one value.

    Attributes:
        declared: The permitted classes, for data from an untrusted source.
        made: The bytes of memory of the collections, if these are bounded.
        parts: The record batches and tables that came before, by number.
        watched: Iterates over entries of a table or set; stops if its keys were chosen to collide.
    """

    def __init__(
        self, declared: Declared | None, parts: Mapping[int, Any] | None = None, most: int | None = None
    ) -> None:
        self.declared = declared
        self.parts = parts or {}
        self.watched: Callable[[Iterable[Any]], Iterable[Any]] = iter if declared is None else watched
        self.made = 0
        self._most = most if most is not None or declared is None else LARGEST
        self._lists = self._listed
        self._tables = None
        if self._most is not None:
            self._lists = lambda found: self._counted(self._listed(found))
            self._tables = lambda pairs: self._counted(dict(self.watched(pairs)))

    def read(self, data: bytes, levels: int) -> Any:
        check_nesting(data, levels)
        # Trusted data without marks needs no hook for lists.
        lists = self._lists if SIGN in data or self._most is not None else None
        hooks: dict[str, Any] = {"ext_hook": _mark, "list_hook": lists, "object_pairs_hook": self._tables}
        if self._most is not None:  # msgpack makes the whole list before its hook can count it
            hooks["max_array_len"] = self._most // 8
        return msgpack.unpackb(data, strict_map_key=False, raw=False, **hooks)

    def _listed(self, found: list[Any]) -> Any:
        return found.pop(0).read(found, self) if found and type(found[0]) is _Mark else found

    def _counted(self, made: Any) -> Any:
        """Bound the memory: a byte can become a collection of hundreds."""
        self.made += sys.getsizeof(made)
        if self._most is not None and self.made > self._most:
            raise ValueError(f"it would take more than {self._most} bytes of memory")
        return made

    def table(self, flat: list[Any]) -> Iterable[tuple[Any, Any]]:
        """The entries of a table that is written as alternating keys and values."""
        entries = iter(flat)
        return self.watched(zip(entries, entries, strict=True))


def _mark(code: int, data: bytes) -> _Mark:
    if code == MARK and data in _MARKS:
        return _MARKS[data]
    problem = f"it holds a value of the kind {code}, which this release does not know"
    raise StoredStateError(what="a stored value", problem=problem, cure="use the release that wrote it")


def watched(entries: Iterable[Any], step: int = _KEYS) -> Iterator[Any]:
    """Iterate over the entries of a dict or set while it is built, as long as that takes the usual time.

    Keys that were chosen to collide take time quadratic in their number. Garbage collection also causes slow steps, but
    fewer. A step has *step* entries.
    """
    begun, slow = clock.thread_time(), 0
    for number, entry in enumerate(entries, 1):
        yield entry
        if not number % step:
            now = clock.thread_time()
            slow += now - begun > _SLOW
            begun = now
            if slow > _PATIENCE + number // (8 * step):
                raise ValueError(f"{number} keys of a table or set collide")


def _read_enum(content: list[Any], reader: _Decoder) -> Any:
    kind = class_named(content[0], "enum", lambda one: issubclass(one, enum.Enum), reader.declared)
    name = content[1]
    try:
        # Combined flags are stored as a number.
        return kind(name) if issubclass(kind, enum.Flag) and type(name) is int else kind.__members__[name]
    except (KeyError, ValueError):
        problem = f"{kind.__qualname__} has no member {name!r:.80}"
        raise StoredStateError(what="a stored value", problem=problem, cure="use the code that wrote it") from None


def _read_record(content: list[Any], reader: _Decoder, what: str, fits: Callable[[Any], bool]) -> Any:
    kind, fields = class_named(content[0], what, fits, reader.declared), dict(reader.table(content[1:]))
    return filled(kind, fields, defaults=reader.declared is None or reader.declared.names(kind))


def _read_part(content: list[Any], parts: Mapping[int, Any]) -> Any:
    if len(content) == 1 and type(content[0]) is int:
        return parts[content[0]]
    found, *numbers = content
    for number in watched(numbers, 1):
        found.update(parts[number])
    return found


def _only(make: Callable[[Any], Any]) -> Callable[[list[Any], Any], Any]:
    def read(content: list[Any], reader: _Decoder) -> Any:
        (one,) = content
        return make(one)

    return read


#: The values with a tag of their own: their class, what lists their parts, and what creates a value from its parts; the
#: reader has the declared classes and the bounds.
_CLASSES: Final[dict[Tag, tuple[type, Callable[[Any], Iterable[Any]], Callable[[list[Any], Any], Any]]]] = {
    Tag.TUPLE: (tuple, iter, lambda v, _: tuple(v)),
    Tag.SET: (set, iter, lambda v, reader: set(reader.watched(v))),
    Tag.FROZENSET: (frozenset, iter, lambda v, reader: frozenset(reader.watched(v))),
    Tag.DEQUE: (deque, lambda v: [v.maxlen, *v], lambda v, _: deque(v[1:], v[0])),
    Tag.INT: (
        int,
        lambda v: [v.to_bytes(v.bit_length() // 8 + 1, "big", signed=True)],
        _only(lambda v: int.from_bytes(v, "big", signed=True)),
    ),
    Tag.DECIMAL: (Decimal, lambda v: [str(v)], _only(Decimal)),
    Tag.DATETIME: (datetime, _moment, lambda v, _: _read_moment(datetime, v)),
    Tag.DATE: (date, lambda v: [v.isoformat()], _only(date.fromisoformat)),
    Tag.TIME: (time, _moment, lambda v, _: _read_moment(time, v)),
    Tag.TIMEDELTA: (timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda v, _: timedelta(*v)),
    Tag.COMPLEX: (complex, lambda v: [v.real, v.imag], lambda v, _: complex(*v)),
    Tag.DEFAULTDICT: (
        defaultdict,
        lambda v: [v.default_factory and name_of(v.default_factory), *flat(v)],
        lambda v, reader: defaultdict(v[0] and factory_named(v[0], reader.declared), reader.table(v[1:])),
    ),
    Tag.ORDERED: (OrderedDict, flat, lambda v, reader: OrderedDict(reader.table(v))),
    Tag.COUNTER: (Counter, flat, lambda v, reader: Counter(dict(reader.table(v)))),
    Tag.BATCH: (Batch, iter, lambda v, _: Batch(v)),
    Tag.WINDOW: (Window, iter, lambda v, _: Window(v)),
    Tag.UUID: (uuid.UUID, lambda v: [str(v)], _only(uuid.UUID)),
    Tag.PART: (Part, iter, lambda v, reader: _read_part(v, reader.parts)),
}
WRITERS: Final = {kind: (tag, parts) for tag, (kind, parts, _) in _CLASSES.items()}
READERS: Final[dict[Tag, Callable[[list[Any], Any], Any]]] = {
    **{tag: read for tag, (_, _, read) in _CLASSES.items()},
    Tag.ENUM: _read_enum,
    Tag.DATACLASS: lambda v, reader: _read_record(v, reader, "dataclass", dataclasses.is_dataclass),
    Tag.NAMEDTUPLE: lambda v, reader: _read_record(v, reader, "named tuple", is_named_tuple),
    Tag.ARRAY: lambda v, _: columns.read_array(v),
    Tag.SCALAR: lambda v, _: columns.read_array(v)[()],
    Tag.RECORD_BATCH: lambda v, reader: columns.read_arrow(v[0], table=False, foreign=reader.declared is not None),
    Tag.TABLE: lambda v, reader: columns.read_arrow(v[0], table=True, foreign=reader.declared is not None),
    Tag.PATH: _only(Path),
}
_MARKS: Final = {bytes([tag]): _Mark(READERS[tag]) for tag in Tag}
_OWN: Final = _Decoder(None)

"""Decoding of values from bytes of this release and older ones.

Classes are looked up in the loaded modules and instantiated without calling them. Data of unknown origin is decoded
with `declared`: only declared classes are found, and time and memory are bounded.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import time as clock
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

import msgpack

from exop.errors import StoredStateError
from exop.model.items import Batch, Window
from exop.model.types.description import is_named_tuple
from exop.model.values import columns
from exop.model.values.classes import Declared, class_named, factory_named, filled, filled_tuple
from exop.model.values.depth import DEPTH, TooDeep, deep_place
from exop.model.values.encoding import MARK, SIGN, Tag, check_nesting, flat, unpacker

#: Bytes of memory that collections in untrusted data may take.
LARGEST: Final = 2**30
#: Bytes of a small part.
_SMALL: Final = 2**12
#: Keys in one timed step, the seconds after which a step is slow, and the number of slow steps permitted.
_KEYS, _SLOW, _PATIENCE = 512, 0.01, 8


def decode(data: bytes, *, levels: int = DEPTH, declared: Declared | None = None) -> Any:
    """Decode what `encode` wrote, if it is nested at most *levels* deep.

    Data from an untrusted source may name only the *declared* classes.
    """
    try:
        return (_OWN if declared is None else _Decoder(declared)).read(data, levels)
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
    data = b"".join(parts)
    if len(parts) < 2 or len(data) > len(parts) * _SMALL:
        return [decode(part, levels=levels) for part in parts]
    try:
        for part in parts:
            check_nesting(part, levels)
        unpacker = msgpack.Unpacker(
            strict_map_key=False, raw=False, ext_hook=_mark, list_hook=_OWN._listed if SIGN in data else None
        )
        unpacker.feed(data)
        return list(unpacker)
    except Exception:  # noqa: BLE001 (of an older release, or damaged; decoded one by one to find out)
        return [decode(part, levels=levels) for part in parts]


def _read_moment(kind: Any, content: list[Any]) -> Any:
    """Decode a moment from its text, fold and zone; older releases did not write the kind of the zone."""
    plain, fold, *how, zone = content if len(content) > 1 else (*content, 0, None)
    found = kind.fromisoformat(plain).replace(fold=fold)
    if how == ["offset"]:
        return found.replace(tzinfo=timezone(timedelta(microseconds=zone)))
    if zone is not None and zone not in zones():  # ZoneInfo would look for other names as files and modules
        raise ValueError(f"{zone!r:.80} is no time zone that is known here")
    return found if zone is None else found.replace(tzinfo=ZoneInfo(zone))


zones: Final = cache(available_timezones)


class _Mark:
    """The first element of a list that represents a value of another type."""

    __slots__ = ("read",)

    def __init__(self, tag: Tag) -> None:
        self.read = READERS[tag]


class _Old(Exception):
    """The data contains an extension of an older release."""


class _Decoder:
    """Decodes one value.

    Attributes:
        declared: The permitted classes, for data from an untrusted source.
        watched: Iterates over entries of a table or set; stops if its keys were chosen to collide.
    """

    def __init__(self, declared: Declared | None) -> None:
        self.declared = declared
        self.watched: Callable[[Iterable[Any]], Iterable[Any]] = iter if declared is None else watched
        self._made = 0
        self._lists = self._listed
        self._tables = None
        if declared is not None:
            self._lists = lambda found: self._counted(self._listed(found))
            self._tables = lambda pairs: self._counted(dict(watched(pairs)))

    def read(self, data: bytes, levels: int) -> Any:
        check_nesting(data, levels)
        # Trusted data without marks needs no hook for lists.
        lists = self._lists if SIGN in data or self.declared is not None else None
        try:
            hooks = {"ext_hook": _mark, "list_hook": lists, "object_pairs_hook": self._tables}
            return msgpack.unpackb(data, strict_map_key=False, raw=False, **hooks)
        except _Old:
            found = self._unpacked(data, partial(self._old, levels))
            if deep_place(found, levels) is not None:
                raise TooDeep(levels) from None
            return found

    def _listed(self, found: list[Any]) -> Any:
        return found.pop(0).read(found, self) if found and type(found[0]) is _Mark else found

    def _counted(self, made: Any) -> Any:
        """Bound the memory: a byte can become a collection of hundreds."""
        self._made += sys.getsizeof(made)
        if self._made > LARGEST:
            raise ValueError(f"it would take more than {LARGEST} bytes of memory")
        return made

    def table(self, flat: list[Any]) -> Iterable[tuple[Any, Any]]:
        """The entries of a table that is written as alternating keys and values."""
        entries = iter(flat)
        return self.watched(zip(entries, entries, strict=True))

    def _old(self, levels: int, code: int, data: bytes) -> Any:
        """Decode an extension of an older release, which contains packed data with further extensions."""
        if levels <= 0:
            raise TooDeep
        tag = Tag(code)
        content: list[Any] = [data]
        if tag not in (Tag.INT, Tag.RECORD_BATCH, Tag.TABLE):
            check_nesting(data)
            found: Any = self._unpacked(data, partial(self._old, levels - 1))
            content = found if type(found) is list else flat(found) if type(found) is dict else [found]
            if tag in (Tag.DEQUE, Tag.DATACLASS, Tag.NAMEDTUPLE, Tag.DEFAULTDICT):
                content = [content[0], *(flat(content[1]) if type(content[1]) is dict else content[1])]
        made = READERS[tag](content, self)
        return made if self.declared is None else self._counted(made)

    def _unpacked(self, data: bytes, extension: Callable[[int, bytes], Any]) -> Any:
        # Nested extensions of older releases do not use the stack of the thread.
        reading = unpacker(ext_hook=extension, list_hook=self._lists, object_pairs_hook=self._tables)
        reading.feed(data)
        found = reading.unpack()
        if reading.tell() != len(data):
            raise ValueError("more follows")
        return found


def _mark(code: int, data: bytes) -> _Mark:
    if code == MARK and data in _MARKS:
        return _MARKS[data]
    if code in Tag._value2member_map_:
        raise _Old
    problem = f"it holds a value of the kind {code}, which this release does not know"
    raise StoredStateError(what="a stored value", problem=problem, cure="use the release that wrote it")


def watched(entries: Iterable[Any]) -> Iterator[Any]:
    """Iterate over the entries of a dict or set while it is built, as long as that takes the usual time.

    Keys that were chosen to collide take time quadratic in their number. Garbage collection also causes slow steps, but
    fewer.
    """
    begun, slow = clock.thread_time(), 0
    for number, entry in enumerate(entries, 1):
        yield entry
        if not number % _KEYS:
            now = clock.thread_time()
            slow += now - begun > _SLOW
            begun = now
            if slow > _PATIENCE + number // (8 * _KEYS):
                raise ValueError(f"{number} keys of a table or set collide")


def _read_enum(content: list[Any], reader: _Decoder) -> Any:
    kind = class_named(content[0], "enum", lambda one: issubclass(one, enum.Enum), reader.declared)
    name = content[1]
    try:
        # Combined flags are stored as a number.
        combined = issubclass(kind, enum.Flag) and type(name) is int
        return kind(name) if combined else kind.__members__[name]
    except (KeyError, ValueError):
        problem = f"{kind.__qualname__} has no member {name!r:.80}"
        raise StoredStateError(what="a stored value", problem=problem, cure="use the code that wrote it") from None


def _read_record(content: list[Any], reader: _Decoder, what: str, fits: Callable[[Any], bool]) -> Any:
    kind, fields = class_named(content[0], what, fits, reader.declared), dict(reader.table(content[1:]))
    if fits is is_named_tuple:
        return filled_tuple(kind, fields)
    return filled(kind, fields, defaults=reader.declared is None or reader.declared.names(kind))


def _only(make: Callable[[Any], Any]) -> Callable[[list[Any], Any], Any]:
    def read(content: list[Any], reader: _Decoder) -> Any:
        (one,) = content
        return make(one)

    return read


#: Creates a value from its parts; the reader has the declared classes and the bounds.
READERS: Final[dict[Tag, Callable[[list[Any], Any], Any]]] = {
    Tag.TUPLE: lambda v, _: tuple(v),
    Tag.SET: lambda v, reader: set(reader.watched(v)),
    Tag.FROZENSET: lambda v, reader: frozenset(reader.watched(v)),
    Tag.DEQUE: lambda v, _: deque(v[1:], v[0]),
    Tag.INT: _only(lambda v: int.from_bytes(v, "big", signed=True)),
    Tag.DECIMAL: _only(Decimal),
    Tag.DATETIME: lambda v, _: _read_moment(datetime, v),
    Tag.DATE: _only(date.fromisoformat),
    Tag.TIME: lambda v, _: _read_moment(time, v),
    Tag.TIMEDELTA: lambda v, _: timedelta(*v),
    Tag.ENUM: _read_enum,
    Tag.DATACLASS: lambda v, reader: _read_record(v, reader, "dataclass", dataclasses.is_dataclass),
    Tag.NAMEDTUPLE: lambda v, reader: _read_record(v, reader, "named tuple", is_named_tuple),
    Tag.ARRAY: lambda v, _: columns.read_array(v),
    Tag.SCALAR: lambda v, _: columns.read_array(v)[()],
    Tag.RECORD_BATCH: lambda v, reader: columns.read_arrow(v[0], table=False, foreign=reader.declared is not None),
    Tag.TABLE: lambda v, reader: columns.read_arrow(v[0], table=True, foreign=reader.declared is not None),
    Tag.COMPLEX: lambda v, _: complex(*v),
    Tag.DEFAULTDICT: lambda v, reader: defaultdict(v[0] and factory_named(v[0], reader.declared), reader.table(v[1:])),
    Tag.ORDERED: lambda v, reader: OrderedDict(reader.table(v)),
    Tag.COUNTER: lambda v, reader: Counter(dict(reader.table(v))),
    Tag.BATCH: lambda v, _: Batch(v),
    Tag.WINDOW: lambda v, _: Window(v),
    Tag.UUID: _only(uuid.UUID),
    Tag.PATH: _only(Path),
}
_MARKS: Final = {bytes([tag]): _Mark(tag) for tag in Tag}
_OWN: Final = _Decoder(None)

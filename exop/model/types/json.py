"""Mementos as JSON that a person can read and edit: by the annotations of their fields, with tags where these say less.

A value of the type that its annotation declares needs no tag: a `dict[int, list[float]]` is written `{"5": [1.0]}`, a
`datetime` as its text. Any other value has one: `{"$tuple": [1, 2]}`, `{"$dict": [[1, "a"]]}` for keys that are no
text. Arrays and tables of Arrow are shown, and no more: they have no JSON from which they could be made again.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, NoReturn
from uuid import UUID

from exop.errors import StoredStateError
from exop.model.decoding import watched, zone_named
from exop.model.depth import TooDeep, deep_place
from exop.model.memento import Memento, check_fields
from exop.model.named import Declared, class_named, factory_named, name_of
from exop.model.types.description import ANY, Type, is_named_tuple, type_of
from exop.model.types.fields import filled, filled_tuple

_PLAIN: Final = (type(None), bool, int, str)
#: A value that always has its tag.
_TAGGED: Final = object()
_CURE: Final = "correct it and import it again"


def written(memento: Memento) -> tuple[dict[str, Any], list[str]]:
    """The fields of a memento as JSON, and the places of those values that are only shown."""
    writer = _Writer()
    return writer.fields(memento, ""), writer.opaque


def read(fields: Mapping[str, Any], kind: type[Memento], place: str) -> Memento:
    """Make a memento out of its fields as JSON; those that are left out have their defaults.

    Raises:
        StoredStateError: a field that the class does not have, or a value that does not fit; with its place.
    """
    reader = _Reader(place, kind)
    try:
        values = reader.fields(fields, type_of(kind), "")
    except RecursionError:
        raise StoredStateError(what=place, problem=str(TooDeep()), cure=_CURE) from None
    deep = deep_place(values)
    if deep is not None:
        raise StoredStateError(what=place, problem=f"{TooDeep()}, at {deep}", cure=_CURE)
    check_fields(values, kind, place)
    made: Memento = filled(kind, values)
    return made


class _Writer:
    """Writes one memento; `opaque` are the places of values that are only shown."""

    def __init__(self) -> None:
        self.opaque: list[str] = []

    def fields(self, value: Any, path: str) -> dict[str, Any]:
        fields = type_of(type(value)).fields
        return {
            name: self.write(getattr(value, name), one.type, f"{path}.{name}".lstrip("."))
            for name, one in fields.items()
        }

    def write(self, value: Any, declared: Type, path: str) -> Any:
        """Write a value that stands at *path*, where *declared* is the type that its annotation says."""
        kind, wanted = type(value), declared.sole
        if kind in _PLAIN or (kind is float and math.isfinite(value)):
            return value
        codec = _codec_of(kind)
        if codec is None or (isinstance(value, enum.Enum) and value.name not in kind.__members__):
            return self._shown(value, path)
        told = wanted.cls is kind or (codec is _PATH and wanted.kind == "scalar" and issubclass(wanted.cls, PurePath))
        content, bare = codec.write(self, value, wanted if told else ANY, path)
        untagged = told or (kind in (list, dict) and wanted is ANY)
        return bare if untagged and bare is not _TAGGED else {codec.tag: content}

    def rows(self, value: Iterable[Any], wanted: Type, path: str) -> list[Any]:
        rows = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
        pairs = zip(rows, wanted.elements(len(rows)), strict=True)
        return [self.write(one, kind, f"{path}[{n}]") for n, (one, kind) in enumerate(pairs)]

    def table(self, value: Mapping[Any, Any], wanted: Type, path: str) -> tuple[Any, Any]:
        """Write a table: as a JSON table if its keys have a text, else as pairs, which always have a tag."""
        keys, values = wanted.entry
        entries = [(key, self.write(one, values, f"{path}[{key!r:.60}]")) for key, one in value.items()]
        texts = [_key(key, keys.sole) for key, _ in entries]
        if None in texts or _like_a_tag(texts):
            pairs = [[self.write(key, keys, f"{path}: the key {key!r:.60}"), one] for key, one in entries]
            return pairs, _TAGGED
        found = {text: one for text, (_, one) in zip(texts, entries, strict=True)}
        return found, found

    def record(self, value: Any, wanted: Type, path: str) -> tuple[Any, Any]:
        fields = self.fields(value, path)
        return [name_of(type(value)), fields], _TAGGED if _like_a_tag(fields) else fields

    def _shown(self, value: Any, path: str) -> dict[str, str]:
        self.opaque.append(path)
        shape = getattr(value, "shape", None)
        size = f" {shape}" if shape else ""
        text = " ".join(repr(value).split())
        return {"$shown": f"{type(value).__module__.partition('.')[0]} {type(value).__name__}{size}: {text:.200}"}


def _like_a_tag(keys: Iterable[Any]) -> bool:
    found = list(keys)
    return len(found) == 1 and str(found[0]).startswith("$")


def _key(key: Any, wanted: Type) -> str | None:
    """A key as text, where its annotation says what it was."""
    kind = type(key)
    if kind is str:
        return str(key) if wanted.cls is str or wanted is ANY else None
    if wanted.cls is not kind:
        return None
    if kind in (int, float, bool):
        return repr(key).lower() if kind is bool else repr(key)
    codec = _codec_of(kind)
    if codec is None or codec.parse is None or (isinstance(key, enum.Enum) and key.name not in kind.__members__):
        return None
    bare = codec.write(_Writer(), key, wanted, "")[1]
    return bare if isinstance(bare, str) else None


class _Reader:
    """Reads one memento, which a person has perhaps edited: every mistake has its place."""

    def __init__(self, place: str, kind: type[Memento]) -> None:
        self.declared = Declared(kind, home=kind.__module__)
        self._place = place

    def fields(self, given: Any, wanted: Type, path: str) -> dict[str, Any]:
        """Read the values of the fields of a dataclass or named tuple."""
        if not isinstance(given, Mapping):
            self.wrong(path, given, "a table of fields")
        known = wanted.fields
        for name in given:
            if name not in known:
                self.fail(f"{path or wanted} has no field {name!r}; it has {', '.join(known)}")
        return {name: self.value(one, known[name].type, f"{path}.{name}".lstrip(".")) for name, one in given.items()}

    def value(self, given: Any, declared: Type, path: str) -> Any:
        """Read one value that stands at *path*, where *declared* is the type that its annotation says."""
        wanted = declared.sole
        if isinstance(given, dict):
            return self._tagged(given, wanted, path) if _like_a_tag(given) else self._table(given, wanted, path)
        if isinstance(given, list):
            made = wanted.cls if wanted.cls in (tuple, set, frozenset, deque) else list
            return self.gathered(made, self.rows(given, wanted, path), path)
        return self._text(given, wanted, path) if isinstance(given, str) else given

    def _text(self, given: str, wanted: Type, path: str) -> Any:
        codec = _codec_of(wanted.cls) if wanted.cls is not None else None
        if codec is None or codec.parse is None:
            return given
        try:
            return codec.parse(wanted.cls, given)
        except (ValueError, KeyError, ArithmeticError):
            self.wrong(path, given, wanted.name)

    def _table(self, given: dict[str, Any], wanted: Type, path: str) -> Any:
        if wanted.kind == "record" and not wanted.is_row:
            return self.record(wanted, given, path)
        made = wanted.cls if wanted.cls in (OrderedDict, Counter) else dict
        return made(self.table(given, wanted, path))

    def table(self, given: Any, wanted: Type, path: str) -> dict[Any, Any]:
        """Read a table, or the pairs of one whose keys are no text."""
        keys, values = wanted.entry
        if isinstance(given, dict):
            entries = [
                (self._key(key, keys.sole, path), self.value(one, values, f"{path}[{key!r:.60}]"))
                for key, one in given.items()
            ]
        elif isinstance(given, list) and all(isinstance(one, list) and len(one) == 2 for one in given):
            entries = [
                (self.value(key, keys, f"{path}: the key {key!r:.60}"), self.value(one, values, f"{path}[{key!r:.60}]"))
                for key, one in given
            ]
        else:
            self.wrong(path, given, "a table, or a list of pairs")
        found: dict[Any, Any] = self.gathered(dict, entries, path)
        if len(found) != len(given):
            self.fail(f"{path} has two keys that are the same {keys.sole}")
        return found

    def _key(self, given: str, wanted: Type, path: str) -> Any:
        where = f"{path}: the key {given!r:.60}"
        try:
            if wanted.cls is bool:
                return {"true": True, "false": False}[given]
            if wanted.cls in (int, float):
                return wanted.cls(given)
        except (KeyError, ValueError):
            self.wrong(where, given, wanted.name)
        return self._text(given, wanted, where)

    def rows(self, given: Any, wanted: Type, path: str) -> list[Any]:
        """Read the elements of a list."""
        if not isinstance(given, list):
            self.wrong(path, given, "a list")
        pairs = zip(given, wanted.elements(len(given)), strict=True)
        return [self.value(one, kind, f"{path}[{n}]") for n, (one, kind) in enumerate(pairs)]

    def gathered(self, made: Callable[[Any], Any], entries: Iterable[Any], path: str) -> Any:
        """Make a collection; keys that were made to collide, or cannot be keys, are refused."""
        try:
            return made(watched(entries))
        except (ValueError, TypeError) as problem:
            self.fail(f"{path}: {problem}")

    def record(self, wanted: Type, given: Any, path: str) -> Any:
        """Read a dataclass or a named tuple."""
        kind, values = wanted.cls, self.fields(given, wanted, path)
        if dataclasses.is_dataclass(kind):
            try:
                return filled(kind, values, defaults=self.declared.names(kind))
            except StoredStateError as problem:
                self.fail(f"{path}: {problem.problem}")
        missing = [
            name for name, one in wanted.fields.items() if one.required and not one.type.nullable and name not in values
        ]
        if missing:
            self.fail(f"{path} lacks {', '.join(missing)}")
        return filled_tuple(kind, values)

    def _tagged(self, given: dict[str, Any], wanted: Type, path: str) -> Any:
        ((tag, content),) = given.items()
        codec = _TAGS.get(tag)
        if codec is None:
            shown = "it was only shown, and has no JSON; export it as msgpack"
            self.fail(f"{path}: {shown if tag == '$shown' else f'there is no tag {tag}'}")
        try:
            return codec.read(self, content, wanted if _codec_of(wanted.cls or object) is codec else ANY, path)
        except StoredStateError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            self.wrong(path, content, f"what stands behind {tag}")

    def wrong(self, path: str, given: Any, wanted: str) -> NoReturn:
        """Refuse a value that is none of the *wanted*."""
        self.fail(f"{path} is {given!r:.80}, not {wanted}")

    def fail(self, problem: str) -> NoReturn:
        """Refuse the file."""
        raise StoredStateError(what=self._place, problem=problem, cure=_CURE)


class _Codec(NamedTuple):
    """The JSON of one kind of values.

    Attributes:
        write: Gives the content that stands behind the tag, and the form without a tag, or `_TAGGED`.
        parse: Makes a value of the class out of its text, where the annotation names the class.
    """

    tag: str
    write: Callable[[_Writer, Any, Type, str], tuple[Any, Any]]
    read: Callable[[_Reader, Any, Type, str], Any]
    parse: Callable[[Any, str], Any] | None = None


def _text(tag: str, text: Callable[[Any], str], parse: Callable[[Any, str], Any]) -> Callable[[type], _Codec]:
    """The codec of values that are their text."""

    def codec(made: type) -> _Codec:
        return _Codec(
            tag, lambda _, value, *__: (text(value),) * 2, lambda _, content, *__: parse(made, content), parse
        )

    return codec


def _rows(tag: str, made: Callable[[Any], Any]) -> _Codec:
    def read_rows(reader: _Reader, content: Any, wanted: Type, path: str) -> Any:
        return reader.gathered(made, reader.rows(content, wanted, path), path)

    return _Codec(tag, lambda writer, *given: (writer.rows(*given),) * 2, read_rows)


def _table(tag: str, made: Callable[[Any], Any]) -> _Codec:
    return _Codec(tag, _Writer.table, lambda reader, *given: made(reader.table(*given)))


def _moment(tag: str, kind: Any) -> _Codec:
    """The codec of moments: with the name of their zone and their fold where the text does not say them."""

    def write(_: _Writer, value: Any, *__: Any) -> tuple[Any, Any]:
        zone = (value.tzinfo is not None and getattr(value.tzinfo, "key", None)) or None
        if zone is None and not value.fold:
            return (value.isoformat(),) * 2
        return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, zone], _TAGGED

    def read_moment(_: _Reader, content: Any, *__: Any) -> Any:
        if isinstance(content, str):
            return kind.fromisoformat(content)
        plain, fold, zone = content
        return kind.fromisoformat(plain).replace(fold=fold, tzinfo=zone_named(zone) if zone else None)

    return _Codec(tag, write, read_moment, lambda made, text: made.fromisoformat(text))


def _parts(tag: str, parts: Callable[[Any], Any], made: Callable[..., Any]) -> _Codec:
    """The codec of values that always have a tag."""
    return _Codec(tag, lambda _, value, *__: (parts(value), _TAGGED), lambda _, content, *__: made(content))


def _record(tag: str, fits: Callable[[Any], bool]) -> _Codec:
    def read_record(reader: _Reader, content: Any, _: Type, path: str) -> Any:
        kind = class_named(content[0], "record", fits, reader.declared)
        return reader.record(type_of(kind), content[1], path)

    return _Codec(tag, _Writer.record, read_record)


def _write_deque(writer: _Writer, value: deque[Any], wanted: Type, path: str) -> tuple[Any, Any]:
    rows = writer.rows(value, wanted, path)
    return [value.maxlen, rows], rows if value.maxlen is None else _TAGGED


def _write_default_dict(writer: _Writer, value: defaultdict[Any, Any], wanted: Type, path: str) -> tuple[Any, Any]:
    made = value.default_factory
    return [made and name_of(made), writer.table(value, wanted, path)[0]], _TAGGED


def _read_default_dict(reader: _Reader, content: Any, wanted: Type, path: str) -> Any:
    made, table = content
    return defaultdict(made and factory_named(made, reader.declared), reader.table(table, wanted, path))


def _read_enum(reader: _Reader, content: Any, *_: Any) -> Any:
    found = class_named(content[0], "enum", lambda one: issubclass(one, enum.Enum), reader.declared)
    return found.__members__[content[1]]


_DATACLASS: Final = _record("$dataclass", dataclasses.is_dataclass)
_NAMED_TUPLE: Final = _record("$namedtuple", is_named_tuple)
_PATH: Final = _text("$path", str, lambda _, text: Path(text))(Path)
_ENUM: Final = _Codec(
    "$enum",
    lambda _, value, *__: ([name_of(type(value)), value.name], value.name),
    _read_enum,
    lambda kind, text: kind.__members__[text],
)
_BYTES: Final = _Codec(
    "$bytes",
    lambda _, value, *__: (base64.b64encode(value).decode(), _TAGGED),
    lambda _, content, wanted, __: (wanted.cls or bytes)(base64.b64decode(content, validate=True)),
)
_CODECS: Final[dict[type, _Codec]] = {
    float: _parts("$float", repr, float),
    list: _rows("$list", list),
    tuple: _rows("$tuple", tuple),
    set: _rows("$set", set),
    frozenset: _rows("$frozenset", frozenset),
    deque: _Codec(
        "$deque", _write_deque, lambda reader, content, *given: deque(reader.rows(content[1], *given), content[0])
    ),
    dict: _table("$dict", dict),
    OrderedDict: _table("$ordered", OrderedDict),
    Counter: _table("$counter", Counter),
    defaultdict: _Codec("$defaultdict", _write_default_dict, _read_default_dict),
    Decimal: _text("$decimal", str, lambda made, text: made(text))(Decimal),
    UUID: _text("$uuid", str, lambda made, text: made(text))(UUID),
    date: _text("$date", date.isoformat, lambda made, text: made.fromisoformat(text))(date),
    datetime: _moment("$datetime", datetime),
    time: _moment("$time", time),
    timedelta: _parts("$timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda parts: timedelta(*parts)),
    complex: _parts("$complex", lambda v: [v.real, v.imag], lambda parts: complex(*parts)),
    bytes: _BYTES,
    bytearray: _BYTES,
}
_TAGS: Final = {codec.tag: codec for codec in (*_CODECS.values(), _DATACLASS, _NAMED_TUPLE, _PATH, _ENUM)}


def _codec_of(kind: type) -> _Codec | None:
    """The codec of the values of a class; `None`: they are only shown."""
    known = _CODECS.get(kind)
    if known is not None or not isinstance(kind, type):
        return known
    if issubclass(kind, enum.Enum):
        return _ENUM
    if dataclasses.is_dataclass(kind):
        return _DATACLASS
    if is_named_tuple(kind):
        return _NAMED_TUPLE
    return _PATH if issubclass(kind, PurePath) else None

"""Mementos as JSON that a person can read and edit: untagged where annotations tell the type, tagged elsewhere.

A value of the type that its annotation declares is written plainly: a `dict[int, list[float]]` as `{"5": [1.0]}`, a
`datetime` as its text. Any other value has a tag: `{"$tuple": [1, 2]}`, or `{"$dict": [[1, "a"]]}` if the keys are not
strings and no annotation gives their type, or if they have no text form. The tags, and the values behind them, are
those of the msgpack encoding. Arrays and Arrow tables are only displayed and cannot be read back.
"""

from __future__ import annotations

import base64
import enum
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, NoReturn

from exop.errors import StoredStateError
from exop.model.items import Batch, Window
from exop.model.slets.memento import Memento, refused
from exop.model.types.description import ANY, Type, is_named_tuple, type_of
from exop.model.values.classes import Declared, class_named, factory_named, filled, name_of
from exop.model.values.depth import TooDeep, deep_place
from exop.model.values.encoding import PATHS, READERS, WRITERS, Tag, is_record, watched

_PLAIN: Final = (type(None), bool, int, str)
#: The untagged form of values that always have a tag.
_TAGGED: Final = object()
_CURE: Final = "correct it and import it again"
_ROWS: Final[Mapping[str, Any]] = {f"${one.__name__}": one for one in (list, tuple, set, frozenset, deque)}
_TABLES: Final[Mapping[str, Any]] = {"$dict": dict, "$ordered": OrderedDict, "$counter": Counter, "$defaultdict": None}
#: The tags by class; `_tag_of` also knows those of records, enumerations and paths.
_TAGS: Final[Mapping[Any, str]] = {
    **{kind: f"${tag.name.lower()}" for kind, (tag, _) in WRITERS.items() if kind not in (int, Batch, Window)},
    **{kind: f"${kind.__name__}" for kind in (float, list, dict, bytes)},
    bytearray: "$bytes",
}
#: Tags of values that are written as text if the annotation names the class.
_TEXTS: Final = ("$decimal", "$uuid", "$date", "$datetime", "$time", "$path", "$enum")


def _tag_of(kind: Any) -> str | None:
    """The tag of the values of a class; `None` for those that are only displayed."""
    if kind in _TAGS or not isinstance(kind, type):
        return _TAGS.get(kind)
    return next((tag for tag, fits in _KINDS.items() if fits(kind)), None)


_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "$enum": lambda kind: issubclass(kind, enum.Enum),
    "$dataclass": is_record,
    "$namedtuple": is_named_tuple,
    "$path": lambda kind: issubclass(kind, PurePath),
}


def from_json(fields: Mapping[str, Any], kind: type[Memento], place: str) -> Memento:
    """Create a memento from its fields as JSON; missing ones have their defaults."""
    reader = _Reader(place, kind)
    try:
        values = reader.fields(fields, type_of(kind), "")
    except RecursionError:
        raise refused(place, str(TooDeep()), _CURE) from None
    if (deep := deep_place(values)) is not None:
        raise refused(place, f"{TooDeep()}, at {deep}", _CURE)
    made: Memento = filled(kind, values)
    return made


class Writer:
    """Writes one memento; `opaque` are the places of values that are only displayed."""

    def __init__(self) -> None:
        self.opaque: list[str] = []

    def fields(self, value: Any, path: str = "") -> dict[str, Any]:
        """Write the fields of a memento, dataclass or named tuple."""
        return {
            name: self.write(getattr(value, name), one.type, f"{path}.{name}".lstrip("."))
            for name, one in type_of(type(value)).fields.items()
        }

    def write(self, value: Any, declared: Type, path: str) -> Any:
        """Write the value at *path*, whose annotation is *declared*."""
        kind, wanted = type(value), declared.sole
        if kind in _PLAIN or (kind is float and math.isfinite(value)):
            return value
        tag = _tag_of(kind)
        odd = kind not in PATHS if tag == "$path" else tag == "$enum" and value.name not in kind.__members__
        if tag is None or odd:
            return self._shown(value, path)
        known = wanted.cls is kind or (tag == "$path" and wanted.kind == "scalar" and issubclass(wanted.cls, PurePath))
        content, bare = self._parts(tag, value, wanted if known else ANY, path)
        untagged = known or (kind in (list, dict) and wanted is ANY)
        return bare if untagged and bare is not _TAGGED else {tag: content}

    def _parts(self, tag: str, value: Any, wanted: Type, path: str) -> tuple[Any, Any]:
        """Return the content behind the tag, and the untagged form or `_TAGGED`."""
        if tag in _ROWS:
            rows = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
            pairs = zip(rows, wanted.elements(len(rows)), strict=True)
            found = [self.write(one, kind, f"{path}[{n}]") for n, (one, kind) in enumerate(pairs)]
            if tag == "$deque":
                return [value.maxlen, found], found if value.maxlen is None else _TAGGED
            return found, found
        if tag == "$defaultdict":
            made = value.default_factory
            return [made and name_of(made), self._table(value, wanted, path)[0]], _TAGGED
        if tag in _TABLES:
            return self._table(value, wanted, path)
        if tag in ("$dataclass", "$namedtuple"):
            fields = self.fields(value, path)
            return [name_of(type(value)), fields], _TAGGED if _like_a_tag(fields) else fields
        return _leaf(tag, value)

    def _table(self, value: Mapping[Any, Any], wanted: Type, path: str) -> tuple[Any, Any]:
        """Write a table as a JSON object if all keys have a text, else as pairs, which are always tagged."""
        keys, values = wanted.entry
        entries = [(key, self.write(one, values, f"{path}[{key!r:.60}]")) for key, one in value.items()]
        if None in (texts := [_key(key, keys.sole) for key, _ in entries]) or _like_a_tag(texts):
            return [[self.write(key, keys, f"{path}: the key {key!r:.60}"), one] for key, one in entries], _TAGGED
        found = {text: one for text, (_, one) in zip(texts, entries, strict=True)}
        return found, found

    def _shown(self, value: Any, path: str) -> dict[str, str]:
        self.opaque.append(path)
        shape = getattr(value, "shape", None)
        size = f" {shape}" if shape else ""
        text = " ".join(repr(value).split())
        return {"$shown": f"{type(value).__module__.partition('.')[0]} {type(value).__name__}{size}: {text:.200}"}


def _leaf(tag: str, value: Any) -> tuple[Any, Any]:
    """The parts of a value without elements, and its text if that is unambiguous."""
    if tag == "$float":
        return repr(value), _TAGGED
    if tag == "$bytes":
        return base64.b64encode(value).decode(), _TAGGED
    if tag == "$enum":
        return [name_of(type(value)), value.name], value.name
    if tag == "$path":
        return str(value), str(value)
    parts = list(WRITERS[type(value)][1](value))
    if tag in ("$datetime", "$time") and parts[1:3] in ([0, None], [0, "offset"]):
        return value.isoformat(), value.isoformat()
    return (parts[0], parts[0]) if len(parts) == 1 else (parts, _TAGGED)


def _like_a_tag(keys: Iterable[Any]) -> bool:
    found = list(keys)
    return len(found) == 1 and str(found[0]).startswith("$")


def _key(key: Any, wanted: Type) -> str | None:
    """A key as text, or `None` if its annotation does not tell the type."""
    if (kind := type(key)) is str:
        return str(key) if wanted.cls is str or wanted is ANY else None
    if wanted.cls is not kind:
        return None
    if kind in (int, float, bool):
        return repr(key).lower() if kind is bool else repr(key)
    if (tag := _tag_of(kind)) not in _TEXTS or (tag == "$enum" and key.name not in kind.__members__):
        return None
    bare = _leaf(str(tag), key)[1]
    return bare if isinstance(bare, str) else None


class _Reader:
    """Reads one memento; errors name the place of a mistake."""

    def __init__(self, place: str, kind: type[Memento]) -> None:
        self.declared = Declared(kind, home=kind.__module__)
        self._place = place

    def fields(self, given: Any, wanted: Type, path: str) -> dict[str, Any]:
        """Read the values of the fields of a dataclass or named tuple."""
        if not isinstance(given, Mapping):
            self._wrong(path, given, "a table of fields")
        known = wanted.fields
        for name in given:
            if name not in known:
                self._fail(f"{path or wanted} has no field {name!r}; it has {', '.join(known)}")
        return {name: self._value(one, known[name].type, f"{path}.{name}".lstrip(".")) for name, one in given.items()}

    def _value(self, given: Any, declared: Type, path: str) -> Any:
        """Read the value at *path*, whose annotation is *declared*."""
        wanted = declared.sole
        if isinstance(given, dict) and _like_a_tag(given):
            return self._tagged(given, wanted, path)
        if isinstance(given, dict):
            if wanted.kind == "record" and not wanted.is_row:
                return self._record(wanted, given, path)
            made = wanted.cls if wanted.cls in (OrderedDict, Counter) else dict
            return made(self._table(given, wanted, path))
        if isinstance(given, list):
            made = wanted.cls if wanted.cls in (tuple, set, frozenset, deque) else list
            return self._gathered(made, self._rows(given, wanted, path), path)
        return self._text(given, wanted, path) if isinstance(given, str) else given

    def _text(self, given: str, wanted: Type, path: str) -> Any:
        if (tag := _tag_of(wanted.cls)) not in _TEXTS:
            return given
        try:
            return wanted.cls.__members__[given] if tag == "$enum" else _made(str(tag), given)
        except (ValueError, KeyError, ArithmeticError):
            self._wrong(path, given, wanted.name)

    def _table(self, given: Any, wanted: Type, path: str) -> dict[Any, Any]:
        """Read a JSON object, or pairs."""
        keys, values = wanted.entry
        if isinstance(given, dict):
            named: Any = ((self._key(key, keys.sole, path), key, one) for key, one in given.items())
        elif isinstance(given, list) and all(isinstance(one, list) and len(one) == 2 for one in given):
            named = ((self._value(key, keys, f"{path}: the key {key!r:.60}"), key, one) for key, one in given)
        else:
            self._wrong(path, given, "a table, or a list of pairs")
        entries = [(key, self._value(one, values, f"{path}[{text!r:.60}]")) for key, text, one in named]
        found: dict[Any, Any] = self._gathered(dict, entries, path)
        if len(found) != len(given):
            self._fail(f"{path} has two keys that are the same {keys.sole}")
        return found

    def _key(self, given: str, wanted: Type, path: str) -> Any:
        where = f"{path}: the key {given!r:.60}"
        try:
            if wanted.cls is bool:
                return {"true": True, "false": False}[given]
            if wanted.cls in (int, float):
                return wanted.cls(given)
        except (KeyError, ValueError):
            self._wrong(where, given, wanted.name)
        return self._text(given, wanted, where)

    def _rows(self, given: Any, wanted: Type, path: str) -> list[Any]:
        if not isinstance(given, list):
            self._wrong(path, given, "a list")
        pairs = zip(given, wanted.elements(len(given)), strict=True)
        return [self._value(one, kind, f"{path}[{n}]") for n, (one, kind) in enumerate(pairs)]

    def _gathered(self, made: Callable[[Any], Any], entries: Iterable[Any], path: str) -> Any:
        """Create a collection; keys that collide or cannot be hashed are refused."""
        try:
            return made(watched(entries))
        except (ValueError, TypeError) as problem:
            self._fail(f"{path}: {problem}")

    def _record(self, wanted: Type, given: Any, path: str) -> Any:
        kind, values = wanted.cls, self.fields(given, wanted, path)
        try:
            return filled(kind, values, defaults=self.declared.names(kind))
        except StoredStateError as problem:
            self._fail(f"{path}: {problem.problem}")

    def _tagged(self, given: dict[str, Any], wanted: Type, path: str) -> Any:
        ((tag, content),) = given.items()
        if tag not in _KINDS and tag not in _TAGS.values():
            shown = "it was only shown, and has no JSON; export it as msgpack"
            self._fail(f"{path}: {shown if tag == '$shown' else f'there is no tag {tag}'}")
        try:
            return self._behind(tag, content, wanted if _tag_of(wanted.cls) == tag else ANY, path)
        except StoredStateError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            self._wrong(path, content, f"the content of {tag}")

    def _behind(self, tag: str, content: Any, wanted: Type, path: str) -> Any:
        if tag == "$deque":
            return deque(self._rows(content[1], wanted, path), content[0])
        if tag in _ROWS:
            return self._gathered(_ROWS[tag], self._rows(content, wanted, path), path)
        if tag == "$defaultdict":
            made, table = content
            return defaultdict(made and factory_named(made, self.declared), self._table(table, wanted, path))
        if tag in _TABLES:
            return _TABLES[tag](self._table(content, wanted, path))
        if tag in ("$dataclass", "$namedtuple"):
            kind = class_named(content[0], "record", _KINDS[tag], self.declared)
            return self._record(type_of(kind), content[1], path)
        if tag == "$enum":
            return class_named(content[0], "enum", _KINDS[tag], self.declared).__members__[content[1]]
        if tag == "$bytes":
            return (wanted.cls or bytes)(base64.b64decode(content, validate=True))
        return float(content) if tag == "$float" else _made(tag, content)

    def _wrong(self, path: str, given: Any, wanted: str) -> NoReturn:
        self._fail(f"{path} is {given!r:.80}, not {wanted}")

    def _fail(self, problem: str) -> NoReturn:
        raise refused(self._place, problem, _CURE)


def _made(tag: str, content: Any) -> Any:
    """Create a value without elements from its parts."""
    return READERS[Tag[tag[1:].upper()]](content if isinstance(content, list) else [content], None)

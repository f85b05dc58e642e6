"""A memento out of the JSON that `legible` wrote, and a person has perhaps edited: every mistake has its place."""

from __future__ import annotations

import base64
import dataclasses
import enum
import typing
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, Final

from exop.errors import StoredStateError
from exop.model.decoding import filled, filled_tuple, watched, zone_named
from exop.model.depth import TooDeep, deep_place
from exop.model.legible import concrete, elements, guide, key_and_value
from exop.model.memento import Memento, check_fields
from exop.model.named import class_named, factory_named, is_named_tuple
from exop.model.stored import declared_by
from exop.model.types.description import type_name

_CURE: Final = "correct it and import it again"
#: Classes whose values are read from text.
_TEXTS: Final[dict[Any, Callable[[str], Any]]] = {
    Decimal: Decimal,
    uuid.UUID: uuid.UUID,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    time: time.fromisoformat,
}
_ROWS: Final[dict[Any, Callable[[Any], Any]]] = {tuple: tuple, set: set, frozenset: frozenset, deque: deque}
_TABLES: Final[dict[Any, Callable[[Any], Any]]] = {OrderedDict: OrderedDict, Counter: Counter}


def read(fields: Mapping[str, Any], kind: type[Memento], place: str) -> Memento:
    """Make a memento out of its fields as JSON; those that are left out have their defaults.

    Raises:
        StoredStateError: a field that the class does not have, or a value that does not fit; with its place.
    """
    reader = _Reader(place, kind)
    try:
        values = reader.fields(fields, kind, "")
    except RecursionError:
        raise StoredStateError(what=place, problem=str(TooDeep()), cure=_CURE) from None
    deep = deep_place(values)
    if deep is not None:
        raise StoredStateError(what=place, problem=f"{TooDeep()}, at {deep}", cure=_CURE)
    check_fields(values, kind, place)
    made: Memento = filled(kind, values)
    return made


class _Reader:
    def __init__(self, place: str, kind: type[Memento]) -> None:
        self.declared = declared_by(kind)
        self._place = place

    def fields(self, given: Any, kind: Any, path: str) -> dict[str, Any]:
        """The values of the fields of a dataclass or named tuple."""
        if not isinstance(given, Mapping):
            raise self._wrong(path, given, "a table of fields")
        known = _names(kind)
        hints = typing.get_type_hints(kind, include_extras=True)
        for name in given:
            if name not in known:
                raise self._told(f"{path or kind.__qualname__} has no field {name!r}; it has {', '.join(known)}")
        return {
            name: self.value(one, hints.get(name, Any), f"{path}.{name}".lstrip(".")) for name, one in given.items()
        }

    def value(self, given: Any, annotation: Any, path: str) -> Any:
        """One value that stands at *path*, of which *annotation* tells the type."""
        wanted = guide(annotation)
        kind = concrete(wanted)
        if isinstance(given, dict):
            if len(given) == 1 and next(iter(given)).startswith("$"):
                ((tag, content),) = given.items()
                return self._tagged(tag, content, wanted, path)
            return self._from_table(given, wanted, kind, path)
        if isinstance(given, list):
            return self._gathered(_ROWS.get(kind, list), self._rows(given, wanted, path), path)
        return self._from_text(given, kind, path) if isinstance(given, str) else given

    def _from_text(self, given: str, kind: Any, path: str) -> Any:
        try:
            if kind in _TEXTS:
                return _TEXTS[kind](given)
            if isinstance(kind, type) and issubclass(kind, enum.Enum):
                return kind.__members__[given]
            if isinstance(kind, type) and issubclass(kind, PurePath):
                return Path(given)
        except (ValueError, KeyError, ArithmeticError):
            raise self._wrong(path, given, type_name(kind)) from None
        return given

    def _from_table(self, given: dict[str, Any], wanted: Any, kind: Any, path: str) -> Any:
        if _is_record(kind):
            return self._record(kind, given, path)
        of_key, of_value = key_and_value(wanted)
        entries = [
            (self._key(key, of_key, path), self.value(one, of_value, f"{path}[{key!r:.60}]"))
            for key, one in given.items()
        ]
        found = self._gathered(dict, entries, path)
        if len(found) != len(given):
            raise self._told(f"{path} has two keys that are the same {type_name(guide(of_key))}")
        return _TABLES.get(kind, dict)(found)

    def _key(self, given: str, annotation: Any, path: str) -> Any:
        kind = concrete(guide(annotation))
        where = f"{path}: the key {given!r:.60}"
        try:
            if kind is bool:
                return {"true": True, "false": False}[given]
            if kind in (int, float):
                return kind(given)
        except (KeyError, ValueError):
            raise self._wrong(where, given, type_name(kind)) from None
        return self._from_text(given, kind, where)

    def _rows(self, given: Any, wanted: Any, path: str) -> list[Any]:
        if not isinstance(given, list):
            raise self._wrong(path, given, "a list")
        inner = elements(wanted, len(given))
        return [self.value(one, inner[n], f"{path}[{n}]") for n, one in enumerate(given)]

    def _table(self, given: Any, wanted: Any, path: str) -> dict[Any, Any]:
        """A table under a tag: pairs where its keys are no text."""
        if isinstance(given, dict):
            return dict(self._from_table(given, wanted, dict, path))
        of_key, of_value = key_and_value(wanted)
        if not isinstance(given, list) or not all(isinstance(one, list) and len(one) == 2 for one in given):
            raise self._wrong(path, given, "a table, or a list of pairs")
        entries = [
            (
                self.value(key, of_key, f"{path}: the key {key!r:.60}"),
                self.value(one, of_value, f"{path}[{key!r:.60}]"),
            )
            for key, one in given
        ]
        return dict(self._gathered(dict, entries, path))

    def _gathered(self, made: Callable[[Any], Any], entries: Iterable[Any], path: str) -> Any:
        """A collection; keys that were made to collide, or cannot be keys, are refused."""
        try:
            return made(watched(entries))
        except (ValueError, TypeError) as problem:
            raise self._told(f"{path}: {problem}") from None

    def _record(self, kind: Any, given: Any, path: str) -> Any:
        values = self.fields(given, kind, path)
        if dataclasses.is_dataclass(kind):
            try:
                return filled(kind, values, defaults=self.declared.names(kind))
            except StoredStateError as problem:
                raise self._told(f"{path}: {problem.problem}") from None
        missing = [name for name in kind._fields if name not in values and name not in kind._field_defaults]
        if missing:
            raise self._told(f"{path} lacks {', '.join(missing)}")
        return filled_tuple(kind, values)

    def _tagged(self, tag: str, content: Any, wanted: Any, path: str) -> Any:
        reader = _TAGS.get(tag)
        if reader is None:
            shown = "it was only shown, and has no JSON; export it as msgpack"
            raise self._told(f"{path}: {shown if tag == '$shown' else f'there is no tag {tag}'}")
        try:
            return reader(self, content, wanted, path)
        except StoredStateError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            raise self._wrong(path, content, f"what stands behind {tag}") from None

    def _wrong(self, path: str, given: Any, wanted: str) -> StoredStateError:
        return self._told(f"{path} is {given!r:.80}, not {wanted}")

    def _told(self, problem: str) -> StoredStateError:
        return StoredStateError(what=self._place, problem=problem, cure=_CURE)


def _names(kind: Any) -> list[str]:
    return [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else list(kind._fields)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or is_named_tuple(kind))


def _moment(kind: Any) -> Callable[[_Reader, Any, Any, str], Any]:
    def made(reader: _Reader, content: Any, wanted: Any, path: str) -> Any:
        if isinstance(content, str):
            return kind.fromisoformat(content)
        plain, fold, zone = content
        return kind.fromisoformat(plain).replace(fold=fold, tzinfo=zone_named(zone) if zone else None)

    return made


def _plainly(made: Callable[[Any], Any]) -> Callable[[_Reader, Any, Any, str], Any]:
    return lambda reader, content, wanted, path: made(content)


def _of_rows(made: Callable[[Any], Any]) -> Callable[[_Reader, Any, Any, str], Any]:
    return lambda reader, content, wanted, path: reader._gathered(made, reader._rows(content, Any, path), path)


def _of_table(made: Callable[[Any], Any]) -> Callable[[_Reader, Any, Any, str], Any]:
    return lambda reader, content, wanted, path: made(reader._table(content, wanted, path))


def _of_record(fits: Callable[[Any], bool]) -> Callable[[_Reader, Any, Any, str], Any]:
    return lambda reader, content, wanted, path: reader._record(
        class_named(content[0], "record", fits, reader.declared), content[1], path
    )


def _default_dict(reader: _Reader, content: Any, wanted: Any, path: str) -> Any:
    made, table = content
    factory = made and factory_named(made, reader.declared)
    return defaultdict(factory, reader._table(table, wanted, path))


_TAGS: Final[dict[str, Callable[[_Reader, Any, Any, str], Any]]] = {
    "$float": _plainly(float),
    "$list": _of_rows(list),
    "$tuple": _of_rows(tuple),
    "$set": _of_rows(set),
    "$frozenset": _of_rows(frozenset),
    "$deque": lambda reader, content, wanted, path: deque(
        reader._rows(content[1], list[elements(wanted, 1)[0]], path),  # type: ignore[misc]
        content[0],
    ),
    "$dict": _of_table(dict),
    "$ordered": _of_table(OrderedDict),
    "$counter": _of_table(Counter),
    "$defaultdict": _default_dict,
    "$decimal": _plainly(Decimal),
    "$uuid": _plainly(uuid.UUID),
    "$date": _plainly(date.fromisoformat),
    "$datetime": _moment(datetime),
    "$time": _moment(time),
    "$timedelta": _plainly(lambda content: timedelta(*content)),
    "$path": _plainly(Path),
    "$bytes": lambda reader, content, wanted, path: (bytearray if concrete(wanted) is bytearray else bytes)(
        base64.b64decode(content, validate=True)
    ),
    "$complex": _plainly(lambda content: complex(*content)),
    "$enum": lambda reader, content, wanted, path: class_named(
        content[0], "enum", lambda one: issubclass(one, enum.Enum), reader.declared
    ).__members__[content[1]],
    "$dataclass": _of_record(dataclasses.is_dataclass),
    "$namedtuple": _of_record(is_named_tuple),
}

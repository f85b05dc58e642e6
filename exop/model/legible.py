"""A memento as JSON that a person can read and edit: by the annotations of its fields, with tags where these say less.

What an annotation tells needs no tag: a `dict[int, list[float]]` is written `{"5": [1.0]}`, a `datetime` as its text.
A value that its annotation does not tell apart has one: `{"$tuple": [1, 2]}`, `{"$dict": [[1, "a"]]}` for keys that are
no text. Arrays and tables are shown, and no more: they have no JSON from which they could be made again.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import typing
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final

from exop.model.memento import Memento
from exop.model.named import name_of
from exop.model.types.description import type_of, unalias

_PLAIN: Final = (type(None), bool, int, str)
#: Classes whose values are their text, where the annotation names the class.
_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    Decimal: str,
    uuid.UUID: str,
    date: date.isoformat,
    datetime: datetime.isoformat,
    time: time.isoformat,
}
_TABLES: Final = (dict, OrderedDict, Counter)
_ROWS: Final = (list, tuple, set, frozenset)


def guide(annotation: Any) -> Any:
    """The one type that an annotation tells of a value; `Any` where it leaves it open."""
    annotation = unalias(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return guide(typing.get_args(annotation)[0])
    members = [one.annotation for one in type_of(annotation).members if one.kind != "none"]
    if len(members) != 1:
        return Any
    return annotation if members[0] is annotation else guide(members[0])


def concrete(wanted: Any) -> Any:
    """The class of a guide, without its arguments."""
    return typing.get_origin(wanted) or wanted


def elements(wanted: Any, count: int) -> list[Any]:
    """The annotations of the elements of a list, a set or a tuple."""
    inner = typing.get_args(wanted)
    if not inner:
        return [Any] * count
    if concrete(wanted) is tuple and not (len(inner) == 2 and inner[1] is Ellipsis):
        return [*inner, *[Any] * max(0, count - len(inner))][:count]
    return [inner[0]] * count


def key_and_value(wanted: Any) -> tuple[Any, Any]:
    """The annotations of the keys and of the values of a table."""
    inner = typing.get_args(wanted)
    if concrete(wanted) is Counter and len(inner) == 1:
        return inner[0], int
    return (inner[0], inner[1]) if len(inner) == 2 else (Any, Any)


class Writer:
    """Writes one memento; `opaque` are the places of what is only shown."""

    def __init__(self) -> None:
        self.opaque: list[str] = []

    def fields(self, value: Any, path: str = "") -> dict[str, Any]:
        """The fields of a memento, or of another dataclass."""
        hints = typing.get_type_hints(type(value), include_extras=True)
        return {
            one.name: self.write(getattr(value, one.name), hints.get(one.name, Any), f"{path}.{one.name}".lstrip("."))
            for one in dataclasses.fields(value)
        }

    def write(self, value: Any, annotation: Any, path: str) -> Any:
        """Write a value that stands at *path*, of which *annotation* tells the type."""
        kind, wanted = type(value), guide(annotation)
        if kind in _PLAIN:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        told = concrete(wanted) is kind
        if kind in _ROWS:
            return self._rows(value, wanted if told else Any, path, plain=told or (kind is list and wanted is Any))
        if kind in _TABLES or kind is defaultdict:
            return self._table(value, wanted if told else Any, path, plain=told or (kind is dict and wanted is Any))
        if kind is deque:
            return self._deque(value, wanted if told else Any, path, told=told)
        if kind in _TEXTS:
            return self._text(value, told=told)
        if isinstance(value, enum.Enum) and value.name in kind.__members__:
            return value.name if told else {"$enum": [name_of(kind), value.name]}
        if dataclasses.is_dataclass(value) or hasattr(kind, "_fields"):
            return self._record(value, path, told=told)
        return self._other(value, path, told=isinstance(value, PurePath) and _is_path(wanted))

    def _rows(self, value: Any, wanted: Any, path: str, *, plain: bool) -> Any:
        rows = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value)
        inner = elements(wanted, len(rows))
        written = [self.write(one, inner[n], f"{path}[{n}]") for n, one in enumerate(rows)]
        return written if plain else {f"${type(value).__name__}": written}

    def _deque(self, value: deque[Any], wanted: Any, path: str, *, told: bool) -> Any:
        rows = self._rows(list(value), list[elements(wanted, 1)[0]], path, plain=True)  # type: ignore[misc]
        return rows if told and value.maxlen is None else {"$deque": [value.maxlen, rows]}

    def _table(self, value: Mapping[Any, Any], wanted: Any, path: str, *, plain: bool) -> Any:
        of_key, of_value = key_and_value(wanted)
        entries = [(key, self.write(one, of_value, f"{path}[{key!r:.60}]")) for key, one in value.items()]
        texts = [_key(key, of_key) for key, _ in entries]
        written: Any
        if all(text is not None for text in texts) and not _like_a_tag(texts):
            written = {text: one for text, (_, one) in zip(texts, entries, strict=True)}
        else:
            written = [[self.write(key, of_key, f"{path}: the key {key!r:.60}"), one] for key, one in entries]
        if isinstance(value, defaultdict):
            made = value.default_factory
            return {"$defaultdict": [made and name_of(made), written]}
        if plain:
            return written if isinstance(written, dict) else {"$dict": written}
        names = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}
        return {names[type(value)]: written}

    def _text(self, value: Any, *, told: bool) -> Any:
        kind = type(value)
        text = _TEXTS[kind](value)
        if kind in (datetime, time):
            named = value.tzinfo is not None and getattr(value.tzinfo, "key", None)
            if named or value.fold:
                return {
                    f"${kind.__name__}": [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, named or None]
                }
        return text if told else {f"${kind.__name__.lower()}": text}

    def _record(self, value: Any, path: str, *, told: bool) -> Any:
        kind = type(value)
        if dataclasses.is_dataclass(value):
            fields = self.fields(value, path)
            return fields if told and not _like_a_tag(list(fields)) else {"$dataclass": [name_of(kind), fields]}
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {
            name: self.write(one, hints.get(name, Any), f"{path}.{name}")
            for name, one in zip(kind._fields, value, strict=True)
        }
        return fields if told and not _like_a_tag(list(fields)) else {"$namedtuple": [name_of(kind), fields]}

    def _other(self, value: Any, path: str, *, told: bool) -> Any:
        if isinstance(value, PurePath):
            return str(value) if told else {"$path": str(value)}
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": base64.b64encode(value).decode()}
        if type(value) is timedelta:
            return {"$timedelta": [value.days, value.seconds, value.microseconds]}
        if type(value) is complex:
            return {"$complex": [value.real, value.imag]}
        self.opaque.append(path)
        shape = getattr(value, "shape", None)
        size = f" {shape}" if shape else ""
        text = " ".join(repr(value).split())
        return {"$shown": f"{type(value).__module__.partition('.')[0]} {type(value).__name__}{size}: {text:.200}"}


def written(memento: Memento) -> tuple[dict[str, Any], list[str]]:
    """The fields of a memento as JSON, and the places of what is only shown."""
    writer = Writer()
    return writer.fields(memento), writer.opaque


def _key(key: Any, annotation: Any) -> str | None:
    """A key as text, where its annotation says what it was."""
    kind, wanted = type(key), guide(annotation)
    if kind is str:
        return str(key) if concrete(wanted) in (str, Any) else None
    if concrete(wanted) is not kind:
        return None
    if kind in (int, float):
        return repr(key)
    if kind is bool:
        return "true" if key else "false"
    if kind in _TEXTS and not getattr(key, "fold", 0) and not getattr(getattr(key, "tzinfo", None), "key", None):
        return _TEXTS[kind](key)
    return key.name if isinstance(key, enum.Enum) and key.name in kind.__members__ else None


def _like_a_tag(texts: list[Any]) -> bool:
    return len(texts) == 1 and str(texts[0]).startswith("$")


def _is_path(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, PurePath)

"""Conversion of settings: from text, TOML and Python values to the annotated type, and back to values of TOML.

A value of the right type is used as it is. Text is parsed by the type, because a command line passes only text; lists,
tables and dataclasses are written as in a topology file: `sizes=[1, 2]`, `rule={low = 1}`. Nothing else is converted: a
boolean is no number, a number is no text, a fraction is no integer.
"""

from __future__ import annotations

import dataclasses
import enum
import numbers
import operator
import os
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import PurePath
from typing import Any, Final, SupportsIndex
from uuid import UUID

from exop.errors import MeshError, suggest
from exop.model.types.assignable import is_numpy_bool
from exop.model.types.description import CONCRETE, Type, type_of
from exop.model.values.depth import DEPTH, deep_place, read_toml
from exop.safe_repr import RAISED, message, safe_repr

_LISTS: Final = (list, tuple, set, frozenset)
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")


def convert(value: Any, wanted: Any) -> Any:
    """Convert *value* to the type *wanted*, or raise `ValueError` with one line, without the name of the setting."""
    described = type_of(wanted)
    found = _BY_KIND[described.kind](value, described)
    if any(type(note).__module__.split(".")[0] == "msgspec" for note in described.notes):
        # Bounds (`Meta(ge=1)`); msgspec takes 20 ms to import, and is imported only where they are used.
        return _by_msgspec(found, described.annotated)
    return found


def _require(value: Any, valid: bool, wanted: str) -> Any:
    if not valid:
        raise _error(wanted, value)
    return value


def _error(wanted: str, value: Any) -> ValueError:
    if value is None:
        return ValueError(f"expected {wanted}, got nothing (None)")
    return ValueError(f"expected {wanted}, got {safe_repr(value, 80)} ({type(value).__name__})")


def _number(value: Any, kind: Any) -> Any:
    """Convert another number, or text, to a number; a boolean is not converted."""
    if type(value) is kind or (kind is not int and isinstance(value, kind)):
        return value
    takes, made = _NUMBERS[kind]
    try:
        return made(_require(value, isinstance(value, takes) and not isinstance(value, bool), kind.__name__))
    except (TypeError, ValueError, InvalidOperation):
        raise _error(kind.__name__, value) from None


_NUMBERS: Final[dict[Any, tuple[tuple[Any, ...], Callable[[Any], Any]]]] = {
    int: ((str, SupportsIndex), lambda value: int(value) if isinstance(value, str) else operator.index(value)),
    float: ((str, numbers.Real), float),
    Decimal: ((int, float, str), lambda value: Decimal(str(value))),
}
_EXAMPLES: Final = {datetime: "2026-01-31T12:30:00", date: "2026-01-31", time: "12:30:00"}


def _moment(value: Any, kind: Any) -> Any:
    if isinstance(value, kind) and not (kind is date and isinstance(value, datetime)):
        return value
    try:
        return kind.fromisoformat(_require(value, isinstance(value, str), kind.__name__))
    except ValueError:
        raise _error(f"{kind.__name__} as in {_EXAMPLES[kind]}", value) from None


def _scalar(value: Any, wanted: Type) -> Any:
    if (kind := wanted.cls) is bool:
        if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        return bool(_require(value, isinstance(value, bool) or is_numpy_bool(type(value)), "true or false"))
    if kind is str:
        return str(_require(value, isinstance(value, str), "str"))
    if kind is timedelta:
        return value if isinstance(value, timedelta) else timedelta(seconds=_number(value, float))
    if kind in _NUMBERS:
        return _number(value, kind)
    if kind in _EXAMPLES:
        return _moment(value, kind)
    if issubclass(kind, PurePath) and not isinstance(value, kind):
        return kind(_require(value, isinstance(value, (str, os.PathLike)), "a path"))
    return _instance(value, wanted)


def _instance(value: Any, wanted: Type) -> Any:
    """An instance of any other class; text is passed to the class (an address, a time zone, an identifier)."""
    if isinstance(value, kind := wanted.cls):
        return value
    if not isinstance(value, str) or kind in (bytes, bytearray):
        raise _error(wanted.name, value)
    return _made(value, wanted, lambda: kind(value))


def _made(value: Any, wanted: Type, make: Callable[[], Any]) -> Any:
    """Make an instance of a class of the user, which may raise anything."""
    try:
        return make()
    except RAISED as problem:
        raise ValueError(f"expected {wanted}, got {safe_repr(value, 80)}: {message(problem)}") from None


def _union(value: Any, wanted: Type) -> Any:
    members = wanted.members
    exact = [one for one in members if type(value) is one.bare.cls]
    for one in (*exact, *members):
        try:
            return convert(value, one)
        except ValueError:
            continue
    if isinstance(value, str) and value.lower() == "none" and wanted.takes_none:
        return None
    raise _error(" or ".join("nothing" if one.kind == "none" else one.name for one in members), value)


def _choice(value: Any, choices: Sequence[Any]) -> Any:
    for choice in choices:
        if (type(value) is type(choice) and value == choice) or (isinstance(value, str) and value == str(choice)):
            return choice
    known = suggest(value, list(map(str, choices)), "choice")
    raise ValueError(f"{safe_repr(value, 80)} is none of the choices; {known}")


def _member(value: Any, wanted: Type) -> Any:
    if isinstance(value, wanted.cls):
        return value
    if isinstance(value, str) and value in wanted.cls.__members__:
        return wanted.cls.__members__[value]
    return wanted.cls(_choice(value, [member.value for member in wanted.cls]))


def _list(value: Any, wanted: Type) -> Any:
    if (made := CONCRETE.get(wanted.cls)) not in _LISTS:
        return _instance(value, wanted)
    if not isinstance(value := _literal(value), (*_LISTS, Sequence, Set)) or isinstance(value, (str, bytes)):
        raise _error(f"a {made.__name__}, written [a, b]", value)
    if wanted.kind == "tuple" and len(wanted.arguments) != len(value):
        raise ValueError(f"expected a length of {len(wanted.arguments)}, got {len(value)}: {safe_repr(value, 80)}")
    pairs = zip(value, wanted.elements(len(value)), strict=True)
    found = [_convert_part(f"element {number}", one, kind) for number, (one, kind) in enumerate(pairs, 1)]
    maker: Any = type(value) if isinstance(value, wanted.cls) and type(value) in _LISTS else made
    return maker(found)


def _table(value: Any, wanted: Type) -> Any:
    if CONCRETE.get(wanted.cls) is not dict:
        return _instance(value, wanted)
    if not isinstance(value := _literal(value), Mapping):
        raise _error("a table, written {name = value}", value)
    keys, values = wanted.entry
    return {_convert_part("the key", key, keys): _convert_part(f"{key!r}", one, values) for key, one in value.items()}


def _record(value: Any, wanted: Type) -> Any:
    """Convert a table to a dataclass, named tuple, typed dictionary or msgspec structure."""
    kind = wanted.cls
    if not wanted.is_row and isinstance(value, kind):
        return value
    if hasattr(kind, "__struct_fields__"):
        return _by_msgspec(value, kind)
    if not isinstance(value := _literal(value), Mapping):
        raise _error(f"{kind.__name__}, written {{field = value}}", value)
    known = {field.name: field for field in wanted.fields.values() if field.given}
    for name in value:
        if name not in known:
            raise ValueError(f"{kind.__name__} has no field {name!r}; {suggest(name, known, 'field')}")
    if missing := [name for name, field in known.items() if field.required and name not in value]:
        raise ValueError(f"{kind.__name__} lacks {', '.join(missing)} in {safe_repr(dict(value), 80)}")
    parts = {name: _convert_part(name, one, known[name].type) for name, one in value.items()}
    return _made(value, wanted, lambda: kind(**parts))


def _by_msgspec(value: Any, annotation: Any) -> Any:
    import msgspec

    try:
        return msgspec.convert(_literal(value), annotation, strict=False)
    except (msgspec.ValidationError, TypeError) as problem:
        raise ValueError(f"{problem}: {safe_repr(value, 80)}") from None


def _convert_part(place: str, value: Any, wanted: Type) -> Any:
    try:
        return convert(value, wanted)
    except ValueError as problem:
        raise ValueError(f"{place}: {problem}") from None


def _literal(value: Any) -> Any:
    """Parse text that begins like a list or table as TOML."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return read_toml(f"value = {value}", DEPTH + 1)["value"]
    except ValueError as problem:
        raise ValueError(f"{safe_repr(value, 80)} is no list or table in TOML: {problem}") from None


_BY_KIND: Final[dict[str, Callable[[Any, Type], Any]]] = {
    **dict.fromkeys(("any", "open", "variable"), lambda value, wanted: value),
    "new": lambda value, wanted: convert(value, wanted.bare),
    "none": lambda value, wanted: _require(value, value is None, "nothing"),
    "type": lambda value, wanted: _require(value, isinstance(value, type), "a class"),
    "callable": lambda value, wanted: _require(value, callable(value), "something that can be called"),
    "scalar": _scalar,
    "choice": lambda value, wanted: _choice(value, wanted.choices),
    "enum": _member,
    "union": _union,
    "list": _list,
    "tuple": _list,
    "table": _table,
    "record": _record,
    "columns": _instance,
    "class": _instance,
}


def to_toml_value(place: str, value: Any) -> Any:
    """Convert *value* to types of TOML, from which `convert` restores it."""
    if (deep := deep_place(value)) is not None:
        cure = "make it flatter"
        raise MeshError(f"{place} is nested more than {DEPTH} levels deep, or refers to itself, at {deep}; {cure}")
    return _to_toml(place, value)


def _to_toml(place: str, value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _to_toml(place, value.value)
    if isinstance(value, (bool, datetime, date, time)):
        return value
    for plain in (int, float):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, (str, PurePath, Decimal, UUID)):
        if (text := str(value)).isascii() or text.encode(errors="ignore").decode() == text:
            return text
        raise MeshError(
            f"{place} is {text!r:.80}, which is not Unicode, and a topology file cannot hold it; "
            f"use other text, or give the file or folder another name"
        )
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [(one, getattr(value, one.name)) for one in dataclasses.fields(value) if one.init]
        value = {f.name: one for f, one in given if one is not None or f.default is not None}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(_to_toml(place, key)): _to_toml(f"{place}.{key}", one) for key, one in value.items()}
    if isinstance(value, Set):
        return [_to_toml(place, one) for one in sorted(value, key=repr)]
    if isinstance(value, (list, tuple)):
        return [_to_toml(place, one) for one in value]
    cure = "use numbers, text, dates, lists, tables and dataclasses for settings that are stored"
    raise MeshError(f"{place} is {value!r:.80}, which a topology file cannot hold; {cure}")

"""Converting a setting's value to its annotated type, wherever it comes from: code, a topology file, a command line.

A value of the right type is taken as it is. Text is read as the type wants it, because a command line has nothing but
text; lists, tables and dataclasses are written there as in a topology file: `sizes=[1, 2]`, `rule={low = 1}`. Nothing
else is guessed: a truth value is no number, a number is no text, a fraction is no whole number.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, Literal, TypeVar, Union

from exop.errors import suggest
from exop.model.depth import DEPTH, read_toml
from exop.model.fitting import unalias
from exop.model.ports import type_name
from exop.model.scalars import READERS, given, shown, unfit
from exop.shown import RAISED, message

_LISTS: Final = (list, tuple, set, frozenset)
#: The concrete type that is made for an abstract container when another one is given.
_ABSTRACT: Final[dict[Any, type]] = {
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}


def convert(value: Any, wanted: Any) -> Any:
    """Convert *value* to the type *wanted*.

    Raises:
        ValueError: it does not fit; the text is one line, without the name of the setting.
    """
    plain = bare(wanted)
    if plain in (Any, object) or isinstance(plain, TypeVar):
        return value
    if typing.get_origin(plain) is typing.Annotated:
        return _annotated(value, plain)
    origin = typing.get_origin(plain)
    if origin in (Union, types.UnionType):
        return _union(value, typing.get_args(plain))
    if origin is Literal:
        return _chosen(value, [(choice, str(choice)) for choice in typing.get_args(plain)])
    if plain in (None, type(None)):
        return given(value, value is None, "nothing")
    if origin is type or plain is type:
        return given(value, isinstance(value, type), "a class")
    if origin is collections.abc.Callable or plain in (Callable, collections.abc.Callable):
        return given(value, callable(value), "something that can be called")
    kind: Any = origin or plain
    if not isinstance(kind, type):
        return value
    return _of_class(value, kind, plain)


def bare(annotation: Any) -> Any:
    """An annotation without its other names: `type X = …`, `NewType`, notes that are text alone."""
    plain = unalias(annotation)
    return bare(plain.__supertype__) if isinstance(plain, typing.NewType) else plain


def _of_class(value: Any, kind: type, wanted: Any) -> Any:
    reader = READERS.get(kind)
    if reader is not None:
        return reader(value)
    made = _ABSTRACT.get(kind, kind)
    if made in _LISTS:
        return _list(value, kind, made, typing.get_args(wanted))
    if made is dict:
        return _table(value, kind, typing.get_args(wanted))
    if issubclass(kind, enum.Enum):
        return value if isinstance(value, kind) else _member(value, kind)
    if not typing.is_typeddict(kind) and isinstance(value, kind):
        return value
    if issubclass(kind, PurePath):
        return kind(given(value, isinstance(value, (str, os.PathLike)), "a path"))
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "_fields"):
        return _record(value, kind)
    if hasattr(kind, "__struct_fields__"):
        return _struct(value, kind)
    return _from_text(value, kind)


def _annotated(value: Any, wanted: Any) -> Any:
    base, *extras = typing.get_args(wanted)
    found = convert(value, base)
    if any(type(extra).__module__.split(".")[0] == "msgspec" for extra in extras):
        # msgspec costs 20 ms to import: its bounds (`Meta(ge=1)`) are checked where they are used.
        return _struct(found, wanted)
    return found


def _union(value: Any, members: tuple[Any, ...]) -> Any:
    exact = [member for member in members if type(value) is (typing.get_origin(member) or bare(member))]
    for member in (*exact, *members):
        try:
            return convert(value, member)
        except ValueError:
            continue
    if isinstance(value, str) and value.lower() == "none" and type(None) in members:
        return None
    raise unfit(" or ".join("nothing" if one is type(None) else type_name(one) for one in members), value)


def _chosen(value: Any, choices: list[tuple[Any, str]]) -> Any:
    for choice, text in choices:
        if (type(value) is type(choice) and value == choice) or (isinstance(value, str) and value == text):
            return choice
    raise ValueError(
        f"{shown(value)} is none of the choices; {suggest(value, [text for _, text in choices], 'choice')}"
    )


def _member(value: Any, kind: type[enum.Enum]) -> enum.Enum:
    by_name = kind.__members__.get(value) if isinstance(value, str) else None
    if by_name is not None:
        return by_name
    return kind(_chosen(value, [(member.value, str(member.value)) for member in kind]))


def _list(value: Any, kind: type, made: type, of: tuple[Any, ...]) -> Any:
    value = _literal(value)
    sound = isinstance(value, (*_LISTS, collections.abc.Sequence, collections.abc.Set))
    if not sound or isinstance(value, (str, bytes)):
        raise unfit(f"a {made.__name__}, written [a, b]", value)
    fixed = made is tuple and of and of[-1] is not Ellipsis
    if fixed and len(of) != len(value):
        raise ValueError(f"expected {len(of)} values, got {len(value)}: {shown(value)}")
    types_of: Iterable[Any] = of if fixed else [of[0] if of else Any] * len(value)
    found = [
        _inside(f"element {number}", one, wanted)
        for number, (one, wanted) in enumerate(zip(value, types_of, strict=True), 1)
    ]
    maker: Any = type(value) if isinstance(value, kind) and type(value) in _LISTS else made
    return maker(found)


def _table(value: Any, kind: type, of: tuple[Any, ...]) -> Any:
    value = _literal(value)
    if not isinstance(value, Mapping):
        raise unfit("a table, written {name = value}", value)
    keys, values = of or (Any, Any)
    return {_inside("the key", key, keys): _inside(f"{key!r}", one, values) for key, one in value.items()}


def _record(value: Any, kind: Any) -> Any:
    """A dataclass, a named tuple or a typed dictionary out of a table."""
    value = _literal(value)
    if not isinstance(value, Mapping):
        raise unfit(f"{kind.__name__}, written {{field = value}}", value)
    hints = typing.get_type_hints(kind, include_extras=True)
    known, required = _fields(kind)
    for name in value:
        if name not in known:
            raise ValueError(f"{kind.__name__} has no field {name!r}; {suggest(name, known, 'field')}")
    missing = [name for name in known if name in required and name not in value]
    if missing:
        raise ValueError(f"{kind.__name__} lacks {', '.join(missing)} in {shown(dict(value))}")
    return kind(**{name: _inside(name, one, hints.get(name, Any)) for name, one in value.items()})


def _fields(kind: Any) -> tuple[list[str], set[str]]:
    """The fields of a record class, and those that must be given."""
    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if field.init]
        absent = dataclasses.MISSING
        needed = {field.name for field in fields if field.default is absent and field.default_factory is absent}
        return [field.name for field in fields], needed
    if typing.is_typeddict(kind):
        return list(kind.__annotations__), set(kind.__required_keys__)
    return list(kind._fields), set(kind._fields) - set(kind._field_defaults)


def _struct(value: Any, kind: Any) -> Any:
    # A program that declares a msgspec type has imported msgspec already.
    import msgspec

    try:
        return msgspec.convert(_literal(value), kind, strict=False)
    except (msgspec.ValidationError, TypeError) as problem:
        raise ValueError(f"{problem}: {shown(value)}") from None


def _from_text(value: Any, kind: type) -> Any:
    """Any other class: one that can be made of a text is (an address, a time zone, an identifier)."""
    if not isinstance(value, str) or kind in (bytes, bytearray):
        raise unfit(type_name(kind), value)
    try:
        return kind(value)
    except RAISED as problem:  # whatever a class of the user's raises, the value does not fit
        raise ValueError(f"expected {type_name(kind)}, got {shown(value)}: {message(problem)}") from None


def _inside(place: str, value: Any, wanted: Any) -> Any:
    try:
        return convert(value, wanted)
    except ValueError as problem:
        raise ValueError(f"{place}: {problem}") from None


def _literal(value: Any) -> Any:
    """Lists and tables may be written as text, as a topology file writes them."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return read_toml(f"value = {value}", DEPTH + 1)["value"]
    except ValueError as problem:
        raise ValueError(f"{shown(value)} is no list or table as TOML writes it: {problem}") from None

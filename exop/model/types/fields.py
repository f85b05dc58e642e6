"""The fields of records, of classes and of Arrow schemas; and instances that are filled with fields, without a call."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any, Final

from exop.errors import StoredStateError
from exop.model.types.description import OPEN, Field, Type, built, type_of


def fields_of(kind: Any) -> dict[str, Field]:
    """Describe the fields of a class of records, by name."""
    return {field.name: field for field in _fields(kind)}


def _fields(kind: Any) -> Iterator[Field]:
    hints, absent = _hints(kind), dataclasses.MISSING
    if dataclasses.is_dataclass(kind):
        for one in dataclasses.fields(kind):
            required = one.default is absent and one.default_factory is absent
            yield Field(one.name, type_of(hints[one.name]), required, one.init, _written(one.type))
        return
    if typing.is_typeddict(kind):
        names = tuple(kind.__annotations__)
        # Python itself does not see `NotRequired` in an annotation that is text.
        optional = {name for name in names if typing.get_origin(hints[name]) is typing.NotRequired}
        defaults: Mapping[str, Any] = dict.fromkeys(kind.__optional_keys__ | optional)
    elif hasattr(kind, "__struct_fields__"):
        names = kind.__struct_fields__
        found = kind.__struct_defaults__
        named = zip(names[len(names) - len(found) :], found, strict=True)
        defaults = {name: one for name, one in named if "nodefault" not in type(one).__name__.lower()}
    else:
        names, defaults = kind._fields, kind._field_defaults
    for name in names:
        wanted = type_of(hints[name])
        yield Field(name, wanted, name not in defaults, written=wanted.name)


def _hints(kind: Any) -> Mapping[str, Any]:
    """Resolve the annotations of a class, by field; one that cannot be resolved stays open, under its text."""
    found: dict[str, Any] = defaultdict(lambda: OPEN)
    with suppress(*_UNRESOLVED):
        return found | typing.get_type_hints(kind, include_extras=True)
    for base in reversed(kind.__mro__):
        known = dict(vars(sys.modules.get(base.__module__, types)))
        for name, one in vars(base).get("__annotations__", {}).items():
            found[name] = built("open", one) if isinstance(one, str) else OPEN
            holder = types.SimpleNamespace(__annotations__={name: one})
            with suppress(*_UNRESOLVED):
                found |= typing.get_type_hints(holder, known, dict(vars(base)), include_extras=True)
    return found


_UNRESOLVED: Final = (NameError, TypeError, AttributeError, SyntaxError)


def _written(annotation: Any) -> str:
    """An annotation as it stands in the source, or nearly so: stored mementos carry it."""
    plain = isinstance(annotation, type) and not typing.get_args(annotation)
    return annotation if isinstance(annotation, str) else annotation.__qualname__ if plain else str(annotation)


#: The types of Arrow by the beginning of their name.
_ARROW: Final[dict[str, type]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), int),
    **dict.fromkeys(("halffloat", "float", "double"), float),
    **dict.fromkeys(("string", "large_string", "string_view"), str),
    **dict.fromkeys(("binary", "large_binary", "binary_view", "fixed_size_binary"), bytes),
    **dict.fromkeys(("date32", "date64"), date),
    **dict.fromkeys(("time32", "time64"), time),
    **dict.fromkeys(("decimal32", "decimal64", "decimal128", "decimal256"), Decimal),
    "bool": bool,
    "timestamp": datetime,
    "duration": timedelta,
}


def columns_of(schema: Iterable[Any]) -> dict[str, Field]:
    """Describe the columns of a schema, by name."""
    return {column.name: _column(column) for column in schema}


def _column(column: Any) -> Field:
    """A field of an Arrow schema; one that may be null says so in its type."""
    return Field(column.name, _of_arrow(column.type), not column.nullable, written=str(column.type))


def _of_arrow(arrow: Any) -> Type:
    text = str(arrow)
    head = text.partition("[")[0].partition("(")[0].partition("<")[0]
    if head in _ARROW:
        return Type("scalar", text, _ARROW[head], text, identity=type_of(_ARROW[head]).identity)
    if head == "dictionary":
        return _of_arrow(arrow.value_type)
    if head in ("list", "large_list", "fixed_size_list", "list_view"):
        return built("list", text, list, identity="builtins:list", arguments=(_of_arrow(arrow.value_type),))
    if head == "struct":
        columns = [_column(arrow.field(place)) for place in range(arrow.num_fields)]
        return built("record", text, dict, identity="builtins:dict", fields=columns)
    return Type("none" if head == "null" else "open", text)


def filled(kind: Any, fields: Mapping[str, Any], *, defaults: bool = True) -> Any:
    """An instance of a dataclass with these fields; those that are new in the class have their *defaults*, or `None`.

    Raises:
        StoredStateError: a field that the class does not have, or a new one without a default.
    """
    known = {field.name: field for field in dataclasses.fields(kind)}
    strange = [name for name in fields if name not in known]
    if strange:
        problem = f"{kind.__qualname__} has no field {', '.join(strange)}; it has {', '.join(known)}"
        cure = "use the code that wrote it"
        raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem, cure=cure)
    made = _maker(kind)(kind)
    for name, field in known.items():
        object.__setattr__(made, name, fields[name] if name in fields else _default(kind, field, defaults))
    return made


@lru_cache(maxsize=1024)
def _maker(kind: type) -> Callable[[type], Any]:
    """The first `__new__` that is built in: no code of the class is called."""
    return next(new for one in kind.__mro__ if isinstance(new := vars(one).get("__new__"), BuiltinFunctionType))


def _default(kind: Any, field: dataclasses.Field[Any], factories: bool) -> Any:
    if field.default_factory is not dataclasses.MISSING and factories:
        return field.default_factory()
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.name in type_of(kind).nulls:
        return None
    problem = f"{kind.__qualname__} lacks the field {field.name}, which has no default"
    raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem, cure="give the field a default")


def filled_tuple(kind: Any, fields: Mapping[str, Any]) -> Any:
    """A named tuple with these fields; those that are new in the class have their defaults.

    Raises:
        StoredStateError: a field that the class does not have, or a new one without a default.
    """
    given = {**kind._field_defaults, **fields}
    if given.keys() != set(kind._fields):
        given = {**type_of(kind).nulls, **given}
    if given.keys() != set(kind._fields):
        problem = f"it has the fields {', '.join(map(str, fields))}; {kind.__qualname__} has {', '.join(kind._fields)}"
        cure = "use the code that wrote it"
        raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem[:300], cure=cure)
    return tuple.__new__(kind, [given[name] for name in kind._fields])

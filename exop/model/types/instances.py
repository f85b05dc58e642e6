"""Instances of dataclasses and named tuples that are filled with fields; no code of their classes is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any

from exop.errors import StoredStateError
from exop.model.types.description import type_of


def filled(kind: Any, fields: Mapping[str, Any], *, defaults: bool = True) -> Any:
    """Create an instance of a dataclass with these fields; missing ones have their *defaults*, or `None` if nullable.

    Raises:
        StoredStateError: the class lacks a field, or a missing field has no default.
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
    """The first built-in `__new__`, which calls no code of the class."""
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
    """Create a named tuple with these fields; missing ones have their defaults, or `None` if nullable.

    Raises:
        StoredStateError: the class lacks a field, or a missing field has no default.
    """
    given = {**kind._field_defaults, **fields}
    if given.keys() != set(kind._fields):
        given = {**type_of(kind).nulls, **given}
    if given.keys() != set(kind._fields):
        problem = f"it has the fields {', '.join(map(str, fields))}; {kind.__qualname__} has {', '.join(kind._fields)}"
        cure = "use the code that wrote it"
        raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem[:300], cure=cure)
    return tuple.__new__(kind, [given[name] for name in kind._fields])

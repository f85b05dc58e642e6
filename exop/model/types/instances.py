"""Instances of dataclasses and named tuples that are filled with fields; no code of their classes is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any

from exop.errors import StoredStateError
from exop.model.types.description import type_of


def filled(kind: Any, fields: Mapping[str, Any], *, defaults: bool = True) -> Any:
    """Create a dataclass instance with these fields; missing ones have their *defaults*, or `None` if nullable."""
    new, known = _layout(kind)
    if not fields.keys() <= known.keys():
        _check_known(kind, fields, known)
    made = new(kind)
    for name, field in known.items():
        object.__setattr__(made, name, fields[name] if name in fields else _default(kind, field, defaults))
    return made


@lru_cache(maxsize=1024)
def _layout(kind: Any) -> tuple[Callable[[type], Any], dict[str, dataclasses.Field[Any]]]:
    """The first built-in `__new__`, which calls no code of the class, and the fields by name."""
    new = next(new for one in kind.__mro__ if isinstance(new := vars(one).get("__new__"), BuiltinFunctionType))
    return new, {field.name: field for field in dataclasses.fields(kind)}


def _default(kind: Any, field: dataclasses.Field[Any], factories: bool) -> Any:
    if field.default_factory is not dataclasses.MISSING and factories:
        return field.default_factory()
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.name in type_of(kind).nulls:
        return None
    raise _missing(kind, field.name)


def filled_tuple(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Create a named tuple with these fields; missing ones have their defaults, or `None` if nullable."""
    given = {**kind._field_defaults, **fields}
    if given.keys() != set(kind._fields):
        given = {**type_of(kind).nulls, **given}
        _check_known(kind, fields, kind._fields)
    try:
        return tuple.__new__(kind, [given[name] for name in kind._fields])
    except KeyError as problem:
        raise _missing(kind, problem.args[0]) from None


def _check_known(kind: Any, fields: Iterable[str], known: Collection[str]) -> None:
    unknown = [str(name) for name in fields if name not in known]
    if unknown:
        problem = f"{kind.__qualname__} has no field {', '.join(unknown)}"[:300] + f"; it has {', '.join(known)}"
        cure = "use the code that wrote it"
        raise StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem, cure=cure)


def _missing(kind: Any, name: str) -> StoredStateError:
    problem = f"{kind.__qualname__} lacks the field {name}, which has no default"
    return StoredStateError(what=f"a value of {kind.__qualname__}", problem=problem, cure="give the field a default")

"""Whether values fit the annotations of a memento's fields: asked when its class was edited since it was stored."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

from exop.errors import MeshError, StoredStateError
from exop.model.depth import parts_of
from exop.model.fitting import unalias
from exop.model.memento import Memento
from exop.model.named import is_named_tuple
from exop.model.ports import type_name
from exop.shown import shown

if TYPE_CHECKING:
    from exop.model.spec import SletSpec


def check_memento(place: str, slet: SletSpec, memento: Memento) -> None:
    """Refuse a state that a slet cannot work with.

    Raises:
        MeshError: it keeps none, or one of another class.
        StoredStateError: a value in it is not of its field's type.
    """
    kind = memento_of(place, slet)
    if not isinstance(memento, kind):
        given = type(memento).__qualname__
        raise MeshError(f"{place}: {slet.name} keeps a {kind.__qualname__}, and this is a {given}")
    check_fields({one.name: getattr(memento, one.name) for one in dataclasses.fields(memento)}, kind, place)  # type: ignore[arg-type]


def memento_of(place: str, slet: SletSpec) -> type[Memento]:
    """The class of the state that a slet keeps.

    Raises:
        MeshError: it keeps none.
    """
    if slet.state is None:
        why = "; what its engine keeps, the platform cannot read" if getattr(slet.factory, "keeps_own_state", 0) else ""
        raise MeshError(f"{place}: {slet.name} keeps no memento{why}")
    return slet.state[1]


def check_fields(fields: Mapping[str, Any], kind: type[Memento], place: str) -> None:
    """Compare values with the annotations of a memento class.

    Raises:
        StoredStateError: a field that the class does not have, or a value of another type.
    """
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    types_of = typing.get_type_hints(kind, include_extras=True)
    for name, value in fields.items():
        if name not in known:
            problem = f"{kind.__qualname__} has no field {name!r}; it has {', '.join(known) or 'none'}"
            cure = "give the memento a `@classmethod def upgrade(cls, old)`, or use the code that wrote it"
            raise StoredStateError(what=place, problem=problem, cure=cure)
        where = misfit(value, types_of[name], name)
        if where is not None:
            cure = "correct it, or give the memento a higher version and a `@classmethod def upgrade(cls, old)`"
            raise StoredStateError(what=place, problem=where, cure=cure)


def check_parts(value: Any, place: str) -> None:
    """Compare every dataclass and named tuple that *value* holds with the annotations of its fields.

    Raises:
        StoredStateError: a value of another type.
    """
    open_, hints = [value], dict[type, dict[str, Any]]()
    while open_:
        one = open_.pop()
        kind = type(one)
        if dataclasses.is_dataclass(kind) or is_named_tuple(kind):
            if kind not in hints:
                with suppress(NameError, TypeError, AttributeError):  # what cannot be resolved tells nothing
                    hints[kind] = typing.get_type_hints(kind, include_extras=True)
            for name, wanted in hints.setdefault(kind, {}).items():
                if typing.get_origin(wanted) is typing.ClassVar:
                    continue
                where = misfit(getattr(one, name, None), wanted, f"{kind.__qualname__}.{name}")
                if where is not None:
                    raise StoredStateError(what=place, problem=where, cure="correct it, or use the code that wrote it")
        open_ += (part for _, part in parts_of(one))


def misfit(value: Any, wanted: Any, path: str) -> str | None:
    """Return where and why *value* is not of the type *wanted*, or `None`; annotations that cannot be checked fit."""
    wanted = unalias(wanted)
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Annotated:
        return misfit(value, inner[0], path)
    if wanted in (Any, object) or isinstance(wanted, (TypeVar, str)):
        return None
    if origin in (Union, types.UnionType):
        fitting = any(misfit(value, one, path) is None for one in inner)
        return None if fitting else _told(value, wanted, path)
    if origin is Literal:
        return None if value in inner else _told(value, wanted, path)
    plain = type(None) if wanted is None else origin or wanted
    if not isinstance(plain, type):
        return None
    if not _is(value, plain):
        return _told(value, wanted, path)
    return _inside(value, plain, inner, path)


def _is(value: Any, plain: type) -> bool:
    if plain is float and type(value) is int:
        return True
    if plain is int and isinstance(value, bool):
        return False
    try:
        return isinstance(value, plain)
    except TypeError:  # a protocol that cannot be checked at run time
        return True


def _inside(value: Any, plain: type, inner: tuple[Any, ...], path: str) -> str | None:
    """The elements of a collection."""
    if not inner:
        return None
    if isinstance(value, Mapping) and len(inner) == 2:
        found = (
            misfit(key, inner[0], f"{path}: the key {shown(key, 60)}")
            or misfit(one, inner[1], f"{path}[{shown(key, 60)}]")
            for key, one in value.items()
        )
    elif isinstance(value, tuple) and not (len(inner) == 2 and inner[1] is Ellipsis):
        if len(value) != len(inner):
            return f"{path} has {len(value)} elements, not {len(inner)}"
        found = (misfit(one, kind, f"{path}[{n}]") for n, (one, kind) in enumerate(zip(value, inner, strict=True)))
    elif isinstance(value, collections.abc.Collection) and not isinstance(value, (str, bytes)):
        if getattr(value, "dtype", None) is not None:
            return None
        found = (misfit(one, inner[0], f"{path}[{number}]") for number, one in enumerate(value))
    else:
        return None
    return next((told for told in found if told is not None), None)


def _told(value: Any, wanted: Any, path: str) -> str:
    return f"{path} is {shown(value, 80)} ({type(value).__name__}), not {type_name(wanted)}"

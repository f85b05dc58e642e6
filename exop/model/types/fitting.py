"""Whether a type fits another one, and whether a value is of a type: what can be told without guessing.

The checks are gradual, as a static type checker is: what is not declared (`Any`, a bare `list`, a `TypeVar`) fits
everything, and so does a name that is not resolved. They refuse only what cannot be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from exop.model.types.description import Field, Type, type_of
from exop.model.versions import same_class
from exop.shown import shown

_Seen: TypeAlias = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Misfit:
    """The place at which one type does not fit another, and both types there; `None`: there is no such field."""

    source: Type | None
    target: Type | None
    path: str = ""
    what: str = "field"

    def __str__(self) -> str:
        if self.source is None:
            return f"no {self.what} {self.path!r} leaves, and {self.target} is expected there"
        if self.target is None:
            return f"the {self.what} {self.path!r} ({self.source}) leaves, and is not expected"
        where = f"the {self.what} {self.path!r} leaves as {self.source}" if self.path else f"{self.source} leaves"
        return f"{where}, {self.target} is expected"


def fits(source: Any, target: Any) -> bool:
    """Tell whether a value of type *source* may stand where *target* is expected."""
    return unfit(type_of(source), type_of(target)) is None


def unfit(source: Type, target: Type, path: str = "", seen: _Seen = frozenset()) -> Misfit | None:
    """Return the place at which *source* cannot stand where *target* is expected, or `None` when it can."""
    known = source.annotation is not None and source.annotation == target.annotation
    if known or {source.kind, target.kind} & {"any", "open"} or (id(source), id(target)) in seen:
        return None
    seen |= {(id(source), id(target))}
    here = Misfit(source, target, path)
    if source.kind == "variable":
        bounds = source.arguments
        return here if bounds and all(unfit(one, target, path, seen) for one in bounds) else None
    if target.kind == "variable":
        bounds = target.arguments
        return here if bounds and all(unfit(source, one, path, seen) for one in bounds) else None
    if source.kind == "union":
        return here if any(unfit(one, target, path, seen) for one in source.members) else None
    if source.kind == "choice":
        if target.kind == "choice":
            return None if set(source.choices) <= set(target.choices) else here
        return here if any(unfit(type_of(type(one)), target, path, seen) for one in source.choices) else None
    if target.kind == "union":
        found = [unfit(source, one, path, seen) for one in target.members]
        return None if None in found else _deepest(found, here)
    if source.kind == "new":
        return here if unfit(source.arguments[0], target, path, seen) else None
    return _of_class(source, target, path, seen)


def _deepest(found: Iterable[Misfit | None], here: Misfit) -> Misfit:
    """The misfit inside of the one member that was meant, or that of all."""
    inside = [one for one in found if one is not None and one.path != here.path]
    return inside[0] if len(inside) == 1 else here


def _of_class(source: Type, target: Type, path: str, seen: _Seen) -> Misfit | None:
    here = Misfit(source, target, path)
    if source.cls in (int, bool) and target.cls is float:
        return None
    if target.is_row:
        return _rows(source, target, path, seen) if source.is_row else None if _is_dict(source) else here
    if source.cls is None or target.cls is None:
        same = source.kind == target.kind and bool(source.identity) and source.identity == target.identity
    elif source.cls is not target.cls and isinstance(source.cls, type) and same_class(source.cls, target.cls):
        same = True
    else:
        return _by_inheritance(source, target, here, path, seen)
    if not same:
        return here
    return _rows(source, target, path, seen) if source.kind == "record" else _parts(source, target, path, seen)


def _by_inheritance(source: Type, target: Type, here: Misfit, path: str, seen: _Seen) -> Misfit | None:
    try:
        if source.cls is not target.cls and not issubclass(source.cls, target.cls):
            return here
    except TypeError:  # a protocol that cannot be checked at run time
        return None
    return _parts(source, target, path, seen)


def _is_dict(source: Type) -> bool:
    return isinstance(source.cls, type) and issubclass(source.cls, dict)


def _rows(source: Type, target: Type, path: str, seen: _Seen) -> Misfit | None:
    """Compare two records field by field."""
    for name, wanted in target.fields.items():
        place = f"{path}.{name}".lstrip(".")
        if name not in source.fields:
            if wanted.required or not target.is_row:
                return Misfit(None, wanted.type, place)
        elif (found := unfit(source.fields[name].type, wanted.type, place, seen)) is not None:
            return found
    return None


def _parts(source: Type, target: Type, path: str, seen: _Seen) -> Misfit | None:
    """Compare what two collections hold."""
    here = Misfit(source, target, path)
    given, wanted = source.arguments, target.arguments
    if not given or not wanted:
        return None
    if source.kind == "tuple" and target.kind == "tuple" and len(given) != len(wanted):
        return here
    if source.kind == "list" and target.kind == "tuple":
        return here
    if source.kind == "tuple" and target.kind != "tuple":
        wanted = wanted[:1] * len(given)
    pairs = zip(given, wanted, strict=False)
    found = next((one for one in (unfit(*pair, path, seen) for pair in pairs) if one is not None), None)
    return found and _deepest([found], here)


def columns_unfit(source: Type, target: Type) -> Misfit | None:
    """Return the column in which rows or batches that leave differ from those that are expected, or `None`.

    Between two declared schemas nothing is converted: they are the same. Between rows and columns the platform
    converts: every column has its field, and every field without a default its column.
    """
    if source.kind == target.kind == "columns":
        return _schemas_unfit(source, target)
    rows, columns = (target, source) if source.kind == "columns" else (source, target)
    for member in rows.members:
        if member.kind != "record" or not columns.fields:
            continue
        for name, wanted in target.fields.items() if rows is source else member.fields.items():
            found = _column_unfit((source if rows is target else member).fields.get(name), wanted, rows is target)
            if found is not None:
                return found
    return None


def _column_unfit(given: Field | None, wanted: Field, is_row: bool) -> Misfit | None:
    what = "field" if is_row else "column"
    if given is None:
        return Misfit(None, wanted.type, wanted.name, what) if wanted.required or not is_row else None
    # A column that may be null takes `None`; from one, a field takes what comes: most are never null.
    source = given.type.sole if not is_row and not wanted.required and given.type.sole.kind != "any" else given.type
    found = unfit(source, wanted.type, wanted.name)
    return None if found is None else Misfit(found.source, found.target, found.path, what)


def _schemas_unfit(source: Type, target: Type) -> Misfit | None:
    given, wanted = source.fields, target.fields
    if not given or not wanted:
        return None
    for name, one in wanted.items():
        if name not in given or given[name].written != one.written:
            return Misfit(given[name].type if name in given else None, one.type, name, "column")
    extra = next((name for name in given if name not in wanted), None)
    if extra is not None:
        return Misfit(given[extra].type, None, extra, "column")
    if list(given) != list(wanted):
        return Misfit(source, target, ", ".join(given), "columns in the order")
    return None


def misfit(value: Any, wanted: Any, path: str) -> str | None:
    """Return where and why *value* is not of the type *wanted*, or `None`; types that cannot be checked fit."""
    return _misfit(value, type_of(wanted), path)


def _misfit(value: Any, wanted: Type, path: str) -> str | None:
    kind = wanted.kind
    if kind in ("any", "open", "variable"):
        return None
    if kind == "new":
        return _misfit(value, wanted.bare, path)
    if kind == "union":
        fitting = any(_misfit(value, one, path) is None for one in wanted.members)
    elif kind == "choice":
        fitting = value in wanted.choices
    else:
        fitting = _is(value, wanted.cls)
    if not fitting:
        return f"{path} is {shown(value, 80)} ({type(value).__name__}), not {wanted}"
    return _inside(value, wanted, path) if kind in ("list", "tuple", "table") and wanted.arguments else None


def _is(value: Any, plain: Any) -> bool:
    if plain is float and type(value) is int:
        return True
    if plain is int and isinstance(value, bool):
        return False
    try:
        return isinstance(value, plain)
    except TypeError:  # a protocol that cannot be checked at run time
        return True


def _inside(value: Any, wanted: Type, path: str) -> str | None:
    """Look at the elements of a collection."""
    if wanted.kind == "table" and isinstance(value, Mapping):
        keys, values = wanted.entry
        found = (
            _misfit(key, keys, f"{path}: the key {shown(key, 60)}") or _misfit(one, values, f"{path}[{shown(key, 60)}]")
            for key, one in value.items()
        )
    elif wanted.kind == "tuple" and len(value) != len(wanted.arguments):
        return f"{path} has {len(value)} elements, not {len(wanted.arguments)}"
    else:
        types = wanted.elements(len(value)) if hasattr(value, "__len__") else []
        found = (_misfit(one, kind, f"{path}[{n}]") for n, (one, kind) in enumerate(zip(value, types, strict=False)))
    return next((told for told in found if told is not None), None)

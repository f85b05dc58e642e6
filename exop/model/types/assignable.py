"""Whether values of one type may stand where another type is expected, and whether a value is of a type.

The checks are gradual, as those of a static type checker: types that are not declared (`Any`, a bare `list`, a
`TypeVar`) and names that cannot be resolved match everything. Only certain mistakes are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, TypeVar, Union

from exop.errors import counted, suggest
from exop.model.types.description import Field, Type, type_of
from exop.model.values.classes import same_class, unversioned
from exop.safe_repr import safe_repr


@dataclass(frozen=True)
class Mismatch:
    """The place at which two types differ, and both types there; `None` for a field that one side lacks.

    Attributes:
        known: The fields that the source has, if one is missing.
    """

    source: Type | None
    target: Type | None
    path: str = ""
    what: str = "field"
    known: Iterable[str] = ()

    def __str__(self) -> str:
        if self.source is None:
            hint = suggest(self.path.rpartition(".")[2], self.known, "field")
            return f"the {self.what} {self.path!r} ({self.target}) is missing ({hint})"
        if self.target is None:
            return f"the {self.what} {self.path!r} ({self.source}) is not expected"
        if self.what == "order":
            return f"the columns are {self.path}, expected in the order {', '.join(self.target.fields)}"
        place = f"the {self.what} {self.path!r} is" if self.path else "items are"
        return f"{place} {self.source}, expected {self.target}"


def find_mismatch(source: Type, target: Type, path: str = "", *, decoded: bool = False) -> Mismatch | None:
    """Return the place at which *source* cannot stand where *target* is expected, or `None` when it can.

    With *decoded*, values become those of *target*, which must have all fields of another version of its class.
    """
    try:
        return _Comparison({}, decoded).compare(source, target, path)
    except RecursionError:
        return Mismatch(source, target, path)


@dataclass
class _Comparison:
    """Compares two types; `found` has the results, so that a pair is compared once, also where types are recursive."""

    found: dict[tuple[int, int], Mismatch | None]
    decoded: bool

    def compare(self, source: Type, target: Type, path: str) -> Mismatch | None:
        known = source.annotation is not None and source.annotation == target.annotation
        named = source.kind == target.kind == "new" and source.identity == target.identity
        if known or named or source is target or {source.kind, target.kind} & {"any", "open"}:
            return None
        if (pair := (id(source), id(target))) not in self.found:
            self.found[pair] = None
            self.found[pair] = self._compare(source, target, path)
        return self.found[pair]

    def _compare(self, source: Type, target: Type, path: str) -> Mismatch | None:
        here = Mismatch(source, target, path)
        for one in (source, target):
            if one.kind == "variable":
                pairs = [(bound, target) if one is source else (source, bound) for bound in one.arguments]
                return here if pairs and all(self.compare(*pair, path) for pair in pairs) else None
        if source.kind == "union":
            return here if any(self.compare(one, target, path) for one in source.members) else None
        if source.kind == "choice" and target.kind == "choice":
            return None if set(source.texts) <= set(target.texts) else here
        if source.kind == "choice":
            return here if any(self.compare(one, target, path) for one in source.arguments) else None
        if target.kind == "union":
            found = [self.compare(source, one, path) for one in target.members]
            return None if None in found else _deepest(found, here)
        if source.kind == "new":
            return here if self.compare(source.arguments[0], target, path) else None
        return self._classes(source, target, here)

    def _classes(self, source: Type, target: Type, here: Mismatch) -> Mismatch | None:
        if source.cls in (int, bool) and target.cls is float:
            return None
        if source.cls is None or target.cls is None:
            names = {unversioned(one.identity) for one in (source, target)}
            related = source.kind == target.kind and len(names) == 1 and names != {""}
        else:
            other = isinstance(source.cls, type) and source.cls is not target.cls
            related = other and same_class(source.cls, target.cls)
        if not related and target.is_row:
            is_dict = _is_derived(source, type_of(dict))
            return self._rows(source, target, here.path) if source.is_row else None if is_dict else here
        if not related:
            derived = _is_derived(source, target)
            return self._parts(source, target, here) if derived else here if derived is False else None
        compared = self._rows(source, target, here.path) if source.kind == "record" else None
        lost = [name for name in source.fields if name not in target.fields]
        if self.decoded and not target.is_row and lost:
            compared = compared or Mismatch(source.fields[lost[0]].type, None, f"{here.path}.{lost[0]}".lstrip("."))
        return compared or self._parts(source, target, here)

    def _rows(self, source: Type, target: Type, path: str) -> Mismatch | None:
        for name, wanted in target.fields.items():
            place = f"{path}.{name}".lstrip(".")
            if name not in source.fields:
                if wanted.required or not target.is_row:
                    return Mismatch(None, wanted.type, place, known=source.fields)
            elif (found := self.compare(source.fields[name].type, wanted.type, place)) is not None:
                return found
        return None

    def _parts(self, source: Type, target: Type, here: Mismatch) -> Mismatch | None:
        given, wanted = source.arguments, target.arguments
        if not given or not wanted:
            return None
        if target.kind == "tuple" and (source.kind != "tuple" or len(given) != len(wanted)):
            return here
        if source.kind == "tuple" and target.kind != "tuple":
            wanted = wanted[:1] * len(given)
        found = (self.compare(one, other, here.path) for one, other in zip(given, wanted, strict=False))
        first = next((one for one in found if one is not None), None)
        return first and _deepest([first], here)


def _is_derived(source: Type, target: Type) -> bool | None:
    """Whether a class is the other one, or derived from it; `None` for a protocol of which that cannot be told.

    If one of the classes is not here, the names of the bases tell it.
    """
    if source.cls is not None and target.cls is not None:
        try:
            return source.cls is target.cls or issubclass(source.cls, target.cls)
        except TypeError:  # it cannot be checked at run time
            return None
    if getattr(target.cls, "_is_protocol", False):
        return None
    names = {unversioned(base.identity) for base in source.bases}
    known = (base for base in source.bases if base.cls is not None and target.cls is not None)
    return unversioned(target.identity) in names or any(_is_derived(base, target) for base in known)


def _deepest(found: Iterable[Mismatch | None], here: Mismatch) -> Mismatch:
    """The mismatch in a field if exactly one member of the union has one; else the mismatch of the whole."""
    nested = [one for one in found if one is not None and one.path != here.path]
    return nested[0] if len(nested) == 1 else here


def variables(annotation: Any) -> tuple[TypeVar, ...]:
    """Return the type variables that an annotation leaves open."""
    if isinstance(annotation, TypeVar):
        return (annotation,)
    found = () if isinstance(annotation, type) else getattr(annotation, "__parameters__", ())
    return found if all(isinstance(one, TypeVar) for one in found) else ()


def bind(target: Type, source: Type, found: dict[TypeVar, Any]) -> None:
    """Bind the type variables of *target* in *found* to the types they have if values of type *source* arrive.

    A variable with several types is bound to their union; one of unknown type stays unbound.
    """
    if not variables(target.annotation):
        return
    if target.kind == "variable":
        known = source.annotation is not None and source.kind not in ("any", "open", "variable", "none")
        if known and not variables(source.annotation) and find_mismatch(source, target) is None:
            before = found.get(target.annotation)
            found[target.annotation] = source.annotated if before is None else Union[before, source.annotated]  # noqa: UP007 (built at run time)
    elif target.kind == "union":
        others = [one for one in target.members if not variables(one.annotation)]
        rest = [one.annotated for one in source.members if all(find_mismatch(one, other) for other in others)]
        for one in target.members if rest else ():
            bind(one, type_of(Union[tuple(rest)]), found)  # noqa: UP007
    elif target.cls is source.cls or target.kind == source.kind != "record":
        for pair in zip(target.arguments, source.arguments, strict=False):
            bind(*pair, found)


def substitute(annotation: Any, found: Mapping[TypeVar, Any]) -> Any:
    """Replace the type variables of an annotation; unbound ones by `Any`, unless they have a bound of their own."""
    bounded = {one: one for one in variables(annotation) if one.__bound__ or one.__constraints__}
    types = tuple(found.get(one, bounded.get(one, Any)) for one in variables(annotation))
    if isinstance(annotation, TypeVar):
        return types[0]
    return annotation[types] if types else annotation


def missing_field(item: Type, name: str) -> str | None:
    """Return why items of a type have no field *name*; `None` if they have it, or if that is unknown."""
    for one in (member.bare for member in item.members):
        if (known := one.fields) or one.kind == "scalar":
            digits = name.isdigit() and not one.is_row  # the place in a tuple
            if name in known or digits or (one.kind != "columns" and not one.is_row and hasattr(one.cls, name)):
                continue
            shown = "the record batch" if one.kind == "columns" else str(one)
            return f"{shown} has no field {name!r}" + (f"; {suggest(name, known, 'field')}" if known else "")
    return None


def not_a_time(item: Type, name: str) -> str | None:
    """Return why the field *name* of a type cannot be a time; `None` if it can, or if that is unknown."""
    for one in (member.bare for member in item.members):
        if (field := one.fields.get(name)) is None:
            continue
        known = [member.bare for member in field.type.members if member.kind != "none"]
        if all(member.kind == "scalar" and not issubclass(member.cls, (int, float, Decimal)) for member in known):
            shown = "the record batch" if one.kind == "columns" else str(one)
            return f"{name!r} of {shown} is {field.type}, no number; of a datetime, name a field with its timestamp()"
    return None


def find_column_mismatch(source: Type, target: Type) -> Mismatch | None:
    """Return the first column in which the rows or batches of two ports differ, or `None`.

    Two declared schemas must be equal: nothing is converted between them. Between rows and columns the platform
    converts: every column needs its field, and every field without a default its column.
    """
    if source.kind == target.kind == "columns":
        return _schema_mismatch(source, target)
    rows, columns = (target, source) if source.kind == "columns" else (source, target)
    for member in (one for one in rows.members if one.kind == "record" and columns.fields):
        given, expected = (member, columns) if rows is source else (columns, member)
        for wanted in expected.fields.values():
            if (found := _column_mismatch(given.fields, wanted, rows is target)) is not None:
                return found
    return None


def _column_mismatch(fields: Mapping[str, Field], wanted: Field, is_row: bool) -> Mismatch | None:
    what, given = "field" if is_row else "column", fields.get(wanted.name)
    if given is None:
        return Mismatch(None, wanted.type, wanted.name, what, fields) if wanted.required or not is_row else None
    # A nullable column accepts `None`. In the other direction nullability is ignored: most columns have no nulls.
    source = given.type.sole if not is_row and not wanted.required and given.type.sole.kind != "any" else given.type
    found = find_mismatch(source, wanted.type, wanted.name)
    return found and replace(found, what=what)


def _schema_mismatch(source: Type, target: Type) -> Mismatch | None:
    given, wanted = source.fields, target.fields
    if not given or not wanted:
        return None
    for name, one in wanted.items():
        if name not in given or given[name].written != one.written:
            return Mismatch(given[name].type if name in given else None, one.type, name, "column", given)
    if (extra := next((name for name in given if name not in wanted), None)) is not None:
        return Mismatch(given[extra].type, None, extra, "column")
    return Mismatch(source, target, ", ".join(given), "order") if list(given) != list(wanted) else None


def takes_class(wanted: Type, kind: type) -> bool:
    """Whether an instance of a class may be of a type, as far as the class tells that."""
    numbers = [one for one, abstract in ((int, Integral), (float, Real)) if issubclass(kind, abstract)]  # of numpy, too
    numbers += [bool] * is_numpy_bool(kind)
    known = map(type_of, (*kind.__mro__[:-1], *numbers))  # of a type that another platform describes, the name is known
    pairs = ((base, one.bare) for base in known for one in wanted.members)
    return any(one.kind == "choice" or find_mismatch(base, one) is None for base, one in pairs)


def is_numpy_bool(kind: type) -> bool:
    """Whether a class is that of the booleans of numpy, which may not be loaded."""
    return kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")


def value_mismatch(value: Any, wanted: Any, path: str) -> str | None:
    """Return where and why *value* is not of the type *wanted*, or `None`; types that cannot be checked match."""
    wanted = type_of(wanted)
    if (kind := wanted.kind) in ("any", "open", "variable"):
        return None
    if kind == "new":
        return value_mismatch(value, wanted.bare, path)
    if kind == "union":
        matches = any(value_mismatch(value, one, path) is None for one in wanted.members)
    else:
        matches = value in wanted.choices if kind == "choice" else _is_instance(value, wanted.cls)
    if not matches:
        return f"{path} is {safe_repr(value, 80)} ({type(value).__name__}), not {wanted}"
    return _element_mismatch(value, wanted, path) if kind in ("list", "tuple", "table") and wanted.arguments else None


def _is_instance(value: Any, cls: Any) -> bool:
    if cls is float and type(value) is int:
        return True
    if cls is int and isinstance(value, bool):
        return False
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol that cannot be checked at run time
        return True


def _element_mismatch(value: Any, wanted: Type, path: str) -> str | None:
    if wanted.kind == "table" and isinstance(value, Mapping):
        keys, values = wanted.entry
        found = (
            value_mismatch(key, keys, f"{path}: the key {safe_repr(key, 60)}")
            or value_mismatch(one, values, f"{path}[{safe_repr(key, 60)}]")
            for key, one in value.items()
        )
    elif wanted.kind == "tuple" and len(value) != len(wanted.arguments):
        return f"{path} has {counted(len(value), 'element')}, not {len(wanted.arguments)}"
    else:
        types = wanted.elements(len(value)) if hasattr(value, "__len__") else []
        found = (value_mismatch(*pair, f"{path}[{n}]") for n, pair in enumerate(zip(value, types, strict=False)))
    return next((one for one in found if one is not None), None)

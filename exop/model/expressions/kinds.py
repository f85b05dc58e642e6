"""The kinds of values that expressions compute with, and which of them go together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from typing import Literal as OneOf

from exop.model.types.description import ANY, Type, built, type_of

Kind: TypeAlias = OneOf[
    "any", "none", "bool", "int", "float", "Decimal", "str", "bytes",
    "datetime", "date", "time", "timedelta", "list", "record",
]  # fmt: skip
#: The kinds of scalars by their class; a class is found before those from which it is derived.
SCALARS: Final[dict[type, Kind]] = {
    bool: "bool", int: "int", float: "float", Decimal: "Decimal", str: "str", bytes: "bytes",
    datetime: "datetime", date: "date", time: "time", timedelta: "timedelta", type(None): "none",
}  # fmt: skip
TYPES: Final[dict[str, Type]] = {"any": ANY, **{kind: type_of(cls) for cls, kind in SCALARS.items()}}
#: The kinds that arithmetic takes as whole numbers, and all numbers that have a common type.
WHOLE: Final = ("bool", "int")
NUMERIC: Final = (*WHOLE, "float")


def kind_of(kind: Type) -> Kind:
    """Return the kind of the values of a type other than `None`; `any` if it is not known, or if there are several."""
    known = kind if kind.kind == "none" else kind.sole
    known = known.arguments[0] if known.kind == "choice" and len(known.arguments) == 1 else known
    if known.kind in ("list", "tuple"):
        return "list"
    return "record" if known.kind == "record" else SCALARS.get(known.cls, "any")


def kind_of_value(value: Any) -> Kind:
    """Return the kind of a value."""
    if (known := SCALARS.get(type(value))) is not None:
        return known
    found = next((SCALARS[one] for one in type(value).__mro__ if one in SCALARS), None)
    return found or ("list" if isinstance(value, (list, tuple)) else "any")


def list_of(element: Type) -> Type:
    """Return the type of lists of an element."""
    return built("list", f"list[{element}]", list, identity="builtins:list", arguments=(element,))


def common(types: Iterable[Type]) -> Type | None:
    """Return the type of a value that has one of these types; `None` if they do not go together."""
    found: Type = TYPES["none"]
    for one in types:
        kinds = kind_of(found), kind_of(one)
        if kinds[0] == "none" or "any" in kinds:
            found = ANY if "any" in kinds else one
        elif set(kinds) == {"int", "float"}:
            found = TYPES["float"]
        elif kinds[1] not in ("none", kinds[0]):
            return None
        elif kinds[0] == kinds[1] and str(found.sole) != str(one.sole):
            elements = common((found.sole.element, one.sole.element)) or ANY
            found = list_of(elements) if kinds[0] == "list" else TYPES.get(kinds[0], ANY)
    return found.sole if found.nullable and found.kind == "union" else found


def result_kind(sign: str, left: Kind, right: Kind) -> Kind | None:
    """Return the kind of the result of an arithmetic operation, `None` if these kinds do not go together."""
    if "any" in (left, right):
        other = left if right == "any" else right
        return None if other in ("record", "list", "bytes") or (other == "str" and sign != "+") else "any"
    if "none" in (left, right):
        return "none"
    if left in NUMERIC and right in NUMERIC:
        return "float" if sign == "/" or "float" in (left, right) else "int"
    if "Decimal" in (left, right):
        return "Decimal" if {left, right} <= {"Decimal", *WHOLE} else None
    return _OTHERS.get((left, sign, right))


_OTHERS: Final[dict[tuple[str, str, str], Kind]] = {
    ("str", "+", "str"): "str",
    ("datetime", "-", "datetime"): "timedelta",
    ("date", "-", "date"): "timedelta",
    ("timedelta", "/", "timedelta"): "float",
    ("timedelta", "//", "timedelta"): "int",
    **{(one, sign, "timedelta"): one for one in ("datetime", "date", "timedelta") for sign in "+-"},
    **{("timedelta", "+", one): one for one in ("datetime", "date")},
    **{("timedelta", sign, one): "timedelta" for one in ("int", "float") for sign in "*/"},
    **{(one, "*", "timedelta"): "timedelta" for one in ("int", "float")},
}


def comparable(left: Kind, right: Kind) -> bool:
    """Whether values of these kinds may be compared: as far as is known, they are of one kind, or numbers."""
    numbers = {*NUMERIC, "Decimal"}
    return left == right or bool({left, right} & {"any", "none"}) or {left, right} <= numbers

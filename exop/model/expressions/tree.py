"""The checked tree of an expression, and the kinds of values that it computes with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from typing import Literal as OneOf

from exop.model.types.description import ANY, Type, built, type_of

if TYPE_CHECKING:
    from exop.model.expressions.functions import Function

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


@dataclass(frozen=True, eq=False)
class Tree:
    """A part of an expression.

    Attributes:
        at: Its position in the text.
        type: The type of its values.
        nullable: Whether it may be NULL.
    """

    at: int
    type: Type
    nullable: bool

    @cached_property
    def kind(self) -> Kind:
        """The kind of its values."""
        return kind_of(self.type)

    @property
    def parts(self) -> Iterator[Tree]:
        """The parts of which it consists, in the order in which they are written."""
        return _trees(tuple(vars(self).values()))

    def walk(self) -> Iterator[Tree]:
        """Yield this part and all below it."""
        stack: list[Tree] = [self]
        while stack:
            yield (one := stack.pop())
            stack += reversed([*one.parts])


def _trees(value: Any) -> Iterator[Tree]:
    if isinstance(value, Tree):
        yield value
    for one in value if isinstance(value, tuple) else ():
        yield from _trees(one)


@dataclass(frozen=True, eq=False)
class Literal(Tree):
    """A constant."""

    value: Any


@dataclass(frozen=True, eq=False)
class Subject(Tree):
    """The item, or the time of a punctuation."""

    name: str


@dataclass(frozen=True, eq=False)
class Setting(Tree):
    """A setting, whose value is known when the expression is compiled."""

    name: str


@dataclass(frozen=True, eq=False)
class Field(Tree):
    """A field: `item.speed`, `item["speed"]`, `item.place.road`."""

    of: Tree
    name: str


@dataclass(frozen=True, eq=False)
class Operation(Tree):
    """What a function of `values` computes from any values: `not x`, `x is None`, `x in y`, `x[0]`, `[x, y]`."""

    call: Callable[..., Any]
    operands: tuple[Tree, ...]


@dataclass(frozen=True, eq=False)
class Arithmetic(Tree):
    """`first + a * …`: the steps are carried out from left to right, so that a long sum is one flat part."""

    first: Tree
    steps: tuple[tuple[str, Tree], ...]


@dataclass(frozen=True, eq=False)
class Comparison(Tree):
    """`first < a <= …`: each value is compared with the next one."""

    first: Tree
    steps: tuple[tuple[str, Tree], ...]


@dataclass(frozen=True, eq=False)
class Logic(Tree):
    """`a and b and …`, `a or b or …`."""

    word: OneOf["and", "or"]
    operands: tuple[Tree, ...]


@dataclass(frozen=True, eq=False)
class Choice(Tree):
    """`value if condition else value if condition else …`: the cases, and what holds otherwise."""

    cases: tuple[tuple[Tree, Tree], ...]
    otherwise: Tree


@dataclass(frozen=True, eq=False)
class Call(Tree):
    """A call of a function."""

    function: Function
    arguments: tuple[Tree, ...]

    @property
    def shares(self) -> bool:
        """Whether its result is one of its arguments, which share a column of floats."""
        return self.kind == "float" and self.function.result is None

"""The description of a type: its kind, what it consists of, and the fields that it has."""

from __future__ import annotations

import enum
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pyarrow as pa
import pytest

from exop.model.types.description import ANY, type_of

if TYPE_CHECKING:
    from nowhere import Missing

T = TypeVar("T")
Bound = TypeVar("Bound", bound=int)
Metres = NewType("Metres", int)


class Size(enum.Enum):
    """An enumeration."""

    SMALL = 1


@dataclass
class Node:
    """A type that contains itself, and a name that is not resolved."""

    value: int
    next: Node | None = None
    missing: Missing | None = None
    made: list[int] = field(default_factory=list, init=False)


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float = 0.5


class Row(TypedDict):
    """A typed dictionary."""

    name: str
    count: NotRequired[int]


class Packed(msgspec.Struct):
    """A structure."""

    x: int
    y: list[int] = []
    z: str = "z"


class Own:
    """Any class."""


@pytest.mark.parametrize(
    ("annotation", "kind", "arguments"),
    [
        (Any, "any", []),
        (object, "any", []),
        (None, "none", []),
        ("Unresolved", "open", []),
        (int, "scalar", []),
        (Path, "scalar", []),
        (Literal["a", 1], "choice", ["str", "int"]),
        (Size, "enum", []),
        (int | None, "union", ["int", "None"]),
        (list[int], "list", ["int"]),
        (tuple[int, ...], "list", ["int"]),
        (tuple, "list", []),
        (Sequence[str], "list", ["str"]),
        (AbstractSet[str], "list", ["str"]),
        (Iterable[Own], "list", ["Own"]),
        (deque[int], "list", ["int"]),
        (tuple[int, str], "tuple", ["int", "str"]),
        (dict[str, int], "table", ["str", "int"]),
        (Mapping[str, int], "table", ["str", "int"]),
        (Counter[str], "table", ["str", "int"]),
        (OrderedDict[str, int], "table", ["str", "int"]),
        (defaultdict, "table", []),
        (Node, "record", []),
        (Point, "record", []),
        (Row, "record", []),
        (Packed, "record", []),
        (pa.RecordBatch, "columns", []),
        (Metres, "new", ["int"]),
        (T, "variable", []),
        (Bound, "variable", ["int"]),
        (Own, "class", []),
        (Callable[[int], str], "callable", []),
        (type[Own], "type", ["Own"]),
        (Annotated[int, "metres"], "scalar", []),
        (Annotated[list[int], 3], "list", ["int"]),
    ],
    ids=str,
)
def test_kinds(annotation: Any, kind: str, arguments: list[str]) -> None:
    """Each annotation has one kind, and is described once."""
    found = type_of(annotation)
    assert (found.kind, [str(one) for one in found.arguments]) == (kind, arguments)
    assert type_of(annotation) is found is type_of(found)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Node, {"value": "int", "next": "Node | None", "missing": "Missing | None", "made": "list[int]"}),
        (Point, {"x": "int", "y": "float"}),
        (Row, {"name": "str", "count": "int"}),
        (Packed, {"x": "int", "y": "list[int]", "z": "str"}),
    ],
)
def test_fields(kind: type, fields: dict[str, str]) -> None:
    """Every class of records has fields; the first one alone is required here."""
    found = type_of(kind).fields
    assert {name: str(one.type) for name, one in found.items()} == fields
    assert [name for name, one in found.items() if one.required] == [next(iter(fields))]
    assert [name for name, one in found.items() if not one.given] == (["made"] if kind is Node else [])


def test_a_name_that_is_not_resolved_stays_open() -> None:
    """The fields beside it are known all the same, and a type may contain itself."""
    node = type_of(Node)
    assert node.fields["missing"].type.kind == "open"
    assert node.fields["next"].type.sole is node
    assert {one.name for one in node.reached()} >= {"Node", "int", "None", "list[int]"}
    assert node.shape == {"value": "int", "next": "Node | None", "missing": "Missing | None", "made": "list[int]"}
    assert "nowhere" not in sys.modules


def test_the_order_of_a_union_counts() -> None:
    """Python takes `int | str` and `str | int` for equal; a value is converted to the first that fits."""
    assert [str(one) for one in (type_of(int | str), type_of(str | int))] == ["int | str", "str | int"]
    assert [str(one) for one in (type_of(list[int | str]), type_of(list[str | int]))] == [
        "list[int | str]",
        "list[str | int]",
    ]


def test_the_one_type_of_a_value() -> None:
    """Of what may be `None` the other type, of a name what it stands for; of several none."""
    assert type_of(Metres | None).sole is type_of(int)
    assert type_of(int | str).sole is ANY
    assert (type_of(int | None).takes_none, type_of(Any).takes_none, type_of(int).takes_none) == (True, True, False)


def test_a_class_whose_metaclass_does_what_it_likes() -> None:
    """Nothing of it is called that may raise."""

    class Meta(type):
        def __repr__(cls) -> str:
            raise ValueError(cls.__name__)

    class Odd(metaclass=Meta):
        pass

    assert (type_of(Odd).kind, str(type_of(Odd))) == ("class", Odd.__qualname__)


def test_columns() -> None:
    """The columns of a declared schema are fields, those that may be null without being required."""
    inner = pa.struct([pa.field("c", pa.string(), nullable=False)])
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), ("b", pa.list_(inner)), ("d", pa.timestamp("us"))])
    found = type_of(Annotated[pa.RecordBatch, schema])
    assert {name: (str(one.type), one.required) for name, one in found.fields.items()} == {
        "a": ("int32", True),
        "b": ("list<item: struct<c: string not null>>", False),
        "d": ("timestamp[us]", False),
    }
    assert found.fields["a"].type.cls is int
    assert found.fields["d"].type.cls is datetime
    assert found.fields["b"].type.element.fields["c"].type.cls is str

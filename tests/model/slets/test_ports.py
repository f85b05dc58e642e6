"""What ports carry, and when two of them fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest

from exop import Batch, EndOfStream, Punctuation
from exop.engine import Reference
from exop.model.slets.ports import PortType, mismatch, port_type
from exop.model.types.description import type_name

SCHEMA = pa.schema([("vid", pa.int32()), ("speed", pa.float64())])
OTHER = pa.schema([("vid", pa.int64())])
SMALL = pa.schema([("vid", pa.int32())])
NESTED = Annotated[pa.RecordBatch, pa.schema([("at", pa.struct([("x", pa.string())]))])]
DECLARED = Annotated[pa.RecordBatch, SCHEMA]


@dataclass
class Report:
    """A dataclass."""

    vid: int


class Point(NamedTuple):
    """A named tuple."""

    x: int


class Row(TypedDict):
    """A typed dictionary."""

    x: int


def test_control_items_and_none_are_not_the_payload():
    """`T | Punctuation | None` carries T."""
    assert port_type(int | Punctuation | None) == PortType(int, punctuation=True)
    assert port_type(int | str | EndOfStream) == PortType(int | str, end=True)
    assert port_type(Punctuation) == PortType(Any, punctuation=True)


def test_the_form_is_told_by_the_type():
    """Batch[T] is a list of T, RecordBatch is columns, with or without a schema; notes do not matter."""
    assert port_type(Batch[int]) == PortType(int, "batch")
    assert port_type(Batch) == PortType(Any, "batch")
    assert port_type(Annotated[Batch[int], 3]) == PortType(int, "batch")
    assert port_type(pa.RecordBatch) == PortType(pa.RecordBatch, "columns")
    assert port_type(DECLARED) == PortType(pa.RecordBatch, "columns", SCHEMA)
    assert port_type(DECLARED | Punctuation) == PortType(pa.RecordBatch, "columns", SCHEMA, punctuation=True)
    assert port_type(Annotated[int, "metres"]) == PortType(int)
    assert port_type(list[int]) == PortType(list[int])


def test_a_union_of_forms_has_no_form():
    """Items or columns at one port: nobody could tell what to convert to."""
    with pytest.raises(TypeError, match="has no form: choose one of them"):
        port_type(pa.RecordBatch | int)


class Packed(msgspec.Struct):
    """A structure."""

    x: int
    y: float = 0.0


@dataclass
class Full:
    """A dataclass with all of the declared columns, and one with a default."""

    vid: int
    speed: float | None
    note: str = ""


@dataclass
class Wrong:
    """One of its fields is of another type."""

    vid: int
    speed: str


FIT = [
    (int, Any),
    (int, Batch[int]),
    (Batch[int], float),
    (DECLARED, DECLARED),
    (DECLARED, pa.RecordBatch),
    (pa.RecordBatch, DECLARED),
    (Full, DECLARED),
    (DECLARED, Full),
    (DECLARED, Report),
    (DECLARED, dict[str, Any]),
    (dict[str, Any], DECLARED),
    (Any, pa.RecordBatch),
    (pa.RecordBatch, Wrong),
    (Report | Point, pa.RecordBatch),
    (Batch[Report], pa.RecordBatch),
    *((one, pa.RecordBatch) for one in (Report, Point, Row, Packed, dict, dict[str, int], Mapping[str, int], object)),
    (Annotated[pa.RecordBatch, OTHER], Report),
    (Report, Annotated[pa.RecordBatch, OTHER]),
    *((Annotated[Batch[Reference], SMALL], one) for one in (Reference, Annotated[pa.RecordBatch, SMALL], dict, Any)),
]

MISFIT = [
    (int, str, "items are int, expected str"),
    (Batch[int], list[int], "items are int, expected list[int]"),
    (
        DECLARED,
        Annotated[pa.RecordBatch, OTHER],
        "the columns differ: the column 'vid' is int32, expected int64",
    ),
    (
        Annotated[pa.RecordBatch, SMALL],
        DECLARED,
        "the columns differ: the column 'speed' (double) is missing (known: vid)",
    ),
    (
        DECLARED,
        Annotated[pa.RecordBatch, SMALL],
        "the columns differ: the column 'speed' (double) is not expected",
    ),
    (int, DECLARED, "items of type int have no columns"),
    (
        Annotated[Batch[Reference], SMALL],
        DECLARED,
        "the columns differ: the column 'speed' (double) is missing (known: vid)",
    ),
    (Annotated[Batch[Reference], SMALL], Point, "the field 'x' (int) is missing (known: vid)"),
    (Annotated[pa.RecordBatch, SMALL], Reference, "these are rows, and no references to them"),
    (pa.RecordBatch, Report | int, "items of type Report | int have no columns"),
    (list[int], pa.RecordBatch, "items of type list[int] have no columns"),
    (Report, DECLARED, "the column 'speed' (double) is missing (known: vid)"),
    (Wrong, DECLARED, "the column 'speed' is str, expected double"),
    (DECLARED, Wrong, "the field 'speed' is double, expected str"),
    (DECLARED, Point, "the field 'x' (int) is missing (known: speed, vid)"),
    (
        Annotated[pa.RecordBatch, SMALL],
        Full,
        "the field 'speed' (float | None) is missing (known: vid)",
    ),
    (Row, TypedDict("Rows", {"x": str}), "the field 'x' is int, expected str"),
    (NESTED, TypedDict("Nested", {"at": Row}), "the field 'at.x' is string, expected int"),
]


@pytest.mark.parametrize(("source", "target"), FIT, ids=repr)
def test_ports_that_fit(source, target):
    """Items, batches and columns are joined where the platform can convert between them."""
    assert mismatch(port_type(source), port_type(target)) is None


@pytest.mark.parametrize(("source", "target", "reason"), MISFIT, ids=lambda v: str(v)[:30])
def test_ports_that_do_not_fit(source, target, reason):
    """An error names the field that differs, and both types."""
    assert mismatch(port_type(source), port_type(target)) == reason


def test_types_are_shown_as_they_are_written():
    """Messages and tables show short names."""
    shown = [type_name(one) for one in (int, Report, list[int], int | None, Any, dict[str, Report])]
    assert shown[:5] == ["int", "Report", "list[int]", "int | None", "Any"]
    assert str(port_type(DECLARED)) == "pyarrow.RecordBatch"

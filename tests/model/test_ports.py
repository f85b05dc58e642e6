"""What ports carry, and when two of them fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest

from exop import Batch, EndOfStream, Punctuation
from exop.model.ports import PortType, has_fields, mismatch, port_type, type_name

SCHEMA = pa.schema([("vid", pa.int32()), ("speed", pa.float64())])
OTHER = pa.schema([("vid", pa.int64())])
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


class Packed(msgspec.Struct):
    """A structure."""

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


FIT = [
    (int, Any),
    (int, Batch[int]),
    (Batch[int], float),
    (DECLARED, DECLARED),
    (DECLARED, pa.RecordBatch),
    (pa.RecordBatch, DECLARED),
    (Report, DECLARED),
    (DECLARED, Report),
    (DECLARED, dict[str, Any]),
    (Any, pa.RecordBatch),
    (Row, pa.RecordBatch),
    (Report | Point, pa.RecordBatch),
    (Batch[Report], pa.RecordBatch),
]

MISFIT = [
    (int, str, "int leaves, str is expected"),
    (Batch[int], list[int], "int leaves, list[int] is expected"),
    (
        DECLARED,
        Annotated[pa.RecordBatch, OTHER],
        "the columns differ: vid int32, speed double leave, vid int64 are expected",
    ),
    (int, DECLARED, "items of type int have no columns"),
    (pa.RecordBatch, Report | int, "items of type Report | int have no columns"),
]


@pytest.mark.parametrize(("source", "target"), FIT, ids=repr)
def test_ports_that_fit(source, target):
    """Items, batches and columns are joined where the platform can convert between them."""
    assert mismatch(port_type(source), port_type(target)) is None


@pytest.mark.parametrize(("source", "target", "reason"), MISFIT, ids=lambda v: str(v)[:30])
def test_ports_that_do_not_fit(source, target, reason):
    """What cannot enter is told with both types."""
    found = mismatch(port_type(source), port_type(target))
    assert found is not None
    assert found.endswith(reason)


@pytest.mark.parametrize("item", [Report, Point, Row, Packed, dict, dict[str, int], Mapping[str, int], Any, object])
def test_what_can_stand_in_columns(item):
    """Whatever has named fields can."""
    assert has_fields(item)


@pytest.mark.parametrize("item", [int, str, list[int], tuple[int, str], Report | int])
def test_what_cannot_stand_in_columns(item):
    """Plain values have no columns."""
    assert not has_fields(item)


def test_types_are_shown_as_they_are_written():
    """Messages and tables show short names."""
    shown = [type_name(one) for one in (int, Report, list[int], int | None, Any, dict[str, Report])]
    assert shown[:5] == ["int", "Report", "list[int]", "int | None", "Any"]
    assert str(port_type(DECLARED)) == "pyarrow.RecordBatch"

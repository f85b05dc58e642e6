"""Rows and columns: converted only where two ports differ, and once for all who want the same."""

import gc
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.errors import WiringError
from exop.model.items import Batch
from exop.model.slets.ports import PortType
from exop.runtime.dataflow import batches as convert
from exop.runtime.dataflow.batches import cut, shared, to_columns, to_items, weight
from exop.runtime.dataflow.entry import Entry, fan_out


@dataclass
class Point:
    """A row as a dataclass."""

    x: int
    y: int


class Pair(NamedTuple):
    """A row as a named tuple."""

    x: int
    y: int


class Struct(msgspec.Struct):
    """A row as a struct."""

    x: int
    y: int


COLUMNS = pa.record_batch({"x": [1, 3], "y": [2, 4]})


def test_a_list_stays_the_list_it_is():
    """Nothing is copied where both ends take lists."""
    items = Batch([1, 2])
    assert to_items(items) is items
    assert to_columns(COLUMNS, PortType(pa.RecordBatch, "columns")) is COLUMNS


@pytest.mark.parametrize(
    ("item", "rows"),
    [
        (Any, [{"x": 1, "y": 2}, {"x": 3, "y": 4}]),
        (dict[str, int], [{"x": 1, "y": 2}, {"x": 3, "y": 4}]),
        (Point, [Point(1, 2), Point(3, 4)]),
        (Pair, [Pair(1, 2), Pair(3, 4)]),
        (Struct, [Struct(1, 2), Struct(3, 4)]),
    ],
)
def test_columns_become_what_the_port_takes(item, rows):
    """Rows are made as the port's type has them; where that says nothing they are dictionaries."""
    assert to_items(COLUMNS, item) == rows


def test_columns_without_a_field_are_left_out():
    """A record takes the columns that it has fields for."""
    wide = COLUMNS.append_column("z", COLUMNS["x"])
    assert to_items(wide, Point) == to_items(COLUMNS, Point)


@pytest.mark.parametrize("rows", [[Point(1, 2)], [Pair(1, 2)], [Struct(1, 2)], [{"x": 1, "y": 2}]])
def test_rows_become_columns(rows):
    """Whatever has fields can stand in columns."""
    assert to_columns(rows, PortType(pa.RecordBatch, "columns")).to_pylist() == [{"x": 1, "y": 2}]


@dataclass
class Reading:
    """A row with fields that may be empty."""

    at: int
    name: str | None = None
    values: list[float] = field(default_factory=list)


def test_columns_have_the_types_that_a_class_declares():
    """Also where all values of a batch are `None`; values of other types than declared are taken as they are."""
    schema = pa.schema({"at": pa.int64(), "name": pa.string(), "values": pa.list_(pa.float64())})
    port = PortType(pa.RecordBatch, "columns")
    assert to_columns([Reading(1)], port).schema == schema
    assert to_columns([Reading(1, "a", [1])], port).schema == schema
    assert to_columns([Reading(1.5)], port).column("at").to_pylist() == [1.5]


FIELDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (str, st.text(st.characters(codec="utf-8"))),
    (bytes, st.binary()),
    (date, st.dates()),
    (datetime, st.datetimes()),
]


def widened(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists of such values, and those that may be missing."""
    return st.one_of(
        inner.map(lambda one: (list[one[0]], st.lists(one[1], max_size=3))),
        inner.map(lambda one: (one[0] | None, st.none() | one[1])),
    )


ROWS = st.lists(st.recursive(st.sampled_from(FIELDS), widened, max_leaves=2), min_size=1, max_size=4)


@given(ROWS, st.booleans(), st.data())
def test_rows_go_through_columns_and_come_back(fields, named, data):
    """Of any dataclass or named tuple: equal rows, in columns of one schema, whatever the values are.

    The zone of a moment depends on the values.
    """
    names = [(f"f{place}", kind) for place, (kind, _) in enumerate(fields)]
    made = NamedTuple("Row", names) if named else make_dataclass("Row", names)
    batches = data.draw(st.lists(st.lists(st.builds(made, *(one for _, one in fields)), min_size=1), max_size=3))
    columns = [to_columns(rows, PortType(pa.RecordBatch, "columns")) for rows in batches]
    assert [to_items(one, made) for one in columns] == batches
    if "datetime" not in str(names):
        assert len({str(one.schema) for one in columns}) <= 1


def test_a_declared_schema_is_kept():
    """Columns are made with the types that the port declares."""
    schema = pa.schema({"x": pa.int16(), "y": pa.float64()})
    assert to_columns([Point(1, 2)], PortType(pa.RecordBatch, "columns", schema)).schema == schema


def test_what_has_no_fields_is_refused():
    """A number is no row."""
    with pytest.raises(WiringError, match="int has no fields"):
        to_columns([1], PortType(pa.RecordBatch, "columns"))


def test_what_does_not_fit_the_schema_is_refused():
    """The error says what pyarrow found."""
    schema = pa.schema({"x": pa.int16()})
    with pytest.raises(WiringError, match="do not match the columns"):
        to_columns([{"x": "many"}], PortType(pa.RecordBatch, "columns", schema))


def test_a_fraction_is_not_cut_to_an_integer():
    """A column of integers takes 2.0 and refuses 1.5."""
    port = PortType(pa.RecordBatch, "columns", pa.schema({"x": pa.int64()}))
    assert to_columns([{"x": 2.0}, {"x": None}], port).to_pylist() == [{"x": 2}, {"x": None}]
    with pytest.raises(WiringError, match="1.5"):
        to_columns([{"x": 1}, {"x": 1.5}], port)


def test_an_item_without_a_field_of_the_port_is_refused():
    """It is not taken for an empty one; further fields do not matter."""
    port = PortType(pa.RecordBatch, "columns", pa.schema({"x": pa.int64(), "y": pa.string()}))
    assert to_columns([{"x": 2, "y": None, "z": 1}], port).to_pylist() == [{"x": 2, "y": None}]
    for items in ([{}], [{"x": 1}], [{"x": 1, "y": "a"}, {"X": 1, "y": "b"}]):
        with pytest.raises(WiringError, match="an item lacks the field '[xy]'"):
            to_columns(items, port)
    for items in ([{"x": 1}, {"x": 1, "y": "a"}], [{"x": 1, "y": "a"}, {"y": "b"}]):  # nor does the first one decide
        with pytest.raises(WiringError, match="an item lacks the field '[xy]'"):
            to_columns(items, PortType(pa.RecordBatch, "columns"))


def test_the_items_of_a_batch_are_converted_one_by_one():
    """A large integer is exact, also beside a number with a point."""
    port = PortType(pa.RecordBatch, "columns", pa.schema({"x": pa.int64()}))
    assert to_columns([{"x": 2**53 + 1}, {"x": 1.0}], port).to_pylist() == [{"x": 2**53 + 1}, {"x": 1}]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"y": [1.0]}, "there is no single column 'x'; there are 'y'"),
        ({"x": [1.5], "y": [1.0]}, "the column 'x' is double, not int64: Float value 1.5"),
        (
            {"x": pa.array([2**64 - 1], pa.uint64()), "y": [1.0]},
            "the column 'x' is uint64, not int64: Integer value 18",
        ),
        ({"x": [1], "y": ["many"]}, "the column 'y' is string, not double: Failed to parse"),
    ],
)
def test_columns_that_do_not_fit_the_port_are_refused(columns, problem):
    """Whatever the slet would make of them: each engine would do something else."""
    port = PortType(pa.RecordBatch, "columns", pa.schema({"x": pa.int64(), "y": pa.float64()}))
    with pytest.raises(WiringError, match=problem):
        to_columns(pa.record_batch(columns), port)
    with pytest.raises(WiringError, match="too large"):
        to_columns([{"x": 2**70}], port)


def test_columns_get_the_types_of_the_port():
    """If that changes no value; neither their order nor further columns matter, whichever slet takes them."""
    port = PortType(
        pa.RecordBatch, "columns", pa.schema([pa.field("x", pa.int64(), nullable=False), ("y", pa.float64())])
    )
    given = pa.record_batch(
        {
            "z": [0],
            "y": [2],
            "x": pa.array(
                [
                    3.0,
                ],
                pa.float32(),
            ),
        }
    )
    found = to_columns(given, port)
    assert [*found.to_pylist()[0].items()] == [("x", 3), ("y", 2.0)]
    assert found.schema.types == [pa.int64(), pa.float64()]
    assert to_columns(found, port) is found


def test_weight_and_cut_of_both_forms():
    """A batch counts as its items, and can be cut."""
    assert (weight([1, 2, 3]), weight(COLUMNS)) == (3, 2)
    assert cut([1, 2, 3], 1, 3) == [2, 3]
    assert cut(COLUMNS, 1, 2).to_pylist() == [{"x": 3, "y": 4}]


@pytest.fixture
def conversions(monkeypatch):
    """Counts conversions, beginning with none that other tests have left."""
    monkeypatch.setattr(convert, "_SHARED", {})
    made = []
    rows, batch = convert._rows, convert._batch
    monkeypatch.setattr(convert, "_rows", lambda *args: made.append("rows") or rows(*args))
    monkeypatch.setattr(convert, "_batch", lambda *args: made.append("columns") or batch(*args))
    return made


def taking(seen, turn):
    """A consumer that converts what it gets."""

    def push_batch(batch):
        seen.append(turn(batch))

    return Entry(push_batch, push_batch, push_batch)


def test_several_consumers_share_one_conversion(conversions):
    """A fan-out converts a record batch once for all who want the same rows; each has a list of its own."""
    seen = []
    dicts = taking(seen, to_items)
    entry = fan_out([dicts, dicts, taking(seen, lambda batch: to_items(batch, Point)), dicts])
    entry.push_batch(pa.record_batch({"x": [1], "y": [2]}))
    assert conversions == ["rows", "rows"]
    assert seen[0] == seen[1] == seen[3]
    assert seen[0] is not seen[1]


def test_rows_are_shared_over_queues_too(conversions):
    """A record batch that waits in two queues is converted once: it is known as long as it lives."""
    batch = pa.record_batch({"x": [1], "y": [2]})
    with shared(batch):
        waiting = [batch, batch]
    assert to_items(waiting[0]) == to_items(waiting[1])
    assert conversions == ["rows"]
    del batch, waiting
    gc.collect()
    assert not convert._SHARED


def test_a_list_is_shared_for_as_long_as_it_is_pushed(conversions):
    """Two consumers that take columns get the same record batch; afterwards nothing is kept."""
    seen = []
    taker = taking(seen, lambda batch: to_columns(batch, PortType(pa.RecordBatch, "columns")))
    fan_out([taker, taker]).push_batch([Point(1, 2)])
    assert conversions == ["columns"]
    assert seen[0] is seen[1]
    assert not convert._SHARED


def test_one_consumer_shares_nothing(conversions):
    """Without a fan-out nothing is kept."""
    to_items(COLUMNS)
    to_items(COLUMNS)
    assert conversions == ["rows", "rows"]

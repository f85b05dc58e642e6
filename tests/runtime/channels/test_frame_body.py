"""The bodies of frames: every value keeps its type, and a peer can neither build other classes nor exhaust memory."""

import enum
import io
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import Application, Batch, EndOfStream, Punctuation, slet
from exop.errors import MeshError, NotStorable, StoredStateError
from exop.model.slets.ports import PortType
from exop.model.values.classes import Declared, forget, package_name
from exop.runtime.channels.frame_body import ARROW, BodyReader, body_of, control_event, event_of, item_event
from exop.runtime.channels.wire import COLUMNS, CONTROL, ITEMS, LIST, Frame
from tests.rig import collector


class Colour(enum.Enum):
    """A member crosses by its name."""

    RED = "red"


@dataclass(frozen=True, slots=True)
class Report:
    """A row."""

    car: int
    speed: float
    plate: str | None = None


class Point(NamedTuple):
    """A row as well."""

    x: int
    y: int


@dataclass
class Nested:
    """A row with further parts."""

    reports: list[Report]
    colour: Colour


@dataclass
class Foreign:
    """No port declares it."""

    n: int
    m: int


DECLARED = Declared(Report, Point, Nested, Colour)


def read(data, declared=DECLARED):
    """Decode a frame made of events, as a peer sends it."""
    body = b"".join(bytes(part) for part in body_of(data))
    return BodyReader(declared).read(Frame(0, sum(event.events for event in data), data[0].form, [body]))


VALUES = [
    *(0, 1, -1, 2**63, -(2**70), 1.5, float("inf"), True, None, "", "text", b"", b"\x00\xff"),
    *({}, {"a": 1}, {"a": b""}, {"a": {"b": [1]}}, {1: 2}, [], [1, "a"], (1, 2), {1, 2}, frozenset({1}), deque([1], 3)),
    *(Decimal("1.10"), datetime(2026, 1, 2, tzinfo=UTC), 1j, OrderedDict(b=1, a=2), Colour.RED),
    *(Report(1, 2.5), Report(1, 2.5, "x"), Point(1, 2), Nested([Report(1, 2.0)], Colour.RED), [Report(1, 1.0)]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_keep_their_types(value):
    """As a single item, beside others, and in a list."""
    ((method, found),) = read([item_event(value)])
    assert (method, found, type(found)) == ("push", value, type(value))
    assert read([item_event(value)] * 20) == [("push", value)] * 20
    ((method, batch),) = read([event_of("push_batch", [value, value])])
    assert (method, batch) == ("push_batch", [value, value])
    assert type(batch[1]) is type(value)


def test_a_list_of_values_of_several_types_stays_whole():
    """What the fast decoders do not take is encoded in general."""
    assert read([event_of("push_batch", Batch(VALUES))]) == [("push_batch", VALUES)]


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@settings(max_examples=200, deadline=None)
@given(st.lists(values, min_size=1, max_size=5))
def test_any_plain_values_cross(items):
    """Consecutive items with the same head share a frame; the others have their own."""
    events = [item_event(item) for item in items]
    assert [read([event])[0][1] for event in events] == items
    same = [event for event in events if event.head == events[0].head]
    assert [found for _, found in read(same)] == [
        item for item, event in zip(items, events, strict=True) if event.head == events[0].head
    ]


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"n": [1, 2, None], "text": ["a", None, "long" * 2000]}),
        pa.record_batch({"n": pa.array([], pa.int64())}),
        pa.record_batch({"n": np.arange(20_000), "list": [[number] for number in range(20_000)]}).slice(7, 9000),
        pa.record_batch({"word": pa.array(["a", "b", "a"]).dictionary_encode()}),
    ],
    ids=["with nulls", "empty", "sliced", "with a dictionary"],
)
def test_record_batches_cross(batch):
    """Columns, with their nulls, slices and dictionaries."""
    event = event_of("push_batch", batch)
    ((method, found),) = read([event])
    assert method == "push_batch"
    assert found.equals(batch)
    found.validate(full=True)


def test_record_batches_of_several_schemas_alternate():
    """Each crosses with its own schema, also if only the metadata differ."""
    plain = pa.record_batch({"n": [1, 2]})
    for batch in (plain, plain.replace_schema_metadata({"unit": "ms"}), pa.record_batch({"n": [0.5]}), plain):
        ((_, found),) = read([event_of("push_batch", batch)])
        assert found.equals(batch, check_metadata=True)


@pytest.mark.parametrize("mark", [EndOfStream(), Punctuation(3), Punctuation(2.5, 1.0), Punctuation(float("inf"))])
def test_control_items_cross(mark):
    """With their time, and its type, and their allowance."""
    ((method, found),) = read([control_event(mark)])
    assert (method, found, getattr(found, "idle", None)) == ("control", mark, getattr(mark, "idle", None))
    assert type(getattr(found, "time", None)) is type(getattr(mark, "time", None))


@pytest.mark.parametrize("value", [Foreign(1, 2), [Foreign(1, 2)], {"a": Foreign(1, 2)}], ids=repr)
def test_a_class_that_no_port_declares_is_not_built(value):
    """Rows and parts alike; the connector of a port without a type takes every loaded class of data."""
    with pytest.raises(StoredStateError, match="that class is not declared"):
        read([item_event(value)])
    assert read([item_event(value)], Declared(Any)) == [("push", value)]


def test_a_class_that_is_not_loaded_is_not_imported():
    """The module stays unloaded, even for a port without a type."""
    event = item_event(Foreign(1, 2))
    body = b"".join(bytes(part) for part in body_of([event])).replace(b"tests.runtime", b"tests.rontime")
    with pytest.raises(StoredStateError, match="is not loaded here"):
        BodyReader(Declared(Any)).read(Frame(0, 1, ITEMS, [body]))


def compressed():
    """A record batch of zeros that expands a thousandfold."""
    schema, sink = pa.schema({"n": pa.int64()}), io.BytesIO()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(pa.record_batch({"n": np.zeros(10**6, np.int64)}))
    described = schema.serialize().to_pybytes()
    body = ARROW + len(described).to_bytes(4, "big") + described + sink.getvalue()[len(described) :]
    return Frame(0, 10**6, COLUMNS, [body])


def with_dictionary():
    """A schema with a dictionary, whose values never come."""
    described = pa.schema({"n": pa.dictionary(pa.int8(), pa.string())}).serialize().to_pybytes()
    return Frame(0, 1, COLUMNS, [ARROW + len(described).to_bytes(4, "big") + described])


def packed(value):
    """The bytes of a value."""
    return msgspec.msgpack.encode(value)


ATTACKS = {
    "empty": Frame(0, 1, ITEMS, [b""]),
    "unknown encoding": Frame(0, 1, ITEMS, [b"\x99" + packed([1])]),
    "no list": Frame(0, 1, ITEMS, [b"\x00" + packed({"a": 1})]),
    "fewer items than told": Frame(0, 3, ITEMS, [b"\x01" + packed([1, 2])]),
    "more items than told": Frame(0, 1, LIST, [b"\x01" + packed([1, 2])]),
    "truncated": Frame(0, 2, LIST, [b"\x01" + packed([1, 2])[:-1]]),
    "other bytes behind": Frame(0, 2, LIST, [b"\x01" + packed([1, 2]) + b"\x00"]),
    "deeply nested": Frame(0, 1, ITEMS, [b"\x00" + b"\x91" * 100_000 + b"\x01"]),
    "a length of two gigabytes": Frame(0, 1, ITEMS, [b"\x00\xdd\x7f\xff\xff\xff"]),
    "columns that are items": Frame(0, 1, COLUMNS, [b"\x00" + packed([1])]),
    "columns with a long schema": Frame(0, 1, COLUMNS, [b"\x05\xff\xff\xff\xff"]),
    "columns without a schema": Frame(0, 1, COLUMNS, [b"\x05\x00\x00\x00\x00"]),
    "compressed columns": compressed(),
    "columns with a dictionary": with_dictionary(),
    "rows without a class": Frame(0, 1, ITEMS, [b"\x04\x00\x00" + packed([[1, 2]])]),
    "a control item that is none": Frame(0, 1, CONTROL, [packed("end")]),
    "two control items": Frame(0, 2, CONTROL, [packed(None)]),
    "a punctuation without a time": Frame(0, 1, CONTROL, [packed((float("nan"), None))]),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_malformed_bodies_are_refused(attack):
    """By one of two errors, whatever the bytes are."""
    with pytest.raises((ValueError, StoredStateError)):
        BodyReader(Declared(Any)).read(ATTACKS[attack])


def test_rows_with_other_fields_are_refused():
    """An evolved class on the other side is named, not filled in wrongly."""
    body = b"".join(bytes(part) for part in body_of([item_event(Report(1, 2.0))])).replace(b"speed", b"spead")
    with pytest.raises(StoredStateError, match="Report has no field spead"):
        BodyReader(DECLARED).read(Frame(0, 1, ITEMS, [body]))


def test_versions_of_one_class_are_told_apart(monkeypatch):
    """Items of one version where the other one, of other fields, is expected."""
    kinds = []
    for number, more in ((1, ""), (2, "    lane: int = 0\n")):
        package = package_name("speeds", f"{number}.0.0")
        for name in (package, f"{package}.slets"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        there = sys.modules[f"{package}.slets"]
        source = f"from dataclasses import dataclass\n@dataclass\nclass Report:\n    car: int\n    speed: int\n{more}"
        exec(source, vars(there))
        kinds.append(there.Report)
    old, new = kinds
    told = "is speeds_v1_0_0.slets.Report, and speeds_v2_0_0.slets.Report is expected"
    lacks = "is speeds_v2_0_0.slets.Report, whose field 'lane' speeds_v1_0_0.slets.Report lacks"
    for item, wanted, problem in ((old(1, 2), new, told), (new(1, 2), old, lacks)):
        frame = Frame(0, 1, ITEMS, [b"".join(map(bytes, body_of([item_event(item)])))])
        with pytest.raises(StoredStateError, match=problem):
            BodyReader(Declared(old), [PortType(wanted)]).read(frame)
    forget()


@pytest.mark.parametrize(
    "value",
    [object(), open, [lambda: 0], {"a": object()}, np.array([object()])],
    ids=["object", "function", "in a list", "in a dictionary", "in an array"],
)
def test_a_value_without_a_form_as_bytes_is_refused(value):
    """When it is pushed, so that its producer fails at that item."""
    with pytest.raises(NotStorable):
        item_event(value)


class Handle:
    """A class that is none of data."""


@pytest.mark.parametrize(
    ("kind", "named"),
    [(Handle, "Handle"), (Callable[[], int], "Callable"), (list[Handle], "Handle"), (Handle | type[int], "Handle")],
)
def test_a_type_without_a_form_as_bytes_is_refused_by_the_plan(kind, named):
    """The message names both hosts, the port and the cure."""
    app = Application("opaque")
    channel = app.channel("c")
    app.add("source", slet(typed_source(kind)), out=channel)
    app.on("b").add("sink", collector([]), item=channel)
    refused = rf"items of 'c' .* go from home to b, and a .*{named}.* cannot be sent \(source.out sends it\)"
    with pytest.raises(MeshError, match=refused):
        app.build()


def typed_source(kind):
    """A source with items of a type."""

    def source():
        yield None

    source.__annotations__["return"] = Iterator[kind]
    return source

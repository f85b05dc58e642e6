"""Records of a topic: whether one is a row depends on nothing but itself, and on no batch of the client or of Spark."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from exop_spark.feed import records
from exop_spark.feed.records import decoder
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyarrow import json as arrow_json

from exop.errors import WiringError
from exop.model.slets.ports import PortType
from exop.runtime.dataflow.batches import to_columns

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
PORT = PortType(pa.RecordBatch, "columns", SCHEMA)
#: Values that other parsers take as one row, as no row, or as several, some of them only beside others.
POISON = [
    b"null",
    b"{}",
    b"[]",
    b"",
    b" ",
    b"7",
    b'{"a": 1}',
    b'{"x": 1}',
    b'{"A": 1, "b": "x", "c": 1}',
    b'{"a": 1, "b": "x", "c": 1}\n{"a": 2, "b": "y", "c": 2}',
    b'{"a": 1,',
    b'"b": "x", "c": 1}',
    b'"b": "x", "c": 1} {"a": 2, "b": "y", "c": 2}',
    b'{"a": 1.5, "b": "x", "c": 1}',
    b'{"a": "1", "b": "x", "c": 1}',
    b'{"a": true, "b": "x", "c": 1}',
    b'{"a": 9223372036854775808, "b": "x", "c": 1}',
    b'{"a": 1, "b": "\xff", "c": 1}',
    b'{"a": 1, "b": "x", "c": 1, "d": "\xff"}',
    b'{"a": 1, "b": 5, "c": 1}',
    b'{"a": 1, "b": "x", "c": NaN}',
    b'{"a": 1, "b": "x", "c": 1e999}',
    b'{"a": 1, "b": "x", "c": 9007199254740993}',
    b'{"a": 1, "b": "\\ud800", "c": 1}',
    b'\xef\xbb\xbf{"a": 1, "b": "x", "c": 1}',
    b'{"a": 1, "b": "x", "c": 1, "d": ' + b"[" * 5000 + b"]" * 5000 + b"}",
]
SOUND = [
    b'{"a": 9007199254740993, "b": "x\\ny", "c": 1.5, "more": [1]}',
    b' {"a": 2.0,\n "b": null, "c": 1}\n',
    b'{"a": 1e3, "b": "", "c": null}',
    b'{"a": 1, "a": 2, "b": "", "c": -0.0}',
]
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
cells = st.none() | st.booleans() | numbers | st.text(max_size=3) | st.lists(st.integers(0, 9), max_size=1)
objects = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), cells) | st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-9, 9),
        "b": st.none() | st.text(max_size=3),
        "c": st.none() | st.booleans() | numbers,
    }
)
values = st.sampled_from(POISON + SOUND) | objects.map(lambda one: json.dumps(one).encode())
topics = st.lists(values, max_size=12).map(lambda found: [*enumerate(found)])
cuts = st.sets(st.integers(0, 12))


def parts(topic, at):
    """A topic in micro-batches that begin at these offsets."""
    bounds = [0, *sorted(one for one in at if 0 < one < len(topic)), len(topic)]
    return [topic[low:high] for low, high in pairwise(bounds)]


def read(decoded, batches):
    """The rows, and the offsets that are refused."""
    found = [decoded(batch) for batch in batches]
    rows = [row for batches, _ in found for batch in batches for row in batch.to_pylist()]
    return rows, [one[0] for _, refused in found for one in refused]


def check(topic, at, make=decoder):
    """Any micro-batches give the rows and the refusals of the single records."""
    decoded = make(SCHEMA)
    assert read(decoded, parts(topic, at)) == read(decoded, [[one] for one in topic])


@settings(deadline=None)
@given(topics, cuts)
@example([*enumerate(POISON + SOUND)], set())
@example([*enumerate(SOUND + POISON)], {3, 5, 9})
def test_the_result_does_not_depend_on_the_micro_batch(topic, at):
    """The same rows, in order, and the same records are refused."""
    check(topic, at)


@settings(deadline=None)
@given(values)
@example(b'{"a": 1.5, "b": "x", "c": 1}')
def test_a_task_refuses_what_the_platform_refuses(value):
    """A query that reads a topic by itself, and a slet in its place, get the same row, or neither gets one."""
    try:
        fed = to_columns([msgspec.json.decode(value)], PORT).to_pylist()
    except (WiringError, ValueError, RecursionError):
        fed = []
    assert read(decoder(SCHEMA), [[(0, value)]])[0] == fed


def test_each_of_these_is_refused_and_none_of_those():
    """With a reason for each, and its value."""
    _, refused = decoder(SCHEMA)([*enumerate(POISON)])
    assert [(offset, value) for offset, _, value in refused] == [*enumerate(POISON)]
    assert all(0 < len(reason) <= 160 for _, reason, _ in refused)
    assert read(decoder(SCHEMA), [[*enumerate(SOUND)]]) == (
        [
            {"a": 9007199254740993, "b": "x\ny", "c": 1.5},
            {"a": 2, "b": None, "c": 1.0},
            {"a": 1000, "b": "", "c": None},
            {"a": 2, "b": "", "c": -0.0},
        ],
        [],
    )


KINDS = {
    "t": (pa.timestamp("us", "UTC"), datetime(2020, 1, 2, 3, tzinfo=UTC), ["2020", 5, "x"]),
    "n": (pa.timestamp("us"), datetime(2020, 1, 2, 3), [5]),
    "d": (pa.date32(), date(2020, 1, 2), ["2020-13-01", 5]),
    "k": (pa.decimal128(10, 2), Decimal("1.25"), ["1.255", "nan", "x", 1e20]),
    "y": (pa.binary(), b"\xff", ["?", 5]),
    "l": (pa.list_(pa.int64()), [1, None], [[1.5], 1, ["1"]]),
    "s": (pa.struct([("x", pa.int8()), ("f", pa.float32())]), {"x": 1, "f": 1.5}, [{"x": 1}, {"x": 300, "f": 1}, []]),
    "m": (pa.map_(pa.string(), pa.int32()), [("x", 1)], [{"x": "1"}, [1]]),
    "z": (pa.bool_(), True, [1, "true"]),
    "q": (pa.uint8(), 255, [256, -1]),
}


@pytest.mark.parametrize("name", KINDS)
def test_columns_of_all_kinds(name):
    """As the channel `kafka` writes them; another value is refused, and null only where the column has none."""
    kind, sound, wrong = KINDS[name]
    written = {"m": {"x": 1}}.get(name, sound)
    topic = [(n, msgspec.json.encode({name: one})) for n, one in enumerate([*wrong, written, None])]
    for nullable in (True, False):
        schema = pa.schema([pa.field(name, kind, nullable=nullable)])
        rows, refused = read(decoder(schema), [topic])
        assert rows == [{name: sound}, {name: None}][: 1 + nullable]
        assert refused == [*range(len(wrong)), *([] if nullable else [len(wrong) + 1])]


def in_batches(schema):
    """Make the mistake: a parser of many lines decides about records, and single ones count only if it fails."""
    alone = decoder(schema)
    options = arrow_json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=True
    )

    def decoded(topic):
        try:
            lines = pa.BufferReader(b"\n".join(value for _, value in topic))
            found = arrow_json.read_json(lines, parse_options=options).select(schema.names)
        except ValueError:
            return alone(topic)
        return (found.to_batches(), []) if found.num_rows == len(topic) else alone(topic)

    return decoded


def test_a_parser_of_whole_batches_is_found():
    """The property fails for it; the first and last value would end this process."""
    known = st.lists(st.sampled_from(POISON[1:-1] + SOUND), max_size=6).map(lambda found: [*enumerate(found)])
    quick = settings(database=None, phases=[Phase.generate], max_examples=1000, deadline=None)
    with pytest.raises((AssertionError, UnicodeDecodeError)):
        quick(given(known, cuts)(lambda topic, at: check(topic, at, in_batches)))()


def test_a_fraction_that_is_cut_is_found(monkeypatch):
    """An integer would come of it, which the platform does not."""
    monkeypatch.setattr(records, "_column", pa.array)
    with pytest.raises(AssertionError):
        test_a_task_refuses_what_the_platform_refuses()

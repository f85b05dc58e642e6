"""What is stored comes back as it was, type by type; what cannot be stored says so; what is damaged is told."""

from __future__ import annotations

import enum
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import Batch, EndOfStream, Punctuation
from exop.errors import NotStorable, StoredStateError
from exop.model.values import columns
from exop.model.values.classes import Declared
from exop.model.values.encoding import MARK, Tag, decode, encode


class Colour(enum.Enum):
    """An enum."""

    RED = "r"


class Level(enum.IntFlag):
    """One whose members combine."""

    A = 1
    B = 2


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str = "x"


@dataclass(frozen=True, slots=True)
class Point:
    """A dataclass that is hard to fill."""

    x: float
    tags: list[str] = field(default_factory=list)


@dataclass
class Derived:
    """One with a field that is not given."""

    x: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = self.x * 2


@dataclass
class Nesting:
    """A dataclass with a field that encodes a value when it is read."""

    inner: bytes = b""

    def __getattribute__(self, name: str) -> Any:
        return encode([(1, 2)]) if name == "inner" else object.__getattribute__(self, name)


VALUES: list[Any] = [
    None,
    True,
    2**70,
    -(2**63) - 1,
    1.5,
    float("inf"),
    "ß",
    b"\x00",
    [1, [2]],
    (1, (2, ())),
    {1: "a", (1, 2): [3], None: 4},
    {1, 2},
    frozenset({(1, 2)}),
    deque([1, 2], maxlen=3),
    defaultdict(list, {1: [2]}),
    OrderedDict(b=1, a=2),
    Counter("aab"),
    1 + 2j,
    Decimal("1.10"),
    datetime(2026, 1, 31, 12, 30, 0, 5),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-5, seconds=-3))),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
    time(12, 30, tzinfo=timezone(timedelta(hours=1), "CET")),
    date(2026, 1, 31),
    time(12, 30),
    timedelta(days=-1, microseconds=5),
    uuid.UUID(int=5),
    Path("a/b"),
    Colour.RED,
    Level.A | Level.B,
    Pair(1),
    Point(1.0, ["a"]),
    Derived(4),
    Batch([1, 2]),
    Punctuation(3),
    EndOfStream(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_with_its_type(value):
    """Equal, and of the very same type."""
    found = decode(encode(value))
    assert found == value
    assert type(found) is type(value)


def test_what_equality_does_not_show():
    """The length of a deque, the factory of a dict, the second of two equal hours; a bytearray comes back as bytes."""
    assert decode(encode([bytearray(b"ab")])) == [b"ab"]
    assert decode(encode(deque([1], maxlen=3))).maxlen == 3
    assert decode(encode(defaultdict(list)))["new"] == []
    assert decode(encode(datetime(2026, 10, 25, 2, 30, fold=1))).fold == 1
    assert decode(encode(datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")))).tzname() == "CET"


def test_arrays_come_back():
    """Type, shape, order; and they can be written to."""
    arrays = [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(10)[::3],
        np.zeros((0, 3), dtype=np.int8),
        np.array(5, dtype="datetime64[s]"),
        np.array(["a", "bc"]),
        np.zeros(2, dtype=[("a", "i4"), ("b", "f8", (2,))]),
    ]
    for array in arrays:
        found = decode(encode(array))
        np.testing.assert_array_equal(found, array)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.flags.writeable
    assert decode(encode(arrays[1])).flags.f_contiguous
    scalar = decode(encode(np.float32(1.5)))
    assert (type(scalar), scalar) == (np.float32, 1.5)


def test_columns_come_back():
    """Record batches, also cut ones, and tables, with their schemas."""
    batch = pa.record_batch({"a": pa.array([1, None], pa.int32()), "b": ["x", "y"]})
    table = pa.table({"a": pa.chunked_array([[1], [2, 3]])})
    for value in (batch, batch.slice(1), table, batch.schema.empty_table()):
        found = decode(encode(value))
        assert found.equals(value)
        assert found.schema.equals(value.schema)


class Unknown:
    """Nothing that can be stored."""


def _itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Unknown(), "none of those that can be stored"),
        ([{1: lambda: 0}], "builtins.function"),
        (np.array([object()]), "Python objects"),
        (_itself(), "tree of plain values"),
        (Point, "builtins.type"),
        (defaultdict(lambda: 0), "under its own name"),
    ],
)
def test_what_cannot_be_stored_says_so(value, told):
    """The error names the type, and what to do."""
    with pytest.raises(NotStorable, match=told):
        encode(value)


def test_a_class_must_be_found_again():
    """One that stands in a function would be lost with the process."""

    @dataclass
    class Local:
        x: int = 0

    with pytest.raises(NotStorable, match="at the top of a module"):
        encode(Local())


def test_what_is_damaged_is_told():
    """Bytes that were cut off, or are of something else."""
    for data in (encode([1, 2])[:-1], b"\xc1", encode({}) + b"x", b""):
        with pytest.raises(StoredStateError, match="damaged"):
            decode(data)


def test_a_class_that_is_gone_is_told():
    """The error names the class; so does that of a field which the class has no more."""
    stored = encode(Point(1.0))
    with pytest.raises(StoredStateError, match="nowhere_at_all"):
        decode(stored.replace(__name__.encode(), b"nowhere_at_all".ljust(len(__name__), b"_")))
    with pytest.raises(StoredStateError, match="has no field z"):
        decode(stored.replace(b"\xa1x", b"\xa1z"))


def test_tags_keep_their_meaning():
    """What was stored by an earlier release is read by this one: numbers are never given anew."""
    first = ["TUPLE", "SET", "FROZENSET", "DEQUE", "INT", "DECIMAL", "DATETIME", "DATE", "TIME", "TIMEDELTA", "ENUM"]
    then = ["DATACLASS", "NAMEDTUPLE", "ARRAY", "SCALAR", "RECORD_BATCH", "TABLE", "COMPLEX", "DEFAULTDICT", "ORDERED"]
    last = ["COUNTER", "BATCH", "UUID", "PATH", "WINDOW", "PART"]
    names = [*first, *then, *last]
    assert {tag.name: int(tag) for tag in Tag} == {name: number for number, name in enumerate(names, start=1)}


@pytest.mark.parametrize("declared", [None, Declared(Any)], ids=["own", "foreign"])
def test_an_unknown_extension_is_refused(declared):
    """What a later release may write is told apart from damage."""
    for code, content in ((MARK, b"\xff"), (MARK, b""), (1, b"\x90"), (99, b"")):
        with pytest.raises(StoredStateError, match=f"of the kind {code}, which this release does not know"):
            decode(msgpack.packb([msgpack.ExtType(code, content), 1]), declared=declared)


def test_many_threads_encode_at_once():
    """Each has a packer of its own, also while a value is looked at that encodes another."""
    value = [(n, Decimal(n), {"a": (n,)}) for n in range(50)]
    expected = encode(value)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: encode(value), range(400))) == {expected}
    assert decode(encode([Nesting(), 1])) == [Nesting(), 1]


class Masked(np.ndarray):
    """A subclass of an array."""


@dataclass
class Listed(list[int]):
    """A dataclass with elements beside its fields."""

    x: int = 0


class Folder(type(Path())):  # type: ignore[misc]
    """A path with a class of its own."""


def _subclass(kind: type) -> Any:
    return type(f"My{kind.__name__}", (kind,), {"__module__": __name__})


_RECORDS = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
#: Functions that make a value of another class, which a conversion by `isinstance` would lose, of a plain array.
ODD: list[Any] = [
    lambda plain: np.ma.masked_array(plain, plain > 1),
    lambda plain: np.ma.masked,
    lambda plain: np.matrix(plain),
    lambda plain: plain.view(Masked),
    lambda plain: np.rec.array(_RECORDS),
    lambda plain: np.rec.array(_RECORDS)[0],
    lambda plain: np.asarray(np.rec.array(_RECORDS)),
    lambda plain: np.ma.array(_RECORDS)[0],
    lambda plain: plain.astype(np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [4], "itemsize": 8})),
    lambda plain: plain.astype(np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    lambda plain: plain.astype([(("A title", "a"), "i4")]),
    lambda plain: _subclass(np.float64)(1.5),
    lambda plain: Listed([1]),
    lambda plain: Folder("a"),
    lambda plain: PureWindowsPath("a\\b"),
    *(lambda plain, kind=kind: _subclass(kind)([1]) for kind in (list, set, frozenset, tuple, deque)),
    *(lambda plain, kind=kind: _subclass(kind)({1: 2}) for kind in (dict, OrderedDict, Counter)),
    *(lambda plain, kind=kind: _subclass(kind)("1") for kind in (str, int, float, Decimal)),
    *(lambda plain, kind=kind: _subclass(kind)(2026, 1, 31) for kind in (date, datetime)),
]
ARRAYS = st.sampled_from(
    [np.arange(4), np.arange(4.0).reshape(2, 2), np.arange(6)[::2], np.zeros((0, 3)), _RECORDS, np.array(["a", "b"])]
)


def _identical(left: Any, right: Any) -> bool:
    """Whether nothing distinguishes two values: their classes, those of their parts, and what they show."""
    if type(left) is not type(right) or repr(left) != repr(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.dtype.type is right.dtype.type
    if isinstance(left, dict):
        return all(_identical(one, other) for one, other in zip(left.items(), right.items(), strict=True))
    if isinstance(left, (list, tuple, deque)):
        return all(_identical(one, other) for one, other in zip(left, right, strict=True))
    return True


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_a_value_comes_back_whole_or_is_refused_by_name(data):
    """However plain values and those of subclasses are nested."""
    odd = st.builds(lambda make, plain: make(plain), st.sampled_from(ODD), st.just(np.arange(4)))
    leaves = st.one_of(st.sampled_from(VALUES), ARRAYS, odd)
    nested = st.recursive(
        leaves, lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.builds(Point, inner)), max_leaves=4
    )
    value = data.draw(nested)
    try:
        stored = encode(value)
    except NotStorable:
        return
    assert _identical(decode(stored), value)


def _flat(value: Any) -> Any:
    """Return an array of any class as a plain one."""
    return np.asarray(value) if isinstance(value, np.ndarray) else value


def test_a_mask_that_is_lost_is_found(monkeypatch):
    """An array of any class is stored as a plain one."""
    write = columns.write
    monkeypatch.setattr(columns, "write", lambda value: write(_flat(value)))
    with pytest.raises(AssertionError):
        test_a_value_comes_back_whole_or_is_refused_by_name()


@pytest.mark.parametrize("make", ODD)
def test_a_value_of_a_subclass_is_refused_by_name(make):
    """A restart would silently change its class, or lose its mask or elements. The cure works to the letter."""
    value = make(np.arange(4))
    with pytest.raises(NotStorable, match=type(value).__name__ if type(value) is not np.ndarray else "an array of"):
        encode(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.names is None:
        assert _identical(decode(encode(np.asarray(value))), np.asarray(value))
    elif isinstance(value, (np.ndarray, np.generic)):
        plain = np.array(value.tolist(), [(name, value.dtype[name]) for name in value.dtype.names])
        assert _identical(decode(encode(plain)), plain)

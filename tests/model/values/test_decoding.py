"""Data from somebody else is inert: it names declared classes, calls nothing, imports nothing, and is bounded."""

from __future__ import annotations

import enum
import sys
import tempfile
import types
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Memento
from exop.errors import StoredStateError
from exop.model.slets.stored_memento import declared_by, export_memento, import_memento
from exop.model.values import encoding
from exop.model.values.classes import Declared
from exop.model.values.encoding import MARK, Tag, decode, encode

T = TypeVar("T")


class Colour(enum.Enum):
    """An enum."""

    RED = 1


class Shape:
    """A base that is no class of data itself."""


@dataclass
class Circle(Shape, Generic[T]):
    """A class that is declared by its base alone."""

    radius: T

    def __post_init__(self) -> None:
        raise AssertionError("a class of data is filled, and not called")


class Pair(NamedTuple):
    """A named tuple that is declared inside another class."""

    colour: Colour


@dataclass
class Held:
    """A dataclass with a nested one, and a default that is made."""

    pairs: list[Pair]
    made: dict[str, int] = field(default_factory=dict)


class State(Memento):
    """A state whose annotations reach all of these."""

    shapes: dict[int, Shape | None] = field(default_factory=dict)
    held: tuple[Held, ...] = ()
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


def mark(tag: Tag) -> msgpack.ExtType:
    """What begins a list that is to become something else."""
    return msgpack.ExtType(MARK, bytes([tag]))


def packed(*content: Any) -> bytes:
    """Data as an enemy would write it."""
    found: bytes = msgpack.packb(list(content))
    return found


def refused(data: bytes, declared: Declared, told: str) -> None:
    """It is refused by name, and nothing is imported."""
    before = set(sys.modules)
    with pytest.raises(StoredStateError, match=told):
        decode(data, declared=declared)
    assert set(sys.modules) == before


def test_declared_classes() -> None:
    """Those that annotations reach, their subclasses, and those of the same package; others are none."""
    for declared in (Declared(State), declared_by(State), Declared(Any), Declared(dict[str, list])):
        assert Circle in declared
        assert Pair in declared
        assert Colour in declared
    assert Colour not in Declared(dict[int, list[float]], Shape, type("Sub", (Shape,), {}))
    assert Circle in Declared(list["Circle[int]"], TypeVar("U", bound=Shape))
    for general in (Memento, tuple[int, ...], enum.Enum, Generic, dict[str, int], "nowhere.Class"):
        assert Colour not in Declared(general)


def test_only_declared_classes_are_made() -> None:
    """A class that is loaded and of data is refused all the same, unless an annotation leaves the type open."""
    data = encode([Pair(Colour.RED)])
    refused(data, Declared(list[int]), "that class is not declared; .*name the class in the annotations")
    assert decode(data, declared=Declared(list[Pair])) == [Pair(Colour.RED)]
    assert decode(data, declared=Declared(Any)) == [Pair(Colour.RED)]
    circle = packed(mark(Tag.DATACLASS), f"{__name__}:Circle", "radius", 2)
    assert decode(circle, declared=declared_by(State)).radius == 2
    # Of a class that is not declared itself nothing is made but what the data holds.
    held = packed(mark(Tag.DATACLASS), f"{__name__}:Held", "pairs", [])
    assert decode(held, declared=declared_by(State)).made == {}
    refused(held, Declared(Any), "Held lacks the field made")


@pytest.mark.parametrize(
    "name", ["tempfile:TemporaryDirectory", "builtins:exec", "builtins:object", "os:abort", "nowhere:int", "this:d"]
)
def test_a_factory_is_a_collection_or_declared(name: str) -> None:
    """Any loaded class could stand there once: a directory was made for every key that was missing."""
    assert tempfile is not None
    data = packed(mark(Tag.DEFAULTDICT), name, "a", 1)
    refused(data, declared_by(State), "not declared|is no factory|has no|is not loaded")
    text = export_memento(State(), "a.b")[1].replace(b"builtins:int", name.encode())
    with pytest.raises(StoredStateError, match="not declared|is no factory|has no|is not loaded"):
        import_memento(text, State, "a.b")
    data = packed(mark(Tag.DEFAULTDICT), f"{__name__}:Held", "a", 1)
    assert decode(data, declared=declared_by(State)).default_factory is Held


def test_modules_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the `__getattr__` of a module nor an attribute that is computed is asked for a class."""

    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    computed = types.ModuleType("computed")
    computed.__getattr__ = lambda name: pytest.fail(f"{name} was asked for")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setitem(sys.modules, "computed", computed)
    for name in ("lazy:Class", "computed:Class", "computed:Class.Inner", "xml.dom.minidom:Node", f"{'x' * 10**6}:y"):
        refused(packed(mark(Tag.DATACLASS), name, "a", 1), Declared(Any), "is not loaded here|has no Class|has no ")
        with pytest.raises(StoredStateError):
            decode(packed(mark(Tag.DATACLASS), name, "a", 1))


def test_keys_that_collide() -> None:
    """60 000 numbers with the same hash held the interpreter for 200 seconds; so do sets, in either form of a file."""
    same = [n * (2**61 - 1) for n in range(60_000)]
    entries = [one for n in same for one in (n, 0)]
    table = b"\xdf" + len(same).to_bytes(4, "big") + encode(entries)[5:]
    refused(table, Declared(Any), "keys of a table or set collide")
    body = encode([None, *same])
    marked = body[:3] + msgpack.packb(mark(Tag.SET)) + body[4:]
    refused(marked, Declared(Any), "keys of a table or set collide")
    usual = {n * 2**20: (n, 0.5) for n in range(60_000)}
    assert decode(encode(usual), declared=Declared(Any)) == usual


def test_a_byte_becomes_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What collections take in memory is bounded before they are all there."""
    monkeypatch.setattr(encoding, "LARGEST", 100_000)
    for one in ([], {}, [mark(Tag.DEQUE), None], [mark(Tag.COUNTER)]):
        refused(packed(*[one] * 2000), Declared(Any), "it would take more than 100000 bytes")
    assert len(decode(packed(*[[]] * 1000), declared=Declared(Any))) == 1000


@pytest.mark.parametrize(
    "content",
    [
        [Tag.DATETIME, "2026-01-01T00:00:00", 0, "zone", "../../../etc/passwd"],
        [Tag.DATETIME, "2026-01-01T00:00:00", 0, "zone", "/etc/passwd"],
        [Tag.DATETIME, "2026-01-01T00:00:00", 0, "zone", "Europe"],
        [Tag.DATETIME, "2026-01-01T00:00:00", 0, "offset", 10**12],
        [Tag.ARRAY, "|O", [1], "C", b"\0" * 8],
        [Tag.ARRAY, "f8,(2,)O", [1], "C", b"\0" * 8],
        [Tag.ARRAY, [["a", "|O"]], [1], "C", b"\0" * 8],
        [Tag.ARRAY, "<f8", [2**40], "C", b"\0" * 8],
        [Tag.ARRAY, [["a", "<f8", [2**31, 2**31]]], [1], "C", b"\0" * 8],
        [Tag.TIMEDELTA, 10**15, 0, 0],
        [Tag.DECIMAL, "1" * 10 + "x"],
        [Tag.COMPLEX, "1", 2],
        [Tag.ENUM, f"{__name__}:Colour", "mro"],
        [Tag.NAMEDTUPLE, f"{__name__}:Pair", "index", 1],
        [Tag.DATACLASS, f"{__name__}:Held", "__class__", 1],
        [Tag.DATACLASS, ["a"], "a", 1],
        [Tag.DATACLASS],
        [Tag.DEQUE],
        [Tag.SET, []],
        [Tag.TABLE, b"no table"],
        [Tag.RECORD_BATCH, b""],
    ],
)
def test_odd_contents(content: list[Any]) -> None:
    """Each kind of value made of what it is not made of: refused by name."""
    encoding.zones()
    refused(packed(mark(content[0]), *content[1:]), declared_by(State), "cannot be taken over")
    with pytest.raises(StoredStateError):
        decode(packed(mark(content[0]), *content[1:]))


COLUMNS = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.sampled_from([st.integers(0, 2**40), st.floats(), st.text("xyz"), st.lists(st.integers(0, 9), max_size=3)]),
    min_size=1,
    max_size=3,
).flatmap(lambda columns: st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=5))


@given(COLUMNS, st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4))
def test_damaged_columns_are_refused(rows: list[dict[str, Any]], at: float, noise: bytes) -> None:
    """Record batches come back as they were; cut off they are an error by name, with other bytes that, or columns."""
    batch = pa.RecordBatch.from_pylist(rows)
    data = encode(batch)
    assert encode(decode(data, declared=Declared(Any))) == data
    place = int(at * len(data))
    with pytest.raises(StoredStateError):
        decode(data[:place], declared=Declared(Any))
    with suppress(StoredStateError):
        decode(data[:place] + noise + data[place + len(noise) :], declared=Declared(Any))


def test_columns_are_checked() -> None:
    """Offsets that lead out of a table, and rows that take no bytes, are refused."""
    table = pa.table({"a": ["x", "yy", "zzz"]})
    data = encode(table)
    assert decode(data, declared=Declared(Any)).equals(table)
    offsets = np.array([0, 1, 3, 6], dtype=np.int32).tobytes()
    assert offsets in data
    refused(data.replace(offsets, np.array([0, 1, 2**30, 6], dtype=np.int32).tobytes()), Declared(Any), "taken over")
    words = pa.table({"a": pa.array(["x"] * 10_000).dictionary_encode(), "b": pa.array(["y" * 100] * 10_000)})
    assert decode(encode(words), declared=Declared(Any)).equals(words)
    for one, plain in ((words, False), (words.select(["a"]), False), (words, True)):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=None if plain else "zstd")
        with pa.ipc.new_stream(sink, one.schema, options=options) as stream:
            stream.write_table(one)
        data = packed(mark(Tag.TABLE), sink.getvalue().to_pybytes())
        if plain:
            assert decode(data, declared=Declared(Any)).equals(one)
        else:
            refused(data, Declared(Any), "its columns are compressed")
    refused(encode(pa.table({"a": pa.nulls(10**9)})), Declared(Any), "1000000000 rows in")

"""Types that travel and change: the form as plain data, the fingerprint, and what differs between two versions."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, make_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import count
from pathlib import PurePosixPath
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Memento
from exop.errors import StoredStateError
from exop.model.slets.stored_memento import export_memento, import_memento
from exop.model.types.assignable import find_mismatch, value_mismatch
from exop.model.types.description import Type, type_of
from exop.model.types.evolution import as_data, changes, fingerprint, from_data
from exop.model.values.classes import Declared, forget, package_name
from exop.model.values.encoding import decode, encode

#: The module in which random records stand.
HERE = "tests_of_types"
T = TypeVar("T")
Metres = NewType("Metres", int)


class Mood(Enum):
    """An enumeration."""

    CALM = 1
    WILD = 2


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float = 0.5


@dataclass
class Tree:
    """A type that contains itself."""

    value: int
    children: list[Tree] = field(default_factory=list)
    mood: Mood = Mood.CALM


class Row(TypedDict):
    """A typed dictionary."""

    name: str
    tree: Tree | None


TYPES: list[Any] = [
    int,
    None,
    Any,
    list,
    list[int],
    tuple[int, str],
    tuple[int, ...],
    dict[str, list[float]],
    Counter[str],
    Literal["a", 1, "1"],
    Mood,
    Point,
    Tree,
    Row,
    Metres,
    T,
    int | str | None,
    Annotated[pa.RecordBatch, pa.schema([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))])],
    type[int],
    NotImplemented,
]


@pytest.mark.parametrize("annotation", TYPES, ids=lambda one: str(one)[:20])
def test_a_type_travels(annotation: Any) -> None:
    """The form is plain data, and what is read from it is the same type, whether its class is here or not."""
    here = type_of(annotation)
    data = as_data(here)
    assert msgpack.unpackb(msgpack.packb(data)) == data
    there = from_data(json.loads(json.dumps(data)))
    assert (str(there), list(there.fields), fingerprint(there)) == (str(here), list(here.fields), fingerprint(here))
    assert find_mismatch(here, there) is find_mismatch(there, here) is None
    assert changes(here, there) == changes(there, here) == []
    assert as_data(there) == data


def test_fingerprints_differ_with_the_fields() -> None:
    """Each name, type, default and order counts; the version of a bundle does not."""
    one = make_dataclass("One", [("a", int), ("b", str)])
    others = [
        make_dataclass("One", [("a", int), ("b", int)]),
        make_dataclass("One", [("a", int), ("c", str)]),
        make_dataclass("One", [("b", str), ("a", int)]),
        make_dataclass("One", [("a", int), ("b", str, "")]),
        make_dataclass("Two", [("a", int), ("b", str)]),
    ]
    assert len({fingerprint(type_of(each)) for each in (one, *others)}) == 6
    same = make_dataclass("One", [("a", int), ("b", str)])
    one.__module__, same.__module__ = (package_name("speeds", version) for version in ("1.0", "2.0"))
    forget()
    assert fingerprint(type_of(one)) == fingerprint(type_of(same))
    assert find_mismatch(from_data(as_data(type_of(one))), type_of(same)) is None


CHANGES = [
    ([("a", int)], [("a", int), ("b", str, "x")], True, "the field 'b' (str) is new"),
    ([("a", int)], [("a", int), ("b", str | None)], True, "the field 'b' (str | None) is new"),
    ([("a", int)], [("a", int), ("b", str)], False, "the field 'b' (str) is new, without a default"),
    ([("a", int), ("b", str)], [("a", int)], False, "the field 'b' (str) is gone"),
    ([("a", int)], [("a", float)], True, "the field 'a' was int and is float now"),
    ([("a", float)], [("a", int)], False, "the field 'a' was float and is int now"),
    ([("a", int)], [("a", int | None)], True, "the field 'a' was int and is int | None now"),
    ([("a", list[int])], [("a", list[str])], False, "the field 'a' was list[int] and is list[str] now"),
]


@pytest.mark.parametrize(("before", "after", "compatible", "told"), CHANGES, ids=lambda one: str(one)[:40])
def test_changes_of_fields(before: Any, after: Any, compatible: bool, told: str) -> None:
    """A new field with a default, or that may be `None`, and a wider type are compatible; each change is named."""
    old, new = (type_of(make_dataclass("One", fields)) for fields in (before, after))
    for one, other in ((old, new), (from_data(as_data(old)), new), (old, from_data(as_data(new)))):
        (change,) = changes(one, other)
        assert (str(change), change.compatible) == (told, compatible)


def test_changes_within() -> None:
    """Of a record in a collection the field is named, and a member of an enumeration that is gone."""
    old = [make_dataclass("Part", [("a", int)]), Enum("Mood", ["CALM", "WILD"])]
    new = [make_dataclass("Part", [("a", int), ("b", int)]), Enum("Mood", ["CALM"])]
    whole = [type_of(make_dataclass("Whole", [("parts", list[part]), ("mood", mood)])) for part, mood in (old, new)]
    assert [str(one) for one in changes(*whole)] == [
        "the field 'parts.b' (int) is new, without a default",
        "the field 'mood.WILD' (Mood) is gone",
    ]


# --- random types and values ------------------------------------------------------------------------------------------

number = count()


@pytest.fixture(autouse=True, scope="module")
def module() -> Iterator[None]:
    """A module for the classes that are made, so that they are found by their names."""
    sys.modules[HERE] = ModuleType(HERE)
    yield
    del sys.modules[HERE]
    forget()


def record(fields: list[tuple[Any, ...]], name: str = "") -> Any:
    """A dataclass that stands in that module."""
    made = make_dataclass(name or f"Record{next(number)}", fields)
    made.__module__ = HERE
    setattr(sys.modules[HERE], made.__name__, made)
    return made


LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (str, st.text()),
    (Decimal, st.decimals(allow_nan=False)),
    (date, st.dates()),
    (datetime, st.datetimes()),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Mood, st.sampled_from(Mood)),
    (Point, st.builds(Point, st.integers(), st.floats(allow_nan=False))),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
]
MORE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bytes, st.binary()),
    (Any, st.none() | st.integers() | st.binary() | st.tuples(st.text())),
    (PurePosixPath, st.text("ab/").map(PurePosixPath)),
]


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Types that consist of others, each with its values."""
    keys = st.sampled_from(LEAVES)
    return st.one_of(
        inner.map(lambda one: (list[one[0]], st.lists(one[1], max_size=3))),
        inner.map(lambda one: (deque[one[0]], st.lists(one[1], max_size=3).map(deque))),
        inner.map(lambda one: (tuple[one[0], ...], st.lists(one[1], max_size=3).map(tuple))),
        inner.map(lambda one: (one[0] | None, st.none() | one[1])),
        keys.map(lambda one: (set[one[0]], st.sets(one[1], max_size=3))),
        st.tuples(inner, inner).map(lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]))),
        st.tuples(keys, inner).map(
            lambda two: (dict[two[0][0], two[1][0]], st.dictionaries(two[0][1], two[1][1], max_size=3))
        ),
        st.lists(inner, min_size=1, max_size=3).map(of_record),
    )


def of_record(fields: list[tuple[Any, Any]]) -> tuple[Any, st.SearchStrategy[Any]]:
    """A record with fields of these types, and its values."""
    made = record([(f"f{n}", kind) for n, (kind, _) in enumerate(fields)])
    return made, st.builds(made, *(values for _, values in fields))


RANDOM = st.recursive(st.sampled_from([*LEAVES, *MORE]), composed, max_leaves=5)
CASES = RANDOM.flatmap(lambda one: st.tuples(st.just(one[0]), one[1]))


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    return one == other and typed(one) == typed(other)


def typed(value: Any) -> Any:
    """The types of which a value consists."""
    parts: Any = None
    if isinstance(value, (set, frozenset)):
        parts = Counter(type(one) for one in value)
    elif isinstance(value, dict):
        parts = [*map(typed, value), *map(typed, value.values())]
    elif isinstance(value, (list, tuple, deque)):
        parts = list(map(typed, value))
    elif type(value).__module__ == HERE:
        parts = [typed(getattr(value, name)) for name in value.__dataclass_fields__]
    return type(value).__name__, parts


def kept(annotation: Any, value: Any = None) -> Memento:
    """A memento with a field of that type."""
    given = {"__annotations__": {"value": annotation}, "value": None, "__module__": HERE, "__qualname__": "Kept"}
    made = type("Kept", (Memento,), given)
    sys.modules[HERE].Kept = made  # type: ignore[attr-defined]
    forget()
    return made(value=value)  # type: ignore[call-arg]


@given(CASES)
def test_every_codec_brings_a_value_back(case: tuple[Any, Any]) -> None:
    """Msgpack and JSON, read with nothing but the declared types; the value is of its type, and the type travels."""
    annotation, value = case
    described = type_of(annotation)
    assert value_mismatch(value, described, "value") is None
    assert same(decode(encode(value), declared=Declared(annotation)), pathless(value))
    memento = kept(annotation, value)
    for form in ("json", "msgpack"):
        found = import_memento(export_memento(memento, "a.b", form)[1], type(memento), "a.b")  # type: ignore[arg-type]
        assert same(found.value, pathless(value))  # type: ignore[attr-defined]
    there = from_data(json.loads(json.dumps(as_data(described))))
    assert fingerprint(there) == fingerprint(described)
    assert changes(described, there) == []


def pathless(value: Any) -> Any:
    """Paths come back as those of this system."""
    from pathlib import Path

    if isinstance(value, PurePosixPath):
        return Path(value)
    if type(value) in (list, tuple, set, deque):
        return type(value)(map(pathless, value))
    if isinstance(value, dict):
        return {key: pathless(one) for key, one in value.items()}
    if type(value).__module__ == HERE:
        return type(value)(*(pathless(getattr(value, name)) for name in value.__dataclass_fields__))
    return value


@given(RANDOM, RANDOM, st.data())
def test_evolution_both_ways(first: Any, second: Any, data: st.DataObject) -> None:
    """A value of the old version becomes one of the new class exactly if its changes are compatible, and back."""
    small = [("a", first[0])]
    defaulted = ("b", second[0], field(default=data.draw(second[1]) if hashed(second[0]) else None))
    nullable = data.draw(st.booleans())
    wide = [*small, ("b", second[0] | None) if nullable else defaulted]
    value = data.draw(first[1])
    old = record(small, "Evolving")
    data_old, type_old = encode(old(value)), type_of(old)
    new = record(wide, "Evolving")
    forget()
    assert all(one.compatible for one in changes(type_old, type_of(new)))
    found = decode(data_old, declared=Declared(new))
    assert type(found) is new
    assert same(found.a, pathless(value))
    assert not nullable or found.b is None
    data_new, type_new = encode(new(value, None)), type_of(new)
    old = record(small, "Evolving")
    forget()
    assert [one.compatible for one in changes(type_new, type_of(old))] == [False]
    with pytest.raises(StoredStateError, match="has no field b"):
        decode(data_new, declared=Declared(old))


def hashed(annotation: Any) -> bool:
    """Whether its values may be a default of a dataclass."""
    return annotation in (int, float, bool, str, date, MISSING)


@given(CASES, st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4))
def test_damaged_encodings_are_refused(case: tuple[Any, Any], cut: float, noise: bytes) -> None:
    """Cut off it is an error by name; with other bytes in it an error, or a value: nothing else, and soon."""
    annotation, value = case
    data = encode(value)
    place = int(cut * len(data))
    with pytest.raises(StoredStateError):
        decode(data[:place], declared=Declared(annotation))
    with suppress(StoredStateError):
        decode(data[:place] + noise + data[place + len(noise) :], declared=Declared(annotation))


EDITS = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(
        st.sampled_from(["$tuple", "$set", "$dict", "$deque", "$bytes", "$enum", "$dataclass", "$datetime", "f0", "x"]),
        st.none() | st.text(max_size=3) | st.lists(st.none() | st.text(max_size=3) | st.lists(st.integers())),
        max_size=2,
    ),
)


@given(CASES, st.data())
def test_edited_json_is_read_or_refused(case: tuple[Any, Any], data: st.DataObject) -> None:
    """Whatever a person writes in place of a part of a memento: a value of the declared type, or an error by name."""
    annotation, value = case
    memento = kept(annotation, value)
    found = json.loads(export_memento(memento, "a.b", "json")[1])
    holder, key = found["fields"], "value"
    while isinstance(holder[key], (dict, list)) and holder[key] and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    holder[key] = data.draw(EDITS)
    try:
        made = import_memento(json.dumps(found).encode(), type(memento), "a.b")
    except StoredStateError:
        return
    assert value_mismatch(made.value, annotation, "value") is None  # type: ignore[attr-defined]
    assert import_memento(export_memento(made, "a.b")[1], type(memento), "a.b") is not None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(["new", "record", "union", "list", "x", "y"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["kind", "name", "identity", "arguments", "fields", "choices"]), inner)
    ),
    max_leaves=20,
)
NODE = st.fixed_dictionaries(
    {"kind": st.sampled_from(["new", "union", "record", "list", "tuple", "table", "scalar", "enum", "variable"])},
    optional={
        "name": st.text(max_size=3),
        "identity": st.sampled_from(["builtins:int", "builtins:list", "a:B"]),
        "arguments": st.lists(st.integers(0, 4), max_size=3),
        "choices": st.lists(st.text(max_size=2), max_size=2),
        "fields": st.lists(
            st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.booleans(), st.text(max_size=2)), max_size=3
        ),
    },
)


@given(JUNK | st.lists(NODE.map(lambda one: {"name": "n", **one}), min_size=5, max_size=5), st.sampled_from(TYPES))
def test_hostile_descriptions(data: Any, other: Any) -> None:
    """Whatever stands there, it is an error by name or a type that can be shown and compared."""
    try:
        found = from_data(data)
    except StoredStateError:
        return
    here = type_of(other)
    for one, two in ((found, here), (here, found), (found, found)):
        assert all(map(str, changes(one, two)))
        assert find_mismatch(one, two) is None or str(find_mismatch(one, two))
    assert (len(fingerprint(found)), str(found.sole), from_data(as_data(found)).kind) == (
        16,
        str(found.sole),
        found.kind,
    )


def chain(kind: str, length: int) -> list[dict[str, Any]]:
    """Types of which each consists twice of the next."""
    return [{"kind": kind, "name": "n", "arguments": [min(n + 1, length - 1)] * 2} for n in range(length)]


def test_large_descriptions() -> None:
    """Of more types than are ever written it is refused; the rest takes no time, however it is woven."""
    with pytest.raises(StoredStateError, match="no list of 1 to 1000 types"):
        from_data(chain("tuple", 1001))
    with pytest.raises(StoredStateError, match="is a name for itself"):
        from_data(chain("union", 1000))
    begun = time.process_time()
    first, second = (from_data(chain("tuple", length)) for length in (900, 1000))
    assert isinstance(first, Type)
    changes(first, second)
    find_mismatch(first, second)
    fingerprint(first)
    assert time.process_time() - begun < 10

"""Settings' values: what each annotated type takes from code, from TOML and from a command line."""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.model.types.conversion import convert, to_toml_value

T = TypeVar("T")
Seconds = NewType("Seconds", int)


class Color(enum.Enum):
    """An enumeration by text."""

    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    """An enumeration by number."""

    LOW = 1
    HIGH = 2


@dataclass
class Rule:
    """A dataclass with a nested path and a default."""

    low: int
    path: Path | None = None
    tags: list[str] = field(default_factory=list)
    note: str | None = "x"


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float = 0.5


class Row(TypedDict):
    """A typed dictionary."""

    name: str
    count: int


class Limit(msgspec.Struct):
    """A msgspec structure."""

    most: int


NOON = datetime(2026, 1, 31, 12, 30)

GOOD: list[tuple[Any, Any, Any]] = [
    (5, int, 5),
    ("5", int, 5),
    ("-1_000", int, -1000),
    (np.int64(7), int, 7),
    (Level.HIGH, int, 2),
    (5, float, 5.0),
    ("2.5", float, 2.5),
    (np.float32(0.5), float, 0.5),
    (True, bool, True),
    (np.bool_(True), bool, True),
    ("yes", bool, True),
    ("OFF", bool, False),
    ("0", bool, False),
    ("", str, ""),
    ("a=b c", str, "a=b c"),
    ("a/b", Path, Path("a/b")),
    (Path("a"), Path, Path("a")),
    ("a", Path | None, Path("a")),
    (None, Path | None, None),
    (None, int | None, None),
    ("none", int | None, None),
    ("7", int | None, 7),
    ("none", str | None, "none"),
    ("5", int | str, "5"),
    (5, str | float, 5.0),
    (5, bool | int, 5),
    (1, Literal[1, "one"], 1),
    ("1", Literal[1, 2], 1),
    ("spark", Literal["spark", "native"], "spark"),
    ("auto", Literal["auto"] | int, "auto"),
    ("12", Literal["auto"] | int, 12),
    ("red", Color, Color.RED),
    ("GREEN", Color, Color.GREEN),
    (Color.RED, Color, Color.RED),
    (2, Level, Level.HIGH),
    ("2", Level, Level.HIGH),
    (["1", 2], list[int], [1, 2]),
    ((1, 2), list[int], [1, 2]),
    ("[1, 2]", list[int], [1, 2]),
    ('["a", "b"]', list[str], ["a", "b"]),
    ([1, 2], tuple[int, ...], (1, 2)),
    (["a", 1], tuple[str, int], ("a", 1)),
    ([1, 1], set[int], {1}),
    ([1], frozenset[int], frozenset({1})),
    ((1, 2), Sequence[int], (1, 2)),
    ([1, 2], Sequence[float], [1.0, 2.0]),
    ([1, "a"], list, [1, "a"]),
    ({"a": "1"}, dict[str, int], {"a": 1}),
    ({"1": "a"}, dict[int, str], {1: "a"}),
    ("{a = 1}", Mapping[str, int], {"a": 1}),
    ({"n.p": {"count": 3}}, dict[str, dict[str, Any]], {"n.p": {"count": 3}}),
    ({"low": "1", "path": "p"}, Rule, Rule(low=1, path=Path("p"))),
    ("{low = 1, tags = ['a']}", Rule, Rule(low=1, tags=["a"])),
    ([{"low": 1}], list[Rule], [Rule(low=1)]),
    (Rule(low=2), Rule, Rule(low=2)),
    ({"x": 1}, Point, Point(1)),
    ({"name": "a", "count": "2"}, Row, {"name": "a", "count": 2}),
    ({"most": 3}, Limit, Limit(3)),
    ("2026-01-31T12:30", datetime, NOON),
    (NOON, datetime, NOON),
    ("2026-01-31", date, date(2026, 1, 31)),
    ("12:30", time, time(12, 30)),
    (1.5, timedelta, timedelta(seconds=1.5)),
    ("90", timedelta, timedelta(seconds=90)),
    ("0.1", Decimal, Decimal("0.1")),
    (0.1, Decimal, Decimal("0.1")),
    ("::1", ipaddress.IPv6Address, ipaddress.IPv6Address("::1")),
    ("12345678-1234-5678-1234-567812345678", UUID, UUID("12345678-1234-5678-1234-567812345678")),
    (len, Callable[[Any], int], len),
    (int, type[int], int),
    ("x", Any, "x"),
    (object, object, object),
    (5, T, 5),
    ("5", Seconds, 5),
    ("5", Annotated[int, "seconds"], 5),
    ("5", Annotated[int, msgspec.Meta(ge=1)], 5),
]

BAD: list[tuple[Any, Any, str]] = [
    (True, int, "expected int, got True (bool)"),
    (False, float, "expected float, got False (bool)"),
    (1, bool, "expected true or false, got 1 (int)"),
    ("maybe", bool, "expected true or false, got 'maybe' (str)"),
    (5.0, int, "expected int, got 5.0 (float)"),
    ("five", int, "expected int, got 'five' (str)"),
    ("5.5", int, "expected int, got '5.5' (str)"),
    (None, int, "expected int, got nothing (None)"),
    ([5], int, "expected int, got [5] (list)"),
    ("fast", float, "expected float, got 'fast' (str)"),
    (5, str, "expected str, got 5 (int)"),
    (Path("a"), str, "expected str, got"),
    (5, Path, "expected a path, got 5 (int)"),
    (5.5, int | None, "expected int or nothing, got 5.5 (float)"),
    ("sprak", Literal["spark", "native"], "'sprak' is none of the choices; did you mean 'spark'?"),
    (True, Literal[1], "True is none of the choices; known: 1"),
    ("blue", Color, "'blue' is none of the choices; known: green, red"),
    ("a,b", list[str], "expected a list, written [a, b], got 'a,b' (str)"),
    ("[1, ", list[int], "'[1, ' is no list or table in TOML"),
    ([1, "x"], list[int], "element 2: expected int, got 'x' (str)"),
    ([1], tuple[int, int], "expected a length of 2, got 1"),
    (5, dict[str, int], "expected a table, written {name = value}, got 5 (int)"),
    ({"a": "x"}, dict[str, int], "'a': expected int, got 'x' (str)"),
    ({"lo": 1}, Rule, "Rule has no field 'lo'; did you mean 'low'?"),
    ({"tags": []}, Rule, "Rule lacks low in {'tags': []}"),
    ({"low": 1, "tags": [1]}, Rule, "tags: element 1: expected str, got 1 (int)"),
    ({"name": "a"}, Row, "Row lacks count"),
    ({"most": "x"}, Limit, "Expected `int`"),
    ("yesterday", datetime, "expected datetime as in 2026-01-31T12:30:00, got 'yesterday' (str)"),
    (NOON, date, "expected date as in 2026-01-31, got"),
    (5, datetime, "expected datetime as in 2026-01-31T12:30:00, got 5 (int)"),
    ("x", timedelta, "expected float, got 'x' (str)"),
    ("x", Decimal, "expected Decimal, got 'x' (str)"),
    ("x", ipaddress.IPv4Address, "expected IPv4Address, got 'x'"),
    ("x", bytes, "expected bytes, got 'x' (str)"),
    ("len", Callable[[Any], int], "expected something that can be called, got 'len' (str)"),
    (0, Annotated[int, msgspec.Meta(ge=1)], ">= 1"),
]


@pytest.mark.parametrize(("value", "wanted", "expected"), GOOD, ids=repr)
def test_takes(value, wanted, expected):
    """A value that fits becomes exactly the annotated type; converting it once more changes nothing."""
    found = convert(value, wanted)
    assert found == expected
    assert type(found) is type(expected)
    assert convert(found, wanted) == found


@pytest.mark.parametrize(("value", "wanted", "message"), BAD, ids=repr)
def test_refuses(value, wanted, message):
    """A value that does not fit is refused in one line, with what was expected and what was given."""
    with pytest.raises(ValueError, match=r".") as caught:
        convert(value, wanted)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [LookupError("no such place"), SystemExit("no such place")], ids=repr)
def test_a_class_that_refuses_its_text(error):
    """Whatever it raises, the value does not fit."""

    class Place:
        def __init__(self, text: str) -> None:
            raise error

    @dataclass
    class Bounds:
        low: int

        def __post_init__(self) -> None:
            raise error

    with pytest.raises(ValueError, match="Place, got 'here': no such place"):
        convert("here", Place)
    with pytest.raises(ValueError, match="Bounds, got {'low': 1}: no such place"):
        convert({"low": 1}, Bounds)


def test_long_values_are_shortened():
    """A refused value of a megabyte does not become a message of a megabyte."""
    with pytest.raises(ValueError, match="expected int") as caught:
        convert("x" * 1_000_000, int)
    assert len(str(caught.value)) < 200


def test_a_list_that_is_given_is_not_shared():
    """Who changes the list that he gave does not change what was configured."""
    mine = [1, 2]
    found = convert(mine, list[int])
    mine.append(3)
    assert found == [1, 2]


plain = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), st.text())
typed = st.one_of(
    st.tuples(st.just(int), st.integers()),
    st.tuples(st.just(float), st.floats(allow_nan=False)),
    st.tuples(st.just(bool), st.booleans()),
    st.tuples(st.just(str), st.text()),
    st.tuples(st.just(Path), st.text("ab/", min_size=1).map(Path)),
    st.tuples(st.just(datetime), st.datetimes(timezones=st.sampled_from([None, UTC]))),
    st.tuples(st.just(timedelta), st.timedeltas(timedelta(0), timedelta(days=100))),
    st.tuples(st.just(Decimal), st.decimals(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(Color), st.sampled_from(Color)),
    st.tuples(st.just(Level), st.sampled_from(Level)),
    st.tuples(st.just(list[int]), st.lists(st.integers())),
    st.tuples(st.just(set[str]), st.sets(st.text())),
    st.tuples(st.just(dict[int, str]), st.dictionaries(st.integers(), st.text())),
    st.tuples(st.just(Rule), st.builds(Rule, low=st.integers(), path=st.none() | st.just(Path("p")), note=st.text())),
    st.tuples(st.just(list[Point]), st.lists(st.builds(Point, st.integers(), st.floats(allow_nan=False)))),
    st.tuples(st.just(int | None), st.none() | st.integers()),
)


@given(typed)
def test_what_is_written_is_read_back(case):
    """`convert(to_toml_value(value), type)` is the value again, for every type that a topology file can hold."""
    wanted, value = case
    if value is None:
        return
    found = convert(to_toml_value("here", value), wanted)
    assert found == value
    assert type(found) is type(value)


@given(plain, st.sampled_from([int, float, bool, str, Path, datetime, list[int], Color, Rule, int | None]))
def test_every_value_is_taken_or_refused(value, wanted):
    """For any plain value and type the answer is a value of the type, or a ValueError: nothing else ever comes out."""
    try:
        found = convert(value, wanted)
    except ValueError:
        return
    plain_type = wanted if isinstance(wanted, type) and not hasattr(wanted, "__args__") else object
    assert isinstance(found, plain_type)
    assert not (wanted is int and isinstance(found, bool))

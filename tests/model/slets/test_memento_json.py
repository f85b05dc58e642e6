"""A memento as a file: what goes out comes in as it was, and every mistake of an edit is told with its place."""

from __future__ import annotations

import enum
import json
import math
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Memento
from exop.errors import NotStorable, StoredStateError
from exop.model.slets.stored_memento import dump_memento, export_memento, import_memento
from exop.model.values.encoding import MARK, Tag


class Colour(enum.Enum):
    """An enum."""

    RED = "r"
    BLUE = "b"


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str = "r"


@dataclass
class Order:
    """A dataclass with a nested one."""

    price: Decimal
    at: datetime | None = None
    next: Order | None = None


class Book(Memento, version=2):
    """A state with a bit of everything that its annotations tell."""

    count: int = 0
    mean: float = 0.0
    name: str | None = None
    by_segment: dict[int, list[float]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    window: deque[int] = field(default_factory=deque)
    pairs: dict[tuple[int, str], int] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    both: tuple[int, Decimal] = (1, Decimal(2))
    colour: Colour = Colour.RED
    days: dict[date, Pair] = field(default_factory=dict)
    anything: Any = None


class Older(Memento):
    """The class under the old version."""


class Grid(Memento):
    """A state that JSON has no form for."""

    cells: np.ndarray = field(default_factory=lambda: np.zeros(3))


FULL = Book(
    count=2**70,
    mean=math.inf,
    name="ä",
    by_segment={5: [1.0, -2.5]},
    seen={3, 1},
    window=deque([1, 2], 9),
    pairs={(1, "a"): 2},
    orders=[Order(Decimal("1.50"), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), Order(Decimal(0)))],
    both=(7, Decimal("0.1")),
    colour=Colour.BLUE,
    days={date(2026, 1, 2): Pair(1, "x")},
)


def back(memento: Memento) -> Memento:
    """Out as JSON, and in again."""
    form, data = export_memento(memento, "app.node")
    assert form == "json"
    return import_memento(data, type(memento), "app.node")


def test_what_annotations_tell_needs_no_tag() -> None:
    """Numeric keys, sets, nested dataclasses, decimals, moments and enums are plain, and come back with their types."""
    fields = json.loads(export_memento(FULL, "app.node")[1])["fields"]
    assert fields["by_segment"] == {"5": [1.0, -2.5]}
    assert fields["seen"] == [1, 3]
    assert fields["orders"] == [
        {
            "price": "1.50",
            "at": "2026-01-02T03:04:05.000006+00:00",
            "next": {"price": "0", "at": None, "next": None},
        }
    ]
    assert (fields["both"], fields["colour"]) == ([7, "0.1"], "BLUE")
    assert fields["days"] == {"2026-01-02": {"left": 1, "right": "x"}}
    assert fields["window"] == {"$deque": [9, [1, 2]]}
    assert fields["pairs"] == {"$dict": [[[1, "a"], 2]]}
    assert fields["mean"] == {"$float": "inf"}
    found = back(FULL)
    assert found == FULL
    assert isinstance(found, Book)
    assert found.window.maxlen == 9
    assert type(found.days[date(2026, 1, 2)]) is Pair


@pytest.mark.parametrize(
    "value",
    [
        (1, (2, [3])),
        {1: "a", None: 2},
        {"$dict": 1},
        {"a": {"$x": 1}},
        frozenset({1}),
        deque([1]),
        b"\x00\xff",
        1 + 2j,
        math.inf,
        Decimal("1E+3"),
        uuid.UUID(int=7),
        date(2026, 1, 2),
        time(1, 2, 3),
        time(1, 2, 3, fold=1),
        datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 10, 25, 2, 30, fold=1),
        timedelta(days=-1, microseconds=3),
        Path("a/b"),
        Colour.RED,
        Pair(1),
        Order(Decimal(1)),
        OrderedDict([(1, 2)]),
        Counter({"a": 2}),
        defaultdict(list, {1: [2]}),
        [Colour.RED, {"x": (1,)}],
    ],
)
def test_what_no_annotation_tells_has_a_tag(value: Any) -> None:
    """A field that may hold anything keeps the exact type of what it holds."""
    found = back(Book(anything=value))
    assert isinstance(found, Book)
    assert found.anything == value
    assert type(found.anything) is type(value)


KEYS = st.text() | st.integers() | st.just("$tuple")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@given(PLAIN)
def test_any_plain_value_comes_back(value: Any) -> None:
    """Whatever is nested in whatever."""
    found = back(Book(anything=value))
    assert isinstance(found, Book)
    assert repr(found.anything) == repr(value)


def test_arrays_are_shown_and_exported_as_msgpack() -> None:
    """What JSON has no form for is shown, and leaves as msgpack; asked for as JSON it is refused by name."""
    grid = Grid(cells=np.arange(3.0))
    kind, shown = export_memento(grid, "app.node", "shown")
    assert kind == "json"
    assert "numpy ndarray (3,)" in json.loads(shown)["fields"]["cells"]["$shown"]
    form, data = export_memento(grid, "app.node")
    assert form == "msgpack"
    found = import_memento(data, Grid, "app.node")
    assert isinstance(found, Grid)
    assert list(found.cells) == [0.0, 1.0, 2.0]
    with pytest.raises(NotStorable, match="cells cannot be stored: JSON has no form for it; export it as msgpack"):
        export_memento(grid, "app.node", "json")
    with pytest.raises(StoredStateError, match="cells: it was only shown"):
        import_memento(shown, Grid, "app.node")


def edited(**fields: Any) -> bytes:
    """The JSON of a memento of which these fields were edited."""
    found = json.loads(export_memento(FULL, "app.node")[1])
    found["fields"] |= fields
    return json.dumps(found).encode()


def test_an_edit_is_taken() -> None:
    """A changed number, a field that is left out: it has its default then."""
    found = import_memento(edited(count=3, by_segment={"7": [1]}), Book, "app.node")
    assert isinstance(found, Book)
    assert (found.count, found.by_segment) == (3, {7: [1]})
    data = json.loads(edited())
    del data["fields"]["count"]
    assert import_memento(json.dumps(data).encode(), Book, "app.node").count == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"count": "many"}, "count is 'many' (str), not int"),
        ({"count": 1.5}, "count is 1.5 (float), not int"),
        ({"by_segment": {"x": []}}, "by_segment: the key 'x' is 'x', not int"),
        ({"by_segment": {"5": [1.0, "2"]}}, "by_segment[5][1] is '2' (str), not float"),
        ({"by_segment": {"5": [], "05": []}}, "by_segment has two keys that are the same int"),
        ({"by_segment": [1]}, "by_segment is [1] (list), not dict[int, list[float]]"),
        ({"orders": [{"price": "much"}]}, "orders[0].price is 'much', not Decimal"),
        ({"orders": [{"pice": "1"}]}, "orders[0] has no field 'pice'; it has price, at, next"),
        ({"orders": [{}]}, "orders[0]: Order lacks the field price"),
        ({"orders": [{"price": "1", "at": "yesterday"}]}, "orders[0].at is 'yesterday', not datetime"),
        ({"colour": "GREEN"}, "colour is 'GREEN', not "),
        ({"both": [1]}, "both has 1 element, not 2"),
        ({"days": {"2026-13-01": {}}}, "days: the key '2026-13-01' is '2026-13-01', not date"),
        ({"days": {"2026-01-01": {"right": "x"}}}, "days['2026-01-01']: Pair lacks the field left"),
        ({"window": {"$deque": [1]}}, "not the content of $deque"),
        ({"anything": {"$tupel": []}}, "anything: there is no tag $tupel"),
        ({"anything": {"$bytes": "%"}}, "not the content of $bytes"),
        ({"conut": 1}, "Book has no field 'conut'; it has count, mean"),
    ],
)
def test_a_wrong_edit_is_told_with_its_place(fields: dict[str, Any], said: str) -> None:
    """Which value, where it stands, and what it should be; nothing was changed."""
    with pytest.raises(StoredStateError) as caught:
        import_memento(edited(**fields), Book, "app.node")
    assert said in str(caught.value)
    assert str(caught.value).startswith("app.node cannot be taken over: ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b"\x00garbage", "cannot be taken over"),
        (b"{", "the file is no JSON"),
        (b'{"a": 1}', 'does not say "kind": "exop memento"'),
        (b'{"kind": "exop memento", "format": 2}', "this release reads 1"),
        (b'{"kind": "exop memento", "format": 1}', "no fields, or no version"),
        (dump_memento(Older(), "x"), "it is a Older, and Book has no upgrade"),
        (export_memento(Older(), "x")[1], "and the slet keeps a tests.model.slets.test_memento_json:Book"),
        (edited().replace(b'"version": 2', b'"version": 3'), "version 3 of Book, the code here knows 2"),
        (edited().replace(b'"version": 2', b'"version": 1'), "msgpack of an older version is upgraded"),
        (b'{"kind": ' + b"[" * 100_000, "no JSON"),
        (b'{"kind": 1, "kind": 2}', "'kind' occurs twice"),
    ],
)
def test_a_wrong_file_is_told(data: bytes, said: str) -> None:
    """Damaged, of another class, of a newer version: an error that says so."""
    with pytest.raises(StoredStateError) as caught:
        import_memento(data, Book, "app.node")
    assert said in str(caught.value)


def test_the_same_class_of_another_module_is_taken() -> None:
    """The code moved, or another version of a bundle has it: the fields are what counts."""
    data = edited().replace(b"tests.model.slets.test_memento_json:Book", b"elsewhere.v2:Book")
    assert import_memento(data, Book, "app.node") == FULL


@pytest.mark.parametrize(
    "harm",
    [
        [msgpack.ExtType(MARK, bytes([Tag.ENUM])), "os:system", b"touch harm"],
        [msgpack.ExtType(MARK, bytes([Tag.NAMEDTUPLE])), "subprocess:Popen", "args", ["touch", "harm"]],
        [msgpack.ExtType(MARK, bytes([Tag.DATACLASS])), "antigravity:fly"],
        [msgpack.ExtType(MARK, bytes([Tag.DEFAULTDICT])), "os:getcwd"],
        {"$enum": ["os:system", "touch harm"]},
        {"$namedtuple": ["subprocess:Popen", {"args": ["touch", "harm"]}]},
        {"$dataclass": ["this:d", {}]},
        {"$defaultdict": ["os:getcwd", {}]},
    ],
)
def test_a_file_calls_and_imports_nothing(harm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file from somebody else names classes of data; other names are refused, and no module is imported for it."""
    monkeypatch.chdir(tmp_path)
    if isinstance(harm, dict):
        data = edited(anything=harm)
    else:
        body = msgpack.packb({"anything": harm})
        name = "tests.model.slets.test_memento_json:Book"
        data = msgpack.packb([1, name, 2, {"anything": "Any"}, body])
    with pytest.raises(StoredStateError, match=r"that is no|is not loaded here"):
        import_memento(data, Book, "app.node")
    assert not (tmp_path / "harm").exists()


def test_the_fields_of_parts_are_checked() -> None:
    """A dataclass within a memento holds what its own annotations say, in either form of a file."""
    wrong = Book(days={date(2026, 1, 2): Pair("x")}, anything=[{"a": Pair(1)}])  # type: ignore[arg-type]
    for form in ("json", "msgpack"):
        with pytest.raises(StoredStateError, match=r"Pair\.left is 'x' \(str\), not int"):
            import_memento(export_memento(wrong, "a.b", form)[1], Book, "a.b")  # type: ignore[arg-type]
    dear = dump_memento(Book(orders=[Order(Decimal(1), next=Order("dear"))]), "a.b")  # type: ignore[arg-type]
    with pytest.raises(StoredStateError, match=r"Order\.price is 'dear' \(str\), not Decimal"):
        import_memento(dear, Book, "a.b")


def test_keys_of_json_that_collide() -> None:
    """Numbers with the same hash as the keys of a table, and as the members of a set, are refused before long."""
    same = [n * (2**61 - 1) for n in range(20_000)]
    for fields in ({"by_segment": {str(n): [] for n in same}}, {"seen": same}):
        with pytest.raises(StoredStateError, match="keys of a table or set collide"):
            import_memento(edited(**fields), Book, "app.node")

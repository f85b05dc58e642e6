"""What is an expression, what is none, and what the error says: it points at the place of the mistake."""

from __future__ import annotations

import sys
import time
import tracemalloc
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Literal, NamedTuple, NewType, TypedDict

import pytest

from exop.errors import ExpressionError
from exop.expressions import Names, read, read_condition
from exop.model.expressions.reader import DEEPEST, LONGEST
from exop.plugin import PortType

Road = NewType("Road", int)


@dataclass
class Place:
    """A nested record."""

    road: int
    name: str | None = None


@dataclass
class Report:
    """An item."""

    time: int
    speed: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)
    place: Place | None = None
    at: datetime = datetime(2024, 1, 1)
    tags: list[str] = field(default_factory=list)
    kind: Literal["a", "b"] = "a"
    road: Road = field(default=Road(1))

    @property
    def fast(self) -> bool:
        """A computed property."""
        return self.speed > 100


class Pair(NamedTuple):
    """Another one."""

    time: int
    rest: int


class Row(TypedDict):
    """A third one."""

    time: int


ITEMS = {"report": PortType(Report), "pair": PortType(Pair), "other": PortType(), "punctuation": PortType()}
NAMES = Names("jams", ITEMS, ("below", "tags"))


def value(text: str, item: Any, **values: Any) -> Any:
    """The value of an expression."""
    return read(text, NAMES).item_function({"below": 12, "tags": ["a"], **values})(item)


@pytest.mark.parametrize(
    ("text", "item", "expected"),
    [
        ("report.time >= 3600", Report(3600), True),
        ("report.time >= 3600", Report(3599), False),
        ('report["time"] == 1', Report(1), True),
        ("report.fast and report.speed < below * 10", Report(1, 119.0), True),
        ("report.more.depth == 3 and report.more['depth'] == 3", Report(1, more={"depth": 3}), True),
        ("report.place.road + 1", Report(1, place=Place(4)), 5),
        ("report['place']['road']", Report(1, place=Place(4)), 4),
        ("report.place.road", Report(1), None),
        ("other.time == 1", {"time": 1}, True),
        ('other["time"] == 1', {"time": 1}, True),
        ("other.keys == 1", {"keys": 1}, True),
        ("other.time == 1", Pair(1, 2), True),
        ("other['1']", (1, 2), 2),
        ("pair['1'] + pair[0] + pair.rest", Pair(1, 2), 5),
        ("other[1]", (1, 2), 2),
        ("other in tags", "a", True),
        ("punctuation >= 10", 10.0, True),
        ("'reports'", None, "reports"),
    ],
)
def test_fields_of_any_items(text, item, expected):
    """`a.b` and `a["b"]` read fields of classes, keys of rows and of nested ones; settings and times have names."""
    assert value(text, item) == expected


def test_settings_are_those_of_now():
    """The same expression with other settings is another function."""
    condition = read("report.time > below", NAMES)
    assert condition.settings == ("below",)
    assert condition.item_function({"below": 1})(Report(5))
    assert not condition.item_function({"below": 9})(Report(5))


@pytest.mark.parametrize(
    ("text", "subject", "fields"),
    [
        ("report.time > 1 and report['speed'] > 2 and report.time < 9", "report", ("time", "speed")),
        ("report.place.road > 1", "report", ("place",)),
        ("other == 1", "other", None),
        ("other.x in other", "other", None),
        ("punctuation > 1", "punctuation", None),
        ("1 + 1", "", ()),
    ],
)
def test_what_an_expression_looks_at(text, subject, fields):
    """One port; and the fields of it that are needed, unless it is needed whole."""
    found = read(text, NAMES)
    assert (found.subject, found.fields) == (subject, fields)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("report.time", "int"),
        ("report.time + 1", "int"),
        ("report.time / 2", "float"),
        ("report.time + report.speed", "float"),
        ("report.place", "Place | None"),
        ("report.place.road", "int | None"),
        ("report.place.name", "str | None"),
        ("report.tags", "list[str]"),
        ("report.tags[0]", "str | None"),
        ("report.more", "dict[str, Any]"),
        ("report.more.x", "Any"),
        ("report.time > 1", "bool"),
        ("report.place.road > 1", "bool | None"),
        ("report.place.road is None", "bool"),
        ("coalesce(report.place.road, 0)", "int"),
        ("None", "None"),
        ("1 if report.fast else None", "int | None"),
        ("1 if report.fast else 2.5", "float"),
        ("report.time if report.fast else report.more.x", "Any"),
        ("report.at - report.at", "timedelta"),
        ("date(report.at)", "date"),
        ("split(report.place.name, ',')", "list[str] | None"),
        ("round(report.speed)", "int"),
        ("round(report.speed, 1)", "float"),
        ("min(report.time, 2.5)", "float"),
        ("[1, 2.5]", "list[float]"),
        ("report.tags if report.fast else ['x']", "list[str]"),
        ("report.tags if report.fast else [1]", "list[Any]"),
        ("report.tags if report.fast else None", "list[str] | None"),
        ("report.place if report.fast else None", "Place | None"),
        ("coalesce(report.place, report.place)", "Place | None"),
        ("min(report.kind, 'x')", "str"),
        ("report.kind if report.fast else 'x'", "str"),
        ("report.kind", "Literal['a', 'b']"),
        ("-report.road", "int"),
        ("abs(report.road)", "int"),
    ],
)
def test_the_type_of_the_result_is_derived(text, shown):
    """It has `None` where NULL can come."""
    assert str(read(text, NAMES).type) == shown


@pytest.mark.parametrize(
    ("text", "at", "told"),
    [
        ("report.tme > 1", "tme", "Report has no field 'tme'; did you mean 'time'? known: at, kind, more"),
        ("report['tme'] > 1", "'tme'", "did you mean 'time'"),
        ("report.place.rod > 1", "rod", "Place has no field 'rod'; did you mean 'road'"),
        ("report.at.hour > 1", "hour", "a value of type datetime has no fields; there are functions"),
        ("1 < reprt.time", "reprt", "no port or setting is called 'reprt'; did you mean 'report'?"),
        ("len > 1", "len", "a function is called: len(x: str | bytes | list) -> int"),
        ("lenn(report) > 1", "lenn", "there is no function 'lenn'; did you mean 'len'?"),
        ("report.more.upper() > 1", "report", "there is no function 'report.more.upper'; write upper(…)"),
        ("startswith('a', 'b')", "starts", "write starts(…)"),
        ("lower()", "lower", "0 arguments do not fit lower(text: str) -> str"),
        ("lower(report.time)", "time", "argument 1 is int, which does not fit lower(text: str) -> str"),
        ("round(1.5, digits=1)", "round", "in their order, not by name: round(x: number, digits: int = …)"),
        ("lower(*tags)", "*tags", "one by one"),
        ("report.__class__ == 1", "__class__", "is private"),
        ("report._x == 1", "_x", "is private"),
        ("report.time > other.time", "other", "'report' and 'other' are two"),
        ("report.time ** 2 > 1", "** 2", "multiply"),
        ("report.time > 1 & 2", "& 2", "write `and`"),
        ("report.time | 2", "| 2", "write `or`"),
        ("report.time >> 2", ">> 2", "an expression has"),
        ("~report.time", "~", "write `not`"),
        ("report.time = 3", "=", "write == to compare"),
        ("report.time && 3", "&&", "write `and`"),
        ("report.time || 3", "||", "write `or`"),
        ("!report.fast", "!", "write `not`"),
        ("report.time <> 3", "<>", "write !="),
        ("report.time is null", "null", "write None"),
        ("report.time is not null or", "is not null", "write `is None`"),
        ("report.time between 1 and 2", "between", "low <= x <= high"),
        ("case when report.fast then 1", "case", "x if condition else y"),
        ("report.fast == true", "true", "write True"),
        ("report.time is 3", "3", "`is` asks for None only"),
        ("report.time == None", "None", "write `is None`"),
        ("report.time != None", "None", "write `is not None`"),
        ("report.time == 'x'", "'x'", "int and str cannot be compared"),
        ("report.at >= date('2024-01-01')", "date", "datetime and date cannot be compared; compare with date(…)"),
        ("report.time + 'x'", "+ 'x'", "int + str is not possible; write concat(…) or str(…)"),
        ("'x' * 1000", "* 1000", "str * int is not possible"),
        ("[1] * 1000", "* 1000", "list * int is not possible"),
        ("'%9d' % 1", "% 1", "str % int is not possible"),
        ("-'x'", "-'x'", "str has no sign"),
        ("report.time and report.fast", "time", "a Boolean is expected, not int"),
        ("1 if report.time else 2", "time", "a Boolean is expected, not int"),
        ("1 if report.fast else 'x'", "1 if", "the values have different types: int, str"),
        ("coalesce(1, 'x')", "coalesce", "types that do not go together: int, str"),
        ("1 in report.time", "time", "`in` looks into a list or text"),
        ("99999999999999999999", "999", "at most 64 bits"),
        ("9223372036854775808", "922", "at most 64 bits"),
        ("1j", "1j", "an expression has"),
        ("(report := 3)", "report :=", "nothing is assigned"),
        ("[x for x in report]", "[x", "an expression has"),
        ("lambda: report", "lambda", "an expression has"),
        ("f'{report}'", "f'", "write concat(…)"),
        ("report == ...", "...", "an expression has"),
        ("{**report}", "{**", "an expression has"),
        ("'ü' == reprt", "reprt", "did you mean 'report'"),
        ("report.time >", "", "no expression"),
        ("not " * (DEEPEST + 1) + "report.fast", "not", "nested"),
        ("(" * 300 + "report" + ")" * 300, "", "no expression"),
        ("report == '" + "x" * LONGEST + "'", "", "at most"),
        ("report == '\x00'", "", "no expression"),
    ],
)
def test_what_is_no_expression(text, at, told):
    """The error says what is wrong, and its mark stands under the place."""
    with pytest.raises(ExpressionError) as caught:
        read(text, NAMES)
    error = caught.value
    assert told in str(error)
    if at:
        assert error.expression[error.position :].startswith(at)
    shown, mark = str(error).splitlines()[-2:]
    assert mark == "  " + " " * error.position + "^"
    assert len(mark) <= len(shown) + 1


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_what_is_empty(text):
    """There is no place to mark."""
    with pytest.raises(ExpressionError) as caught:
        read(text, NAMES)
    assert str(caught.value) == f"{NAMES.place}: the expression is empty"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("below > 3", "it looks at no item; name one of report, pair, other, punctuation"),
        ("report.time", "a Boolean is expected, not int: compare it with something"),
    ],
)
def test_what_is_no_condition(text, told):
    """A condition is a Boolean that looks at an item."""
    with pytest.raises(ExpressionError, match=told):
        read_condition(text, NAMES)


def test_a_condition_fails_for_what_is_no_boolean():
    """As it does in columns."""
    condition = read_condition("other.x", NAMES).item_function()
    assert [condition({"x": one}) for one in (True, False, None)] == [True, False, None]
    with pytest.raises(TypeError, match="a Boolean is expected, not int"):
        condition({"x": 1})


@pytest.mark.parametrize(
    ("carried", "known"), [(Pair, True), (Row, True), (dict, False), (Mapping, False), (Any, False)]
)
def test_which_types_tell_their_fields(carried, known):
    """If the type declares its fields, a wrong one is an error at once; otherwise when an item comes."""
    names = Names("jams", {"x": PortType(carried)})
    read("x.time == 1", names)
    if known:
        with pytest.raises(ExpressionError, match="has no field 'tim'"):
            read("x.tim == 1", names)
    else:
        read("x.tim == 1", names)


def test_columns_tell_their_fields():
    """A port with a schema knows its columns, and what is nested in them."""
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([pa.field("time", pa.int64(), nullable=False), ("at", pa.struct([("road", pa.int32())]))])
    names = Names("jams", {"x": PortType(pa.RecordBatch, "columns", schema)})
    assert read("x.time == 1", names).item_function()({"time": 1})
    assert [str(read(text, names).type) for text in ("x.time + 1", "x.at.road + 1")] == ["int", "int | None"]
    for text in ("x.speed == 1", "x.at.rod == 1"):
        with pytest.raises(ExpressionError, match="has no field"):
            read(text, names)


def test_nothing_else_can_be_reached():
    """No builtin stands behind a name, and an item whose field raises passes its error on."""
    for text in ("print", "__import__", "__builtins__", "report.time + __name__", "__import__('os')", "eval('1')"):
        with pytest.raises(ExpressionError):
            read(text, NAMES)
    with pytest.raises(ZeroDivisionError):
        value("1 / report.time", Report(0))


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "1 + " * 3_000_000 + "1",
        "(" * 1000 + "1" + ")" * 1000,
        "-" * 1900 + "1",
        "not " * 450 + "True",
        "[" * 150 + "]" * 150,
        "coalesce(" * 180 + "1" + ")" * 180,
        "1 if True else " * 130 + "1",
        "(1 if True else " * 110 + "1" + ")" * 110,
        "1 < (" * 190 + "1" + ")" * 190,
        "+".join(["1"] * 1000),
        " and ".join(["True"] * 280),
        f"coalesce({', '.join(['None'] * 300)}, 1)",
        "1 < " * 480 + "1",
        "9**9**9",
        "'x' * 10**9",
        "9" * 1990,
        "item.x" + "[0]" * 600,
        "min(" * 59 + "item.x" + ", 1)" * 59,
        "bucket(1, " * 59 + "item.x" + ")" * 59,
        "replace(" * 40 + "item.y" + ", 'a', 'aaaaaaaaaaaaaaa')" * 40,
        "lower(" * 59 + "item.y" + ")" * 59,
        "1 < (True == (" * 20 + "item.x" + " < 3) < True) < 4" * 20,
    ],
    ids=lambda text: text[:14],
)
def test_hostile_text_takes_little_time_and_memory(text):
    """It is refused, or computed; never a recursion without end, and never gigabytes."""
    names = Names("x", {"item": PortType()})
    tracemalloc.start()
    begin = time.process_time()
    row = {"x": 2, "y": "aé" * 20}
    try:
        function = read(text, names).item_function()
        columns = read(text, names).column_function()
    except ExpressionError:
        pass
    else:
        import pyarrow as pa

        outcomes = []
        for compute in (lambda: function(row), lambda: columns(pa.RecordBatch.from_pylist([row]))[0].as_py()):
            try:
                outcomes.append(compute())
            except (ValueError, TypeError) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
    taken, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 5
    assert peak < 100e6


def test_deep_expressions_leave_room_on_the_stack():
    """The deepest ones are read and computed where half of the stack is in use."""
    pa = pytest.importorskip("pyarrow")
    names = Names("x", {"item": PortType()})
    texts = [
        "coalesce(item.n, " * (DEEPEST - 2) + "1" + ")" * (DEEPEST - 2),
        "(1 if item.x == 3 else " * (DEEPEST - 2) + "1" + ")" * (DEEPEST - 2),
        "(1 // (1 if item.x == 3 else 1) if item.x == 2 else 5) + " * 30 + "1",
        "1 + (" * (DEEPEST - 2) + "item.x" + ")" * (DEEPEST - 2),
        " or ".join(["item.x==3"] * 150),
        "+".join(["item.x"] * 280),
    ]

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
            return
        for text in texts:
            expression = read(text, names)
            row = {"x": 2, "n": None}
            expected = expression.item_function()(row)
            assert expression.column_function()(pa.RecordBatch.from_pylist([row])).to_pylist() == [expected]

    deep(sys.getrecursionlimit() // 2 - 80)


def test_warnings_of_the_parser_do_not_leak():
    """A text from outside warns no one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read(r"'\d' == other and (1if other == 2 else 2) == 1", NAMES).item_function()
    assert not caught


def test_durations_and_dates_go_together():
    """What has no literal has a function."""
    assert value("report.at + duration(60) - report.at", Report(1)) == timedelta(seconds=60)
    assert value("date('2024-01-02') - date(report.at)", Report(1)) == timedelta(days=1)
    assert value("date(report.at)", Report(1)) == date(2024, 1, 1)

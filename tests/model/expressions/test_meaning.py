"""The sentences of the page on expressions, each for items and for columns."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from exop import Application, hookimpl
from exop.errors import ExpressionError, SettingError
from exop.expressions import Function, Names, read
from exop.model.expressions.functions import FUNCTIONS
from exop.plugin import Plugins, PortType
from exop.runtime.catalog import known_slets
from exop.stock.rows import Split
from exop.testing import collected
from exop.testing import open as open_slet

NAMES = Names("x", {"item": PortType()})
BERLIN = ZoneInfo("Europe/Berlin")
NAN = float("nan")


def value(text: str, **fields: Any) -> Any:
    """The value of an expression for one item, which is that for a column of one row."""
    expression = read(text, NAMES)
    found = expression.item_function()(fields)
    batch = pa.RecordBatch.from_pylist([fields]) if fields else pa.RecordBatch.from_pylist([{"_": 1}])
    (column,) = expression.column_function()(batch).to_pylist()
    assert column == found or (column != column and found != found), (column, found)
    return found


def fails(text: str, **fields: Any) -> None:
    """An expression fails for an item, and for a column of one row."""
    expression = read(text, NAMES)
    batch = pa.RecordBatch.from_pylist([fields or {"_": 1}])
    for compute, given in ((expression.item_function(), fields), (expression.column_function(), batch)):
        with pytest.raises((ArithmeticError, ValueError, TypeError, KeyError)):  # those of Arrow are ValueErrors
            compute(given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[(text, None) for text in ("None + 1", "lower(None)", "None > 60", "not None", "-item.n", "item.n[0]")],
        *[("False and None", False), ("True or None", True), ("True and None", None), ("False or None", None)],
        *[("None and False", False), ("None or True", True), ("item.n and item.no", False)],
        *[("2 in [1, None]", None), ("1 in [1, None]", True), ("None in []", False), ("None in [1]", None)],
        *[("2 not in [1, None]", None), ("1 not in [1, None]", False), ("item.n in 'text'", None)],
        *[("1 if None else 2", 2), ("coalesce(None, 3)", 3), ("None is None", True), ("min(1, None)", None)],
        *[("1 < None < 3", None), ("3 < 2 < item.n", False), ("item.r.x", None), ("item.n is not None", False)],
    ],
)
def test_null_is_an_unknown_value(text, expected):
    """As in SQL."""
    assert value(text, n=None, no=False, r=None) is expected or value(text, n=None, no=False, r=None) == expected


def test_only_what_is_reached_is_computed():
    """A failure that is not reached is none, for each row of a batch."""
    for text in (
        "100 // item.n if item.n != 0 else 0",
        "item.n != 0 and 100 // item.n > 0",
        "item.n == 0 or 100 // item.n > 0",
        "coalesce(item.n, 1 // 0)",
        "0 if item.n == 0 else 1 if item.n == 1 else 100 // (item.n - 1)",
        "False and 1 // 0 > 0",
    ):
        expression = read(text, NAMES)
        items = [{"n": one} for one in (0, 5, 1, 0, 200)]
        expected = [expression.item_function()(item) for item in items]
        assert expression.column_function()(pa.RecordBatch.from_pylist(items)).to_pylist() == expected
    fails("None and 1 // 0 > 0")  # NULL does not decide


def test_an_integer_beyond_64_bits_fails():
    """In each operation, not only at the end."""
    for text in (
        "item.n + 1",
        "item.n * 2",
        "-item.low",
        "abs(item.low)",
        "item.low - 1",
        "item.low // -1",
        "item.n + 1 - 1",
    ):
        fails(text, n=2**63 - 1, low=-(2**63))
    assert value("item.low % -1", low=-(2**63)) == 0
    assert value("item.low == -9223372036854775808", low=-(2**63)) is True
    assert value("item.low", low=-(2**63)) == -(2**63)
    fails("floor(item.f)", f=1e19)
    fails("round(item.f)", f=float("inf"))
    fails("int(item.f)", f=NAN)


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, -3), (0, 5), (7.5, -2.0), (1.0, 0.1)])
def test_division_rounds_down(a, b):
    """As in Python."""
    assert value("item.a // item.b", a=a, b=b) == a // b
    assert value("item.a % item.b", a=a, b=b) == a % b
    assert value("item.a / item.b", a=a, b=b) == a / b
    assert value(f"item.a // {b}", a=a) == a // b
    assert value(f"item.a % ({b})", a=a) == a % b


def test_division_of_large_integers_is_exact():
    """Floats would be off by one before they are divided."""
    assert value("round(item.a / item.b)", a=-(2**53) - 1, b=7) == round((-(2**53) - 1) / 7)
    assert value("item.a / 7", a=2**63 - 1) == (2**63 - 1) / 7


def test_division_by_zero_fails():
    """For floats too."""
    for sign in ("/", "//", "%"):
        fails(f"item.a {sign} item.b", a=1, b=0)
        fails(f"item.a {sign} item.b", a=1.0, b=0.0)
        fails(f"item.a {sign} 0", a=1.0)
        assert value(f"item.a {sign} item.b", a=None, b=0) is None


def test_nan_is_equal_to_itself_and_greater_than_all_numbers():
    """In comparisons, `min` and `max`."""
    for text in (
        "item.x > 3",
        "item.x >= item.y",
        "item.x > item.y",
        "item.x == item.x",
        "item.y < item.x",
        "3 <= item.x",
    ):
        assert value(text, x=NAN, y=float("inf")) is True
    for text in ("item.x < 3", "item.x != item.x", "item.x > item.x", "item.x == 3", "item.x <= item.y"):
        assert value(text, x=NAN, y=1.0) is False
    assert value("min(item.x, 1.0)", x=NAN) == 1.0
    assert value("min(1.0, item.x)", x=NAN) == 1.0
    assert value("max(item.x, 1.0) == item.x", x=NAN) is True


def test_integers_and_floats_are_compared_exactly():
    """Also where a float has no neighbour for the integer."""
    assert value("9007199254740993 > 9007199254740992.0") is True
    assert value("item.i > item.f", i=2**53 + 1, f=2.0**53) is True
    assert value("item.i == 9007199254740992.0", i=2**53 + 1) is False
    assert value("item.f < 9007199254740993", f=2.0**53) is True
    assert value("item.i < item.f", i=5, f=float("inf")) is True
    assert value("item.i < 2.5", i=2) is True
    assert value("item.i >= 1e300", i=2) is False


def test_integers_become_floats_where_they_share_a_column():
    """One beyond 2**53 fails."""
    assert isinstance(value("min(item.i, 2.5)", i=1), float)
    fails("min(item.i, 2.5)", i=-(2**53) - 1)


def test_booleans_count_as_numbers_and_logic_takes_booleans_alone():
    """Whatever their class."""
    assert value("item.b + item.b", b=True) == 2
    assert value("item.b > 0.5", b=True) is True
    fails("item.n and True", n=1)
    fails("1 if item.n else 2", n=1)


def test_numbers_of_numpy_count_as_those_of_python():
    """They do not overflow silently, divide by zero, or hide that they are Booleans."""
    row = {"i": np.int64(2**62), "f": np.float64(1), "b": np.bool_(True), "z": np.float64(0), "s": np.float32(0.1)}
    function = {text: read(text, NAMES).item_function() for text in ("item.i * 4", "item.f / item.z")}
    for compute, error in zip(function.values(), (OverflowError, ZeroDivisionError), strict=True):
        with pytest.raises(error):
            compute(row)
    for text, expected in (
        ("item.b or False", True),
        ("item.b and item.f > 0", True),
        ("not item.b", False),
        ("1 if item.b else 2", 1),
        ("item.b + item.b", 2),
        ("item.s == 0.1", False),
        ("item.i in [1, 4611686018427387904]", True),
    ):
        found = read(text, NAMES).item_function()(row)
        assert (found, type(found)) == (expected, type(expected)), text


def test_texts_are_counted_in_characters():
    """Not in bytes; the rest is that of Unicode."""
    assert value("len(item.s)", s="ß😀") == 2
    assert value("find(item.s, 'b')", s="ß😀b") == 2
    assert value("upper(item.s)", s="ß") == "SS"
    assert value("lower(item.s)", s="İ") == "i̇"
    assert value("strip(item.s)", s="\x1c\u2003a ") == "a"
    assert value("item.s[::2]", s="abc") == "ac"
    assert value("item.s < item.t", s="\uffff", t="😀") is True
    assert value("replace(item.s, '', '-')", s="ab") == "-a-b-"


def test_times_with_zones_are_instants():
    """In October, 2:30 in Berlin comes twice."""
    first, second = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN), datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)
    assert value("item.a < item.b", a=first, b=second) is True
    assert value("item.b - item.a", a=first, b=second) == timedelta(hours=1)
    later = value("item.a + duration(3600)", a=first)
    assert later.astimezone(UTC) == second.astimezone(UTC)
    assert value("hour(item.a)", a=first) == 2
    assert value("timestamp(item.a)", a=second) == second.timestamp()
    assert value("timestamp(item.a)", a=datetime(1970, 1, 2)) == 86400.0


def test_a_time_with_a_zone_and_one_without_do_not_go_together():
    """Neither compared nor subtracted."""
    fields = {"a": datetime(2024, 1, 1), "b": datetime(2024, 1, 1, tzinfo=UTC)}
    for text in ("item.a < item.b", "item.a == item.b", "item.a - item.b", "max(item.a, item.b)"):
        fails(text, **fields)


def test_nanoseconds_are_cut_off():
    """No time of Python has them."""
    batch = pa.record_batch({"t": pa.array([1_500_000_000_123_456_789], pa.timestamp("ns"))})
    (found,) = read("item.t", NAMES).column_function()(batch).to_pylist()
    assert found == datetime(2017, 7, 14, 2, 40, 0, 123456)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function(name):
    """Its value is that of the page."""
    text, expected = FUNCTIONS[name].example
    found = value(text)
    shown = eval(expected, {"datetime": __import__("datetime")})
    assert (found, type(found)) == (shown, type(shown))


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("item.c * 2", pa.array([Decimal("1.50"), None])),
        ("item.c[0]", pa.array([["a"], None, ["b", None]])),
        ("'a' in item.c", pa.array([["a"], None, ["b", None]])),
        ("len(item.c)", pa.array([["a"], None, []])),
        ("item.c == item.c", pa.array([b"a", None])),
        ("item.c.x + 1", pa.array([{"x": 1}, None, {"x": None}])),
        ("lower(item.c)", pa.array(["A", None]).dictionary_encode()),
        ("item.c + 'x'", pa.array(["A", None], pa.large_string())),
        ("item.c is None", pa.array([None, None])),
        ("item.c + 1", pa.array([None, None])),
        ("item.c * 2", pa.array([1, None], pa.uint8())),
        ("item.c + 1", pa.array([1, None], pa.float32())),
        ("item.c if item.c is not None else []", pa.array([["a"], None])),
        ("[item.c, 1]", pa.array([1, None])),
    ],
)
def test_columns_of_any_type(text, column):
    """By Arrow or by rows."""
    expression, batch = read(text, NAMES), pa.record_batch({"c": column})
    assert expression.column_function()(batch).to_pylist() == [*map(expression.item_function(), batch.to_pylist())]


def test_a_column_has_one_type():
    """Values of several fail, with what they are."""
    function = read("item.a if item.b else item.c", NAMES).column_function()
    with pytest.raises(TypeError, match="no column can hold all values, which are int, str"):
        function(pa.record_batch({"a": ["x", "y"], "b": [True, False], "c": [1, 2]}))


def test_a_batch_of_which_a_row_is_not_for_arrow():
    """It goes by rows, with the type of the others; the errors are those of items."""
    function = read("100 // item.n if item.n != 0 else None", NAMES).column_function()
    for column, expected in (([1, 7], [100, 14]), ([0, 7], [None, 14]), ([0, 0], [None, None])):
        found = function(pa.record_batch({"n": column}))
        assert (found.to_pylist(), found.type) == (expected, pa.int64())
    with pytest.raises(ZeroDivisionError):
        read("1 / item.n", NAMES).column_function()(pa.record_batch({"n": [0]}))
    with pytest.raises(TypeError, match="Booleans are no numbers"):
        read("coalesce(item.f, item.b)", NAMES).column_function()(
            pa.record_batch({"f": [1.5, None], "b": [True, True]})
        )


def test_a_setting_beyond_64_bits_is_compared():
    """As in Python; it has no column."""
    condition = read("item.n < limit", Names("x", {"item": PortType()}, ("limit",)))
    assert condition.item_function({"limit": 2**70})({"n": 1}) is True
    assert condition.column_function({"limit": 2**70})(pa.record_batch({"n": [1]})).to_pylist() == [True]


def test_what_is_no_column():
    """The whole item, and a column that is missing."""
    with pytest.raises(ExpressionError, match="columns have no item: name the fields that are meant"):
        read("item == 1", NAMES).column_function()
    with pytest.raises(ExpressionError, match="no column 'spead'; did you mean 'speed'"):
        read("item.spead", NAMES).column_function()(pa.record_batch({"speed": [1.0]}))


def test_batches_of_another_schema_and_without_rows():
    """The same function takes them."""
    function = read("item.n // 0 if False else item.n + 1", NAMES).column_function()
    for column in (pa.array([1, 2]), pa.array([1.5]), pa.array([], pa.int64()), pa.array([1, 2], pa.int8())):
        assert function(pa.record_batch({"n": column})).to_pylist() == [one + 1 for one in column.to_pylist()]


def test_missing_fields_fail():
    """Of rows, objects and nested ones."""
    for text, item in (("item.x", {}), ("item.x", SimpleNamespace()), ("item.r.x", {"r": {}})):
        with pytest.raises((KeyError, AttributeError)):
            read(text, NAMES).item_function()(item)


def test_null_goes_to_the_rest_of_a_split():
    """A condition that is NULL does not hold; text where a number should be fails."""
    with open_slet(Split, conditions={"hot": "item.v > 60"}) as split:
        for item in ({"v": 70}, {"v": None}, {"v": 1}):
            split.item(item)
        assert collected(split.outputs["hot"]) == [{"v": 70}]
        assert collected(split.rest) == [{"v": None}, {"v": 1}]
        with pytest.raises(ValueError, match=r"hot = 'item.v > 60' cannot be tested: TypeError"):
            split.item({"v": "70"})


def distance(a: float, b: float = 0.0) -> float:
    """The distance of two places."""
    return abs(a - b)


class Geo:
    """A plugin."""

    @hookimpl
    def register_functions(self):
        """Two functions, one with a form for columns."""
        return [distance, Function.of(half, arrow=lambda x: x)]


def half(x: float) -> float:
    """Half of it; the form for columns is wrong, so that one sees which is used."""
    return x / 2


def test_functions_of_plugins():
    """They have the name of the plugin; columns go by rows, or by the Arrow form."""
    plugins = Plugins()
    plugins.register("geo-maps", Geo())
    catalog = known_slets(plugins)
    assert sorted(catalog.functions) == ["geo_maps.distance", "geo_maps.half"]
    assert value("geo_maps.distance(item.a, item.b)", a=1, b=3.5) == 2.5
    assert value("geo_maps.distance(item.a)", a=None) is None
    assert read("geo_maps.half(item.a)", NAMES).item_function()({"a": 2}) == 1
    assert read("geo_maps.half(item.a)", NAMES).column_function()(pa.record_batch({"a": [2]})).to_pylist() == [2]
    with pytest.raises(ExpressionError, match=r"geo_maps.distance\(a: float, b: float = …\) -> float"):
        read("geo_maps.distance()", NAMES)
    with pytest.raises(ExpressionError, match="argument 1 is str"):
        read("geo_maps.distance('x')", NAMES)
    plugins.unregister("geo-maps")
    catalog.gather()
    with pytest.raises(ExpressionError, match="there is no function 'geo_maps.half'"):
        read("geo_maps.half(item.a)", NAMES)


def test_a_split_calls_functions_of_plugins():
    """An application knows those of its plugins."""
    plugins = Plugins()
    plugins.register("stock", __import__("exop.stock").stock)
    plugins.register("geo", Geo())
    app = Application("near", plugins=plugins)
    numbers = app.add("numbers", "stock:count_up", to=3)
    app.add("split", "stock:split", item=numbers, conditions={"near": "geo.distance(item, 2) < 1"})
    with pytest.raises(ExpressionError, match="no function 'geo.distant'"):
        app.add("other", "stock:split", item=numbers, conditions={"near": "geo.distant(item, 2) < 1"})
    with pytest.raises(SettingError, match="'rest' is the port"):
        app.add("other", "stock:split", item=numbers, conditions={"rest": "item > 1"})


def test_items_need_no_arrow():
    """It is loaded for columns alone; and a platform without conditions loads nothing of expressions."""
    program = (
        "import sys, exop.platform, exop.stock.slets\n"
        "assert not [name for name in sys.modules if 'expressions' in name]\n"
        "from exop.expressions import Names, read\n"
        "from exop.plugin import PortType\n"
        "assert read('item.x + 1', Names('x', {'item': PortType()})).item_function()({'x': 1}) == 2\n"
        "assert not {'pyarrow', 'numpy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_have_functions_of_their_own():
    """For an engine that offers some."""
    names = Names("x", {"item": PortType()}, functions={"twice": Function.of(lambda x: x * 2)})
    assert read("twice(item.a)", names).item_function()({"a": 2}) == 4
    added = Function.of(
        lambda x, y: x + y, arrow=lambda x, y: pa.array([*zip(x.to_pylist(), y.to_pylist(), strict=True)])
    )
    function = read("added(item.a, 1)", Names("x", {"item": PortType()}, functions={"added": added})).column_function()
    assert function(pa.record_batch({"a": [2, 3]})).to_pylist() == [[2, 1], [3, 1]]  # constants are arrays
    with pytest.raises(TypeError, match="can only be given by name"):
        Function.of(lambda *, x: x)

"""Any expression means the same for items, for columns, and in SQL where that has it."""

from __future__ import annotations

import math
import sqlite3
import types
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from exop.errors import ExpressionError
from exop.expressions import Names, read, row_function
from exop.plugin import PortType
from tests.model.expressions.trees import SCHEMA, Text, expressions, plain_rows, rows

TYPED = Names("x", {"item": PortType(pa.RecordBatch, "columns", SCHEMA)})
UNTYPED = Names("x", {"item": PortType()})


def examples(count: int) -> settings:
    """The settings of a property."""
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal; floats to 1e-9."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        both_nan = math.isnan(a) and math.isnan(b)
        return both_nan or a == b or math.isclose(a, b, rel_tol=1e-9)
    if isinstance(a, datetime) and isinstance(b, datetime):
        return (a.tzinfo is None) == (b.tzinfo is None) and a.timestamp() == b.timestamp()
    return type(a) is type(b) and a == b


def failure(compute: Any, *given: Any) -> Any:
    """The value, or the error."""
    try:
        return compute(*given)
    except Exception as error:  # noqa: BLE001 (whatever it is)
        return error


def differs(text: str, items: list[dict[str, Any]], names: Names) -> str | None:
    """What differs between the form for items and that for columns."""
    expression = read(text, names)
    function = expression.item_function()
    batch = pa.RecordBatch.from_pylist(items, SCHEMA)
    expected = [failure(function, row) for row in batch.to_pylist()]
    found = failure(expression.column_function(), batch)
    if isinstance(found, (TypeError, OverflowError)) and "column" in str(found):
        return None  # a column has one type; items whose type is not known may have several
    if isinstance(found, Exception) or any(isinstance(one, Exception) for one in expected):
        if names is UNTYPED and isinstance(found, pa.DoubleArray) and OverflowError in {*map(type, expected)}:
            return None  # an integer that is a float in a column
        fail = [isinstance(found, Exception), any(isinstance(one, Exception) for one in expected)]
        return None if all(fail) else f"{expected} {found!r}"
    pairs = zip(expected, found.to_pylist(), strict=True)
    return None if all(same(*pair) for pair in pairs) else f"{expected} {found.to_pylist()}"


@examples(400)
@given(expressions(), rows)
def test_items_and_columns_have_the_same_values(text, items):
    """For each row the same value, or both fail: with types known, and without."""
    for names in (UNTYPED, TYPED):
        try:
            read(text.python, names)
        except ExpressionError:
            continue
        assert differs(text.python, items, names) is None


@examples(150)
@given(st.lists(expressions(), min_size=1, max_size=4), rows)
def test_a_row_has_the_values_of_its_expressions_and_a_filter_the_items_for_which_one_holds(texts, items):
    """Computed at once or one by one; if one fails, the row fails, and its name is noted."""
    for names in (UNTYPED, TYPED):
        found = {}
        for number, text in enumerate(texts):
            with suppress(ExpressionError):
                found[f"f{number}"] = read(text.python, names)
        functions, row_of = {name: one.item_function() for name, one in found.items()}, row_function(found)
        for item in items:
            wanted = {name: failure(function, item) for name, function in functions.items()}
            row = failure(row_of, item)
            if failed := [name for name, one in wanted.items() if isinstance(one, Exception)]:
                assert type(row) is type(wanted[failed[0]])
                assert f"in the expression of {failed[0]!r}" in row.__notes__
            else:
                assert [*row] == [*wanted]
                assert all(same(row[name], one) for name, one in wanted.items())
        for condition in found.values():
            if str(condition.type) in ("bool", "bool | None"):
                holds, kept = condition.item_function(), condition.filter_function()
                for item in items:
                    expected, found_item = failure(holds, item), failure(kept, item)
                    if isinstance(expected, Exception):
                        assert type(found_item) is type(expected)
                    else:
                        assert found_item is (item if expected else None)


@examples(150)
@given(expressions(), rows)
def test_rows_objects_and_numbers_of_numpy_have_the_same_values(text, items):
    """A dictionary, an object with attributes, and scalars of NumPy."""
    expression = failure(read, text.python, UNTYPED)
    assume(not isinstance(expression, ExpressionError))
    function = expression.item_function()
    classes = {
        "i": np.int64,
        "j": np.int16,
        "u": np.uint64,
        "f": np.float64,
        "g": np.float32,
        "b": np.bool_,
        "s": np.str_,
    }
    for row in pa.RecordBatch.from_pylist(items, SCHEMA).to_pylist():
        scalars = {
            name: classes[name](one) if name in classes and one is not None else one for name, one in row.items()
        }
        expected = failure(function, row)
        for other in (types.SimpleNamespace(**row), scalars):
            found = failure(function, other)
            if isinstance(expected, Exception):
                assert type(found) is type(expected)
            else:
                found = found.item() if isinstance(found, np.generic) else found
                assert same(expected, found), (expected, found)


@examples(300)
@given(expressions(sql=True), plain_rows)
@example(Text("(item.i in [1, 2]) or item.b", "(i IN (1, 2)) OR b"), [{"i": None, "f": 1.0, "s": "", "b": None}])
def test_sql_has_the_same_values(text, items):
    """SQLite, for what it has: numbers that are neither large nor NaN, text of ASCII, three-valued logic."""
    expression = failure(read, text.python, UNTYPED)
    assume(not isinstance(expression, ExpressionError))
    function = expression.item_function()
    with sqlite3.connect(":memory:") as database:
        for row in items:
            expected = failure(function, row)
            if isinstance(expected, (OverflowError, float)) and (
                isinstance(expected, OverflowError) or abs(expected) > 2**53
            ):
                continue
            sql = f"SELECT {text.sql} FROM (SELECT :i AS i, :f AS f, :s AS s, :b AS b)"
            (found,) = database.execute(sql, row).fetchone()
            found = bool(found) if isinstance(expected, bool) and found in (0, 1) else found
            assert found == expected or same(found, expected), (found, expected)


def test_a_planted_mistake_is_found():
    """The comparison sees a wrong value, a value for a failure, and a failure for a value."""
    good = [{"i": 1}, {"i": 5}]
    assert differs("item.i + 1", good, UNTYPED) is None
    assert differs("1 / (item.i - 5)", good, UNTYPED) is None  # both fail
    assert not same(1, 2)
    assert not same(1.0, 1.1)
    assert not same("a", None)


@examples(60)
@given(expressions(), rows, st.data())
def test_a_part_of_the_rows_has_the_values_of_the_whole(text, items, data):
    """A slice, and a table of several chunks."""
    expression = failure(read, text.python, UNTYPED)
    assume(not isinstance(expression, ExpressionError))
    function = expression.column_function()
    batch = pa.RecordBatch.from_pylist(items, SCHEMA)
    whole = failure(function, batch)
    assume(not isinstance(whole, Exception))
    at = data.draw(st.integers(0, len(items)))
    table = pa.Table.from_batches([batch.slice(0, at), batch.slice(at)])
    halves = [*function(batch.slice(0, at)).to_pylist(), *function(batch.slice(at)).to_pylist()]
    for found in (function(table).to_pylist(), halves):
        assert all(same(*pair) for pair in zip(whole.to_pylist(), found, strict=True))

"""From a query's rows to the declared columns."""

import pyarrow as pa
import pytest
from exop_spark.execution.frames import differences
from exop_spark.storage.staging import conform

DECLARED = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.float64())])


def test_all_differences_are_told():
    """Missing, undeclared and unfitting columns, each by name."""
    found = pa.schema([("b", pa.string()), ("c", pa.int32())])
    assert differences(found, DECLARED) == [
        "it has no column 'a'",
        "it has a column 'c' that is not declared",
        "its column 'b' is string, declared is double",
    ]


def test_a_name_that_two_columns_have_is_told():
    """It would not be clear which of them leaves."""
    found = pa.schema([("a", pa.int32()), ("b", pa.float64()), ("b", pa.float64())])
    assert differences(found, DECLARED) == ["it has 2 columns 'b'"]


def test_numbers_may_be_of_another_width():
    """Spark's count is 64 bits wide; a declared int32 takes it as long as the values fit."""
    assert differences(pa.schema([("b", pa.int64()), ("a", pa.int64())]), DECLARED) == []


def test_columns_come_out_as_declared():
    """In the declared order and types, as one batch."""
    table = pa.table({"b": [1, 2], "a": [3, 4]})
    batch = conform(table, DECLARED)
    assert batch.schema == DECLARED
    assert batch.to_pydict() == {"a": [3, 4], "b": [1.0, 2.0]}


def test_no_rows_are_an_empty_batch():
    """A batch without rows has the columns too."""
    assert conform(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())}), DECLARED).num_rows == 0


@pytest.mark.parametrize("value", [2**40, None])
def test_values_that_do_not_fit_are_errors(value):
    """Too large, or empty where nothing may be empty: never silently another value."""
    with pytest.raises(pa.ArrowInvalid, match="the column 'a'"):
        conform(pa.table({"a": pa.array([value], pa.int64()), "b": [1.0]}), DECLARED)

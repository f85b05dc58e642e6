"""The hash of keys: equal for keys that are equal, for items and columns, in every process and release."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.model.meshes.partitions import partition_of, partitions_of_column, ranges

#: Keys with their partitions among 256: part of the persisted format, never to be changed.
GOLDEN = {
    0: 0,
    1: 158,
    -1: 99,
    2**61 - 1: 0,
    2**64: 241,
    -(2**200): 14,
    0.5: 80,
    -1e300: 92,
    float("inf"): 1,
    "": 0,
    "a": 179,
    "xway-7": 97,
    "ü€😀": 66,
    b"\xff\x00": 101,
    None: 0,
    (): 0,
    (1, "a", None): 110,
    Decimal("0.1"): 17,
    date(2024, 2, 29): 32,
    datetime(2024, 2, 29, 12, 30, 1, 5): 26,
    datetime(2024, 2, 29, 12, tzinfo=UTC): 70,
    UUID(int=2**127 + 7): 26,
}

KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.decimals(),
)


def test_the_partitions_of_known_keys_never_change():
    """State is stored and handed over by partition: these values are a format."""
    assert {key: partition_of(key) for key in GOLDEN} == GOLDEN


@pytest.mark.parametrize(
    "keys",
    [
        [1, 1.0, True, Decimal(1), Fraction(1), np.int8(1), np.float32(1), np.bool_(True)],
        [0.0, -0.0, 0, False, Decimal("-0")],
        [0.5, Decimal("0.50"), Fraction(1, 2), np.float64(0.5)],
        [2**80, 2.0**80, Decimal(2**80)],
        [-(10**30), Decimal("-1e30"), Decimal("-1.00e30")],
        ["a", np.str_("a")],
        [(1, "x"), (1.0, "x"), (True, "x")],
        [datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))],
        [float("nan"), float("nan"), Decimal("nan")],
    ],
)
def test_equal_keys_have_one_partition(keys):
    """Keys that are equal in Python are one key, whatever their types; and so are all that are no number."""
    assert len({partition_of(key, 65_536) for key in keys}) == 1


@pytest.mark.parametrize("key", [Decimal("1e999999999"), Decimal("-1e-999999999"), Fraction(1, 2**61 - 1)])
def test_no_number_is_too_large_or_too_small(key):
    """A decimal is not written out for that."""
    assert 0 <= partition_of(key) < 256


@pytest.mark.parametrize("key", [[1], {"a": 1}, object(), Enum("Colour", "red").red, 1j, {1}, timedelta(1)])
def test_a_key_of_another_type_is_refused_by_name(key):
    """The error names the value, its type, and the types that there are."""
    with pytest.raises(TypeError, match=rf"is a {type(key).__qualname__}, and belongs to no partition; partition by a"):
        partition_of(key)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(1, 65_536))
def test_a_column_of_integers_has_the_partitions_of_its_items(values, partitions):
    """Of any width, signed or not, in Arrow or NumPy."""
    wanted = [partition_of(value, partitions) for value in values]
    assert partitions_of_column(pa.array(values, pa.int64()), partitions).tolist() == wanted
    assert partitions_of_column(np.array(values, np.int64), partitions).tolist() == wanted
    unsigned = np.array([value % 2**64 for value in values], np.uint64)
    wanted = [partition_of(int(value), partitions) for value in unsigned]
    assert partitions_of_column(pa.array(unsigned), partitions).tolist() == wanted


@given(st.lists(st.floats() | st.integers(-(2**53), 2**53).map(float)), st.integers(1, 65_536))
def test_a_column_of_floats_has_the_partitions_of_its_items(values, partitions):
    """Whole or not, denormal, infinite, or no number."""
    wanted = [partition_of(value, partitions) for value in values]
    assert partitions_of_column(pa.array(values, pa.float64()), partitions).tolist() == wanted
    assert partitions_of_column(np.array(values, np.float64), partitions).tolist() == wanted


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "b", "a", "ü"]),
        pa.array([1, None, 3], pa.int32()),
        pa.array([1.5, None, 3.0], pa.float32()),
        pa.array([True, False, None]),
        pa.array([b"a", b"", None]),
        pa.array(["a", "b", "a", None]).dictionary_encode(),
        pa.array([date(2024, 1, 1), None]),
        pa.array([datetime(2024, 1, 1, 5), None], pa.timestamp("us")),
        pa.array([Decimal("1.50"), Decimal("2.00"), None]),
        pa.array([1, 2, 3, 4, 5])[2:4],
        pa.array([], pa.string()),
        pa.array([UUID(int=2**127 + 7).bytes, None], pa.uuid()),
        pa.chunked_array([["a", None], ["b", "a"]]),
        pa.chunked_array([[1, None], [3]]),
        pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]),
    ],
    ids=lambda column: str(column.type),
)
def test_a_column_of_any_type_has_the_partitions_of_its_items(column):
    """With missing values, which are the key `None`; also of a slice."""
    assert partitions_of_column(column).tolist() == [partition_of(one) for one in column.to_pylist()]


def test_a_column_of_another_type_is_refused_by_name():
    """As its items are."""
    with pytest.raises(TypeError, match=r"^\[1\] is a list, and belongs to no partition"):
        partitions_of_column(pa.array([[1]]))


def test_a_numpy_column_of_texts_has_the_partitions_of_its_items():
    """NumPy keeps texts of one width."""
    assert partitions_of_column(np.array(["a", "bcd"])).tolist() == [partition_of("a"), partition_of("bcd")]


@pytest.mark.parametrize(
    "keys",
    [
        range(10_000),
        range(0, 2_560_000, 256),
        range(-10_000, 0),
        [number / 10 for number in range(10_000)],
        [f"car-{number}" for number in range(10_000)],
        [1_700_000_000_000_000_000 + number * 1_000_000_000 for number in range(10_000)],
        [(number // 100, number % 100) for number in range(10_000)],
    ],
)
def test_usual_keys_are_spread_evenly(keys):
    """Numbers in a row, multiples, texts with numbers, moments: no partition has twice its share, none is empty."""
    counts = np.bincount([partition_of(key) for key in keys], minlength=256)
    assert counts.min() > 0
    assert counts.max() < 2 * 10_000 / 256


@given(KEYS, st.integers(1, 65_536))
def test_a_partition_is_within_bounds(key, partitions):
    """For any key and any number of partitions."""
    assert 0 <= partition_of(key, partitions) < partitions


@given(st.sets(st.text(min_size=1), min_size=1, max_size=40), st.integers(1, 300))
def test_the_ranges_of_a_group_are_even_and_in_the_order_of_names(members, partitions):
    """Each partition has one owner; the ranges differ by one partition at most."""
    found = ranges(members, partitions)
    assert [*found] == sorted(members)
    assert [one for part in found.values() for one in part] == [*range(partitions)]
    sizes = {len(part) for part in found.values()}
    assert max(sizes) - min(sizes) <= 1

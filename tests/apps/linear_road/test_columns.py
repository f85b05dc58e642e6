"""The small helpers around arrays."""

import numpy as np
import pyarrow as pa
import pytest

from apps.linear_road.columns import column, columns, concatenated, grown, record_batch
from apps.linear_road.schema import CHARGES


def test_columns_are_views_of_the_batch():
    """A column is read without a copy, so it cannot be written to."""
    charges = record_batch(CHARGES, *(np.arange(3, dtype=np.int32),) * 3)
    assert not column(charges, "vid").flags.writeable
    assert [values.tolist() for values in columns(charges, "time", "amount")] == [[0, 1, 2], [0, 1, 2]]


def test_columns_of_several_batches_are_joined_in_order():
    """Joining keeps the order of the batches and of their rows."""
    charges = record_batch(CHARGES, *(np.arange(3, dtype=np.int32),) * 3)
    (vids,) = concatenated([charges, charges.slice(1)], "vid")
    assert vids.tolist() == [0, 1, 2, 1, 2]


def test_an_array_grows_by_doubling_and_keeps_its_values():
    """New places hold the fill value, and room for one more makes room for many."""
    array = grown(np.array([7, 8], np.int32), 3, -1)
    assert array.tolist() == [7, 8, -1, -1]
    assert grown(array, 4, -1) is array


def test_a_record_batch_has_its_schemas_types():
    """Wider numbers are taken when they fit, and are an error when they do not: nothing wraps around."""
    narrow = np.arange(3, dtype=np.int32)
    assert record_batch(CHARGES, narrow, narrow, np.arange(3)).schema == CHARGES
    with pytest.raises(pa.ArrowInvalid):
        record_batch(CHARGES, narrow, narrow, np.full(3, 1 << 40))

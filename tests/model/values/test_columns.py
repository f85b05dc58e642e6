"""Arrays and tables are told from other values, also while another thread imports their libraries."""

import sys
from types import ModuleType

import numpy
import pyarrow

from exop.model.values import columns
from exop.model.values.columns import is_columns, write


def test_a_library_that_is_being_imported_has_no_values_yet(monkeypatch):
    """Some of its classes are there: that is not an error, and its values are told as soon as all are."""
    monkeypatch.setattr(columns, "_CLASSES", {})
    partial = ModuleType("pyarrow")
    partial.RecordBatch = pyarrow.RecordBatch
    with monkeypatch.context() as importing:
        importing.setitem(sys.modules, "pyarrow", partial)
        importing.setitem(sys.modules, "numpy", ModuleType("numpy"))
        assert not is_columns(1)
        assert write(1) is None
    assert is_columns(pyarrow.table({"n": [1]}))
    assert is_columns(pyarrow.record_batch({"n": [1]}))
    assert write(numpy.arange(3))[0] == "ARRAY"
    assert not is_columns(1)

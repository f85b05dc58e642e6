"""Inputs as tables: the texts and the types of several inputs."""

import pyarrow as pa
import pytest

from exop.engine.slet import accepted, texts_by_input
from exop.errors import SettingError
from exop.model.slets.ports import PortType

TEXTS = {"cars": "vid int", "tolls": "toll int"}


def test_a_text_alone_belongs_to_the_single_input():
    """A mapping has one for each input."""
    assert texts_by_input("columns", "vid int", "rows") == {"rows": "vid int"}
    assert texts_by_input("columns", TEXTS, "rows") == TEXTS


def test_a_command_line_writes_a_mapping_as_an_inline_table():
    """As in a topology file; a mistake in it names the setting."""
    assert texts_by_input("columns", '{cars = "vid int", tolls = "toll int"}', "rows") == TEXTS
    with pytest.raises(SettingError) as caught:
        texts_by_input("columns", "{cars = 3", "rows")
    assert caught.value.setting == "columns"


def test_columns_are_accepted_whether_they_are_nullable_or_not():
    """Other columns are not: the type remains the declared one, so that the connection is refused."""
    declared = PortType(pa.RecordBatch, "columns", pa.schema([("a", pa.int64())]))
    strict = PortType(pa.RecordBatch, "columns", pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    other = PortType(pa.RecordBatch, "columns", pa.schema([("a", pa.string())]))
    assert accepted(declared, strict).schema == strict.schema
    assert accepted(declared, other) == accepted(declared, None) == declared

"""The history of tolls."""

import lzma

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apps.linear_road.history import load_history
from apps.linear_road.lines import UnreadableInput


def spent(history, *questions):
    """The answers to (vid, day, xway) questions."""
    return history.spent(*(np.array(part, np.int32) for part in zip(*questions, strict=True))).tolist()


def test_a_day_is_the_sum_of_its_rows(tmp_path):
    """Rows of the same vehicle, day and road add up, in whatever order they stand."""
    path = tmp_path / "history.csv"
    path.write_text("9,2,0,41\n9,1,0,14\n9,2,1,7\n9,2,0,1\n")
    history = load_history(path)
    assert spent(history, (9, 2, 0), (9, 1, 0), (9, 2, 1)) == [42, 14, 7]


def test_no_row_means_nothing_spent(tmp_path):
    """Questions without a row, or out of all range, are answered 0."""
    path = tmp_path / "history.csv"
    path.write_text("9,2,0,41\n")
    assert spent(load_history(path), (9, 3, 0), (8, 2, 0), (9, -1, -1), (10, 2, 0)) == [0, 0, 0, 0]


def test_bad_rows_are_counted_and_left_out(tmp_path):
    """A malformed row does not take the rest with it."""
    path = tmp_path / "history.csv.xz"
    path.write_bytes(lzma.compress(b"VID,Day,XWay,Toll\n9,2,0,41\n9,2,0\n-1,2,0,5\n"))
    history = load_history(path)
    assert (history.rows, history.rejects) == (1, 3)
    assert spent(history, (9, 2, 0)) == [41]


def test_parquet_is_read_as_well(tmp_path):
    """Columns are found by place when they have other names."""
    path = tmp_path / "history.parquet"
    pq.write_table(pa.table({"car": [9], "day_no": [2], "road": [0], "paid": [41]}), path)
    assert spent(load_history(path), (9, 2, 0)) == [41]


def test_an_empty_history_answers_nothing_spent(tmp_path):
    """A history without rows is one."""
    path = tmp_path / "history.csv"
    path.write_text("")
    assert spent(load_history(path), (1, 1, 0)) == [0]


def test_a_missing_file_is_named(tmp_path):
    """The error names the path."""
    with pytest.raises(UnreadableInput, match=r"none\.csv cannot be read"):
        load_history(tmp_path / "none.csv")

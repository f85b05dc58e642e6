"""Sources that read files: every cut of them, and what does not fit."""

from __future__ import annotations

import pytest

from exop.stock.sources import Position, read_csv, read_lines
from exop.testing import check_source, feed


def test_reading_lines(tmp_path):
    """Lines without their ends, the last one also without a line feed; it goes on behind the lines it has emitted."""
    path = tmp_path / "in.txt"
    path.write_bytes("a\nß\r\n\nlast".encode("latin-1"))
    assert check_source(read_lines, path=path, encoding="latin-1") == ["a", "ß", "", "last"]
    assert feed(read_lines, path=path, encoding="latin-1", position=Position(number=3)) == ["last"]
    assert feed(read_lines, path=path, encoding="latin-1", position=Position(number=9)) == []


def test_reading_rows(tmp_path):
    """Rows as dictionaries, also those that go over several lines; it goes on behind the rows it has emitted."""
    path = tmp_path / "in.csv"
    path.write_text('n,text\n1,"two\nlines"\n2,\n\n3,"a ""b"""\n', encoding="utf-8")
    rows = [{"n": "1", "text": "two\nlines"}, {"n": "2", "text": ""}, {"n": "3", "text": 'a "b"'}]
    assert check_source(read_csv, path=path) == rows


def test_rows_without_a_head(tmp_path):
    """The names of the columns are given, and another delimiter."""
    path = tmp_path / "in.csv"
    path.write_text("1;a\n2;b\n", encoding="utf-8")
    found = check_source(read_csv, path=path, columns=["n", "text"], delimiter=";")
    assert found == [{"n": "1", "text": "a"}, {"n": "2", "text": "b"}]


@pytest.mark.parametrize("line", ["1", "1,2,3"])
def test_a_row_that_does_not_fit_is_an_error(tmp_path, line):
    """Too few or too many fields are refused."""
    path = tmp_path / "in.csv"
    path.write_text(f"a,b\n0,0\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 3: it needs as many fields"):
        feed(read_csv, path=path)

"""The bench of lines: what counts as a line of code, and what is counted."""

from __future__ import annotations

from bench.lines import code_lines, measure


def test_blank_lines_comments_and_docstrings_do_not_count():
    """A statement of several lines has several, a text in an expression counts."""
    head = '"""Module."""\n\nimport os  # why\n\n# comment\n'
    source = head + 'def f():\n    """Doc\n\n    more."""\n    return """a\nb"""\n'
    assert code_lines(source) == 4


def test_slets_and_engines_are_counted_beside_the_paper():
    """Every result has a figure of the paper, and found its files."""
    found = {result.name: result for result in measure()}
    assert {"lines/slet", "lines/engine/sqlite", "lines/engine/duckdb", "lines/engine/spark"} < found.keys()
    assert all(result.value > 5 and result.against == "the paper" for result in found.values())
    assert found["lines/slet"].value < 55
    assert found["lines/engine/sqlite"].value < 100

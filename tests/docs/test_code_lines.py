"""The numbers of lines of code in the documentation are those of the code."""

from __future__ import annotations

import ast
import io
import re
import tokenize

import pytest

from tests.docs.snippets import ROOT

ENGINES = (ROOT / "docs/explanation/engines.md").read_text()
WRAP = (ROOT / "docs/how-to/wrap-an-engine.md").read_text()
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """The number of lines, without imports, blank lines, comments and docstrings."""
    left_out = set()
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)
        for one in [node] if isinstance(node, (ast.Import, ast.ImportFrom)) else node.body[:1] if documented else []:
            left_out |= set(range(one.lineno, one.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    used = {line for one in tokens if one.type not in LAYOUT for line in range(one.start[0], one.end[0] + 1)}
    return len(used - left_out)


def class_lines(name: str) -> int:
    """The lines of a class in the page on engines of one's own."""
    (text,) = (one for one in re.findall(r"```python\n(.*?)```", WRAP, re.DOTALL) if f"\nclass {name}(" in one)
    (found,) = (one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == name)
    return code_lines(ast.get_source_segment(text, found)) + len(found.decorator_list)


def files(folder: str, *names: str) -> int:
    """The lines of these modules in a folder, or of all."""
    return sum(code_lines(path.read_text()) for name in names or ["**/*.py"] for path in (ROOT / folder).glob(name))


@pytest.mark.parametrize(
    ("row", "engine", "slet"), [("called", "Sqlite", "SqlQuery"), ("commits by itself", "Upserts", "Upserted")]
)
def test_the_examples_have_as_many_lines_as_the_page_says(row, engine, slet):
    """The engine, the slet, and their sum."""
    parts = class_lines(engine), class_lines(slet)
    assert re.search(rf"\| SQLite.*{row}.*\| {sum(parts)} \| {parts[0]}, {parts[1]} \|", WRAP)


def test_the_plugins_have_about_as_many_lines_as_the_pages_say():
    """DuckDB without the aggregate, within a tenth; all of Spark, at least; the slet for comparison, exactly."""
    duckdb = files("plugins/exop-duckdb/exop_duckdb", "engine.py", "slets.py", "queries.py", "__init__.py")
    for page in (ENGINES, WRAP):
        (said,) = re.findall(r"`exop-duckdb`[^|\n]*?(?: \|)? about (\d+)", page)
        assert duckdb == pytest.approx(int(said), rel=0.1)
    assert "it has more than 3 000" in ENGINES
    assert files("plugins/exop-spark/exop_spark") > 3000
    assert f"has {files('apps/linear_road', 'positions.py')} lines here" in ENGINES

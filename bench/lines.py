"""How many lines does a slet have, and the wrapper of an engine, beside those of the paper?

Counted are lines of code: without blank lines, comments and docstrings. The paper (section 5.3) counts 55 lines for a
native slet, of which 46 are generated, and 300 for the wrapper of its XQuery engine.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.harness import Result

ROOT: Final = Path(__file__).parent.parent
PAPER: Final = "the paper"
SLET, ENGINE = 55, 300
#: What counts as the wrapper of an engine: files below a folder.
ENGINES: Final = {
    "duckdb": ("plugins/exop-duckdb/exop_duckdb", "engine.py", "queries.py", "slets.py"),
    "kafka": ("plugins/exop-kafka/exop_kafka", "*.py"),
    "spark": ("plugins/exop-spark/exop_spark", "*.py"),
    "shared": ("exop/engine", "*.py"),
}
_IGNORED: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def measure() -> Iterator[Result]:
    """Count a filter of Linear Road, the SQLite example of the documentation, and the engines in `plugins`."""
    yield _result("slet", code_lines((ROOT / "apps/linear_road/positions.py").read_text()), SLET)
    page = (ROOT / "docs/how-to/wrap-an-engine.md").read_text()
    example = next(text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Engine)" in text)
    yield _result("engine/sqlite", code_lines(example), ENGINE)
    for name, (folder, *patterns) in ENGINES.items():
        files = [path for pattern in patterns for path in (ROOT / folder).glob(pattern)]
        yield _result(f"engine/{name}", sum(code_lines(path.read_text()) for path in files), ENGINE)


def code_lines(source: str) -> int:
    """Return the number of lines with code."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _IGNORED and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def _result(name: str, lines: int, paper: int) -> Result:
    return Result(f"lines/{name}", lines, "lines", PAPER, lines / paper, [(lines, paper)])

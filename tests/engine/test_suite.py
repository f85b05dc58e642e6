"""The engines of the guide pass the conformance suites, as the guide runs them."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from exop.testing import engine_suite
from tests.docs.snippets import ROOT, snippets

_GUIDE: Any = types.ModuleType("tests.engine.guide")
sys.modules[_GUIDE.__name__] = _GUIDE
_BLOCKS = [one.text for one in snippets(ROOT / "docs/how-to/wrap-an-engine.md") if one.language == "python"]
_ENGINES = [one for one in _BLOCKS if "Engine):" in one]
vars(_GUIDE)["endless"] = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
for _text in (*_ENGINES, *(one for one in _BLOCKS if "EngineSuite" in one)):
    exec(_text, vars(_GUIDE))

TestSqlQuery = _GUIDE.TestSqlQuery
TestUpserted = _GUIDE.TestUpserted


def _lines(text: str) -> list[int]:
    """The lines of code of each class, without blank lines, comments and docstrings."""
    tree = ast.parse(text)
    named = [one for one in ast.walk(tree) if isinstance(one, (ast.ClassDef, ast.FunctionDef))]
    documented = {line for one in named if ast.get_docstring(one) for line in _range(one.body[0])}
    written = {at for at, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    return [len((written - documented) & _range(one)) for one in tree.body if isinstance(one, ast.ClassDef)]


def _range(node: ast.stmt) -> set[int]:
    return {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def test_the_engines_of_the_guide_are_as_short_as_it_says():
    """The lines of each engine and its slet, and their sum."""
    page = (ROOT / "docs/how-to/wrap-an-engine.md").read_text(encoding="utf-8")
    for text in _ENGINES:
        counted = _lines(text)
        assert f"| {sum(counted)} | {', '.join(map(str, counted))} |" in page


class _Eager(_GUIDE.Upserts):
    """Commits a batch before it emits it."""

    def _process(self, batch: int, offset: int, end: int) -> tuple[int, int]:
        emit, waiting = self._emit, []
        self._emit = lambda *given: waiting.append(given)
        found = super()._process(batch, offset, end)
        self._emit = emit
        emit(*waiting[0])
        return found


class _Forgetful(_GUIDE.Upserts):
    """Takes over only the position of its predecessor."""

    def _run(self) -> None:
        self._base.execute("DELETE FROM state")
        super()._run()


class _Impatient(_GUIDE.Upserts):
    """Begins its next batch without the batch that it has not committed."""

    def compile(self, query: str, feeds: Any) -> None:
        super().compile(query, feeds)
        latest = self._feed.latest
        self._feed.latest = lambda start, limit, timeout: latest(max(start, self._feed._repeated), limit, timeout)


_FAULTS = [
    (_Eager, "test_every_row_once_and_in_order_after_a_kill_at_any_moment"),
    (_Forgetful, "test_every_row_once_and_in_order_while_the_slet_is_replaced"),
    (_Impatient, "test_every_row_once_and_in_order_after_a_kill_at_any_moment"),
]


@pytest.mark.parametrize(("engine", "test"), _FAULTS)
def test_a_faulty_engine_that_commits_by_itself_fails(monkeypatch, tmp_path: Path, engine: type, test: str):
    """Each mistake is found by the test of that rule."""
    monkeypatch.setattr(engine_suite, "PATIENCE", 3.0)
    monkeypatch.setattr(_GUIDE.Upserted, "make_engine", lambda self: engine())
    method = getattr(TestUpserted(), test)
    with pytest.raises(AssertionError, match="rows are lost, doubled or in another order"):
        method(*[tmp_path] * ("tmp_path" in inspect.signature(method).parameters))

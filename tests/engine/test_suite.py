"""The engines of the guide pass the conformance suites, as the guide runs them."""

from __future__ import annotations

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


def test_the_engines_of_the_guide_are_short():
    """An engine that is called takes less than 100 lines with its slet, one that commits by itself less than 125."""
    called, committing = (len(one.splitlines()) for one in _ENGINES)
    assert called < 100
    assert committing < 125


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

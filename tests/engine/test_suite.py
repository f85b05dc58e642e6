"""The engine of the guide passes the conformance suite, as the guide runs it."""

from __future__ import annotations

import sys
import types

from tests.docs.snippets import ROOT, snippets

_GUIDE = types.ModuleType("tests.engine.guide")
sys.modules[_GUIDE.__name__] = _GUIDE
_BLOCKS = [one.text for one in snippets(ROOT / "docs/how-to/wrap-an-engine.md") if one.language == "python"]
vars(_GUIDE)["endless"] = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
for _text in (_BLOCKS[0], next(one for one in _BLOCKS if "EngineSuite" in one)):
    exec(_text, vars(_GUIDE))

TestSqlQuery = _GUIDE.TestSqlQuery


def test_the_engine_of_the_guide_is_short():
    """An engine and its slet take less than 100 lines."""
    assert len(_BLOCKS[0].splitlines()) < 100

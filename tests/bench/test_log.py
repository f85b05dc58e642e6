"""The log bench: its peers do the same work, and its goals are those of its results."""

from __future__ import annotations

import pytest

from bench import log
from bench.report import load_goals


@pytest.mark.edges
def test_its_goals_are_those_of_its_results(monkeypatch):
    """Every figure but one has a goal; every item of every source comes through the mesh."""
    monkeypatch.setattr(log, "timed", lambda block: lambda: (block(3), 1.0)[1])
    results = {result.name: result for result in log.measure(items=500, rounds=1)}
    goals = {name for name in load_goals() if name.startswith("log/")}
    assert results.keys() - goals == {"log/replay/lines/items"}
    assert goals <= results.keys()
    assert {result.against for result in results.values()} == {"file", "SQLite", "read_lines", "read_csv"}

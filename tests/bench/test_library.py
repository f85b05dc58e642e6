"""The bench of the base library: both sides do the same work, and its goals are those of its results."""

from __future__ import annotations

from typing import Any

import pytest

from bench import library
from bench.report import load_goals
from exop.expressions import Names, read
from exop.plugin import PortType


@pytest.mark.parametrize("name", library.CASES)
def test_both_sides_have_the_same_values(name):
    """For objects, rows and columns."""
    text, of_object, of_row, of_columns = library.CASES[name]
    batch, columns = library.columns_of(1_000)
    items = [library.Report(**row) for row in batch.to_pylist()]
    for known, given, by_hand in (
        (PortType(library.Report), items, of_object),
        (PortType(), batch.to_pylist(), of_row),
    ):
        function = read(text, Names("x", {"item": known})).item_function()
        assert [*map(function, given)] == [*map(by_hand, given)]
    found: Any = read(text, Names("x", {"item": PortType()})).column_function()(batch)
    assert found.equals(of_columns(columns))


def test_its_goals_are_those_of_its_results(monkeypatch):
    """Every figure has a goal."""
    monkeypatch.setattr(library, "timed", lambda block, unit="": lambda: (block(1), 1.0)[1])
    results = {result.name for result in library.measure(rounds=1)}
    assert results == {name for name in load_goals() if name.startswith("library/")}

"""The bench `house`: calls of functions of ours are counted, with those that come from another module."""

from __future__ import annotations

import threading

import grimp

from bench import house
from bench.report import load_goals
from exop.safe_repr import error_text


def test_calls_and_switches_are_counted():
    """A function that calls one of its own module: two calls, and no switch; a caller outside of ours is none."""
    walk = house.Walk()
    threading.setprofile(walk.see)
    try:
        with walk.watching():
            thread = threading.Thread(target=lambda: error_text(ValueError("no")))
            thread.start()
            thread.join()
    finally:
        threading.setprofile(None)
    assert walk.calls > 1
    assert walk.switches == 0
    assert [*walk.modules] == ["exop.safe_repr"]


def test_the_results_have_the_names_of_the_goals(monkeypatch):
    """Each documented figure is there, and each goal of the question has a figure."""
    monkeypatch.setattr(house, "TIMES", 1)
    results = {result.name: result for result in house.measure()}
    assert {name for name in load_goals() if name.startswith("house/")} <= set(results)
    assert results["house/item/calls"].value > 0
    assert results["house/apply/switches"].value < results["house/apply/calls"].value
    assert results["house/lines"].value > results["house/lines/wiring"].value


def test_circles_are_found():
    """Modules that import each other, one of them by way of a third, are one circle; those below it are in none."""
    graph = grimp.ImportGraph()
    for importer, imported in ("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a"):
        graph.add_import(importer=importer, imported=imported)
    assert house.circles(graph) == [{"a", "b", "c"}]

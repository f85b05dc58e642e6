"""The bench `growth`: it measures what its goals name, at any size."""

from __future__ import annotations

import pytest

from bench import growth
from bench.report import load_goals


@pytest.mark.edges
def test_a_small_run_gives_every_figure(monkeypatch):
    """One round gives each name once: cost and pause at each size, with a state directory and in one long stream."""
    monkeypatch.setattr(growth, "WINDOW", 0.005)
    found = [*growth.measure(sizes="10,20", deployed=20, rounds=2)]
    results = {result.name: result for result in found}
    assert len(results) == len(found)
    for shape in ("growth/10", "growth/20", "growth/10/state", "growth/20/state", "growth/line/20"):
        assert results[f"{shape}/cpu"].value > 0
        assert f"{shape}/pause" in results
    assert results["growth/deploy/doubled"].ratio is not None
    assert results["growth/memory"].value > 0
    assert {name for name in load_goals() if name.startswith("growth/10/")} <= results.keys()


def test_both_shapes_have_as_many_slets_as_asked_for():
    """Branches of ten slets each, or one line; the slet that is replaced is in the branch with the traffic."""
    for shape in (growth.branches, growth.line):
        mesh = shape(30)
        assert len(mesh.nodes) == 30
        assert mesh.node(growth.REPLACED).slet.name == "counted"
        assert mesh.node("source-0").slet.name == "numbers"


def test_an_idle_slet_occupies_little():
    """Node, ports, channel, services and what is compiled together; a quarter more than the goal is let pass here."""
    assert growth.memory("growth/memory", 300).value < 25

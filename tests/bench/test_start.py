"""The bench of the start: what it runs succeeds, and its names are those of the goals."""

from __future__ import annotations

from bench import start
from bench.report import load_goals


def test_the_results_have_the_names_of_the_goals(monkeypatch):
    """One round gives each name with a ratio; `exop --help` is what the goal is about."""
    monkeypatch.setattr(start, "ASKED", {"help": ("--help",)})
    (result,) = start.measure(rounds=1)
    assert result.name in load_goals()
    assert result.ratio is not None
    assert result.value > 0

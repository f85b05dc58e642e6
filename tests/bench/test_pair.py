"""The bench `pair`: runs alternate, ratios are taken of neighbours, and what should be high counts the other way."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import pair


def runs(monkeypatch, old, new):
    """Give these figures of a question, one run after the other, of the old checkout and of this one."""
    folder, asked = Path("old"), []
    figures = {folder: iter(old), pair.ROOT: iter(new)}

    def run_in(where, question):
        asked.append("new" if where == pair.ROOT else "old")
        return next(figures[where])

    monkeypatch.setattr(pair, "run_in", run_in)
    return {result.name: result for result in pair.compared("replace", folder, rounds=2)}, asked


def test_runs_alternate_and_neighbours_are_compared(monkeypatch):
    """After one unmeasured run of each: old, new, old, new, old; A/A are the ratios of the old one to itself."""
    old = [{"a": 9.0}, {"a": 10.0}, {"a": 20.0}, {"a": 40.0}]
    results, asked = runs(monkeypatch, old, [{"a": 9.0}, {"a": 11.0}, {"a": 30.0}])
    assert asked == ["old", "new", "old", "new", "old", "new", "old"]
    assert results["pair/a"].ratios == [1.1, 1.5]
    assert results["pair/a"].value == 1.5
    assert results["pair/a"].noise == [2.0, 2.0]


def test_more_is_better_where_the_goal_is_a_lower_bound(monkeypatch):
    """A rate that has become half of what it was counts as a ratio of 2."""
    name = "replace/rate"  # its goal: at least
    results, _ = runs(monkeypatch, [{name: 1.0}] * 4, [{name: 0.5}] * 3)
    assert results[f"pair/{name}"].ratio == 2.0


def test_a_figure_of_one_checkout_alone_is_left_out(monkeypatch):
    """What was added since cannot be compared."""
    results, _ = runs(monkeypatch, [{"a": 1.0}] * 4, [{"a": 1.0, "b": 1.0}] * 3)
    assert [*results] == ["pair/a"]


def test_what_is_no_checkout_is_refused():
    """The message names what was given; nothing is run."""
    with pytest.raises(SystemExit, match="'no-such-thing' is neither a checkout of ExoP nor a revision"):
        next(pair.measure("no-such-thing"))
    with pytest.raises(SystemExit, match="no short form of the question 'hops'; known: hop, "):
        next(pair.measure(".", questions="hops"))

"""Killed at any moment, a durable application leaves the output of an undisturbed run: real processes and signals."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from bench.kills import PASSED, Run, differences, killed_at_random, undisturbed
from exop.runtime.store import Store

SIZE = ("--to", "8000")


@pytest.fixture(scope="module")
def wanted():
    """What is to come out."""
    return undisturbed(SIZE)


def test_an_undisturbed_run_is_complete(wanted):
    """Every branch has its lines; the comparison notices one that is missing, and one too many."""
    assert {name: len(lines) for name, lines in wanted.items()} == {
        "keyed": 8000,
        "counted": 8000,
        "totals": 16,
        "means": 1599,
        "pulled": 8000,
        "engine": 16,
        "doubled": 16,
        "logged": 8000,
        "merged": 9599,
        "log": 8000,
    }
    assert differences({**wanted, "totals": wanted["totals"][1:]}, wanted) > 0
    assert differences({**wanted, "keyed": [*wanted["keyed"], "1"]}, wanted) == 1


def test_killed_at_random(tmp_path):
    """While it starts, works, changes a slet, takes checkpoints or goes on from one."""
    longer = ("--to", "40000")
    run = Run(tmp_path, (*longer, "--changes", "0.02"))
    killed_at_random(run, random.Random(7), most=8)
    assert run.kills > 2
    assert differences(run.output(), undisturbed(longer)) == 0


@pytest.mark.parametrize("name", PASSED)
def test_killed_at_a_failpoint(tmp_path, wanted, name):
    """At the first time, and after some more, in two lives one after the other."""
    run = Run(tmp_path, (*SIZE, "--changes", "0.02"))
    assert run.live(failpoint=f"{name}:1")
    run.live(failpoint=f"{name}:4")
    run.live()
    assert differences(run.output(), wanted) == 0


def test_what_has_finished_is_not_done_again(tmp_path, wanted):
    """A platform that is started in the same directory once more finds it finished."""
    run = Run(tmp_path, SIZE)
    run.live()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.is_file()}
    with closing(Store(tmp_path / "state")) as store:
        store.set_active("durable", active=True)
    run.live()
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.is_file()} == before
    assert differences(run.output(), wanted) == 0

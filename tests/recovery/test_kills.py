"""Killed at any moment, a durable application leaves the output of an undisturbed run: real processes and signals."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from bench.kills import PASSED, Run, differences, killed_at_random, undisturbed
from exop.runtime.durable.store import Store

SIZE = ("--to", "4000")
#: A slet is replaced every now and then, and the stream takes longer than all lives that are cut short.
CHANGING = ("--changes", "0.02", "--pace", "0.3")
#: The last ones first: those of engines, logs and changes are only passed while the stream lasts.
FIFTHS = [PASSED[::-1][first::5] for first in range(5)]


@pytest.fixture(scope="module")
def wanted():
    """What is to come out."""
    return undisturbed(SIZE)


def test_an_undisturbed_run_is_complete(wanted):
    """Every branch has its lines; the comparison notices one that is missing, and one too many."""
    assert {name: len(lines) for name, lines in wanted.items()} == {
        "keyed": 4000,
        "counted": 4000,
        "totals": 8,
        "means": 799,
        "pulled": 4000,
        "engine": 8,
        "doubled": 8,
        "logged": 4000,
        "merged": 4799,
        "log": 4000,
    }
    assert differences({**wanted, "totals": wanted["totals"][1:]}, wanted) > 0
    assert differences({**wanted, "keyed": [*wanted["keyed"], "1"]}, wanted) == 1


@pytest.mark.edges
def test_killed_at_random(tmp_path, wanted):
    """While it starts, works, changes a slet, takes checkpoints or goes on from one."""
    run = Run(tmp_path, (*SIZE, *CHANGING))
    killed_at_random(run, random.Random(7), most=8)
    assert run.kills > 2
    assert differences(run.output(), wanted) == 0


@pytest.mark.parametrize("names", FIFTHS, ids="-".join)
def test_killed_at_each_failpoint(tmp_path, wanted, names):
    """At the first time that it is passed, and after some more: one life after the other goes on from the last.

    Where the stream came to its end meanwhile, another run begins.
    """
    run = Run(tmp_path, (*SIZE, *CHANGING))
    for name in names:
        if not run.live(failpoint=f"{name}:1"):
            assert differences(run.output(), wanted) == 0
            run = Run(tmp_path / name, (*SIZE, *CHANGING))
            run.folder.mkdir()
            assert run.live(failpoint=f"{name}:1"), f"{name} was not passed"
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

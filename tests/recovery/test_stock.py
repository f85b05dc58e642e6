"""Killed at any moment, what the stock sinks and a log have put out is neither lost, doubled nor out of order."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from bench.kills import Run, killed_at_random
from exop.runtime.log.disk import DiskLog
from tests.recovery.stock_app import SIZE, differing

#: Those of checkpoints and those of logs: what is passed once, and what each item passes.
CHECKPOINTS = ("checkpoint-captured", "checkpoint-writing", "checkpoint-committed", "checkpoint-put-out")
LOGS = ("log-append-before", "log-append-half", "log-append-after")


@pytest.fixture
def run(tmp_path):
    """The application and its input."""
    (tmp_path / "in.csv").write_text("n,name\n" + "".join(f"{number},a\n" for number in range(SIZE)))
    log = DiskLog(tmp_path / "in-log")
    log.append(list(range(SIZE)))
    log.close()
    (tmp_path / "in-files").mkdir()
    for begin in range(0, SIZE, 500):
        rows = pa.table({"n": range(begin, begin + 500)})
        parquet.write_table(rows, tmp_path / "in-files" / f"{begin:04d}.parquet")
    return Run(tmp_path, module="tests.recovery.stock_app")


@pytest.mark.edges
def test_killed_at_random(run):
    """While it starts, reads, writes, takes checkpoints or recovers."""
    assert run.live(failpoint="checkpoint-captured:1")  # on a fast machine, the random ones may come too late
    killed_at_random(run, random.Random(3), most=5)
    assert run.kills > 1
    assert differing(run.folder) == {}


@pytest.mark.parametrize(("names", "later"), [(CHECKPOINTS, 2), (LOGS, 300)], ids=["checkpoints", "logs"])
def test_killed_at_each_failpoint(run, names, later):
    """At once, and in the middle of the stream: one life after the other goes on from the last."""
    for name in names:
        assert run.live(failpoint=f"{name}:1"), f"{name} was not passed"
    for name in names:  # it may have finished before
        run.live(failpoint=f"{name}:{later}")
    run.live()
    assert differing(run.folder) == {}

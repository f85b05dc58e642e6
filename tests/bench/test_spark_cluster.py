"""The bench `spark_cluster`: what it counts; and on a real cluster its goals, which every planted fault misses."""

import os
from collections.abc import Iterator

import pytest

from bench.harness import Result
from bench.report import load_goals
from bench.spark_cluster import at_once, children, differences, measure, resident, traffic

#: Rows of 2000 bytes in micro-batches of 60 MB: what a micro-batch costs the driver is little beside them.
SIZE = {"rows": 120_000, "width": 2000, "keys": 40_000, "max_rows": 30_000}
#: The bench itself gives a step up after a quarter of an hour.
pytestmark = pytest.mark.timeout(0)
on_cluster = pytest.mark.skipif("EXOP_CLUSTER" not in os.environ, reason="EXOP_CLUSTER=1 runs a cluster, for minutes")


def missed(results: Iterator[Result], fault: str = "none") -> set[str]:
    """The names of the goals that a run misses; that of a fault is compared with those of a run without."""
    goals = load_goals()
    named = {one.name.replace(f"/{fault}/", "/"): one for one in results}
    return {name for name, one in named.items() if name in goals and not goals[name].met(one)}


def test_tasks_are_at_once_if_they_overlap_on_different_executors():
    """Neither one after the other, nor two on one executor."""
    one, later = {"executor": "0", "begin": 0, "end": 10}, {"executor": "1", "begin": 10, "end": 12}
    assert at_once([one, later]) == 1
    assert at_once([one, {**later, "begin": 9}]) == 2
    assert at_once([one, {**later, "begin": 9, "executor": "0"}]) == 1
    assert at_once([]) == 0


def test_differences_are_keys_with_another_count():
    """Missing and additional ones count, too."""
    assert differences({1: 1, 2: 2}, {1: 1, 2: 2}) == 0
    assert differences({1: 1, 2: 2}, {2: 3, 4: 1}) == 3


def test_a_process_is_measured_from_outside():
    """What it reads and writes, its memory, and its children."""
    before = traffic(os.getpid())
    with open(os.devnull, "wb") as file:
        file.write(bytes(100_000))
    assert traffic(os.getpid()) >= before + 100_000
    assert resident(os.getpid()) > 1000
    assert os.getpid() in children(os.getppid())


@on_cluster
def test_work_is_distributed():
    """Every goal of a run over a log."""
    assert missed(measure(**SIZE)) == set()


@on_cluster
def test_every_executor_reads_a_topic():
    """Many partitions, since the mock cluster keeps 5 MiB of each."""
    assert missed(measure(source="kafka", partitions=32, rows=100_000, width=2800, max_rows=100_000)) == set()


@on_cluster
def test_one_kill_of_each_changes_no_count():
    """Executor, worker, driver and platform."""
    assert missed(measure(shares=False, rows=40_000, width=200, keys=2000, kills=1)) == set()


@on_cluster
@pytest.mark.parametrize(
    ("fault", "goal"),
    [
        ("inline", "distribution/log/platform"),
        # One task a micro-batch: it may be on one executor now, and then on the other, which makes their shares equal.
        ("one", "distribution/log/tasks"),
        ("collect", "distribution/log/driver"),
    ],
)
def test_a_planted_fault_misses_a_goal(fault, goal):
    """The measure finds what it is there to find."""
    assert goal in missed(measure(**SIZE, fault=fault), fault)

"""A real cluster on this machine: one for all tests of this module."""

import os
import signal
from collections.abc import Iterator

import pytest
from exop_spark.cluster.process import wait_for
from exop_spark.cluster.standalone import Cluster, Worker

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A master and two workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("cluster")))
        found = Cluster()
        found.up(2, Worker(1, "1g"))
        yield found
        found.down()
        assert not any(one.alive(found.directory) for one in found.status().processes)


def test_a_second_up_starts_what_is_missing(cluster):
    """What runs is kept; a worker that was killed is replaced."""
    before = cluster.status()
    assert (before.workers, before.cores, before.lost) == (2, 2, ())
    assert cluster.up(2, Worker()) == before
    victim = next(one for one in before.processes if one.role == "worker-2")
    os.killpg(victim.pid, signal.SIGKILL)
    assert wait_for(lambda: cluster.status().lost == ("worker-2",), 30)
    after = cluster.up(2, Worker())
    assert (after.master, after.workers, after.lost) == (before.master, 2, ())

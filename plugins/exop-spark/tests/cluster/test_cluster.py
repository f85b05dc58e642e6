"""A real cluster on this machine: one for all tests of this module."""

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from exop_spark.cluster.process import wait_for
from exop_spark.cluster.standalone import Cluster, Worker
from exop_spark.errors import ClusterError, MasterRefused
from exop_spark.session.engine import lease

pytestmark = [pytest.mark.spark, pytest.mark.edges]
#: Whether the tests that take longer run as well.
LONG = "EXOP_CLUSTER" in os.environ
CONNECT = pytest.mark.skipif(find_spec("grpc") is None, reason="needs pip install 'exop-spark[connect]'")
ROOT = Path(__file__).parents[4]
APPLICATION = Path(__file__).with_name("cluster_app.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A master and two workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("cluster")))
        found = Cluster()
        found.up(2, Worker(1, "1g"), connect=LONG)
        yield found
        found.down()
        assert not any(one.alive(found.directory) for one in found.status().processes)


def test_a_second_up_starts_what_is_missing(cluster):
    """Running processes are kept; a worker that was killed is replaced, and a master returns to its workers."""
    before = cluster.status()
    assert (before.workers, before.cores, before.lost) == (2, 4 if LONG else 2, ())
    assert cluster.up(2, Worker()).master == before.master
    if not LONG:
        with pytest.raises(ClusterError, match="start it with --connect"):
            cluster.up(2, Worker(), connect=True)
    for victim in before.processes:
        if victim.role in ("master", "worker-2"):
            os.killpg(victim.pid, signal.SIGKILL)
    assert wait_for(lambda: cluster.status().lost == ("master", "worker-2"), 60)
    after = cluster.up(2, Worker())
    assert (after.master, after.workers, after.lost) == (before.master, 2, ())
    assert {one.pid for one in before.processes if one.role == "worker-1"} < {one.pid for one in after.processes}


@pytest.mark.skipif(not LONG, reason="a minute; EXOP_CLUSTER=1 lets it run")
@CONNECT
def test_a_connect_server_gives_the_same_answers(cluster, tmp_path):
    """It runs on the same workers; who does not know its token is refused."""
    url = cluster.status().connect
    assert run_on(url, tmp_path) == expected()
    with pytest.raises(MasterRefused, match="UNAUTHENTICATED"):
        lease(f"{url}/;x=")


def test_an_application_gives_the_same_answers_on_the_cluster(cluster, tmp_path):
    """Tasks of one query read the rows from the platform, and write files, which those of the next one read."""
    assert run_on(cluster.status().master, tmp_path, f"stage={tmp_path.as_uri()}") == expected()
    assert [*tmp_path.rglob("part-*.parquet")]


@pytest.mark.skipif(not LONG, reason="a minute; EXOP_CLUSTER=1 lets it run")
@pytest.mark.parametrize(
    ("case", "place"), [("9", "master"), ("10", "master"), pytest.param("10", "connect", marks=CONNECT)]
)
def test_an_aggregate_moves_to_the_cluster_and_back_with_its_state(cluster, case, place):
    """Its groups begin in RocksDB on the executors, and are read from there; with windows, without, and by Connect."""
    url = getattr(cluster.status(), place)
    command = [sys.executable, "-m", "bench", "across", "--only", case, "--master", url, "--check"]
    ran = subprocess.run([*command, "--runs", "1"], capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def run_on(master: str, folder: Path, *options: str) -> list[str]:
    """Run the application of `cluster_app` on *master*, in a process of its own; return what it wrote, in order."""
    command = [sys.executable, "-m", "exop", "run", f"{APPLICATION}:application", f"master={master}"]
    ran = subprocess.run(
        [*command, f"output={folder / 'sums'}", *options, "--quiet"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return sorted((folder / "sums").read_text().split())


def expected() -> list[str]:
    """Compute the right result."""
    return list(runpy.run_path(str(APPLICATION))["expected"]())

"""`kill -9` of the platform, of a Python worker of Spark and of its Java process, while rows flow."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("exop_spark", reason="the plugin exop-spark is not installed")

from exop_spark.errors import EngineLost

from bench.kills import life
from bench.spark_kills import processes_of
from exop import Platform
from tests.recovery.spark_app import KEYS, NAME, WINDOW, Stream, expected, lines, running
from tests.rig import eventually

pytestmark = [pytest.mark.spark, pytest.mark.edges]
#: Spark starts within so many seconds, also on a busy machine.
PATIENCE = 120.0


def test_each_window_is_written_once_after_a_kill_of_each_process(tmp_path: Path, monkeypatch) -> None:
    """Each victim in a life of its own. Runs last: it ends the Spark of the other tests, and starts another."""
    monkeypatch.setattr(Stream, "end", None)

    def flows(_: int = 0) -> bool:
        before = len(lines(tmp_path))
        eventually(lambda: len(lines(tmp_path)) >= before + 2 * KEYS, "output", PATIENCE)
        return False

    assert life("tests.recovery.spark_app", [str(tmp_path)], 0, running=True, before=flows)[0]
    with running(tmp_path) as platform:
        flows()
        counts, killed = platform.deployment(NAME).components["counts"], set[int]()

        def fails() -> bool:
            killed.update(kill_workers())  # one that has no task at the moment is replaced without a failure
            return counts.error is not None

        eventually(fails, "the failure after the kills of workers", PATIENCE)
        assert killed
        # Until the daemon has noticed, Spark may give a worker that is gone to the next task.
        eventually(lambda: not any(Path(f"/proc/{one}").exists() for one in killed), "the end of the workers")
    with running(tmp_path) as platform:
        flows()
        kill_java()
        counts = platform.deployment(NAME).components["counts"]
        eventually(lambda: counts.error is not None, "the failure after the kill of Java")
        assert isinstance(counts.error, EngineLost)
        assert "counts: the process that runs Spark has ended" in str(counts.error)
        assert counts.instance.metrics()["batches"] >= 1  # they can still be read
    with running(tmp_path) as platform:
        flows()
        end = ending(platform)
        assert platform.wait(NAME, PATIENCE)
    assert sorted(lines(tmp_path)) == expected(end)


def kill_java() -> None:
    """Kill the Java process of this process."""
    (java,) = processes_of("java", os.getpid())
    os.kill(java, signal.SIGKILL)


def kill_workers() -> list[int]:
    """Kill the Python workers of Spark, not the daemon that starts them; return which ones."""
    found = processes_of("worker", os.getpid())
    workers = [one for one in found if parent_of(one) in found]
    for one in workers:
        os.kill(one, signal.SIGKILL)
    return workers


def parent_of(process: int) -> int:
    """Return the process that has started another one; 0 if that has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


def ending(platform: Platform) -> int:
    """Let the stream end with a whole window, and return its length."""
    position = platform.deployment(NAME).components["readings"].state
    Stream.end = (position.seconds // WINDOW + 10) * WINDOW
    return Stream.end

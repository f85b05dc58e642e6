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

pytestmark = pytest.mark.spark
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
    for victim in ("worker", "java"):
        with running(tmp_path) as platform:
            flows()
            kill(victim)
            counts = platform.deployment(NAME).components["counts"]
            eventually(lambda counts=counts: counts.error is not None, f"the failure after the kill of {victim}")
            if victim == "java":
                assert isinstance(counts.error, EngineLost)
                assert "counts: the process that runs Spark has ended" in str(counts.error)
                assert counts.instance.metrics()["batches"] >= 1  # they can still be read
    with running(tmp_path) as platform:
        flows()
        end = ending(platform)
        assert platform.wait(NAME, PATIENCE)
    assert sorted(lines(tmp_path)) == expected(end)


def kill(victim: str) -> None:
    """Kill all processes of a kind that Spark has started for this process."""
    found = processes_of(victim, os.getpid())
    assert found
    for one in found:
        os.kill(one, signal.SIGKILL)
    if victim == "worker":  # until its daemon has noticed, Spark may give the next task a worker that is gone
        eventually(lambda: not any(Path(f"/proc/{one}").exists() for one in found), "the end of the workers")


def ending(platform: Platform) -> int:
    """Let the stream end with a whole window, and return its length."""
    position = platform.deployment(NAME).components["readings"].state
    Stream.end = (position.seconds // WINDOW + 10) * WINDOW
    return Stream.end

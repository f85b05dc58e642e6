"""Engines in worker processes: interrupted, killed, and started again with their state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from exop import Batch, EndOfStream, Punctuation, input_port
from exop.engine import EngineSlet, isolated
from exop.engine.worker import dump
from exop.errors import QueryInterrupted, SettingError, WorkerLost
from exop.testing import open as open_slet
from exop.testing.engine_suite import EngineSuite
from tests.engine.isolated_slets import Counting, Numbered
from tests.rig import eventually


@pytest.mark.skipif("EXOP_ISOLATED" not in os.environ, reason="it starts many processes: EXOP_ISOLATED=1")
class TestNumbered(EngineSuite):
    """The conformance suite in worker processes."""

    slet = Numbered
    settings: ClassVar[dict[str, Any]] = {"query": "all"}
    wrong: ClassVar[dict[str, Any]] = {"query": "some"}
    position = 0
    endless: ClassVar[dict[str, Any]] = {"query": "hang"}
    poison = "fail"


def test_a_query_that_hangs_is_interrupted():
    """The interrupt reaches the process; the mesh continues."""
    TestNumbered().test_a_query_that_hangs_is_interrupted()


def numbers(results: Any) -> list[int]:
    """The numbers of the results."""
    return [number for batch in results for number, _ in batch]


def process(slet: Numbered) -> int:
    """The worker process."""
    return slet.engine._process.pid  # type: ignore[attr-defined]


def test_a_process_that_is_killed_from_outside_loses_nothing():
    """The next call has the state of before: the last snapshot, and the calls since then."""
    with open_slet(Numbered, query="all") as slet:
        assert numbers(slet.rows(["a", "b"])) == [1, 2]
        slet.flush()
        for number in (3, 4):
            assert numbers(slet.rows(["c"])) == [number]
            before = process(slet)
            assert before != os.getpid()
            os.killpg(before, signal.SIGKILL)
            eventually(lambda: slet.engine._process.poll() is not None)
        assert numbers(slet.rows(["d"])) == [5]
        assert slet.metrics() | {"worker_starts": 3, "count": 5} == slet.metrics()


def test_a_process_that_ends_in_a_call_fails_the_input():
    """The error names the slet, the port, the query and the reason; the state is that of before the input."""
    with open_slet(Numbered, query="all") as slet:
        assert numbers(slet.rows(["a"])) == [1]
        with pytest.raises(WorkerLost, match=r"numbered\.rows: .* it ended with status 3; .*\n  all"):
            slet.rows(["exit"])
        assert numbers(slet.rows(["b"])) == [2]


def test_an_engine_that_ignores_an_interrupt_is_killed(monkeypatch: pytest.MonkeyPatch):
    """Also one that never gives up the interpreter's lock."""
    monkeypatch.setattr(isolated, "GRACE", 0.1)
    monkeypatch.setattr("exop.engine.slet._AGAIN", 0.1)
    with open_slet(Numbered, query="all", time_limit=0.2) as slet:
        slet.time_limit = 60.0
        assert numbers(slet.rows(["a"])) == [1]
        slet.time_limit = 0.1
        with pytest.raises(QueryInterrupted, match=r"numbered\.rows: interrupted after 0\.1 s") as caught:
            slet.rows(["hang in C"])
        assert "it did not react to an interrupt" in str(caught.value.__cause__)
        slet.time_limit = 60.0
        assert numbers(slet.rows(["b"])) == [2]


def test_an_engine_that_takes_too_much_memory_is_killed(monkeypatch: pytest.MonkeyPatch):
    """The input fails with the memory that it took, and the next one is processed."""
    monkeypatch.setattr(isolated, "GRACE", 0.1)
    with open_slet(Numbered, query="all", memory_limit=200 * 2**20) as slet:
        assert numbers(slet.rows(["a"])) == [1]
        with pytest.raises(WorkerLost, match=r"it took \d+ MiB, and its `memory_limit` is 200 MiB"):
            slet.rows(["take memory"])
        assert numbers(slet.rows(["b"])) == [2]


def test_stored_calls_are_replaced_by_a_snapshot(monkeypatch: pytest.MonkeyPatch):
    """They never take more than the bound, or the state if it is larger."""
    monkeypatch.setattr(isolated, "STORED", 250)
    with open_slet(Numbered, query="all") as slet:
        for _ in range(5):
            slet.rows(["a"])
        repeated = [(method, given[0]) for method, given in slet.engine._calls]  # type: ignore[attr-defined]
        assert repeated == [("compile", "all"), ("restore", b"3"), ("push", "rows"), ("push", "rows")]


def test_a_call_that_has_succeeded_does_not_fail_with_the_snapshot_after_it(monkeypatch: pytest.MonkeyPatch):
    """Else its input would be processed once more."""
    monkeypatch.setattr(isolated, "STORED", 0)
    with open_slet(Numbered, query="all") as slet:
        assert numbers(slet.rows(["exit at the snapshot"])) == [1]
        assert numbers(slet.rows(["b"])) == [2]
        assert slet.metrics()["worker_starts"] == 3  # the snapshot was tried twice


def test_a_snapshot_is_repeated_if_the_process_is_lost_in_it(tmp_path: Path):
    """It changes nothing; so a checkpoint does not fail."""
    with open_slet(Numbered, query="all") as slet:
        slet.rows(["exit once at the snapshot", str(tmp_path / "exited")])
        slet.flush()
        assert slet.state.snapshot == b"2"
        assert slet.metrics()["worker_starts"] == 2


def test_a_result_that_cannot_be_sent_is_an_error_and_its_input_is_not_counted():
    """The process has the state behind the input, and is replaced."""
    with open_slet(Numbered, query="all") as slet:
        assert numbers(slet.rows(["a"])) == [1]
        with pytest.raises(WorkerLost, match="its results cannot be sent: TypeError: cannot pickle"):
            slet.rows(["a lock"])
        assert numbers(slet.rows(["b"])) == [2]


def test_a_process_that_cannot_be_started_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch):
    """The next call tries again, perhaps when the system has resources again."""
    ends = isolated.Pipe()

    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(isolated, "Pipe", lambda: ends)
    engine = isolated.IsolatedEngine(Numbered, {"query": "all"}, 0)
    with pytest.raises(BlockingIOError):
        engine.compile("all")
    assert [end.closed for end in ends] == [True, True]
    engine.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_process_ends_with_its_platform(stopped: bool):
    """Also if the engine never returns, or the process is stopped, since the system kills it."""
    program = """
import threading
from tests.engine.isolated_slets import Numbered
from exop.testing import open
with open(Numbered, query="all") as slet:
    print(slet.engine._process.pid, flush=True)
    slet.rows(["hang in C"])
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as platform:
        worker = int(platform.stdout.readline())
        if stopped:
            os.kill(worker, signal.SIGSTOP)
        platform.kill()

    def gone() -> bool:
        try:
            with open(f"/proc/{worker}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    eventually(gone)


def test_record_batches_travel_as_they_are():
    """Only the rows of a slice."""
    batch = pa.RecordBatch.from_pydict({"x": range(100_000)})
    message = dump(["rows", batch.slice(5, 3)])
    assert len(message) < 2_000
    import pickle

    assert pickle.loads(message)[1].to_pydict() == {"x": [5, 6, 7]}


def test_settings_that_cannot_be_are_refused():
    """A limit without a process, and a class that no process can import."""
    with (
        pytest.raises(SettingError, match="set isolation='process'"),
        open_slet(Numbered, query="all", isolation="thread", memory_limit=1),
    ):
        pass

    class Local(EngineSlet):
        def make_engine(self) -> Counting:
            return Counting()

        @input_port
        def rows(self, rows: Batch[Any] | Punctuation | EndOfStream) -> Any:
            return self.take("rows", rows)

    with pytest.raises(SettingError, match="cannot import the slet"):
        Local.deep_check({"query": "all", "isolation": "process"}, {})

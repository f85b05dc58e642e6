"""The start of Spark, where it fails."""

import logging
import socket
import sys
import threading
from types import SimpleNamespace

import pyspark
import pytest
from exop_spark import settings
from exop_spark.errors import MasterRefused, SparkError
from exop_spark.session import engine, launch

USAGE = (
    """Error: Not allowed to specify max heap(Xmx) memory settings through java options.
Usage: spark-submit [options]
"""
    + "  --option\n" * 500
)


def test_the_first_error_in_the_log_is_told(tmp_path):
    """The lines behind it are often the usage of a command."""
    (tmp_path / settings.LOG).write_text("a warning\n" + USAGE)
    assert launch.reason_in_log(tmp_path).startswith("Error: Not allowed to specify max heap(Xmx)")


def test_without_an_error_the_end_of_the_log_is_told(tmp_path):
    """If there is a log."""
    assert launch.reason_in_log(tmp_path) == ""
    (tmp_path / settings.LOG).write_text("x" * 5000 + " the end\n")
    assert launch.reason_in_log(tmp_path).endswith("x the end")


def test_a_heap_that_is_exhausted_is_told_with_the_cure(tmp_path, monkeypatch):
    """The Java process has ended without an answer; its log has the reason."""
    monkeypatch.setattr(launch, "_LOGS", logs := [])
    assert launch.memory_error() == ""
    logs.append(tmp_path)
    assert launch.memory_error() == ""
    (tmp_path / settings.LOG).write_text("12:00:00 ERROR Executor: x\njava.lang.OutOfMemoryError: Java heap space \n")
    assert launch.memory_error() == "OutOfMemoryError: Java heap space: EXOP_SPARK_MEMORY gives it a larger heap"


def test_a_context_that_does_not_start_is_told_without_the_trace_of_java(monkeypatch):
    """The error names the master, Spark's reason, and what to correct."""

    class Context:
        _active_spark_context = None
        _gateway = object()

        def __init__(self, **_):
            raise RuntimeError(
                "An error occurred while calling None.org.apache.JavaSparkContext.\n: org.apache.Illegal: "
                "[INVALID_DRIVER_MEMORY.SYSTEM_MEMORY] System memory 64 must be at least 471. SQLSTATE: F0000\n\tat org"
            )

    monkeypatch.setattr(pyspark, "SparkContext", Context)
    with pytest.raises(MasterRefused) as caught:
        launch.started({"spark.master": "local[2]"})
    assert str(caught.value) == (
        "the Spark master 'local[2]' cannot be used here: Spark did not start: System memory 64 must be at least 471; "
        "correct the master, EXOP_SPARK_MEMORY (the heap) or spark-defaults.conf"
    )


def test_the_trace_of_an_error_that_is_told_is_not_logged_as_well(caplog):
    """A query that fails is one error of ExoP; py4j would add the 40 lines of its trace."""
    before = logging.getLogger("py4j").level
    try:
        launch._quieten(SimpleNamespace())
        logging.getLogger("py4j.clientserver").error("There was an exception", exc_info=RuntimeError())
    finally:
        logging.getLogger("py4j").setLevel(before)
    assert not caplog.records


def test_pyspark_that_is_missing_is_told_with_the_line_that_installs_it(monkeypatch):
    """The packages of a user may be damaged."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkError, match=r"pyspark cannot be imported: .*; run `pip install plugins/exop-spark` in"):
        engine._spark("local[2]")


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("answers", [True, False])
def test_java_that_does_not_answer_is_killed_if_it_is_our_own(monkeypatch, answers, own):
    """A call into it would not return, so that the process would not end; spark-submit has started another one."""
    killed = []
    with socket.create_server(("127.0.0.1", 0)) as java:
        there = SimpleNamespace(address="127.0.0.1", port=java.getsockname()[1], auth_token="token")
        process = SimpleNamespace(poll=lambda: None, kill=lambda: killed.append(True))
        monkeypatch.setattr(pyspark.SparkContext, "_gateway", SimpleNamespace(proc=process, gateway_parameters=there))
        if not own:
            pyspark.SparkContext._gateway.proc = None
        if answers:
            threading.Thread(target=lambda: java.accept()[0].sendall(b"!yv\n"), daemon=True).start()
        assert launch.java_answers(60.0 if answers else 0.01) is answers
    assert killed == [True] * (own and not answers)

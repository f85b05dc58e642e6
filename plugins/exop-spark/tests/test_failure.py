"""Errors that Spark raises, and the errors of ExoP that they are turned into."""

import pytest
from exop_spark.errors import EngineLost, QueryFailed, QueryRefused
from exop_spark.failure import condition_of, detail_of, explained, is_suspicious

from exop.errors import FeedClosed, QueryError

FACTS = {"slet": "double", "query": "SELECT a / b AS c FROM rows"}
STREAM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure:
org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` instead. SQLSTATE: 22012
\tat org.apache.spark.Something"""


class StreamingQueryException(Exception):
    """Called as Spark's is."""


class Py4JError(Exception):
    """Called as py4j's is."""


class Py4JNetworkError(Exception):
    """Called as py4j's is."""


def test_the_inner_condition_is_named():
    """STREAM_FAILED says nothing; what is inside does."""
    error = explained(StreamingQueryException(STREAM), ports=["rows"], **FACTS)
    assert isinstance(error, QueryFailed)
    assert (error.condition, error.port) == ("DIVIDE_BY_ZERO", "rows")
    assert str(error) == (
        "double, port 'rows': the query failed [DIVIDE_BY_ZERO]: Division by zero. Use `try_divide` instead.\n"
        "  in the query\n    SELECT a / b AS c FROM rows"
    )


def test_a_position_at_run_time_is_named():
    """Spark counts these columns from 1. Its advice to change a setting that the user cannot change is left out."""
    text = """[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. If necessary set "spark.sql.ansi.enabled" to "false".
== SQL (line 1, position 8) ==
SELECT a / b AS c FROM rows
       ^^^^^
"""
    error = explained(StreamingQueryException(text), ports=["rows"], **FACTS)
    assert (error.position, error.detail) == ("line 1, column 8", "Division by zero. Use `try_divide`.")


def test_a_state_that_needs_key_groups_is_told_so():
    """Spark's advice names a setting that only the platform sets."""
    text = "[UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS] Please use RocksDBStateStoreProvider."
    error = explained(StreamingQueryException(text), ports=["rows"], **FACTS)
    assert "needs its state in RocksDB: set key_groups=2, or more" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] Query [id = 1-2, runId = 2-3] terminated with exception: Such a join is not supported.",
        "An error occurred while calling None.org.apache.Context.\n: Such a join is not supported.\n\tat org.apache",
    ],
)
def test_what_precedes_the_reason_is_left_out(text):
    """Identifiers of a run, and names of py4j, mean nothing to the user."""
    assert detail_of(text, condition_of(text)) == "Such a join is not supported."


def test_an_exception_without_a_message_is_told_by_its_class():
    """As that of Java at the unexpected end of a file."""
    text = "[STREAM_FAILED] Query [id = 1] terminated with exception: \n\tat org.A\nCaused by: java.io.EOFException\n"
    assert detail_of(text, condition_of(text)) == "java.io.EOFException"


def test_a_wrapper_is_better_than_nothing():
    """With no inner condition the outer one is given."""
    assert condition_of("[STREAM_FAILED] Query terminated") == "STREAM_FAILED"
    assert condition_of("no condition [at all]") == ""


def test_conditions_may_have_parts():
    """Sub-conditions belong to the name."""
    assert condition_of("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column …") == "UNRESOLVED_COLUMN.WITH_SUGGESTION"


def test_a_python_error_inside_spark_is_told_by_its_last_line():
    """Of a worker's traceback the exception counts."""
    text = "[STREAM_FAILED] Query\nTraceback (most recent call last):\n  File x\nKeyError: 'speed'\n"
    assert explained(StreamingQueryException(text), ports=["rows"], **FACTS).detail == "KeyError: 'speed'"


def test_an_error_without_condition_names_its_class():
    """An exception of the function that builds a query is explained by its class."""
    error = explained(ValueError("no such thing"), QueryRefused, ports=[], **FACTS)
    assert (type(error), error.detail) == (QueryRefused, "ValueError: no such thing")


@pytest.mark.parametrize(("text", "port"), [("about bids here", "bids"), ("about bids and asks", ""), ("neither", "")])
def test_of_several_ports_the_one_that_is_named(text, port):
    """A port is only blamed if the message names it alone."""
    assert explained(StreamingQueryException(text), ports=["bids", "asks"], **FACTS).port == port


def test_a_machine_that_is_too_busy_for_python_is_told_with_the_cure():
    """Spark waits ten seconds for a Python process, which no setting changes."""
    error = explained(StreamingQueryException("SparkException: Python worker failed to connect back."), **FACTS)
    assert "too busy to start Python within Spark's 10 s: try again, or use fewer cores (local[1])" in str(error)


def test_a_python_function_that_ends_its_process_is_told():
    """Spark wraps it in the failures of a thread, a job and a task."""
    text = """An error occurred while calling o193.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most \
recent failure: Lost task 0.0 in stage 0.0 (TID 0) (host executor driver): org.apache.spark.SparkException: Python \
worker exited unexpectedly (crashed). Consider setting 'spark.python.worker.faulthandler.enabled' to 'true'.
\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)
"""
    assert explained(RuntimeError(text), **FACTS).detail == (
        "RuntimeError: Python worker exited unexpectedly (crashed). A Python function of the query has ended its "
        "process, or the system has, for want of memory"
    )


def test_a_dead_java_process_is_told_as_such():
    """The engine is lost, in any words of py4j."""
    error = explained(Py4JNetworkError("Error while sending\nmore"), lost=True, **FACTS)
    assert isinstance(error, EngineLost)
    assert (error.slet, error.detail) == ("double", "Error while sending")
    text = '<_MultiThreadedRendezvous of RPC that terminated with:\n\tdetails = "failed to connect"\n\tdebug = "x"'
    assert explained(RuntimeError(text), lost=True, **FACTS).detail == "failed to connect"


def test_broken_connections_are_suspicious():
    """Only these make it worth to ask whether Java is still there."""
    assert is_suspicious(Py4JNetworkError("x"))
    assert is_suspicious(Py4JError("An error occurred while calling o3558.awaitTermination"))
    assert is_suspicious(ConnectionRefusedError())
    assert not is_suspicious(ValueError("x"))


def test_our_own_errors_stay_what_they_are():
    """They are clear already."""
    error = FeedClosed(port="rows")
    assert explained(error, **FACTS) is error


def test_an_error_of_a_query_is_one_of_every_engine():
    """The class for errors of queries covers those of Spark, whose position is a text."""
    error = explained(ValueError("[UNRESOLVED] no; line 1 pos 7"), QueryRefused, **FACTS)
    assert isinstance(error, QueryError)
    assert (error.slet, error.query, error.position) == ("double", FACTS["query"], "line 1, column 8")

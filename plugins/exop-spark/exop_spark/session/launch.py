"""Starts the Java process of Spark, and the context in it."""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .. import settings
from ..errors import MasterRefused, SparkError
from ..failure import condition_of, detail_of
from ..java import find_java, java_home
from .scratch import Scratch

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger(__name__)
#: The beginning of an error in the log of a Java process.
_ERROR: Final = re.compile(r"^.*(Error|Exception|Invalid|Unrecognized)\b", re.MULTILINE)
#: An error in the log for want of memory.
_MEMORY: Final = re.compile(r"\bOutOfMemoryError[^\n]*")
#: Seconds within which Java answers, also on a busy machine.
_ANSWER: Final = 60.0
#: The directories with the logs of the Java processes of this process.
_LOGS: Final[list[Path]] = []
#: The Java processes of this process, the last one of which may run, or start.
_JAVA: Final[list[subprocess.Popen[bytes]]] = []


def started(options: dict[str, str]) -> SparkContext:
    """Start a context with these options, in the Java process of an earlier context if there is one.

    Raises:
        JavaMissing: there is no suitable Java.
        SparkError: this process has another Spark context, or Java did not start.
        MasterRefused: Spark does not start on this master, or with these options.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None:
        raise SparkError(
            "this process has a Spark context that is not ExoP's; stop it, or run the platform in a process of its own"
        )
    # Workers on other hosts may have their Python at another path, which the user has set.
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    with _environment(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=sys.executable):
        gateway = SparkContext._gateway or _gateway(options)
        configuration = SparkConf(loadDefaults=False).setAll(list(options.items()))
        try:
            context = SparkContext(conf=configuration, gateway=gateway)
        except Exception as error:
            problem = f"Spark did not start: {detail_of(str(error), condition_of(str(error))).rstrip('.')}"
            cure = "correct the master, EXOP_SPARK_MEMORY (the heap) or spark-defaults.conf"
            raise MasterRefused(master=options["spark.master"], problem=problem, cure=cure) from error
    _quieten(context)
    return context


def reason_in_log(directory: Path, most: int = 800) -> str:
    """Return what the log of a Java process says from its first error on, or its end if it names none."""
    log = directory / settings.LOG
    text = log.read_text(errors="replace") if log.exists() else ""
    error = _ERROR.search(text)
    return (text[error.start() :][:most] if error else text[-most:]).strip()


def memory_error() -> str:
    """Return the last error for want of memory in the log of the present Java process, and the cure; or nothing."""
    log = _LOGS[-1] / settings.LOG if _LOGS else Path()
    found = _MEMORY.findall(log.read_text(errors="replace")) if log.is_file() else []
    return f"{found[-1].strip()}: EXOP_SPARK_MEMORY gives it a larger heap" if found else ""


def forget_gateway() -> None:
    """Let pyspark start a new Java process instead of the lost one, to which its class attributes refer."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def kill_starting() -> None:
    """Kill the Java process while it starts: the call that waits for it raises an exception soon."""
    for process in _JAVA[-1:]:
        process.kill()


def java_answers(patience: float = math.inf) -> bool:
    """Return whether the Java process of this process answers; one that does not is killed: no call would return."""
    pyspark: Any = sys.modules.get("pyspark")
    gateway = pyspark.SparkContext._gateway if pyspark is not None else None
    process = getattr(gateway, "proc", None)  # none if another program has started Java, such as spark-submit
    if gateway is None or (process is not None and process.poll() is not None):
        return False
    there = gateway.gateway_parameters
    try:
        with socket.create_connection((there.address, there.port), timeout=min(patience, _ANSWER)) as connection:
            connection.sendall(f"A\n{there.auth_token}\n".encode())  # py4j's command for authentication
            answered = bool(connection.recv(1))
    except OSError:
        answered = False
    if not answered and process is not None:
        _log.warning("the Java process of Spark does not answer, and is killed")
        process.kill()
    return answered


def _gateway(options: dict[str, str]) -> Any:
    """Start a Java process; its log remains until the end of this process."""
    from pyspark import SparkConf, java_gateway

    def noted(*command: Any, **options: Any) -> subprocess.Popen[bytes]:
        _JAVA.append(subprocess.Popen(*command, **options))
        return _JAVA[-1]

    vars(java_gateway)["Popen"] = noted  # pyspark tells it only when Java has answered
    java = find_java()
    _log.info("Spark is starting on Java %s, found by %s", java.version, java.found_by)
    scratch = Scratch(Path(tempfile.gettempdir()))
    atexit.register(scratch.close)
    _LOGS.append(scratch.path)
    options = options | settings.java_options(scratch.path)
    configuration = SparkConf(loadDefaults=False).setAll(list(options.items()))
    with (scratch.path / settings.LOG).open("ab") as log, _environment(JAVA_HOME=str(java_home(java, scratch.path))):
        try:
            return java_gateway.launch_gateway(configuration, {"stderr": log, "stdout": log})  # type: ignore[no-untyped-call]
        except Exception as error:
            problem = reason_in_log(scratch.path) or str(error)
            raise SparkError(f"the Java process of Spark did not start: {problem}") from error


def _quieten(context: Any) -> None:
    """Suppress messages of pyspark that repeat our errors, or follow from the end of the Java process.

    py4j logs the trace of each exception with which a query ends.
    """
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: _log.debug("the connection for accumulators broke", exc_info=True)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for the processes that are started in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

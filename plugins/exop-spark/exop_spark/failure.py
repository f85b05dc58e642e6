"""Turns exceptions of Spark into errors that name the slet, the port, the query and the inner condition."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from exop.errors import EngineError

from .errors import EngineLost, QueryError, QueryFailed

_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_]{3,}(?:\.[A-Z0-9_]+)*)\]")
#: A position, as Spark's analysis and its parser write it; they count columns from 0. At run time Spark counts from 1.
_POSITION: Final = re.compile(r"\bline (\d+),? pos (\d+)\b")
_AT_RUN_TIME: Final = re.compile(r"^== SQL \(line (\d+), position (\d+)\) ==$", re.MULTILINE)
_PYTHON: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Warning|Exit|Interrupt)\b")
#: Conditions that only wrap another one.
_WRAPPERS: Final = frozenset({"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "FAILED_EXECUTE_UDF"})
#: Signs of a broken connection, of py4j and of gRPC. Exceptions of Java are a `Py4JJavaError`; a plain `Py4JError` may
#: be a connection that broke during a call.
_NETWORK: Final = (
    "Py4JNetworkError",
    "Py4JError",
    "Answer from Java side is empty",
    "Error while obtaining a new",
    "StatusCode.UNAVAILABLE",
    "RetriesExceeded",
)
#: The message in the text of an error of gRPC.
_GRPC: Final = re.compile(r'\bdetails = "([^"\n]*)')
#: Spark's message if a Python process has not started within ten seconds, which no setting of Spark changes.
SLOW: Final = "Python worker failed to connect back"
#: Spark's message if a Python process has ended while it computed.
_ENDED: Final = "Python worker exited unexpectedly"
#: Spark's condition if the state of `transformWithState` is in memory, as that of a query with one key group.
_IN_MEMORY: Final = "UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS"
#: What precedes the reason in a message.
_BEFORE: Final = re.compile(
    r"\A\s*(Query \[id = [^]]*\] terminated with exception|An error occurred while calling .*\n): "
)
#: The frames around the reason for which a task has failed.
_AROUND: Final = re.compile(
    r"org\.apache\.spark\.SparkException: (?:Exception thrown in awaitResult: *\n(?s:.*?)^Caused by: "
    r"|Job aborted due to stage failure: [^\n]*?executor [^)\n]*\): |(?=Python worker ))",
    re.MULTILINE,
)
_CLASS: Final = re.compile(r"\b[\w.$]+(?:Exception|Error)\b")
_MOST: Final = 600


def condition_of(text: str) -> str:
    """Return the innermost condition that a message of Spark names; that of a wrapper only if there is no other."""
    found = _CONDITION.findall(text)
    inner = [name for name in found if name not in _WRAPPERS]
    return str((inner or found or [""])[0])


def detail_of(text: str, condition: str) -> str:
    """Return the sentence that follows *condition*, without the stack trace and the plan."""
    _, _, after = text.partition(f"[{condition}]") if condition else ("", "", text)
    after = _AROUND.sub("", _BEFORE.sub("", after))
    if "PySparkException" in text or "Traceback (most recent call last)" in text:
        after = _python_error(text) or after
    sentence = re.split(
        r"SQLSTATE: |(?:\A|\n)\s*at [\w.$]+|\n\n|;\n|== SQL|If you want to force|If necessary set|Consider setting",
        after.strip(),
        maxsplit=1,
    )[0]
    words = sentence.split() or _CLASS.findall(text)[:1]  # some exceptions of Java have no message
    return " ".join(words)[:_MOST]


def is_suspicious(error: BaseException) -> bool:
    """Return whether *error* is a broken connection: the Java process may have ended."""
    text = f"{type(error).__name__}: {error}"
    return isinstance(error, ConnectionError | EOFError) or any(sign in text for sign in _NETWORK)


def explained(
    error: BaseException,
    kind: type[QueryError] = QueryFailed,
    *,
    slet: str,
    query: str,
    ports: Iterable[str] = (),
    lost: bool = False,
) -> EngineError:
    """Return the error of ExoP for an exception of Spark; an `EngineError` is returned unchanged."""
    if isinstance(error, EngineError):
        return error
    text = str(error)
    if lost:
        details = _GRPC.search(text)
        words = details[1] if details else (text.splitlines() or [type(error).__name__])[0]
        return EngineLost(slet=slet, detail=words[:_MOST])
    condition = condition_of(text)
    detail = detail_of(text, condition)
    if not condition:
        detail = f"{type(error).__name__}: {detail}".removesuffix(": ")
    if SLOW in text:
        cure = "try again, or use fewer cores (local[1])"
        detail += f"; the machine was too busy to start Python within Spark's 10 s: {cure}"
    if condition == _IN_MEMORY:
        detail = "transformWithState needs its state in RocksDB: set key_groups=2, or more"
    if _ENDED in text:
        detail += " A Python function of the query has ended its process, or the system has, for want of memory"
    facts = {"slet": slet, "query": query, "condition": condition, "detail": detail}
    return kind(**facts, port=_port(text, list(ports)), position=_position(error, text))


def _position(error: BaseException, text: str) -> str:
    """Return the position of the problem: line and column of a SQL text, or the line of a query function."""
    found = _POSITION.search(text)
    if found:
        return f"line {found[1]}, column {int(found[2]) + 1}"
    if found := _AT_RUN_TIME.search(text):
        return f"line {found[1]}, column {found[2]}"
    contexts: list[Any] = getattr(error, "getQueryContext", list)() or []
    called = [one.callSite() for one in contexts if one.contextType().name == "DataFrame"]
    return str(called[0]) if called else ""


def _port(text: str, ports: list[str]) -> str:
    """Return the port of a message: the only port of the slet, or the only one that the message names."""
    if len(ports) == 1:
        return ports[0]
    named = [port for port in ports if re.search(rf"(?<![A-Za-z0-9_]){re.escape(port)}(?![A-Za-z0-9_])", text)]
    return named[0] if len(named) == 1 else ""


def _python_error(text: str) -> str:
    """Return the last line of a Python traceback in a message: the exception and its message."""
    lines = [line for line in text.splitlines() if _PYTHON.match(line)]
    return lines[-1] if lines else ""

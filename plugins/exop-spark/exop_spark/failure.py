"""From Spark's exceptions to errors that name slet, port, query and the inner condition."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from exop.errors import EngineError

from .errors import EngineLost, QueryError, QueryFailed

_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_]{3,}(?:\.[A-Z0-9_]+)*)\]")
#: As Spark's analysis and its parser write a position; they count columns from 0.
_POSITION: Final = re.compile(r"\bline (\d+),? pos (\d+)\b")
_PYTHON: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Warning|Exit|Interrupt)\b")
#: Conditions that only say that something inside failed.
_WRAPPERS: Final = frozenset({"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "FAILED_EXECUTE_UDF"})
#: An exception of Java is a `Py4JJavaError`; a plain `Py4JError` also stands for a connection that broke during a call.
#: Behind a Connect server it is gRPC's.
_NETWORK: Final = (
    "Py4JNetworkError",
    "Py4JError",
    "Answer from Java side is empty",
    "Error while obtaining a new",
    "StatusCode.UNAVAILABLE",
    "RetriesExceeded",
)
#: What an error of gRPC says, among how it was called.
_GRPC: Final = re.compile(r'\bdetails = "([^"\n]*)')
_MOST: Final = 600


def condition_of(text: str) -> str:
    """Return the innermost named condition of a Spark message: wrappers count only if there is nothing else."""
    found = _CONDITION.findall(text)
    inner = [name for name in found if name not in _WRAPPERS]
    return str((inner or found or [""])[0])


def detail_of(text: str, condition: str) -> str:
    """Return the sentence that goes with *condition*, without stack trace and plan."""
    _, _, after = text.partition(f"[{condition}]") if condition else ("", "", text)
    if "PySparkException" in text or "Traceback (most recent call last)" in text:
        after = _python_error(text) or after
    sentence = re.split(r"SQLSTATE: |\n\s*at |\n\n|;\n|== SQL|If you want to force", after.strip(), maxsplit=1)[0]
    return " ".join(sentence.split())[:_MOST]


def is_suspicious(error: BaseException) -> bool:
    """Tell whether *error* may mean that the Java process is gone: its connection has broken."""
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
    """Return what *error* means to the owner of the slet; an error of ours is returned as it is."""
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
    facts = {"slet": slet, "query": query, "condition": condition, "detail": detail}
    return kind(**facts, port=_port(text, list(ports)), position=_position(error, text))


def _position(error: BaseException, text: str) -> str:
    """Return the place of the problem: line and column of an SQL text, or the Python line that made a DataFrame."""
    found = _POSITION.search(text)
    if found:
        return f"line {found[1]}, column {int(found[2]) + 1}"
    contexts: list[Any] = getattr(error, "getQueryContext", list)() or []
    called = [one.callSite() for one in contexts if one.contextType().name == "DataFrame"]
    return str(called[0]) if called else ""


def _port(text: str, ports: list[str]) -> str:
    """The port that a message is about: the only one there is, or the only one that it names."""
    if len(ports) == 1:
        return ports[0]
    named = [port for port in ports if re.search(rf"(?<![A-Za-z0-9_]){re.escape(port)}(?![A-Za-z0-9_])", text)]
    return named[0] if len(named) == 1 else ""


def _python_error(text: str) -> str:
    """The last line of a Python traceback inside a message: the exception and its words."""
    lines = [line for line in text.splitlines() if _PYTHON.match(line)]
    return lines[-1] if lines else ""

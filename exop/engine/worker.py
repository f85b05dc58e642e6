"""A worker process that runs an `Engine` for `IsolatedEngine`: it answers calls until its connection ends."""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

from exop.errors import QueryError, WorkerLost
from exop.model.values.columns import read_arrow, stream_of
from exop.safe_repr import error_text


class _Pickler(pickle.Pickler):
    """Record batches travel in Arrow's format, without the rows outside of a slice."""

    def reducer_override(self, value: Any) -> Any:
        return (_RECORD_BATCH, (bytes(stream_of(value)),)) if type(value).__name__ == "RecordBatch" else NotImplemented


_RECORD_BATCH: Final = partial(read_arrow, table=False, foreign=False)


def dump(value: Any) -> memoryview:
    """Encode a message between a platform and its own worker processes."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getbuffer()


def main(descriptor: int) -> None:
    """Make the engine that the first call describes, and call it until the platform closes the connection."""
    _die_with_platform()
    connection = Connection(descriptor)
    calls, lock, current = SimpleQueue[Any](), threading.Lock(), [0]
    engine: Any = None

    def receive() -> None:
        """Pass on calls; an interrupt is carried out in this thread, if its call is still in progress."""
        while True:
            try:
                number, method, given = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                calls.put(None)
                return
            if method != "interrupt":
                calls.put((number, method, given))
                continue
            with lock:
                if engine is not None and current[0] == number:
                    engine.interrupt()

    def call(method: str, given: Any) -> Any:
        nonlocal engine
        if method == "make":
            sys.path[:], description = given
            kind, settings = pickle.loads(description)
            slet = object.__new__(kind)
            vars(slet).update(settings)
            engine = slet.make_engine()
            return engine.name, engine.version
        found = getattr(engine, method)(*given)
        return list(found) if method in ("push", "advance") else found

    threading.Thread(target=receive, daemon=True).start()
    while (message := calls.get()) is not None:
        with lock:
            current[0] = message[0]
        answer = _answer(call, *message[1:])
        with lock:
            current[0] = 0
        connection.send_bytes(_encoded(answer, engine))
    if engine is not None:
        engine.close()


def _encoded(answer: tuple[Any, Exception | None], engine: Any) -> memoryview:
    """Encode an answer with the metrics of the engine, or the error that they cannot be sent."""
    try:
        return dump((*answer, engine.metrics() if engine is not None else {}))
    except Exception as error:  # noqa: BLE001 (raised again by the platform)
        return dump((None, WorkerLost(problem=f"its results cannot be sent: {error_text(error)}"), {}))


def _answer(call: Callable[[str, Any], Any], method: str, given: Any) -> tuple[Any, Exception | None]:
    """Return the result of a call, or the exception, as a `QueryError` if it cannot be sent."""
    try:
        return call(method, given), None
    except Exception as error:  # noqa: BLE001 (raised again by the platform)
        return None, error if isinstance(error, QueryError) else QueryError(problem=error_text(error))


def _die_with_platform() -> None:
    """Let the system kill this process group when the platform has ended, even if an engine never returns.

    The platform holds the other end of the standard input, from which an engine reads nothing.
    """
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with suppress(ImportError, AttributeError):  # on another system, the process ends when its call has returned
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

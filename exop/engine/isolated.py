"""`IsolatedEngine`: runs an `Engine` in a worker process, which is killed if it hangs or takes too much memory."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Final

from exop.engine.engine import Engine
from exop.engine.worker import dump
from exop.errors import QueryError, SettingError, WorkerLost
from exop.runtime.supervision.watchdog import SAMPLER

#: The seconds from an interrupt, or a request to close, until the worker process is killed.
GRACE: Final = 2.0
#: The maximum number of seconds for each call that is repeated in a new worker process.
REPEAT: Final = 60.0
#: Calls since the last snapshot are stored up to this number of bytes, or the size of the snapshot if it is larger.
STORED: Final = 32 * 2**20


def _stored(method: str) -> Any:
    """Return the method that calls *method* in the process, where it changes the state, and stores the call."""

    def call(self: IsolatedEngine, *given: Any) -> Any:
        found = self._called(method, *given)
        self._calls.append((method, given))
        batch = given[-1]
        self._stored += getattr(batch, "nbytes", 0) or 100 * (len(batch) if isinstance(batch, list) else 1)
        if self._stored > max(STORED, self._size):
            with suppress(QueryError):  # the call itself has succeeded; after the next one, a snapshot is tried again
                self.snapshot()
        return found

    return call


class IsolatedEngine(Engine):
    """An engine in a worker process.

    If the process ends, the call in progress raises `WorkerLost`, and the next call starts a new process with the state
    before the failed call: the last snapshot, and all successful calls since then are repeated, whose results are
    dropped. Engines must therefore be deterministic. When the stored calls are larger than the state, a new snapshot
    replaces them, so that both cost no more than the input.

    Args:
        slet: The class whose `make_engine` makes the engine; it must be importable.
        settings: The settings of the slet.
        memory_limit: The maximum number of bytes of the process; 0: no limit.
    """

    push, advance, take_out = map(_stored, ("push", "advance", "take_out"))

    def __init__(self, slet: type, settings: Mapping[str, Any], memory_limit: int) -> None:
        try:
            if pickle.loads(pickle.dumps(slet)) is not slet or slet.__module__ == "__main__":
                raise AttributeError(f"{slet.__qualname__} is defined in the main program")
        except (AttributeError, ImportError, pickle.PicklingError) as error:
            problem = f"a worker process cannot import the slet: {error}; define its class in a module"
            raise SettingError(place=slet.__name__, setting="isolation", problem=problem) from error
        if memory_limit and not _resident(os.getpid()):
            raise SettingError(place=slet.__name__, setting="memory_limit", problem="it is supported only on Linux")
        self._description = bytes(dump((slet, dict(settings))))
        self._limit, self._over = memory_limit, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._number, self._busy, self._interrupted, self._reason = 0, False, 0.0, ""
        #: What a new process is called with: the query, the last snapshot, if there is one, and the calls since then.
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._stored = self._size = self._starts = 0
        self._metrics: dict[str, int | float | str] = {}
        self._closed, self._sending = False, threading.Lock()

    def compile(self, query: str) -> None:
        """Start the process, and check the query there."""
        self._calls.append(("compile", (query,)))
        self._start()
        if self._limit:
            SAMPLER.add(self._check_memory)

    def windows(self, time: float) -> list[float]:
        """Return the ends of the windows in the process."""
        return list(self._called("windows", time))

    def snapshot(self) -> bytes:
        """Return the whole state, which replaces the stored calls."""
        found: bytes
        try:
            found = self._called("snapshot")
        except WorkerLost:  # a snapshot changes nothing, so a new process can take it
            found = self._called("snapshot")
        self._calls[1:] = [("restore", (found, self.version))]
        self._stored, self._size = 0, len(found)
        return found

    def restore(self, state: bytes, version: int) -> None:
        """Replace the whole state."""
        self._called("restore", state, version)
        self._calls[1:] = [("restore", (state, version))]
        self._stored, self._size = 0, len(state)

    def interrupt(self) -> None:
        """Interrupt the call in the process; kill the process if the call has not ended after `GRACE` seconds."""
        if not self._busy:  # it starts, and repeats calls
            return
        self._interrupted = self._interrupted or SAMPLER.clock()
        if SAMPLER.clock() >= self._interrupted + GRACE:
            self._kill("it did not react to an interrupt")
        elif self._sending.acquire(blocking=False):  # otherwise the process does not even accept its call
            try:
                with suppress(OSError):
                    self._connection.send_bytes(dump((self._number, "interrupt", ())))
            finally:
                self._sending.release()

    def close(self) -> None:
        """End the process."""
        self._closed = True
        self._end()

    def metrics(self) -> dict[str, int | float | str]:
        """Return the metrics of the engine after the last call, the memory of the process, and how often it started."""
        memory = _resident(process.pid) if (process := self._process) is not None else 0
        return {**self._metrics, "worker_memory": memory, "worker_starts": self._starts}

    def _called(self, method: str, *given: Any) -> Any:
        """Return the result of a call, for which a process is started if the last one has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._end()  # between two calls
        if self._process is None:
            self._start()
        self._busy = True
        try:
            return self._request(method, *given)
        finally:
            self._busy, self._interrupted = False, 0.0

    def _request(self, method: str, *given: Any, timeout: float | None = None) -> Any:
        """Send a call, and return the result; raise `WorkerLost` if the process ends, or does not answer in time."""
        self._number += 1
        try:
            with self._sending:
                self._connection.send_bytes(dump((self._number, method, given)))
            began = SAMPLER.clock()
            while not self._connection.poll(None if timeout is None else 1.0):
                if timeout is not None and SAMPLER.clock() - began >= timeout:
                    self._kill(f"{method}() took longer than {timeout:g} s after a restart")
            found, error, self._metrics = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as lost:
            raise self._lost() from lost
        if error is None:
            return found
        unsent = isinstance(error, WorkerLost)  # its state is behind the call
        if unsent or self._over:  # or it was interrupted because of its memory, which only the system takes back
            self._kill(error.facts["problem"] if unsent else self._reason)
            raise self._lost()
        raise error

    def _start(self) -> None:
        """Start a process, and let it take over the state before the call that has failed."""
        self._connection, theirs = Pipe()
        fds = (theirs.fileno(),)
        command = [sys.executable, "-c", f"from exop.engine.worker import main; main({fds[0]})"]
        try:
            with theirs:  # the pipe to its standard input is its lifeline
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds, start_new_session=True)
        except BaseException:
            self._connection.close()
            raise
        self._starts, self._reason, self._over = self._starts + 1, "", 0.0
        try:
            self.name, self.version = self._request("make", sys.path, self._description, timeout=REPEAT)  # type: ignore[misc]
            for method, given in self._calls:
                self._request(method, *given, timeout=REPEAT)
        except BaseException:
            self._end()
            raise

    def _check_memory(self) -> bool:
        """Interrupt the call of a process that takes too much memory, then kill it; return whether it is observed."""
        if (process := self._process) is None or (size := _resident(process.pid)) <= self._limit:
            self._over = 0.0 if not self._busy else self._over
            return not self._closed
        self._reason = f"it took {size / 2**20:.0f} MiB, and its `memory_limit` is {self._limit / 2**20:.0f} MiB"
        self._over = self._over or SAMPLER.clock()
        if size > 2 * self._limit or SAMPLER.clock() >= self._over + GRACE:
            self._kill(self._reason)
        else:
            self.interrupt()
        return not self._closed

    def _kill(self, reason: str) -> None:
        self._reason = reason
        if (process := self._process) is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _lost(self) -> WorkerLost:
        """Return the error for a process that has ended."""
        process = self._process
        assert process is not None
        self._end()
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        return WorkerLost(problem=self._reason or f"it ended with {how}")

    def _end(self) -> None:
        """Let the process end, or kill it, and release what belongs to it."""
        process, self._process = self._process, None
        if process is None:
            return
        self._connection.close()
        with process:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _resident(process: int) -> int:
    """Return the memory of a process in bytes; 0 if it is unknown."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0

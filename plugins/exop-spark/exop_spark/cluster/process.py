"""The processes of a cluster: started, recognized later by their command line, and stopped with their children."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The system property that identifies a process of a cluster: by now, its process number may belong to another one.
_MARK: Final = "-Dexop.cluster="
_VARIABLE: Final = "EXOP_CLUSTER_PROCESS"
_POLL: Final = 0.05
#: The maximum time until a process that begins another program has a description again, in seconds.
_EXEC: Final = 1.0
#: The maximum time until the system shows the environment of a new process, in seconds.
_SHOWN: Final = 5.0
#: The part of a line that an error quotes, in characters.
_QUOTED: Final = 600
#: The beginning of a line with the reason for which a Java process has ended.
_REASON: Final = re.compile(r"^(Caused by: |Exception in |Error: |[\w.$]+(Exception|Error)\b)|\bERROR\b")
#: The processes that this process has started; their exit codes are read, so that ended ones do not remain zombies.
_STARTED: Final[list[subprocess.Popen[bytes]]] = []


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process: its role (`master`, `worker-1`, `connect`), number, address, and log."""

    role: str
    pid: int
    url: str
    log: str

    def alive(self, directory: Path) -> bool:
        """Return whether this process of the cluster in *directory* runs."""
        own = mark(directory, self.role)
        # A process that begins another program has no description for a moment, which is long on a busy machine.
        wait_for(lambda: own in _description(self.pid) or not Path(f"/proc/{self.pid}").exists(), _EXEC)
        return own in _description(self.pid)


def mark(directory: Path, role: str) -> str:
    """Return the argument of the Java virtual machine by which a process is recognized."""
    return f"{_MARK}{directory}/{role}"


def start(
    role: str, command: Sequence[str], *, url: str, environment: Mapping[str, str], directory: Path, log: Path
) -> Daemon:
    """Start a process in a new session, so that it outlives this one, with its output in *log*."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            # Java has the mark as an argument. Before, a script runs for seconds, and may have to be ended as well.
            env={**environment, _VARIABLE: mark(directory, role)},
            start_new_session=True,
        )
    _STARTED.append(process)
    one = Daemon(role, process.pid, url, str(log))
    try:  # for a moment, the system does not show the environment of a new process, and `stop` would spare it
        wait_for(lambda: one.alive(directory) or process.poll() is not None, _SHOWN)
    except BaseException:
        _signalled(one, signal.SIGKILL)
        raise
    return one


def stop(daemons: Sequence[Daemon], directory: Path, grace: float = 10.0) -> None:
    """Terminate the processes, wait *grace* seconds, and kill the remaining ones, each with its process group."""
    running = [one for one in daemons if one.alive(directory)]
    for one in running:
        _signalled(one, signal.SIGTERM)
    wait_for(lambda: not any(one.alive(directory) for one in running), grace)
    for one in running:
        # Executors are in the group of their worker, and may run longer than the worker.
        _signalled(one, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait at most *timeout* seconds until *condition()* holds; return whether it does."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        for child in _STARTED:
            child.poll()
        time.sleep(_POLL)
    return True


def free_port(wanted: int = 0) -> int:
    """Return a free port of the loopback: *wanted*, if it is free."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", wanted))
        except OSError:
            one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def reason_in_log(log: str) -> str:
    """Return the last line of a log that gives a reason, otherwise its last line."""
    try:
        lines = [line for line in Path(log).read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    reasons = [line for line in lines if _REASON.search(line)]
    return "".join((reasons or lines or ["it left no log"])[-1:]).strip()[:_QUOTED]


def _signalled(one: Daemon, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(one.pid, number)


def _description(pid: int) -> str:
    """Return the command line and the environment of a process; empty if it has ended, or is a zombie."""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            parts = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
            return b"\0".join(parts).decode(errors="replace")
        return ""
    found = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout

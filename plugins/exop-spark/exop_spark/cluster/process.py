"""The processes of a cluster: daemons, recognized later by their command line, stopped with their children."""

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

#: The system property that marks the processes of a cluster: a process number alone may belong to another one by now.
_MARK: Final = "-Dexop.cluster="
_GLANCE: Final = 0.05
#: The part of a line that an error quotes, in characters.
_QUOTED: Final = 600
#: How a line begins that says why a process of Java's ended.
_REASON: Final = re.compile(r"^(Caused by: |Exception in |Error: |[\w.$]+(Exception|Error)\b)|\bERROR\b")
#: What this process has started, whose results it asks for: an ended child would remain in the table of processes.
_STARTED: Final[list[subprocess.Popen[bytes]]] = []


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process: its role (`master`, `worker-1`, `connect`), number, address and log."""

    role: str
    pid: int
    url: str
    log: str

    def alive(self, directory: Path) -> bool:
        """Whether this process of the cluster in *directory* still runs."""
        return mark(directory, self.role) in _arguments(self.pid)


def mark(directory: Path, role: str) -> str:
    """The argument of the Java virtual machine by which a process is recognized."""
    return f"{_MARK}{directory}/{role}"


def start(
    role: str, command: Sequence[str], *, url: str, environment: Mapping[str, str], directory: Path, log: Path
) -> Daemon:
    """Start a process that outlives this one, in a session of its own, with its output in *log*."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
        )
    _STARTED.append(process)
    return Daemon(role, process.pid, url, str(log))


def stop(daemons: Sequence[Daemon], directory: Path, grace: float = 10.0) -> None:
    """Ask the processes to end, wait, and kill those that do not, each with all of its process group."""
    running = [one for one in daemons if one.alive(directory)]
    for one in running:
        _signalled(one, signal.SIGTERM)
    wait_for(lambda: not any(one.alive(directory) for one in running), grace)
    for one in running:
        # Executors are in the group of their worker, and may need longer than it.
        _signalled(one, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait at most *timeout* seconds until *condition()* holds; return whether it does."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        for child in _STARTED:
            child.poll()
        time.sleep(_GLANCE)
    return True


def free_port(wanted: int = 0) -> int:
    """Return a free port of the loopback: the one that is wanted, if it is free."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", wanted))
        except OSError:
            one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def last_words(log: str) -> str:
    """The last reason that a log gives, or its last line."""
    try:
        lines = [line for line in Path(log).read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    reasons = [line for line in lines if _REASON.search(line)]
    return "".join((reasons or lines or ["it left no log"])[-1:]).strip()[:_QUOTED]


def _signalled(one: Daemon, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(one.pid, number)


def _arguments(pid: int) -> str:
    """Return the command line of a process; empty when there is none, or it has ended and was not waited for."""
    path = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self/cmdline").exists():
        try:
            return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    found = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout

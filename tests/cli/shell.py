"""`exop` in this process or in one of its own, and waiting for what it does."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from exop.cli import main

COMMAND = [sys.executable, "-m", "exop"]


def exop_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def exop(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, in this process: ten times as cheap, where the process is not what is tested."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(one) for one in arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def answer_of(*arguments: object, code: int = 0) -> str:
    """Run a command that ends with *code*, and return what it printed: on stdout if it succeeds, else on stderr."""
    done = exop(*arguments)
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stderr if code else done.stdout


def facts(*arguments: object) -> Any:
    """What a command prints with `--json`."""
    return json.loads(answer_of(*arguments, "--json"))


@contextmanager
def running(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command beside the test; it is killed if the test leaves it running."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until *condition* gives something true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.02)
    return found


def lines(path: Path) -> list[str]:
    """The lines of a file that may not be there yet."""
    return path.read_text().splitlines() if path.exists() else []


def applications() -> dict[str, str]:
    """The state of every application that runs, as seen from here."""
    from exop.remoting import find_platforms
    from exop.remoting.api.remote_platform import RemotePlatform

    found: dict[str, str] = {}
    for one in find_platforms():
        if one.problem:
            continue
        with RemotePlatform(one.address) as platform:
            found |= {name: app["state"] for name, app in platform.status()["applications"].items()}
    return found


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, and more."""
    return {**os.environ, **more}

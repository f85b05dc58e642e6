"""The output of the commands of this folder on a terminal: progress, one-line errors, exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, Self, TextIO

from exop.errors import ExopError

#: The exit code of a command that was stopped by Ctrl-C.
INTERRUPTED = 128 + signal.SIGINT
MISTAKE = 2


class Progress:
    """A line of progress that is overwritten, and removed at the end; silent unless the output is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._seen = self._stream.isatty()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replace the line by *text*."""
        if self._seen:
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)

    def clear(self) -> None:
        """Remove the line; what is printed next starts at the margin."""
        if self._seen and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def run_command(name: str, command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> NoReturn:
    """Run *command* and end the process: a user's mistake is one line and exit code 2, Ctrl-C is 130."""
    try:
        code = command(arguments)
    except ExopError as mistake:
        print(f"{name}: {mistake}", file=sys.stderr)
        code = MISTAKE
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        code = INTERRUPTED
    raise SystemExit(code)

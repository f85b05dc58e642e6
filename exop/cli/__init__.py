"""The command line: `exop COMMAND`. Thin: each command asks the platform, and prints what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: The exit code where the reader of the output has gone away (`exop services | head`).
PIPE_CLOSED: Final = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 a failure while something ran, 2 a mistake, 3 dead letters are left.

    The entry point of `exop` and `python -m exop`; without *arguments*, those of the process.
    """
    # The parts are imported here, so that `import exop.cli` costs nothing and the overview needs no parser.
    import os
    import sys

    from exop.cli.streams import open_closed_streams

    open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not given or given[0].startswith("-"):
            from exop.cli.overview import is_wanted, show_overview

            if is_wanted(given):
                return show_overview()
        from exop.cli.entry import run_command_line

        return run_command_line(given)
    except BrokenPipeError:
        # What is still buffered has no reader: Python would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED

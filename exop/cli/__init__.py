"""The command line: `exop COMMAND`. Thin: each command asks the platform, and prints what it says."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a failure while something ran, 2 for a mistake of the user.

    The entry point of `exop` and `python -m exop`; without *arguments*, those of the process.
    """
    # `import exop.cli` costs nothing: the parts are imported by who runs a command.
    import sys

    from exop.cli.streams import open_closed_streams

    open_closed_streams()
    from exop.cli.entry import run_command_line

    return run_command_line(list(sys.argv[1:] if arguments is None else arguments))

"""How long does `exop` take to start, against `python -c ''`?"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Final

from bench.harness import Result, Side, compare

FLOOR: Final = "python -c ''"
#: The command lines that are measured: the overview, the help of a command that imports much, the list of platforms.
ASKED: Final = {"help": ("--help",), "run-help": ("run", "--help"), "ps": ("ps",)}


def measure(*, rounds: Annotated[int, "how many pairs of runs"] = 15) -> Iterator[Result]:
    """Start both as processes of their own; CPU of the whole process."""
    floor = process(sys.executable, "-c", "")
    for name, arguments in ASKED.items():
        candidate = process(sys.executable, "-m", "exop", *arguments)
        yield compare(f"start/{name}", "ms", floor=floor, candidate=candidate, against=FLOOR, rounds=rounds)


def process(*command: str) -> Side:
    """Run *command* to its end; its figure is the CPU time that it used, in milliseconds."""

    def run() -> float:
        before = _used()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return (_used() - before) * 1e3

    return run


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime

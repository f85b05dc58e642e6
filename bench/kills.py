"""Killing the durable application again and again, and comparing what it leaves with an undisturbed run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bench.durable_app import ON_SPARK, OUTPUTS
from exop.runtime.durable.failpoints import FAILPOINTS
from exop.runtime.log.disk import DiskLog

ROOT = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "exop-spark")])
#: The failpoints that the application passes: all.
PASSED = list(FAILPOINTS)
#: The exit code of a process that was killed.
KILLED = -9
#: No life of the application lasts longer, in seconds.
PATIENCE = 120.0


@dataclass
class Run:
    """One application in one folder, over as many lives as it takes.

    Attributes:
        module: The program of the application.
        kills: How often it was killed.
        starts: The seconds that each life took from its start until the application ran.
    """

    folder: Path
    options: Sequence[str] = ()
    module: str = "bench.durable_app"
    kills: int = 0
    starts: list[float] = field(default_factory=list)

    def live(self, seconds: float | None = None, failpoint: str | None = None, *, running: bool = False) -> bool:
        """Let it live until it has finished, or is killed: after *seconds*, or at a failpoint; tells whether it was.

        With *running* the seconds are counted from when the application runs.

        Raises:
            RuntimeError: it ended otherwise, or not at all.
        """
        environment = {**os.environ, "PYTHONPATH": PATHS} | ({"EXOP_FAILPOINT": failpoint} if failpoint else {})
        command = [sys.executable, "-m", self.module, str(self.folder), *self.options]
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=said, text=True)
            assert process.stdout is not None
            out = process.stdout.readline() if running else ""
            try:
                out += process.communicate(timeout=PATIENCE if seconds is None else seconds)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                out += process.communicate()[0]
                if seconds is None:
                    raise RuntimeError(f"it did not finish within {PATIENCE:g} s: {_tail(said)}") from None
            self.starts += [float(line.split()[1]) for line in out.splitlines() if line.startswith("started")]
            if process.returncode == KILLED:
                self.kills += 1
                return True
            if process.returncode != 0:
                raise RuntimeError(f"it ended with exit code {process.returncode}: {_tail(said)}")
            return False

    def output(self) -> dict[str, list[str]]:
        """The lines of each output; those of a merge sorted, since their order is nobody's promise; and the log."""
        names = [*OUTPUTS, *(ON_SPARK if "--spark" in self.options else ())]
        found = {name: (self.folder / name).read_text().splitlines() for name in names}
        found["merged"].sort()
        log = DiskLog(self.folder / "state" / "channels" / "durable.application" / "kept.channel")
        found["log"] = [str(row) for batch in log.read(0, log.end) for row in batch]
        log.close()
        return found


def _tail(said: IO[str]) -> str:
    said.seek(0)
    return said.read()[-5000:]


def undisturbed(options: Sequence[str] = ()) -> dict[str, list[str]]:
    """What a run that nobody disturbs leaves."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), options)
        run.live()
        return run.output()


def differences(found: dict[str, list[str]], wanted: dict[str, list[str]]) -> int:
    """How many lines are missing, too many, or other ones."""
    different = 0
    for name, lines in wanted.items():
        there = found[name]
        pairs = zip(there, lines, strict=False)
        different += sum(one != other for one, other in pairs) + abs(len(there) - len(lines))
    return different


def killed_at_random(run: Run, chance: random.Random, most: int) -> None:
    """Kill it at random moments, at most *most* times, and let it finish then."""
    while run.kills < most:
        if not run.live(chance.uniform(0.2, 0.8)):
            return
    run.live()


def timed(run: Run) -> float:
    """The seconds that one whole life takes."""
    begin = time.perf_counter()
    run.live()
    return time.perf_counter() - begin

"""Killing the durable application again and again, and comparing what it leaves with an undisturbed run."""

from __future__ import annotations

import multiprocessing
import os
import random
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

from bench.durable_app import ON_SPARK, OUTPUTS
from exop.model.items import CONTROL
from exop.runtime.durable import failpoints
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.memory import flat

ROOT = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "exop-spark")])
#: Every failpoint, and the moment at which it is passed.
FAILPOINTS: Final = {
    "checkpoint-begin": "a checkpoint: nothing is parked yet",
    "memento-before": "a checkpoint or a change: everything is parked, no memento has been taken",
    "memento-after": "a checkpoint or a change: a memento has been taken",
    "checkpoint-captured": "a checkpoint: everything is captured, all drivers are parked still",
    "checkpoint-released": "a checkpoint: the stream runs again, nothing is written yet",
    "checkpoint-writing": "a checkpoint: written, but not committed",
    "checkpoint-committed": "a checkpoint: committed",
    "generation-written": "the state directory: a transaction is in the generation file, and not committed",
    "generation-committed": "the state directory: a transaction is committed, and the generation file does not say so",
    "checkpoint-put-out": "a checkpoint: the sinks have put out what belongs to it",
    "rebind-before": "a change: the states are handed over, the old connections are still bound",
    "rebind-after": "a change: the new connections are bound, all drivers are parked still",
    "exclusive-closed": "a change: the old slets that own what the new ones need are closed, these are not open yet",
    "change-made": "a change has been made, and is in no checkpoint yet",
    "plan-prepared-before": "a change over hosts: everything is cut, the host has not recorded its vote",
    "plan-prepared-after": "a change over hosts: the host has recorded its vote, and not sent it",
    "plan-committed-before": "a change over hosts: all have voted, the home has not recorded the commit",
    "plan-committed-after": "a change over hosts: the home has recorded the commit, and told no other host",
    "plan-settled-before": "a change over hosts: the host knows the outcome, and has not recorded it",
    "plan-settled-after": "a change over hosts: the host has recorded the outcome, and not carried it out",
    "plan-carried-out": "a change over hosts: the stream runs again, the checkpoint of the cut is not written",
    "log-append-before": "a log on disk: nothing of the batch is written",
    "log-append-half": "a log on disk: half of the batch is written",
    "log-append-after": "a log on disk: the batch is written, and not yet acknowledged",
    "engine-commit-before": "an engine: the output of a batch is in its log, the engine has not committed it",
    "engine-commit-after": "an engine: a batch is committed, the platform does not know it yet",
}
#: The failpoints that the application passes: all but those of plans over several hosts.
PASSED = [name for name in FAILPOINTS if not name.startswith("plan-")]
#: The exit code of a process that was killed.
KILLED = -9
#: No life of the application lasts longer, in seconds.
PATIENCE = 240.0


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

    def live(
        self,
        seconds: float | None = None,
        failpoint: str | None = None,
        *,
        running: bool = False,
        before: Callable[[int], bool] = lambda process: False,
    ) -> bool:
        """Let it live until it has finished, or is killed: after *seconds*, or at a failpoint; tells whether it was.

        With *running* the seconds are counted from when the application runs. *before* is called with the number of
        the process before it is killed; if it returns true, the process may also have failed by itself.

        Raises:
            RuntimeError: it ended otherwise, or not at all.
        """
        killed, out = life(
            self.module, [str(self.folder), *self.options], seconds, failpoint, running=running, before=before
        )
        self.starts += [float(line.split()[1]) for line in out.splitlines() if line.startswith("started")]
        self.kills += killed
        return killed

    def output(self) -> dict[str, list[str]]:
        """The lines of each output; those of a merge sorted, since their order is nobody's promise; and the log."""
        names = [*OUTPUTS, *(ON_SPARK if "--spark" in self.options else ())]
        found = {name: (self.folder / name).read_text().splitlines() for name in names}
        found["merged"].sort()
        log = DiskLog(self.folder / "state" / "channels" / "durable.application" / "kept.channel")
        found["log"] = [str(row) for row in flat(log.events(0, log.end)) if not isinstance(row, CONTROL)]
        log.close()
        return found


def life(
    module: str,
    arguments: Sequence[str],
    seconds: float | None = None,
    failpoint: str | None = None,
    *,
    running: bool = False,
    before: Callable[[int], bool] = lambda process: False,
) -> tuple[bool, str]:
    """Run a program until it has finished, or is killed: after *seconds*, or at a failpoint.

    Returns:
        Whether it was killed, and what it has printed.

    Raises:
        RuntimeError: it ended otherwise, or not at all.
    """
    with tempfile.NamedTemporaryFile("r") as said:
        reader, writer = _processes().Pipe(duplex=False)
        process = _processes().Process(target=_live, args=(module, arguments, failpoint, writer, said.name))
        process.start()
        writer.close()
        with os.fdopen(os.dup(reader.fileno())) as printed:
            reader.close()
            out = printed.readline() if running else ""
            process.join(PATIENCE if seconds is None else seconds)
            hangs = process.is_alive() and seconds is None
            harmed = process.is_alive() and process.pid is not None and before(process.pid)
            process.kill()
            process.join()
            out += printed.read()
        if hangs or (process.exitcode not in (0, KILLED) and not harmed):
            what = f"did not finish within {PATIENCE:g} s" if hangs else f"ended with exit code {process.exitcode}"
            raise RuntimeError(f"it {what}: {said.read()[-5000:]}")
        return process.exitcode != 0, out


@cache
def _processes() -> ForkServerContext:
    """Return the context whose processes are forked off one that has imported the platform: each import takes 0.4 s."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["exop.wiring.applications", "exop.stock.slets", "bench.durable_app.queries"])
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=PATHS, EXOP_FAILPOINT="-")  # with a name, whichever, the failpoints are compiled in
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def _live(module: str, arguments: Sequence[str], failpoint: str | None, out: Connection, said: str) -> None:
    """Be the program, in the new process."""
    os.dup2(out.fileno(), 1)
    os.dup2(os.open(said, os.O_WRONLY), 2)
    out.close()
    name, _, times = (failpoint or "").partition(":")
    failpoints._NAME, failpoints._left[0] = name, int(times or 1)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


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

"""A campaign of kills: at random moments and at every failpoint, until there were as many as wanted."""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Result
from bench.kills import Run, differences, undisturbed

#: Stands for a random moment.
ANY = "random"


@dataclass
class Campaign:
    """Kills runs of one application, one after the other, and compares what each leaves with an undisturbed run.

    Args:
        name: The path of its results.
        options: Those of the application.
        changes: Those of the changes that are made meanwhile; the undisturbed run makes none.
        moments: From when to when it is killed at random, in seconds.
        running: They are counted from when the application runs, not from the start of the process.

    Attributes:
        kills: How often it was killed, by failpoint.
        different: How many lines were not as they should be.
        starts: How many seconds each life but the first of a run took until the application ran.
    """

    name: str
    options: Sequence[str]
    changes: Sequence[str]
    moments: tuple[float, float]
    running: bool = False
    kills: Counter[str] = field(default_factory=Counter)
    different: int = 0
    starts: list[float] = field(default_factory=list)

    def carry_out(self, kills: int, at_failpoints: int, names: Sequence[str], chance: random.Random) -> None:
        """Kill it so often at random, and so often at each failpoint."""
        wanted = undisturbed(self.options)
        planned = [name for name in names for _ in range(at_failpoints)] + [ANY] * kills
        chance.shuffle(planned)
        while planned:
            with tempfile.TemporaryDirectory() as folder:
                run = Run(Path(folder), (*self.options, *self.changes))
                while planned and self._life(run, planned[-1], chance):
                    self.kills[planned.pop()] += 1
                if not planned:
                    run.live()
                self.different += differences(run.output(), wanted)
                self.starts += run.starts[1:]
            done = self.kills.total()
            print(f"{self.name}: {done} kills, {self.different} differences", file=sys.stderr, flush=True)

    def results(self) -> Iterator[Result]:
        """The figures."""
        yield Result(f"{self.name}/kills", self.kills.total(), "kills")
        points = [count for name, count in self.kills.items() if name != ANY]
        if self.kills[ANY]:
            yield Result(f"{self.name}/kills/random", self.kills[ANY], "kills")
        if points:
            yield Result(f"{self.name}/kills/failpoint", min(points), "kills at each", samples=points)
        yield Result(f"{self.name}/differences", self.different, "lines")
        if self.starts:
            samples = [one * 1e3 for one in self.starts]
            yield Result(f"{self.name}/time", statistics.median(samples), "ms", samples=samples)

    def _life(self, run: Run, how: str, chance: random.Random) -> bool:
        """One life that is to end by a kill; `False` when the application has finished instead."""
        if how != ANY:
            return run.live(failpoint=f"{how}:{chance.randint(1, 6)}")
        return run.live(chance.uniform(*self.moments), running=self.running)

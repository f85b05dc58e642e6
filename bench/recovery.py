"""Does a durable application that is killed leave the output of an undisturbed run, and what do checkpoints cost?"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from bench.durable_app import counted, numbers
from bench.harness import Result, Side, compare, ratio_of
from bench.kills import PASSED, Run, differences, undisturbed
from exop import Application, Platform, hookimpl, slet
from exop.hooks import Plugins

#: The numbers of one run, the seconds between two replacements in it.
SIZE, CHANGES = "40000", "0.05"


def measure(
    *,
    kills: Annotated[int, "random kills"] = 20,
    failpoint_kills: Annotated[int, "kills at each named failpoint"] = 1,
    seed: Annotated[int, "of the random moments"] = 1,
    megabytes: Annotated[float, "the state of the slet whose checkpoints are paid for"] = 10.0,
    every: Annotated[float, "seconds between two of these checkpoints"] = 1.0,
    seconds: Annotated[float, "seconds that each run with and without checkpoints takes"] = 4.0,
    rounds: Annotated[int, "pairs of runs with and without checkpoints"] = 5,
) -> Iterator[Result]:
    """Kill, compare; then measure."""
    yield from _kills(kills, failpoint_kills, random.Random(seed))
    yield from _cost(megabytes, every, seconds, rounds)


def _kills(kills: int, at_failpoints: int, chance: random.Random) -> Iterator[Result]:
    """Kill runs of the application, one after the other, until there were as many kills as wanted."""
    options = ("--to", SIZE, "--changes", CHANGES)
    wanted = undisturbed(options[:2])
    planned: list[str | float] = [f"{name}:{chance.randint(1, 6)}" for name in PASSED for _ in range(at_failpoints)]
    planned += [0.0] * kills
    chance.shuffle(planned)
    done, different, starts = 0, 0, list[float]()
    while planned:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(Path(folder), options)
            while planned and _one_life(run, planned[-1], chance):
                planned.pop()
            if not planned:
                run.live()
            done += run.kills
            different += differences(run.output(), wanted)
            starts += run.starts[1:]
        print(f"{done} kills, {different} differences", file=sys.stderr, flush=True)
    yield Result("recovery/kills", done, "kills")
    yield Result("recovery/differences", different, "lines")
    if starts:
        yield Result("recovery/time", statistics.median(starts) * 1e3, "ms", samples=[one * 1e3 for one in starts])


def _one_life(run: Run, how: str | float, chance: random.Random) -> bool:
    """One life that is to end by a kill; `False` when the application has finished instead."""
    return run.live(failpoint=how) if isinstance(how, str) else run.live(chance.uniform(0.2, 1.5))


@slet
def nowhere(item: Any) -> None:
    """Drop what comes."""


class _Slets:
    """The slets of the application whose throughput is measured, as a plugin."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """Its three slets."""
        return [numbers, counted, nowhere]


@dataclass
class Seen:
    """What each run of one side has shown beside its figure: CPU microseconds per item, milliseconds of a pause."""

    cpu: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)


def _cost(megabytes: float, every: float, seconds: float, rounds: int) -> Iterator[Result]:
    """Run the same stream with and without checkpoints, in turns: what an item takes of the wall clock and of CPUs."""
    without, checked = Seen(), Seen()
    name, against = f"{megabytes:g}MB", "the same stream without checkpoints"
    floor, candidate = _side(megabytes, None, seconds, without), _side(megabytes, every, seconds, checked)
    yield compare(
        f"recovery/checkpoints/cost/{name}",
        "us per item",
        floor=floor,
        candidate=candidate,
        against=against,
        rounds=rounds,
    )
    pairs = list(zip(checked.cpu[1:], without.cpu[1:], strict=False))  # the first run of each is not counted
    ratio = statistics.median(ratio_of(*pair) for pair in pairs)
    noise = [ratio_of(later, earlier) for earlier, later in pairwise(without.cpu[1:])]
    value = statistics.median(pair[0] for pair in pairs)
    yield Result(f"recovery/checkpoints/cpu/{name}", value, "us per item", against, ratio, pairs, noise)
    pause = statistics.median(checked.pauses)
    yield Result(f"recovery/checkpoints/pause/{name}", pause, "ms", samples=checked.pauses)


def _side(megabytes: float, every: float | None, seconds: float, seen: Seen) -> Side:
    """Let the stream run for so long; the figure is the wall time of one item."""

    def side() -> float:
        with tempfile.TemporaryDirectory() as folder:
            app = Application("cost")
            if every is not None:
                app.durable(every=every)
            app.add("nowhere", nowhere, item=_state(app, megabytes))
            plugins = Plugins()
            plugins.register("cost", _Slets())
            with Platform(state=folder, control=False, plugins=plugins) as platform:
                platform.apply(app.build())
                driver = platform.deployment("cost").components["numbers"].driver
                if driver is None:
                    raise RuntimeError("a source has a driver")
                threading.Event().wait(0.5)  # the first checkpoint, and the first items, which are all measured
                first, begin, cpu = driver.count, time.perf_counter(), time.process_time()
                threading.Event().wait(seconds)
                spent, passed = time.perf_counter() - begin, driver.count - first
                seen.cpu.append((time.process_time() - cpu) / passed * 1e6)
                taken = platform.status("cost").get("checkpoints")
                if taken is not None:
                    seen.pauses.append(taken["pause_ms"])
                platform.remove("cost")
                return spent / passed * 1e6

    return side


def _state(app: Application, megabytes: float) -> Any:
    return app.add("counted", counted, number=app.add("numbers", numbers, to=10**12), megabytes=megabytes)

"""Does a durable application that is killed leave the output of an undisturbed run, and what do checkpoints cost?"""

from __future__ import annotations

import math
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

from bench.campaign import Campaign
from bench.durable_app import counted, numbers
from bench.harness import Result, Side, compare, median, ratio_of
from bench.kills import PASSED
from exop import Application, Platform, hookimpl, slet
from exop.hooks import Plugins
from exop.runtime.dataflow.metrics import total

#: What a Spark query passes of the failpoints, and nobody else does in the same way.
ENGINES = ("engine-commit-before", "engine-commit-after", "log-append-half", "memento-after", "rebind-after")


def measure(
    *,
    kills: Annotated[int, "random kills"] = 200,
    failpoint_kills: Annotated[int, "kills at each named failpoint"] = 10,
    spark_kills: Annotated[int, "random kills with queries on Spark"] = 5,
    spark_failpoint_kills: Annotated[int, "kills at each failpoint of an engine with queries on Spark"] = 1,
    seed: Annotated[int, "of the random moments"] = 1,
    megabytes: Annotated[float, "the state of the slet whose checkpoints are paid for"] = 10.0,
    every: Annotated[float, "seconds between two of these checkpoints"] = 1.0,
    seconds: Annotated[float, "seconds that each run with and without checkpoints takes"] = 4.0,
    rounds: Annotated[int, "pairs of runs with and without checkpoints"] = 5,
) -> Iterator[Result]:
    """Kill, compare; then measure."""
    chance = random.Random(seed)
    native = Campaign("recovery", ("--to", "40000"), ("--changes", "0.05"), (0.2, 1.2))
    native.carry_out(kills, failpoint_kills, PASSED, chance)
    yield from native.results()
    if spark_kills or spark_failpoint_kills:
        load = ("--spark", "--to", "20000", "--pace", "0.1", "--every", "0.3")
        spark = Campaign("recovery/spark", load, ("--changes", "0.7"), (0.1, 3.0), running=True)
        spark.carry_out(spark_kills, spark_failpoint_kills, ENGINES, chance)
        yield from spark.results()
    yield from _cost(megabytes, every, seconds, rounds)


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
    ratio = median(ratio_of(*pair) for pair in pairs)
    noise = [ratio_of(later, earlier) for earlier, later in pairwise(without.cpu[1:])]
    value = median(pair[0] for pair in pairs)
    yield Result(f"recovery/checkpoints/cpu/{name}", value, "us per item", against, ratio, pairs, noise)
    pause = median(checked.pauses)
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
                numbered = platform.deployment("cost").components["numbers"]
                threading.Event().wait(0.5)  # the first checkpoint, and the first items, which are all measured
                first, begin, cpu = total(numbered.metrics.counts(), "out"), time.perf_counter(), time.process_time()
                threading.Event().wait(seconds)
                spent, passed = time.perf_counter() - begin, total(numbered.metrics.counts(), "out") - first
                items = passed or math.nan  # no item has passed: that is no figure
                seen.cpu.append((time.process_time() - cpu) / items * 1e6)
                taken = platform.status("cost").get("checkpoints")
                if taken is not None:
                    seen.pauses.append(taken["pause_ms"])
                platform.remove("cost")
                return spent / items * 1e6

    return side


def _state(app: Application, megabytes: float) -> Any:
    return app.add("counted", counted, number=app.add("numbers", numbers, to=10**12), megabytes=megabytes)

"""Is the output exact after `kill -9` of the platform, of Spark's Java process, or of its Python workers?

One case is a durable application with two queries on Spark, one of them with open windows. In each life but the last,
one of these processes is killed in mid-stream, each of them once, in any order. If it was not the platform, the
platform goes on for a while, and is killed then: a query whose Java process or worker is gone has failed, and is
repaired by starting the application again. The last life finishes the stream, and the output is compared with that of
an undisturbed run, line by line.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Final

from bench.cases import carry_out
from bench.harness import Result
from bench.kills import Run, differences, undisturbed

#: The application: so many numbers, five thousand a second, which last until each process was killed.
LOAD: Final = ("--spark", "--to", "45000", "--pace", "0.1", "--every", "0.3")
#: When one is killed, in seconds since the application runs.
MOMENTS: Final = (0.3, 3.0)
#: The longest time that the platform lives on without its Java process or worker, in seconds.
AFTERWARDS: Final = 1.5
#: The longest time until there is one, in seconds.
PATIENCE: Final = 60.0
#: A part of the command line of each victim but the platform.
VICTIMS: Final = {
    "platform": "",
    "java": "org.apache.spark.deploy.SparkSubmit",
    "worker": "pyspark.daemon pyspark.worker",
}


def measure(
    *,
    runs: Annotated[int, "how many kills of each kind of process"] = 20,
    seed: Annotated[int, "of the random moments"] = 0,
    record: Annotated[Path | None, "where the outcomes are kept, for a second run to go on"] = None,
    only: Annotated[int | None, "repeat this one"] = None,
) -> Iterator[Result]:
    """Count the runs by outcome; a failure is an output that differs."""
    yield from carry_out("spark_kills", killed, runs=runs, seed=seed, record=record, only=only)


def killed(chance: random.Random) -> str:
    """Kill one process of each kind in mid-stream, each in a life of its own, and let the application finish."""
    victims = chance.sample(sorted(VICTIMS), len(VICTIMS))
    moments = {victim: chance.uniform(*MOMENTS) for victim in victims}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), LOAD)
        for victim in victims:
            struck: list[int] = []
            strike = partial(_strike, victim, chance, struck)
            alive = run.live(moments[victim], running=True, before=strike)
            if not (alive and struck):
                raise RuntimeError(f"no {victim} to kill")
        run.live()
        found = differences(run.output(), _wanted())
        story = ", ".join(f"{victim} at {moments[victim]:.3f} s" for victim in victims)
        assert found == 0, f"{found} lines differ after the kills of {story}"
    return "exact"


@cache
def _wanted() -> dict[str, list[str]]:
    return undisturbed(LOAD)


def _strike(victim: str, chance: random.Random, struck: list[int], platform: int) -> bool:
    """Kill a process of this kind; tell whether the platform may fail by itself, before it is killed a while later."""
    end = time.monotonic() + PATIENCE
    found = [platform] if not VICTIMS[victim] else []
    while not found and time.monotonic() < end:
        time.sleep(0.05)
        found = processes_of(victim, platform)
    if found:
        struck.append(chance.choice(found))
        os.kill(struck[0], signal.SIGKILL)
    if victim != "platform":
        time.sleep(chance.uniform(0, AFTERWARDS))
    return victim != "platform"


def processes_of(victim: str, platform: int) -> list[int]:
    """Return the processes of a kind of victim that a platform has started."""
    return sorted(one for one, command in _below(platform).items() if VICTIMS[victim] in command)


def _below(process: int) -> dict[int, str]:
    """Return the command lines of all processes below one, by number."""
    above: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            above[int(place.parent.name)] = int(place.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended meanwhile
            continue
    found, new = dict[int, str](), {process}
    while new := {one for one, parent in above.items() if parent in new}:
        found |= {one: _command(one) for one in new}
    return found


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""

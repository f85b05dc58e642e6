"""Is the output exact after `kill -9` of the platform, of Spark's Java process, or of its Python workers?

One case is a durable application with two queries on Spark, one of them with open windows. One process is killed in
mid-stream. If it was not the platform, the platform goes on for a while, and is killed then: a query whose Java process
or worker is gone has failed, and is repaired by starting the application again. The second life finishes the stream,
and the output is compared with that of an undisturbed run, line by line.
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

#: The application: so many numbers, five thousand a second.
LOAD: Final = ("--spark", "--to", "15000", "--pace", "0.1", "--every", "0.3")
#: When it is killed, in seconds since it runs.
MOMENTS: Final = (0.3, 3.0)
#: The longest time that the platform lives on without its Java process or worker, in seconds.
AFTERWARDS: Final = 1.5
#: A part of the command line of each victim but the platform.
VICTIMS: Final = {"platform": "", "java": "org.apache.spark.deploy.SparkSubmit", "worker": "pyspark.daemon"}


def measure(
    *,
    runs: Annotated[int, "how many kills of each kind of process"] = 20,
    seed: Annotated[int, "of the random moments"] = 0,
    record: Annotated[Path | None, "files FILE.VICTIM of the kills that were done: a second call goes on"] = None,
) -> Iterator[Result]:
    """Count the kills by process; a failure is an output that differs."""
    for victim in VICTIMS:
        file = None if record is None else record.with_name(f"{record.name}.{victim}")
        yield from carry_out(f"spark_kills/{victim}", partial(killed, victim), runs=runs, seed=seed, record=file)


def killed(victim: str, chance: random.Random) -> str:
    """Kill one process in mid-stream, and let the application finish in another life."""
    struck: list[int] = []
    moment, wait = chance.uniform(*MOMENTS), chance.uniform(0, AFTERWARDS)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), LOAD)
        alive = run.live(moment, running=True, before=lambda process: _strike(victim, process, chance, wait, struck))
        if alive:
            run.live()
        found = differences(run.output(), _wanted())
        assert found == 0, f"{found} lines differ after the kill of {victim} {moment:.3f} s into the run"
    return "exact" if alive and (struck or victim == "platform") else "over before the kill"


@cache
def _wanted() -> dict[str, list[str]]:
    return undisturbed(LOAD)


def _strike(victim: str, platform: int, chance: random.Random, wait: float, struck: list[int]) -> None:
    """Kill a process below the platform, which is killed after this."""
    found = [one for one, command in _below(platform).items() if VICTIMS[victim] in command] if VICTIMS[victim] else []
    if found:
        struck.append(chance.choice(sorted(found)))
        os.kill(struck[0], signal.SIGKILL)
        time.sleep(wait)


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

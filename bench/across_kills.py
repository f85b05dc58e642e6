"""Is the output exact if the platform is killed while an aggregate moves from engine to engine?

One case is the durable application of `bench.spark_kills`, whose aggregate moves between Arrow, Spark and DuckDB again
and again. The platform is killed twice: by itself, at a random failpoint of a change, a checkpoint or an engine, or
after a random time. The third life finishes the stream, and the output is compared with that of an undisturbed run.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from bench.cases import carry_out
from bench.harness import Result
from bench.kills import Run, differences, undisturbed

#: The application: so many numbers, 2 500 a second.
LOAD: Final = ("--spark", "--to", "15000", "--pace", "0.2", "--every", "0.3")
#: The seconds between two moves.
PAUSES: Final = (0.05, 0.5)
#: The failpoints, which are passed so many times before; and the seconds after which it is killed otherwise.
POINTS: Final = (
    "memento-after",
    "rebind-before",
    "rebind-after",
    "change-made",
    "checkpoint-released",
    "checkpoint-committed",
    "engine-commit-before",
    "engine-commit-after",
)
PASSES: Final = 25
MOMENTS: Final = (2.0, 8.0)


def measure(
    *,
    runs: Annotated[int, "how many cases"] = 20,
    seed: int = 0,
    record: Annotated[Path | None, "where the outcomes are kept, for a second run to go on"] = None,
    only: Annotated[int | None, "repeat this one"] = None,
) -> Iterator[Result]:
    """Count the cases by outcome; a failure is an output that differs."""
    yield from carry_out("across_kills", moved, runs=runs, seed=seed, record=record, only=only)


def moved(chance: random.Random) -> str:
    """Kill the platform twice while the aggregate moves, and let the application finish."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), (*LOAD, "--changes", str(chance.uniform(*PAUSES)), "--only", "aggregate"))
        points = [f"{chance.choice(POINTS)}:{chance.randrange(1, PASSES)}" for _ in range(2)]
        for point in points:
            run.live(chance.uniform(*MOMENTS), point, running=True)
        run.live()
        found = differences(run.output(), _wanted())
        assert run.kills, f"no kill at {points}"
        assert found == 0, f"{found} lines differ after kills at {points}"
        return f"exact after {run.kills} kills"


@cache
def _wanted() -> dict[str, list[str]]:
    return undisturbed(LOAD)

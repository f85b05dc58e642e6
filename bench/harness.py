"""How every bench measures: two sides in turns (A B A B), their paired ratios, and what equal sides show (A/A).

A *side* is anything that runs once and returns one figure. `timed()` makes a side of a loop; a bench whose figure is
something else (a whole process, a latency, a number of losses) writes its own. A question is a module in this folder
with a `measure` function whose keyword-only parameters are its options:

    def measure(*, roads: Annotated[int, "how many roads"] = 1) -> Iterator[Result]:
        floor = timed(lambda number: plain_loop(number))
        candidate = timed(lambda number: through_exop(number))
        yield compare("linear_road/hop", "us", floor=floor, candidate=candidate, against="plain loop")

Ratios of neighbours are compared, not means: what else the machine does hits both sides of a pair alike, and the A/A
ratios beside them tell how well that worked.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

#: Runs once and returns its figure.
Side: TypeAlias = Callable[[], float]
#: Does the measured thing *number* times in a row.
Block: TypeAlias = Callable[[int], object]
#: `cpu`: of the whole process, the sound figure on a shared machine; `thread`: of one thread; `wall`: what people wait.
Clock: TypeAlias = Literal["cpu", "thread", "wall"]

CLOCKS: Final[dict[Clock, Callable[[], int]]] = {
    "cpu": time.process_time_ns,
    "thread": time.thread_time_ns,
    "wall": time.perf_counter_ns,
}
NANOSECONDS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True)
class Result:
    """One answer: a name that is a path, a value, and what it was compared with in the same run."""

    name: str
    value: float
    unit: str = ""
    #: The floor or peer of the same run.
    against: str | None = None
    #: The median of the paired ratios, value to `against`.
    ratio: float | None = None
    #: The raw pairs, (value, `against`); or the raw values where there is nothing to compare with.
    samples: Sequence[Sequence[float]] | Sequence[float] = ()
    #: The raw A/A ratios: `against` to itself, one round later.
    noise: Sequence[float] = ()

    @property
    def ratios(self) -> list[float]:
        """The paired ratios behind `ratio`."""
        return [ratio_of(*pair) for pair in self.samples if isinstance(pair, Sequence)]


def timed(block: Block, *, unit: str = "us", clock: Clock = "cpu", seconds: float = 0.02) -> Side:
    """Make a side of *block*: its figure is the time of one repetition.

    How often the block repeats is found out at the first run, so that each run takes about *seconds*: the clock's
    own cost and resolution then no longer show.
    """
    now, scale = CLOCKS[clock], NANOSECONDS[unit]
    number = 0

    def elapsed(repetitions: int) -> int:
        start = now()
        block(repetitions)
        return now() - start

    def calibrated() -> int:
        repetitions, wanted = 1, seconds * 1e9
        while (spent := elapsed(repetitions)) < wanted / 4:
            repetitions *= 2
        return max(1, round(repetitions * wanted / spent))

    def side() -> float:
        nonlocal number
        number = number or calibrated()
        return elapsed(number) / number / scale

    return side


def paired(floor: Side, candidate: Side, rounds: int) -> tuple[list[tuple[float, float]], list[float]]:
    """Run both sides in turns; return the pairs (candidate, floor) and the A/A ratios of the floor.

    Both run once before, unmeasured. One more run of the floor at the end gives every round its A/A ratio.
    """
    with quiet() as run:
        run(floor)
        run(candidate)
        pairs = []
        for _ in range(rounds):
            base = run(floor)
            pairs.append((run(candidate), base))
        bases = [base for _, base in pairs] + [run(floor)]
    return pairs, [ratio_of(later, earlier) for earlier, later in pairwise(bases)]


def compare(name: str, unit: str, *, floor: Side, candidate: Side, against: str, rounds: int = 15) -> Result:
    """Measure *candidate* beside *floor*: the median value, and the median of the paired ratios."""
    pairs, noise = paired(floor, candidate, rounds)
    ratio = median(ratio_of(*pair) for pair in pairs)
    return Result(name, median(pair[0] for pair in pairs), unit, against, ratio, pairs, noise)


def repeated(name: str, unit: str, side: Side, rounds: int = 15) -> Result:
    """Measure one side alone, where there is nothing to compare it with."""
    with quiet() as run:
        run(side)
        values = [run(side) for _ in range(rounds)]
    return Result(name, median(values), unit, samples=values)


def median(values: Iterable[float]) -> float:
    """The median of the figures that were measured; one that could not be is `nan`, and so is the median of none."""
    measured = [value for value in values if not math.isnan(value)]
    return statistics.median(measured) if measured else math.nan


def upper95(values: Sequence[float]) -> float:
    """An upper bound for the median behind *values*, wrong in at most 5 of 100 cases, whatever their distribution.

    It is one of the values themselves: of 10 the second highest, of 5 the highest. Fewer than 5 cannot bound anything
    so surely; the highest is then returned.
    """
    ordered, count = sorted(values), len(values)
    below = 0.0
    for place in range(count):
        below += math.comb(count, place) / 2**count
        if below >= 0.95:  # the chance that at most *place* values lie below the median
            return ordered[place]
    return ordered[-1]


def ratio_of(value: float, base: float) -> float:
    """The ratio of two figures; infinite to a base of nothing, 1 where both are nothing."""
    if base:
        return value / base
    return math.inf if value else 1.0


@contextmanager
def quiet() -> Iterator[Callable[[Side], float]]:
    """Run sides undisturbed by the garbage collector.

    What exists now is set aside for good (a collection does not visit it), each run starts after a collection, and
    none happens within it.
    """

    def run(side: Side) -> float:
        gc.collect()
        gc.disable()
        try:
            return side()
        finally:
            gc.enable()

    gc.collect()
    gc.freeze()
    try:
        yield run
    finally:
        gc.unfreeze()

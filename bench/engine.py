"""What does an engine cost as a slet, beside a bare loop over the same engine? Microseconds per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Annotated

from bench.harness import Result
from bench.streams import quantile

#: The module that measures each engine, by its function `measured(rounds)`.
ENGINES = {"duckdb": "bench.engine_duckdb", "kafka": "bench.engine_kafka", "spark": "bench.engine_spark"}


def measure(
    *,
    engine: Annotated[str, f"one of {', '.join(ENGINES)}; empty: all"] = "",
    rounds: Annotated[int, "how many pairs of runs"] = 7,
) -> Iterator[Result]:
    """Run the same rows through the bare loop and through ExoP, in pairs."""
    for name, module in ENGINES.items():
        if engine in ("", name):
            measured: Callable[[int], Iterator[Result]] = import_module(module).measured
            yield from measured(rounds)


def latencies(name: str, taken: Sequence[float], floor: Sequence[float], against: str) -> Iterator[Result]:
    """Yield the median and the 95 % quantile of the milliseconds from a batch of rows to its results, of both sides."""
    for what, share in (("median", 0.5), ("p95", 0.95)):
        own, bare = quantile(taken, share), quantile(floor, share)
        yield Result(f"{name}/{what}", own, "ms", against, own / bare, [(own, bare)])

"""What does an engine cost as a slet, beside a bare loop over the same engine? Microseconds per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Annotated

from bench.harness import Result

#: The module that measures each engine, by its function `measured(rounds)`.
ENGINES = {"duckdb": "bench.engine_duckdb", "kafka": "bench.engine_kafka"}


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

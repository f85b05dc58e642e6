"""A durable application whose output is known to the last byte: what recovery is tested and measured with.

One source, branches that meet again, channels of every kind that keeps something, state in dicts and in arrays,
punctuations, and a sink for each branch. `python -m bench.durable_app --help` runs it in a process that can be killed.
"""

import time
from collections.abc import Iterator
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from exop import Application, InputPort, Memento, Punctuation, Slet, hookimpl, input_port, slet

from .engine import Doubled, Summed, doubled_here

#: A punctuation follows each so many numbers.
STEP = 500


class Position(Memento):
    """How far the source has come."""

    number: int = 0
    told: int = 0


@slet
def numbers(position: Position, *, to: int, pace: float = 0.0) -> Iterator[int | Punctuation]:
    """Emit 1, 2, …, and after each 500, which take *pace* seconds, that they are complete."""
    while position.told < to:
        if position.number == position.told + STEP:
            position.told += STEP
            if pace:
                time.sleep(pace)
            yield Punctuation(position.told)
        else:
            position.number += 1
            yield position.number


class Tally(Memento):
    """Sums and last numbers by key."""

    sums: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[int, ...]] = field(default_factory=dict)


@slet
def keyed(number: int, tally: Tally) -> tuple[int, int, tuple[int, ...]]:
    """Add a number to the sum of its key."""
    key = number % 7
    tally.sums[key] = tally.sums.get(key, 0) + number
    tally.last[key] = (*tally.last.get(key, ()), number)[-3:]
    return key, tally.sums[key], tally.last[key]


class KeyedAgain(Slet, name="keyed_again", exclusive=True):
    """The same in other words: what `keyed` is replaced by, and back, one closed before the other opens."""

    tally: Tally

    @input_port
    def number(self, number: int) -> tuple[int, int, tuple[int, ...]]:
        """Add a number to the sum of its key."""
        key, tally = number - number // 7 * 7, self.tally
        before = tally.last.get(key, ())
        tally.sums[key] = number + tally.sums.get(key, 0)
        tally.last[key] = (*before[-2:], number)
        return key, tally.sums[key], tally.last[key]


class Cells(Memento):
    """A large state of which every item changes a little."""

    cells: Any = None


@slet
def counted(number: int, cells: Cells, *, megabytes: float = 0.01) -> tuple[int, int]:
    """Count in a large array how often its cell was hit."""
    if cells.cells is None:
        cells.cells = np.zeros(int(megabytes * 125_000), dtype=np.int64)
    cell = number * 7919 % len(cells.cells)
    cells.cells[cell] += number
    return cell, int(cells.cells[cell])


class Total(Memento):
    """The sum since the last punctuation."""

    total: int = 0


@slet
def totals(number: int | Punctuation, total: Total) -> int | None:
    """Emit the sum of the numbers between two punctuations."""
    if isinstance(number, Punctuation):
        found, total.total = total.total, 0
        return found
    total.total += number
    return None


@slet
def means(window: list[int]) -> float:
    """Emit the mean of a window."""
    return sum(window) / len(window)


@slet
def pulled(entries: InputPort[tuple[int, int, tuple[int, ...]]]) -> Iterator[int]:
    """Take the sums at the slet's own pace."""
    for _, found, _ in entries:
        yield found


@slet
def either(item: Any) -> Any:
    """Where the branches meet again."""
    return item


SLETS = [numbers, keyed, KeyedAgain, counted, totals, means, pulled, either, Doubled, doubled_here, Summed]
#: The files that hold the output; the order of lines in the last one is that of a merge, which nobody promises.
OUTPUTS = ("keyed", "counted", "totals", "means", "pulled", "engine", "doubled", "logged", "merged")
#: Those of the queries on Spark, and of the aggregate that moves to Spark.
ON_SPARK = ("spark-doubled", "spark-sums", "aggregate")


def durable_app(
    *,
    to: int,
    folder: Path,
    every: float | None = 0.02,
    megabytes: float = 0.01,
    pace: float = 0.0,
    spark: bool = False,
) -> Application:
    """Build it; *to* is rounded up to a whole number of steps. With *spark* there are two queries on Spark in it."""
    app = Application("durable")
    if every is not None:
        app.durable(every=every)
    stream = app.add("numbers", numbers, to=to, pace=pace)
    sums = app.add("keyed", keyed, number=stream, out=app.channel("sums", kind="queue", capacity=50))
    found = {
        "keyed": app.add("pass-keyed", either, item=sums),
        "counted": app.add("counted", counted, number=stream, megabytes=megabytes),
        "totals": app.add("totals", totals, number=_small(app, stream)),
        "means": app.add("means", means, window=_window(app, stream)),
        "pulled": app.add("pulled", pulled, entries=sums),
        "engine": app.add("engine-totals", totals, number=app.add("engine", Summed, number=stream)),
        "doubled": app.add("doubled-totals", totals, number=app.add("doubled", Doubled, number=stream)),
        "logged": app.add("logged", either, item=_kept(app, stream)),
    }
    merged = app.channel("both")
    for name in ("means", "pulled"):
        app.add(f"pass-{name}", either, item=found[name], out=merged)
    if spark:
        from .queries import add_queries

        found |= add_queries(app, stream)
    for name, lines in {**found, "merged": merged}.items():
        app.add(f"write-{name}", "stock:write_lines", item=lines, path=folder / name)
    return app


def _small(app: Application, stream: Any) -> Any:
    """A branch behind a queue that is nearly always full."""
    return app.add("small", either, item=stream, out=app.channel("little", kind="queue", capacity=3))


def _kept(app: Application, stream: Any) -> Any:
    """A branch that is kept on disk, in segments of a few thousand numbers."""
    return app.add("keep", either, item=stream, out=app.channel("kept", kind="log", keep="all", segment=2**18))


def _window(app: Application, stream: Any) -> Any:
    return app.add("windowed", either, item=stream, out=app.channel("window", kind="window", count=10, slide=5))


@hookimpl
def register_slets() -> list[Any]:
    """The slets by name, so that a restarted platform finds them; those on Spark where there is one."""
    if find_spec("exop_spark") is None:
        return SLETS
    from .queries import QUERIES

    return [*SLETS, *QUERIES]


@hookimpl
def register_builders() -> list[Any]:
    """The builder."""
    return [durable_app]

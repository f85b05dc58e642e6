"""How long is the output of a query on Spark interrupted when another query takes its place, with its state?"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import pyarrow as pa
from exop_spark import EventTime, Input, query

from bench.harness import Result
from bench.streams import quantile
from exop import Application, Memento, Platform, Punctuation, slet

ROWS: Final = pa.schema([pa.field("time", pa.int64(), nullable=False), pa.field("key", pa.int64(), nullable=False)])
COUNTS: Final = pa.schema([("until", pa.int64()), ("key", pa.int64()), ("count", pa.int64())])
#: The baseline for the gaps around swaps.
ALONE: Final = "the same stream for as long without a swap"
#: So long may everything take that has to happen, in seconds.
PATIENCE: Final = 120.0


class Sent(Memento):
    """How many batches were sent."""

    batches: int = 0


class Stream:
    """What the source and the sink of the bench share."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.over = threading.Event()
        self.arrivals: list[float] = []
        self.counts: dict[tuple[int, int], int] = {}

    def gap(self, action: Callable[[], object], after: float) -> tuple[float, float]:
        """Return the longest gap at the sink during an action and for a while after it, and how long it took, in ms.

        The gap that contains the end of the action is measured as a whole.
        """
        begin = time.perf_counter()
        action()
        took = time.perf_counter() - begin
        self.over.wait(after)
        _await(lambda: bool(self.arrivals) and self.arrivals[-1] > begin + took)
        end = time.perf_counter()
        there = [one for one in [*self.arrivals] if begin <= one <= end]
        before = max((one for one in [*self.arrivals] if one < begin), default=begin)
        return 1e3 * max(later - one for one, later in pairwise([before, *there, end])), 1e3 * took


def measure(
    *,
    swaps: Annotated[int, "how many swaps"] = 20,
    rate: Annotated[int, "rows a second"] = 5_000,
    around: Annotated[float, "the seconds that the sink is watched after a swap, and as long without one"] = 1.0,
    native: Annotated[bool, "Spark's tasks read the rows from a log by themselves"] = False,
    load: Annotated[int, "as many swaps again beside so many processes that keep a core busy"] = 0,
) -> Iterator[Result]:
    """Swap a windowed count by another setting of itself, in turns with intervals without a swap (A/A)."""
    stream, name = Stream(rate), "spark_swap/native" if native else "spark_swap"
    with TemporaryDirectory() as folder, Platform() as platform:
        platform.apply(_application(stream, folder if native else "").build(), timeout=PATIENCE)
        _await(lambda: len(stream.arrivals) > 3)
        stream.gap(lambda: None, 6.0)  # Java warms up
        yield from _series(name, platform, stream, swaps, around)
        with _busy(load):
            yield from _series(f"{name}/loaded", platform, stream, swaps if load else 0, around)
        stream.over.set()
        platform.wait("swap")
        sent = platform.deployment("swap").components["rows"].state
        assert isinstance(sent, Sent)
    yield Result(f"{name}/wrong", _wrong(stream, sent.batches), "items")


def _wrong(stream: Stream, batches: int) -> int:
    """Compare the count of each window and key."""
    wanted = Counter[tuple[int, int]]()
    for one in range(1, batches + 1):
        for row in range(stream.rate // 50):
            wanted[(one // 50 // 10 + 1) * 10, row % 5] += 1
    return sum(abs(wanted[key] - stream.counts.get(key, 0)) for key in wanted.keys() | stream.counts.keys())


def _series(name: str, platform: Platform, stream: Stream, swaps: int, around: float) -> Iterator[Result]:
    """Swap the query so many times, and compare the gaps with those without a swap."""
    with_one, without = list[tuple[float, float]](), list[tuple[float, float]]()
    for turn in range(swaps):
        mesh = platform.mesh("swap")
        plan = platform.plan(mesh.configure("query", max_rows=mesh.nodes["query"].settings["max_rows"] + 1))
        with_one.append(stream.gap(lambda plan=plan: plan.apply(timeout=PATIENCE), around))  # type: ignore[misc]
        without.append(stream.gap(lambda: None, around + with_one[-1][1] / 1e3))
        print(f"{turn + 1} of {swaps} swaps: {with_one[-1][0]:.0f} ms", file=sys.stderr, flush=True)
    if not swaps:
        return
    figures = platform.deployment("swap").components["query"].own_figures()
    batch = float(figures["busy_ms"]) / float(figures["batches"])
    gaps, alone = [one for one, _ in with_one], [one for one, _ in without]
    for part, share in (("median", 0.5), ("p95", 0.95)):
        beyond = quantile(gaps, share) - quantile(alone, share)
        yield Result(f"{name}/gap/{part}", beyond, "ms", ALONE, samples=[*zip(gaps, alone, strict=True)])
        yield Result(f"{name}/gap/{part}/noise", abs(quantile(alone[::2], share) - quantile(alone[1::2], share)), "ms")
    took = [one for _, one in with_one]
    yield Result(f"{name}/apply/median", quantile(took, 0.5), "ms", samples=took)
    yield Result(f"{name}/batch", batch, "ms")
    yield Result(f"{name}/gap/batches", (quantile(gaps, 0.5) - quantile(alone, 0.5)) / batch, "batches")


@contextmanager
def _busy(number: int) -> Iterator[None]:
    """Keep so many cores busy; the processes end also if this one is killed."""
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
    processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(number)]
    try:
        yield
    finally:
        for one in processes:
            one.kill()
            one.wait()


def _application(stream: Stream, folder: str) -> Application:
    """A source of 50 batches a second, a log if there is a folder for it, a windowed count on Spark, a sink."""
    size, begun = stream.rate // 50, time.perf_counter()

    @slet
    def rows(sent: Sent) -> Iterator[Annotated[pa.RecordBatch, ROWS] | Punctuation | None]:
        while not stream.over.is_set():
            if sent.batches >= (time.perf_counter() - begun) * 50:
                stream.over.wait(0.005)
                yield None
                continue
            sent.batches += 1
            moment = sent.batches // 50
            arrays = [pa.array([moment] * size, pa.int64()), pa.array([row % 5 for row in range(size)], pa.int64())]
            yield pa.RecordBatch.from_arrays(arrays, schema=ROWS)
            if sent.batches % 50 == 49:
                yield Punctuation(moment)

    @slet
    def see(row: dict[str, int]) -> None:
        stream.arrivals.append(time.perf_counter())
        stream.counts[row["until"], row["key"]] = row["count"]

    text = """
    SELECT unix_seconds(window.end) AS until, key, count(*) AS count
    FROM rows GROUP BY window(event, '10 seconds'), key
    """
    counted = query("counted", text, inputs={"rows": Input(ROWS, EventTime("time"))}, out=COUNTS, mode="update")
    app = Application("swap")
    kind: dict[str, Any] = {"kind": "partitioned_log", "by": "key", "partitions": 2, "path": folder} if folder else {}
    there = app.channel("rows", **kind)
    app.add("rows", rows, out=there)
    app.add("see", see, row=app.add("query", counted, rows=there))
    return app


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError("the query has emitted nothing")
        time.sleep(0.01)

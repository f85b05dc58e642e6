"""What does replacing one slet cost in an application of 10 slets, and in one of 10 000?"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias
from unittest import mock

from bench.harness import Result, quiet, ratio_of
from bench.replaced import Gaps
from bench.streams import nothing, rest
from exop import Application, Memento, Mesh, Platform, hookimpl, slet
from exop.hooks import Plugins
from exop.model.slets.spec import SletSpec
from exop.runtime.drivers.base import Driver

NAME: Final = "grown"
#: The slet that is replaced, of the branch that carries the traffic.
REPLACED: Final = "slet-0-4"
#: Slets of one branch, with its source and its sink.
BRANCH: Final = 10
#: Seconds between two items of one long stream, for each of its slets.
PACE: Final = 5e-7
#: How long the sink is watched for one figure, in seconds.
WINDOW: Final = 0.03
ALONE: Final = "the same stream for as long without a replacement"

#: Set while the first source emits, and once all sources are to end.
flowing, ending = threading.Event(), threading.Event()
#: The gaps at the sink of the branch that carries the traffic.
gaps = Gaps()


class Count(Memento):
    """How many items a slet has had: the state that is handed over."""

    items: int = 0


@slet
def numbers(count: Count, *, pace: float = 0.0) -> Iterator[int]:
    """Emit numbers as fast as they are taken, or one every *pace* seconds, while they flow."""
    while not ending.is_set():
        if not flowing.wait(0.05) or (pace and ending.wait(pace)):
            continue
        count.items += 1
        yield count.items


@slet
def silent() -> Iterator[int]:
    """Emit nothing, as an idle source does."""
    ending.wait()
    yield from ()


@slet
def passed(number: int) -> int:
    """Pass a number on."""
    return number


@slet
def counted(number: int, count: Count) -> int:
    """Pass a number on, and count it."""
    count.items += 1
    return number


@slet
def counted_again(number: int, count: Count) -> int:
    """The same in other words: the successor of `counted`, and the other way round."""
    count.items = count.items + 1
    return number


@slet
def watched(number: int, *, clock: Callable[[], int] = time.perf_counter_ns) -> None:
    """The sink of the traffic: note the pauses."""
    now = clock()
    if now - gaps.last > 20_000:
        gaps.found.append((gaps.last, now))
    gaps.last = now


@slet
def dropped(number: int) -> None:
    """Drop what comes."""


@hookimpl
def register_slets() -> list[SletSpec]:
    """Offer the slets by name: a platform with a state directory needs names."""
    return [numbers, silent, passed, counted, counted_again, watched, dropped]  # type: ignore[list-item]


def branches(size: int) -> Mesh:
    """Many streams side by side, of ten slets each; the first one carries the traffic."""
    app = Application(NAME)
    for branch in range(max(1, size // BRANCH)):
        _branch(app, branch, BRANCH)
    return app.build()


def line(size: int) -> Mesh:
    """One long stream; it is not driven at full load, where its many drivers compete with the change."""
    app = Application(NAME)
    _branch(app, 0, size, pace=size * PACE)
    return app.build()


def _branch(app: Application, branch: int, slets: int, **settings: Any) -> None:
    channel = app.add(f"source-{branch}", silent if branch else numbers, **settings)
    for place in range(slets - 2):
        name = f"slet-{branch}-{place}"
        channel = app.add(name, counted if name == REPLACED else passed, number=channel)
    app.add(f"sink-{branch}", dropped if branch else watched, number=channel)


Shape: TypeAlias = Callable[[int], Mesh]


def measure(
    *,
    sizes: Annotated[str, "how many slets the applications have, with commas"] = "10,1000,10000",
    deployed: Annotated[int, "how many slets are deployed at once; and twice as many, to compare"] = 1000,
    rounds: Annotated[int, "how many replacements for each figure"] = 30,
    lines: Annotated[bool, "also in one long stream, beside many short ones"] = True,
    state: Annotated[bool, "also with a state directory"] = True,
) -> Iterator[Result]:
    """Replace one slet again and again in applications of all sizes; deploy some; look at the memory of a slet."""
    chosen = [int(size) for size in sizes.split(",")]
    yield from deployments(deployed)
    yield memory("growth/memory", deployed)
    for size in chosen:
        yield from replacements(f"growth/{size}", branches, size, rounds)
    if state:
        for size in chosen:
            yield from replacements(f"growth/{size}/state", branches, size, rounds, with_state=True)
    if lines:
        for size in chosen:
            yield from replacements(f"growth/line/{size}", line, size, rounds)
    yield Result("growth/parked", parked(max(chosen)), "drivers")


def replacements(name: str, shape: Shape, size: int, rounds: int, *, with_state: bool = False) -> Iterator[Result]:
    """The CPU of edit, plan and apply on an idle stream; and the pause of a running one."""
    with running(shape(size), with_state=with_state) as platform, quiet() as run:
        replace = Replacing(platform)
        run(replace.cpu)
        costs = [run(replace.cpu) for _ in range(rounds)]
        yield Result(f"{name}/cpu", statistics.median(costs), "ms", samples=costs)
        gaps.last = 0
        flowing.set()
        while not gaps.last:  # the first items, through a long stream, take a while
            rest(0.2)
        rest(0.2)
        pairs = []
        for _ in range(rounds):
            longest = run(partial(_longest_gap, replace.once))
            pairs.append((longest, run(partial(_longest_gap, nothing))))
    with_one, without = zip(*pairs, strict=True)
    pause = statistics.median(with_one) - statistics.median(without)
    yield Result(f"{name}/pause", pause, "ms", ALONE, samples=pairs)
    noise = abs(statistics.median(without[::2]) - statistics.median(without[1::2] or without))
    yield Result(f"{name}/pause/noise", noise, "ms", "A/A")


class Replacing:
    """Replaces one slet by its twin, and that one by the first."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._twins = cycle([counted_again, counted])

    def once(self) -> None:
        """Edit, plan and apply."""
        platform = self._platform
        platform.plan(platform.mesh(NAME).replace(REPLACED, next(self._twins))).apply()

    def cpu(self) -> float:
        """The CPU of the whole process for that, in milliseconds."""
        begin = time.process_time_ns()
        self.once()
        return (time.process_time_ns() - begin) / 1e6


def _longest_gap(action: Callable[[], object]) -> float:
    """The longest pause at the sink, in milliseconds, while something is done; and for as long as it may show."""
    rest(WINDOW)  # the backlog of the last change has to be gone
    begin = time.perf_counter_ns()
    action()
    rest(WINDOW - (time.perf_counter_ns() - begin) / 1e9)
    return gaps.longest(begin, time.perf_counter_ns())


@contextmanager
def running(mesh: Mesh, *, with_state: bool = False) -> Iterator[Platform]:
    """A platform in which *mesh* runs, and nothing flows yet."""
    plugins = Plugins()
    plugins.register("growth", sys.modules[__name__])
    flowing.clear()
    ending.clear()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state" if with_state else None
        with Platform(state=state, plugins=plugins, control=False) as platform:
            platform.apply(mesh)
            try:
                yield platform
            finally:
                flowing.set()
                ending.set()
                platform.remove(NAME, 60)


def deployments(size: int) -> Iterator[Result]:
    """The CPU of deploying so many slets, and of twice as many."""
    spent = {}
    for number in (size, 2 * size):
        with quiet() as run:
            spent[number] = min(run(partial(_deployed, number)) for _ in range(3))
        yield Result(f"growth/deploy/{number}", spent[number], "s")
    ratio = ratio_of(spent[2 * size], spent[size])
    pair = [(spent[2 * size], spent[size])]
    yield Result("growth/deploy/doubled", spent[2 * size], "s", "half as many", ratio, pair)


def _deployed(number: int) -> float:
    mesh = branches(number)
    begin = time.process_time()
    with running(mesh):
        return time.process_time() - begin


def memory(name: str, size: int) -> Result:
    """What one idle slet occupies, with its node, ports, channel and services."""
    with running(branches(BRANCH)):  # what the first application brings for all
        pass
    gc.collect()
    tracemalloc.start()
    try:
        mesh = branches(size)
        with running(mesh):
            rest(0.2)
            gc.collect()
            occupied = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return Result(name, occupied / len(mesh.nodes) / 1024, "kB")


def parked(size: int) -> int:
    """How many drivers of other branches a replacement parks."""
    closed: set[str] = set()
    close = Driver.close

    def noting(driver: Driver, *watcher: Any) -> None:
        closed.add(driver.name)
        close(driver, *watcher)

    with running(branches(max(size, 2 * BRANCH))) as platform, mock.patch.object(Driver, "close", noting):
        own = {f"{NAME}.source-0"}
        Replacing(platform).once()
    return len(closed - own)

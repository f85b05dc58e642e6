"""How long do the answers of Linear Road take at the load of the busiest minutes, in real time?

The traffic begins ten minutes before the busiest ones, four times as fast, so that the windows are full; then it goes
in real time. The first two minutes of that are not counted: what the fast traffic has left is worked off in them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import pyarrow.compute as pc
from pyarrow import parquet

from apps.linear_road.builder import Pipeline, linear_road
from apps.linear_road.generate import generate
from apps.linear_road.pictures import read_response_times
from apps.linear_road.terminal import Progress
from apps.linear_road.traffic_model.settings import Settings
from bench.harness import Result
from bench.streams import quantile
from exop import Platform

#: The minute in which the rows per second reach their peak, the fast minutes before it, and those not counted after.
PEAK, BEFORE, SETTLES = 85, 10, 2
AHEAD: Final = 4.0
#: Seconds between two looks at the traffic.
GLANCE: Final = 0.5


def measure(
    *,
    xways: Annotated[int, "how many roads"] = 5,
    minutes: Annotated[int, "how many minutes are counted"] = 6,
    pipeline: Annotated[Pipeline, "who filters, counts, and detects accidents"] = "spark",
    master: Annotated[str, "the Spark that runs it; empty: all cores of this machine"] = "",
    seed: Annotated[int, "of the traffic"] = 1,
) -> Iterator[Result]:
    """Release generated traffic in real time, and read the response times from the output."""
    begin = 60 * PEAK
    first, last = begin + 60 * SETTLES, begin + 60 * (SETTLES + minutes)
    with tempfile.TemporaryDirectory(prefix="exop-bench-") as folder:
        here = Path(folder)
        rows = _traffic(Settings(xways=xways, minutes=last // 60, seed=seed), here, begin)
        yield Result("roads/rows", rows / (last - begin), "rows a second")
        app = linear_road(
            input=here / "busy.parquet",
            history=here / "history.csv",
            output=here / "answers.csv",
            pipeline=pipeline,
            master=master or None,
            speed=AHEAD,
        )
        with Platform() as platform:
            platform.apply(app.build(), timeout=300)
            _await_second(platform, app.name, begin)
            platform.plan(platform.mesh(app.name).configure("traffic", speed=1.0)).apply(timeout=60)
            _await_second(platform, app.name, last - 1)
            platform.wait(app.name)
        found = read_response_times(here / "answers.csv")
    for kind, answers in found.items():
        taken = [took for asked, took in answers if first <= asked < last]
        yield Result(f"roads/type{kind}/answers", len(taken), "answers")
        if not taken:  # a road may have no accident in these minutes
            continue
        yield Result(f"roads/type{kind}/p99", quantile(taken, 0.99), "s")
        yield Result(f"roads/type{kind}/most", max(taken), "s")


def _traffic(settings: Settings, here: Path, begin: int) -> int:
    """Write traffic without its first hour; return the number of rows from second *begin* on."""
    with Progress() as progress:
        generate(settings, here / "all.parquet", here / "history.csv", progress)
    whole = parquet.read_table(here / "all.parquet")
    busy = whole.filter(pc.greater_equal(whole["time"], begin - 60 * BEFORE))
    parquet.write_table(busy, here / "busy.parquet")
    (here / "all.parquet").unlink()
    return int(pc.sum(pc.greater_equal(busy["time"], begin)).as_py())


def _await_second(platform: Platform, name: str, second: int) -> None:
    """Wait until the traffic has reached *second*, and show how far it is; a failure of the application is raised."""
    deployment = platform.deployment(name)
    with Progress() as progress:
        while (reached := deployment.components["traffic"].own_figures()["second"]) < second:
            progress.show(f"second {reached} of {second}")
            if deployment.wait(GLANCE):
                raise RuntimeError(f"the traffic ended in second {reached}, before {second}")

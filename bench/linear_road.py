"""What does the platform add to Linear Road's own slets, against the same slets called in a plain loop?"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from apps.linear_road import plain
from apps.linear_road.builder import linear_road
from apps.linear_road.generate import generate
from apps.linear_road.terminal import Progress
from apps.linear_road.traffic_model.settings import Settings
from bench.harness import Result, Side, paired, ratio_of, upper95
from exop import Platform

FLOOR = "the same slets in a plain loop"
AT_ONCE = 1e9


def measure(
    *,
    minutes: Annotated[int, "minutes of generated traffic on one road"] = 15,
    rounds: Annotated[int, "how many pairs of runs"] = 9,
    input: Annotated[Path | None, "a traffic file instead of generated traffic"] = None,  # noqa: A002
    history: Annotated[Path | None, "the tolls of past days that go with it"] = None,
) -> Iterator[Result]:
    """Run the native pipeline both ways over the same file, as fast as it goes; CPU of the whole process."""
    with tempfile.TemporaryDirectory(prefix="exop-bench-") as folder:
        here = Path(folder)
        traffic = input or here / "traffic.csv"
        tolls = history or here / "history.csv"
        if input is None:
            with Progress() as progress:
                generate(Settings(xways=1, minutes=minutes, seed=7), traffic, tolls, progress)
        rows, hops = _size(traffic, tolls, here)
        pairs, noise = paired(_loop(traffic, tolls, here), _through(traffic, tolls, here), rounds)
    yield from _results(pairs, noise, rows, hops)


def _results(pairs: list[tuple[float, float]], noise: list[float], rows: int, hops: float) -> Iterator[Result]:
    own = statistics.median(floor for _, floor in pairs) / rows * 1e9
    added = [(candidate - floor) / rows / hops * 1e9 for candidate, floor in pairs]
    shares = [(ratio_of(*pair) - 1) * 100 for pair in pairs]
    ratio = statistics.median(ratio_of(*pair) for pair in pairs)
    yield Result("linear_road/native/slets", own, "ns per item", samples=[floor for _, floor in pairs])
    yield Result(
        "linear_road/overhead/hop", statistics.median(added), "ns per item and hop", FLOOR, ratio, pairs, noise
    )
    yield Result("linear_road/overhead/share", statistics.median(shares), "%", FLOOR, ratio, pairs, noise)
    yield Result("linear_road/overhead/upper95", upper95(shares), "%", FLOOR, ratio, pairs, noise)


def _loop(traffic: Path, tolls: Path, here: Path) -> Side:
    def run() -> float:
        begin = time.process_time()
        plain.run(traffic, tolls, here / "plain.csv")
        return time.process_time() - begin

    return run


def _through(traffic: Path, tolls: Path, here: Path) -> Side:
    def run() -> float:
        output = here / "exop.csv"
        app = linear_road(input=traffic, history=tolls, output=output, pipeline="native", speed=AT_ONCE)
        with Platform() as platform:
            begin = time.process_time()
            platform.apply(app.build())
            platform.wait(app.name)
            took = time.process_time() - begin
        if _answers(output) != _answers(here / "plain.csv"):
            raise RuntimeError("the two runs gave different answers: the comparison would mean nothing")
        return took

    return run


def _answers(output: Path) -> list[list[str]]:
    """Return the lines without their emit times, sorted: what both runs must have written."""
    rows = [line.split(",") for line in output.read_text().splitlines()]
    return sorted([*row[:at], *row[at + 1 :]] for row in rows for at in [3 if row[0] == "0" else 2])


def _size(traffic: Path, tolls: Path, here: Path) -> tuple[int, float]:
    """The rows of the input, and through how many ports each one goes on average."""
    app = linear_road(input=traffic, history=tolls, output=here / "size.csv", pipeline="native", speed=AT_ONCE)
    with Platform() as platform:
        platform.apply(app.build())
        platform.wait(app.name)
        nodes = platform.metrics(app.name)["nodes"]
    rows = int(nodes["trips"]["items_in"])
    return rows, sum(node["items_in"] for node in nodes.values()) / rows

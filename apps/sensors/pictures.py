"""The picture of a run: throughput and latency over time, with the engines and the killed executors."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from .demo import History

COLORS: Final = {"spark": "#fbd78b", "duckdb": "#dbe6f4", "native": "#c7e0c1"}


def draw(history: History, database: Path, speed: float, picture: Path) -> str:
    """Draw the picture; return a line with the latencies, and its path.

    The latency of a row is the time from the moment at which the last reading of its minute was due until it was ready.
    """
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as base:
        rows = np.array(base.execute("SELECT ready, time FROM minutes").fetchall(), float).reshape(-1, 2)
    ready, waits = rows[:, 0] - history.start, rows[:, 0] - history.start - rows[:, 1] / speed
    median, most, longest = np.quantile(waits, [0.5, 0.95, 1]) if len(waits) else [np.nan] * 3
    facts = f"latency of the results: median {median:.1f} s, 95 % within {most:.1f} s, longest {longest:.1f} s"
    times, taken = np.array(history.taken, float).reshape(-1, 2).T
    figure, (rates, delays) = plt.subplots(2, 1, figsize=(10, 6), sharex=True)
    rates.step(times[1:] - history.start, np.diff(taken) / np.diff(times), color="#28548f")
    rates.set_title("readings per second that the aggregate has taken", loc="left", fontsize=10)
    delays.plot(ready, waits, ".", markersize=2, color="#28548f", rasterized=True)
    delays.set_title(facts, loc="left", fontsize=10)
    delays.set_ylabel("seconds")
    delays.set_xlabel("seconds since the first reading")
    bounds = [moment - history.start for moment, _ in history.engines] + [max(ready, default=0.0)]
    for axis in (rates, delays):
        for number, (_, engine) in enumerate(history.engines):
            axis.axvspan(bounds[number], bounds[number + 1], color=COLORS[engine], alpha=0.6, label=engine)
        for moment in history.kills:
            axis.axvline(moment - history.start, color="#b03030", linestyle="--", label="an executor is killed")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.2)
    labels = dict(zip(*reversed(rates.get_legend_handles_labels()), strict=True))
    rates.legend(labels.values(), labels.keys(), loc="upper right", fontsize=8)
    figure.suptitle("The aggregate moves from engine to engine while the stream runs")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
    plt.close(figure)
    return f"{facts}\n   {picture}"

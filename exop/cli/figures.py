"""The figures shown for a running application: rows computed from two snapshots of its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exop.cli.text import number
from exop.report import Totals

HEAD = ("node", "state", "in", "out", "rate/s", "busy", "queued", "p50 ms", "p99 ms")


@dataclass
class Figures:
    """Rows per node. Rates and shares are those since the look before; `whole` makes them those of the whole run."""

    seen_at: float = 0.0
    counts: dict[str, tuple[int, float]] = field(default_factory=dict)
    items: int | None = None

    def rows(self, status: Mapping[str, Any]) -> list[list[str]]:
        """One row per node, under `HEAD`; times rest on samples, and are marked `~`."""
        span = status["running_s"] - self.seen_at
        found = []
        for name, node in status["nodes"].items():
            figures, count = node["metrics"], _handled(node, node["metrics"])
            before_count, before_busy = self.counts.get(name, (_handled(node, figures["recovered"]), 0.0))
            rate = max(0.0, count - before_count) / span if span > 0 else 0.0
            busy = min(1.0, max(0.0, figures["busy_s"] - before_busy) / span) if span > 0 else 0.0
            found.append(self._row(status, name, rate, busy))
            self.counts[name] = (count, figures["busy_s"])
        return found

    def rate(self, status: Mapping[str, Any]) -> float:
        """Items per second out of the sources since the look before; call it before `seen`."""
        span = status["running_s"] - self.seen_at
        totals = Totals.of(status)
        before = totals.recovered if self.items is None else self.items
        return max(0.0, totals.items - before) / span if span > 0 else 0.0

    def seen(self, status: Mapping[str, Any]) -> None:
        """Make this look the one before."""
        self.seen_at = status["running_s"]
        self.items = Totals.of(status).items

    def _row(self, status: Mapping[str, Any], name: str, rate: float, busy: float) -> list[str]:
        node = status["nodes"][name]
        figures = node["metrics"]
        latency = figures["latency_ms"] or figures["service_ms"]
        source = node["role"] == "alpha"
        return [
            name,
            node["state"],
            "" if source else number(figures["items_in"]),
            "" if node["role"] == "omega" else number(figures["items_out"]),
            number(round(rate)),
            # What a source does between two items is its own affair, and not measured.
            "" if source else f"~{busy:.0%}",
            number(waiting(status, name)),
            f"~{latency['p50']:.3g}" if latency else "",
            f"~{latency['p99']:.3g}" if latency else "",
        ]


def waiting(status: Mapping[str, Any], name: str) -> int:
    """Return the number of items that wait in the queues in front of a node."""
    node = status["nodes"][name]
    found = 0
    for port in node["inputs"]:
        channel = node["ports"].get(port)
        found += _depth(status["channels"].get(channel, {}))
        found += _depth(status["inserted"].get(f"{channel} -> {name}.{port}", {}))
        found += _depth(status["inserted"].get(f"-> {channel}", {}))
    return found


def own_figures(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the slets' own metrics, by node."""
    return {name: node["metrics"]["own"] for name, node in status["nodes"].items() if node["metrics"].get("own")}


def own_lines(status: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The same, a line each; figures called `group/name` stand on the line of their group."""
    lines: dict[str, dict[str, Any]] = {}
    for node, figures in own_figures(status).items():
        for name, value in figures.items():
            group, slash, rest = name.partition("/")
            lines.setdefault(f"{node} {group}" if slash else node, {})[rest if slash else name] = value
    return list(lines.items())


def _handled(node: Mapping[str, Any], figures: Mapping[str, int]) -> int:
    return figures["items_out" if node["role"] == "alpha" else "items_in"]


def _depth(channel: Mapping[str, Any]) -> int:
    return int(channel.get("depth", 0))

"""What a bench prints: a table for people, with the goals beside the results, and last one JSON object."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bench.harness import Result

GOALS: Final = Path(__file__).with_name("goals.toml")


@dataclass(frozen=True)
class Goal:
    """What one result should reach."""

    of: Literal["value", "ratio"] = "value"
    at_most: float | None = None
    at_least: float | None = None
    unit: str | None = None

    def met(self, result: Result) -> bool:
        """Tell whether *result* reaches the goal.

        Raises:
            ValueError: the result is in another unit, so that the two cannot be compared.
        """
        if self.of == "value" and self.unit is not None and self.unit != result.unit:
            raise ValueError(
                f"the goal of {result.name} is in {self.unit}, the result in {result.unit}: make them agree"
            )
        reached = result.value if self.of == "value" else result.ratio
        if reached is None or math.isnan(reached):
            return False
        return (self.at_most is None or reached <= self.at_most) and (self.at_least is None or reached >= self.at_least)

    def __str__(self) -> str:
        bounds = [
            f"{sign} {bound:g}" for sign, bound in (("<=", self.at_most), (">=", self.at_least)) if bound is not None
        ]
        return f"{'ratio ' if self.of == 'ratio' else ''}{' '.join(bounds)}"


def load_goals(path: Path = GOALS) -> dict[str, Goal]:
    """Read the table of goals."""
    return {name: Goal(**goal) for name, goal in tomllib.loads(path.read_text("utf-8")).items()}


def machine() -> dict[str, Any]:
    """Where a bench ran, and how busy it was there."""
    return {
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else [],
    }


def as_json(question: str, results: Iterable[Result]) -> str:
    """The one JSON object with which every bench ends, in one line."""
    rows = [
        {
            "name": result.name,
            "value": result.value,
            "unit": result.unit,
            "against": result.against,
            "ratio": result.ratio,
            "samples": result.samples,
            "noise": result.noise,
        }
        for result in results
    ]
    return json.dumps(_finite({"question": question, "machine": machine(), "results": rows}))


def table(results: Sequence[Result], goals: Mapping[str, Goal]) -> str:
    """The results for people: value, ratio with its middle half, the same for A/A, and the goal with met or missed."""
    head = ("", "value", "against", "ratio (middle half)", "A/A (middle half)", "goal", "")
    rows = [head, *(_row(result, goals.get(result.name)) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(result: Result, goal: Goal | None) -> tuple[str, ...]:
    ratio = "" if result.ratio is None else f"{result.ratio:.3g}{_spread(result.ratios)}"
    noise = f"{statistics.median(result.noise):.3g}{_spread(result.noise)}" if result.noise else ""
    verdict = "" if goal is None else "met" if goal.met(result) else "MISSED"
    value = f"{result.value:.4g} {result.unit}".strip()
    return result.name, value, result.against or "", ratio, noise, str(goal or ""), verdict


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f" ({low:.3g}..{high:.3g})"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _finite(value: Any) -> Any:
    """Make figures short (six digits) and valid JSON: `nan` and infinities become null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value

"""The report of a run, as `app.run()` returns and `exop run --json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from exop.pictures.notebook import Figures


@dataclass(frozen=True)
class Totals:
    """The totals of an application.

    Attributes:
        items: Items that its sources have emitted.
        recovered: Of those, the items from before a recovery.
        errors, skipped: Of all slets, replaced and removed ones included.
        dead: Dead letters, including those dropped beyond the bound.
        queued: Items in queues.
    """

    items: int
    recovered: int
    errors: int
    skipped: int
    dead: int
    queued: int

    @staticmethod
    def of(status: Mapping[str, Any]) -> Totals:
        """Add up the figures of all nodes and queues."""
        nodes = list(status["nodes"].values())
        sources = [one["metrics"] for one in nodes if one["role"] == "alpha"]
        counted = [*(one["metrics"] for one in nodes), *status.get("replaced", ())]
        letters = [one["dead_letters"] for one in nodes if "dead_letters" in one]
        return Totals(
            items=sum(one["items_out"] for one in sources),
            recovered=sum(one["recovered"]["items_out"] for one in sources),
            errors=sum(one["errors"] for one in counted),
            skipped=sum(one["skipped"] for one in counted),
            dead=sum(one["count"] + one["dropped"] for one in letters),
            queued=sum(one.get("depth", 0) for one in (*status["channels"].values(), *status["inserted"].values())),
        )


def run_report(status: Mapping[str, Any], outcome: str, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Report on a run from the last status of its application.

    Args:
        status: The result of `Platform.status(application)`.
        outcome: `finished`, `drained` (it was asked to end), `stopped`, `failed` or `removed`.
        error: The error that ended a failed run.
    """
    totals, seconds = Totals.of(status), status["running_s"]
    report = {
        "outcome": outcome,
        "application": status["name"],
        "seconds": seconds,
        **asdict(totals),
        "rate": round((totals.items - totals.recovered) / seconds, 1) if seconds else 0.0,
        **({"error": dict(error)} if error is not None else {}),
        # The node has its figures as well: earlier releases promise `app.run()["nodes"][NAME]["items_in"]`.
        "nodes": {name: {**facts["metrics"], **facts} for name, facts in status["nodes"].items()},
        **{part: status[part] for part in ("replaced", "channels", "inserted")},
    }
    return Figures(report)

"""The report of a run, which `app.run()` returns and `exop run --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exop.model.slets.relay import RELAY
from exop.pictures.notebook import Figures


def whole(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of an application with its own nodes on all hosts that answer, without relays."""
    parts = [one for one in status.get("hosts", {}).values() if "nodes" in one] or [status]
    sections = ("nodes", "channels", "inserted")
    found = {section: {name: one for part in parts for name, one in part[section].items()} for section in sections}
    own = {name: one for name, one in found["nodes"].items() if one["slet"] != RELAY.identity}
    return {**status, **found, "nodes": own}


def totals_of(status: Mapping[str, Any]) -> dict[str, int]:
    """Add up the metrics of all nodes and queues of an application.

    Returns:
        items: Items that the sources have emitted; of a fragment without sources, those that inboxes have received.
        recovered: The part of `items` that was emitted before a recovery.
        errors, skipped: Errors and skipped items of all slets, including replaced and removed ones.
        dead: Dead letters, including those that were dropped beyond the limit.
        queued: Items in queues.
    """
    nodes = list(status["nodes"].values())
    sources = [one["metrics"] for one in nodes if one["role"] == "alpha"]
    counted = [*(one["metrics"] for one in nodes), *status.get("replaced", ())]
    received = 0 if sources else sum(one["items"] for one in status["channels"].values() if "received" in one)
    letters = [one["dead_letters"] for one in nodes if "dead_letters" in one]
    return {
        "items": sum(one["items_out"] for one in sources) + received,
        "recovered": sum(one["recovered"]["items_out"] for one in sources),
        "errors": sum(one["errors"] for one in counted),
        "skipped": sum(one["skipped"] for one in counted),
        "dead": sum(one["count"] + one["dropped"] for one in letters),
        "queued": sum(one.get("depth", 0) for one in (*status["channels"].values(), *status["inserted"].values())),
    }


def run_report(status: Mapping[str, Any], outcome: str, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Report on a run from the last status of its application, the result of `Platform.status(application)`.

    The *outcome* is `finished`, `drained` (ended on request), `stopped`, `failed` or `removed`; *error* has ended it.
    """
    totals, seconds = totals_of(status), status["running_s"]
    report = {
        "outcome": outcome,
        "application": status["name"],
        "seconds": seconds,
        **totals,
        "unwritten": status.get("checkpoints", {}).get("unwritten", {}),
        "rate": round((totals["items"] - totals["recovered"]) / seconds, 1) if seconds else 0.0,
        **({"error": dict(error)} if error is not None else {}),
        # The metrics are also keys of the node itself, for `app.run()["nodes"][NAME]["items_in"]` of earlier releases.
        "nodes": {name: {**facts["metrics"], **facts} for name, facts in status["nodes"].items()},
        **{part: status[part] for part in ("replaced", "channels", "inserted")},
    }
    return Figures(report)

"""Display of slets that run beside an application: successors on trial, predecessors that are kept; `exop rollback`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from exop.cli.options import HERE, Json, Where
from exop.cli.peers import Found, find_application
from exop.cli.report import DONE, Failure
from exop.cli.text import number, pause, print_json
from exop.errors import BuilderError, PlanError

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlan


def rollback(
    node: str,
    /,
    *,
    abandon: Annotated[
        bool, Parameter(help="APP: give up the proof that is under way there (--shadow); the old slets stay.")
    ] = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Let the predecessor of a node take over again with its current state: see `exop replace … --keep 60s`.

    Until its time is up it has got the same items as its successor. No item is lost, doubled or reordered; one on which
    the successor is suspended is tried by the predecessor. Exit code 1 if the change failed.

    Args:
        node: APP.NODE; APP with --abandon.
    """
    with find_application(node, where) as found:
        if abandon:
            return _abandoned(found, json=json)
        found.check_node()
        if found.node not in found.platform.status(found.application).get("kept", {}):
            changed = found.platform.roll_back(found.application, found.node)  # it says why there is none
        else:
            try:
                changed = found.platform.roll_back(found.application, found.node)
            except PlanError as error:
                raise Failure(error) from error
    if json:
        print_json({"application": changed.application, "now": changed.revision, "paused_ms": changed.paused_ms})
        return DONE
    paused = "" if changed.paused_ms is None else f"; the stream stood still for {pause(changed.paused_ms)}"
    print(f"{changed.application}: revision {changed.revision} runs, with the predecessor of {found.node}{paused}")
    return DONE


def _abandoned(found: Found, *, json: bool) -> int:
    """Give up the proof that is under way in an application."""
    if found.node:
        raise BuilderError(f"a proof is of a whole change; write exop rollback --abandon {found.application}")
    if not found.platform.abandon_proof(found.application):
        raise BuilderError(f"{found.application}: no proof is under way; `exop describe {found.application}` shows one")
    if json:
        print_json({"application": found.application, "abandoned": True})
    else:
        print(f"{found.application}: the proof is given up, the old slets stay")
    return DONE


class ProofView:
    """Tells how far a proof has come: a line that is written anew on a terminal, nothing elsewhere."""

    def __init__(self, plan: RemotePlan) -> None:
        self._plan = plan
        self._live = plan.planned.proven and sys.stderr.isatty()

    def look(self) -> None:
        """Ask, and show it."""
        if self._live:
            found = self._status("shadow")
            text = "; ".join(on_trial(node, one) for node, one in found.items())
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def found(self) -> dict[str, Any]:
        """Return the findings of a proof that has succeeded, by node."""
        return self._status("proof") if self._plan.planned.proven else {}

    def close(self) -> None:
        """Clear the progress line."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _status(self, what: str) -> dict[str, Any]:
        return dict(self._plan.platform.status(self._plan.planned.application).get(what) or {})


def on_trial(node: str, one: Mapping[str, Any]) -> str:
    """Format the progress of a node's proof."""
    asked = f" of {number(one['asked'])}" if one["asked"] else ""
    items = f"{number(one['items'])}{asked} items, {number(one['compared'])} outputs compared"
    return f"shadow {node}: {items} in {one['seconds']:.1f} s (of {one['limit']:g} s)"


def proof_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Format the findings of a proof that has succeeded."""
    for node, one in found.items():
        times = one.get("busy_ms", {})
        busy = ""
        if times.get("old") and times.get("new"):
            told = "  ".join(f"{name} {times['old'][name]:g} → {times['new'][name]:g}" for name in times["old"])
            busy = f"; ms per item, old → new: {told}"
        equal = "equal" if one["compared"] else "no difference"
        compared = f"{number(one['items'])} items, {number(one['compared'])} outputs compared"
        yield f"shadow {node}: {equal} on {compared} in {one['seconds']:.1f} s{busy}"


def beside_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """Format the slets that run beside an application: successors on trial, predecessors that are kept."""
    for node, one in status.get("shadow", {}).items():
        yield f"{status['name']}.{node}: {one['slet']} is on trial; {on_trial(node, one)}"
    for node, one in status.get("kept", {}).items():
        place = f"{status['name']}.{node}"
        yield f"{place}: the predecessor {one['slet']} is kept until {one['until']} (exop rollback {place})"

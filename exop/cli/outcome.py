"""A planned change in front of a person: the plan is shown, then it is made, then what came of it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exop.cli.report import DONE, Failure, say
from exop.cli.text import print_json
from exop.errors import ExopError

if TYPE_CHECKING:
    from exop.remoting.plans import RemotePlan


def show_and_make(plan: RemotePlan, *, dry_run: bool, json: bool, timeout: float | None = None) -> int:
    """Print *plan*, and make it unless it is only to be shown; *timeout* as for `Plan.apply`.

    Raises:
        Failure: it could not be made.
    """
    if not json:
        print(plan, flush=True)
    if dry_run or not plan:
        if json:
            print_json(plan.facts() | {"made": False})
        return DONE
    try:
        changed = plan.carry_out(timeout)
    except KeyboardInterrupt:
        say(
            f"exop: {plan.planned.application}: the platform goes on with the change; `exop describe` shows what it did"
        )
        raise
    except ExopError as error:
        if json:
            print_json(plan.facts() | {"made": False, "error": str(error)})
        raise Failure(error) from error
    if json:
        print_json(plan.facts() | {"made": True, "now": changed.revision, "paused_ms": changed.paused_ms})
        return DONE
    paused = "" if changed.paused_ms is None else f"; the stream stood still for {changed.paused_ms:.3g} ms"
    print(f"{changed.application}: revision {changed.revision} runs{paused}")
    return DONE

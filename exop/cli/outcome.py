"""Shows a plan on the terminal, makes the change, and reports the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from exop.cli.options import Bounds, Request
from exop.cli.report import Failure, say
from exop.cli.status_text import proof_lines, shadow_progress
from exop.cli.text import answer, paused, print_json
from exop.errors import ExopError, StaleMesh, UnknownName
from exop.safe_repr import clean

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlan
    from exop.remoting.api.wire_types import Changed


@contextmanager
def code_is_there() -> Iterator[None]:
    """Add a hint to an error about a slet that the platform does not know."""
    try:
        yield
    except UnknownName as error:
        if error.facts.get("kind") == "slet":
            error.add_note(
                "code does not travel by itself: start the platform with the plugin (`exop serve --load FOLDER`), or "
                "send it as a bundle (`exop bundle install FOLDER --start`)"
            )
        raise


def show_and_make(
    planned: Callable[[], RemotePlan], request: Request, bounds: Bounds = Bounds(), *, tries: int = 3
) -> int:
    """Print the plan of a change, make the change as `made`, and report the result."""
    try:
        plan, changed = made(planned, request, bounds, tries=tries)
    except Failure as failure:
        if request.json:
            with suppress(OSError):  # the error is reported in any case
                print_json(failure.args[1].facts() | {"made": False, "error": str(failure.args[0])})
        raise
    if changed is None:
        return answer(plan.facts() | {"made": False}, "", json=request.json)
    name = changed.application
    proof = dict(plan.platform.status(name).get("proof") or {}) if plan.planned.proven else {}
    facts = plan.facts() | {"made": True, **changed_facts(changed)} | ({"proof": proof} if plan.planned.proven else {})
    before = plan.planned.revision
    also = f"; since revision {before}, pending settings have taken effect, too" * (changed.revision > before + 1)
    done = f"{name}: revision {changed.revision} runs{also}{paused(changed.paused_ms)}"
    return answer(facts, "\n".join([*proof_lines(proof), done]), json=request.json)


def made(
    planned: Callable[[], RemotePlan], request: Request, bounds: Bounds, *, tries: int = 3
) -> tuple[RemotePlan, Changed | None]:
    """Print a plan, and make the change within *bounds*; return no change if nothing is to do, or for a dry run.

    If another change was made in between, this one is *planned* again, *tries* times in all.

    Raises:
        Failure: the change could not be made; with the error and the plan.
    """
    for left in reversed(range(tries)):
        plan = planned()
        name = plan.planned.application
        try:
            if not request.json:
                print(clean(str(plan)), flush=True)
        except OSError:  # must not prevent the change; as stdout does not take the result either, stderr gets that
            if request.dry_run or not plan:
                raise
        if request.dry_run or not plan:
            break
        try:
            with _progress(plan) as show:
                return plan, plan.carry_out(**bounds.limits(), on_wait=show)
        except KeyboardInterrupt:
            on = "the platform continues with the change"
            if plan.planned.proven and plan.platform.abandon_proof(name):
                on = "the trial is cancelled, the old slet keeps running"
            say(f"exop: {name}: {on}; `exop describe {name}` shows what runs")
            raise
        except ExopError as error:
            if not (left and isinstance(error, StaleMesh)):
                raise Failure(error, plan) from error
            say(f"exop: {name} was changed meanwhile: the change is planned again")
    return plan, None


def changed_facts(changed: Changed) -> dict[str, Any]:
    """Return the facts of a change that was made, for JSON."""
    return {"application": changed.application, "now": changed.revision, "paused_ms": changed.paused_ms}


@contextmanager
def _progress(plan: RemotePlan) -> Iterator[Callable[[], None] | None]:
    """Yield a function that shows the progress of a trial on one line of a terminal, which is cleared at the end."""
    if not (plan.planned.proven and sys.stderr.isatty()):
        yield None
        return

    def show() -> None:
        found = plan.platform.status(plan.planned.application).get("shadow") or {}
        over("; ".join(shadow_progress(node, one) for node, one in found.items()))

    def over(text: str) -> None:
        with suppress(OSError):  # the terminal may have gone
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        over("")

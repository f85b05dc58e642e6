"""A planned change on the terminal: the plan is shown, the change is made, then its result is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from exop.cli.commands.edits import UNBOUND, Bounds
from exop.cli.commands.shadows import ProofView, proof_lines
from exop.cli.report import DONE, Failure, say
from exop.cli.text import pause, print_json
from exop.errors import ExopError, StaleMesh, UnknownName
from exop.safe_repr import clean

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlan


@contextmanager
def code_is_there() -> Iterator[None]:
    """A slet that the platform does not know gets a note on how to bring its code there."""
    try:
        yield
    except UnknownName as error:
        if error.facts.get("kind") == "slet":
            error.add_note(
                "code does not travel by itself: start the platform with the plugin (`exop serve --load FOLDER`), or "
                "bring it there as a bundle (`exop bundle install FOLDER --start`)"
            )
        raise


def show_and_make(plan: RemotePlan, *, dry_run: bool, json: bool, bounds: Bounds = UNBOUND, again: bool = False) -> int:
    """Print *plan*, and make it unless it is only to be shown; *bounds* as for `Plan.apply`.

    Raises:
        StaleMesh: another change was faster, and *again* says that the caller plans anew then.
        Failure: it could not be made.
    """
    if not json:
        print(clean(str(plan)), flush=True)
    if dry_run or not plan:
        if json:
            print_json(plan.facts() | {"made": False})
        return DONE
    name, view = plan.planned.application, ProofView(plan)
    try:
        changed = plan.carry_out(**bounds.as_data(), told=view.look)
    except KeyboardInterrupt:
        given_up = plan.planned.proven and plan.platform.abandon_proof(name)
        on = "the proof is given up, the old slet stays" if given_up else "the platform goes on with the change"
        say(f"exop: {name}: {on}; `exop describe {name}` shows what runs")
        raise
    except ExopError as error:
        if again and isinstance(error, StaleMesh):
            raise
        if json:
            print_json(plan.facts() | {"made": False, "error": str(error)})
        raise Failure(error) from error
    finally:
        view.close()
    if json:
        proof = {"proof": view.found()} if plan.planned.proven else {}
        print_json(plan.facts() | {"made": True, "now": changed.revision, "paused_ms": changed.paused_ms} | proof)
        return DONE
    for line in proof_lines(view.found()):
        print(line)
    paused = "" if changed.paused_ms is None else f"; the stream stood still for {pause(changed.paused_ms)}"
    print(f"{changed.application}: revision {changed.revision} runs{paused}")
    return DONE

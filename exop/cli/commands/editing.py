"""`exop replace`, `configure`, `rewire`, `add`, `suspend`: one node of a running application is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

from cyclopts import Parameter

from exop.cli.commands.edits import AT_ONCE, NOW, PLAIN, UNBOUND, Bounds, How, Point, Proof, as_edit
from exop.cli.options import HERE, Json, Where
from exop.cli.peers import Found, find_application
from exop.cli.report import say
from exop.errors import StaleMesh

DryRun: TypeAlias = Annotated[bool, Parameter(name="--dry-run", help="Show the plan, and change nothing.")]
#: How often an edit is planned when another one was made between its plan and its making: it may still be valid.
TRIES: Final = 3


def replace(
    node: str,
    slet: str,
    /,
    *settings: str,
    how: How = PLAIN,
    proof: Proof = AT_ONCE,
    dry_run: DryRun = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Put another slet in a node's place while the stream runs: no item is lost, doubled or reordered.

    The successor keeps the ports and the settings that were set; the others take its own defaults, and the plan
    lists all that change. It takes over the state. An item on which the old slet is suspended is tried again. Exit code
    1 if the change failed: the old slet runs on then.

    Args:
        node: APP.NODE.
        slet: The successor, PLUGIN:NAME; FOLDER:NAME for one of a package that the platform has loaded.
        settings: NAME=VALUE for the successor.
    """
    return edit_node("replace", node, (slet, *settings), how, where, dry_run=dry_run, json=json, proof=proof)


def configure(
    node: str,
    /,
    *settings: str,
    point: Point = NOW,
    dry_run: DryRun = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Change settings of a running node or a window channel: now, between two items, or at a point in the stream.

    Without --when, what was pending is cancelled.

    Args:
        node: APP.NODE, or APP.CHANNEL.
        settings: NAME=VALUE; lists and tables as in a topology file: sizes=[1, 2].
    """
    return edit_node("configure", node, settings, PLAIN, where, dry_run=dry_run, json=json, point=point)


def rewire(node: str, /, *ports: str, dry_run: DryRun = False, where: Where = HERE, json: Json = False) -> int:
    """Connect ports of a running node, and of further nodes of its application, to other channels: in one plan.

    What a channel holds stays in it; one with no connection left is drained and removed.

    Args:
        node: APP.NODE.
        ports: PORT=CHANNEL for a channel of the mesh (see `exop mesh APP`), PORT=CHANNEL:KIND[,NAME=VALUE…] for a new
            one; NODE.PORT=CHANNEL for a port of another node: out=buffer:queue,capacity=100 sink.item=buffer puts a
            queue in between. PORT= disconnects a port.
    """
    return edit_node("rewire", node, ports, PLAIN, where, dry_run=dry_run, json=json)


def add(node: str, slet: str, /, *given: str, dry_run: DryRun = False, where: Where = HERE, json: Json = False) -> int:
    """Add a node to a running application; it is open before the stream reaches it.

    Args:
        node: APP.NODE; the name is new.
        slet: The slet, PLUGIN:NAME.
        given: PORT=CHANNEL for every input, and NAME=VALUE for settings; an output that is not given gets a channel
            of its own, called as the node; FAMILY.MEMBER= one of a family; group=NAME for a member of a group.
    """
    return edit_node("add", node, (slet, *given), PLAIN, where, dry_run=dry_run, json=json)


def suspend(node: str, /, *, dry_run: DryRun = False, where: Where = HERE, json: Json = False) -> int:
    """Hold items in front of a node, until `exop resume`; what is upstream waits when its queues are full.

    Args:
        node: APP.NODE.
    """
    return edit_node("suspend", node, (), PLAIN, where, dry_run=dry_run, json=json)


def edit_node(
    verb: str,
    target: str,
    words: Sequence[str],
    how: How,
    where: Where,
    *,
    dry_run: bool,
    json: bool,
    point: Point = NOW,
    proof: Proof = AT_ONCE,
) -> int:
    """Plan one edit of APP.NODE, show it, and make it."""
    edit = as_edit(verb, words, how, point)
    asked = proof.as_data()
    with find_application(target, where) as found:
        return edit_found(found, edit, dry_run=dry_run, json=json, bounds=how.bounds, proof=asked)


def edit_found(
    found: Found,
    edit: dict[str, object],
    *,
    dry_run: bool,
    json: bool,
    bounds: Bounds = UNBOUND,
    proof: dict[str, Any] | None = None,
) -> int:
    """Plan one edit of the node that was found, show it, and make it."""
    from exop.cli.outcome import code_is_there, show_and_make

    found.check_node()
    for left in reversed(range(TRIES)):
        with code_is_there():
            plan = found.platform.plan_edits(found.application, [{"node": found.node, **edit}], proof=proof)
        try:
            return show_and_make(plan, dry_run=dry_run, json=json, bounds=bounds, again=left > 0)
        except StaleMesh:
            say(f"exop: {found.application} was changed meanwhile: the edit is planned again")
    raise AssertionError("the last try raises what it meets, or returns")

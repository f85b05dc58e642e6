"""`exop end`, `remove`, `resume`: an application, or a node of it, comes to its end, or goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

from cyclopts import Parameter

from exop.cli.commands.editing import DryRun, edit_found
from exop.cli.options import HERE, Json, Where
from exop.cli.peers import Found, find_application
from exop.cli.report import DONE, Failure
from exop.cli.text import print_json
from exop.errors import ComponentFailed, PeerUnreachable, UnknownName

#: For how long a slet that was resumed is watched at most, and how often it is looked at, in seconds.
SETTLING: Final = 1.0
GLANCE: Final = 0.05


def end(
    app: str,
    /,
    *,
    wait: Annotated[bool, Parameter(help="Return when everything has been processed.")] = False,
    where: Where = HERE,
) -> int:
    """End the sources of a running application; what is under way is still processed.

    Args:
        app: The name of the application.
    """
    with find_application(app, where) as found:
        found.check_whole(app)
        found.platform.end(found.application)
        print(f"{found.application}: {_waited(found) if wait else 'its sources end, what is under way is processed'}")
    return DONE


def _waited(found: Found) -> str:
    """Wait until an application has finished; an `exop run` that has told all its figures leaves at once."""
    try:
        found.platform.wait(found.application)
    except (UnknownName, PeerUnreachable):
        return "ended, and its platform has left"
    return "finished"


def remove(app: str, /, *, dry_run: DryRun = False, where: Where = HERE, json: Json = False) -> int:
    """Stop an application at once, between two items, and forget it; or take one node out of it.

    With --state and no platform running there, it is taken out of the state directory.

    Args:
        app: The name of the application; APP.NODE for a node, whose unused channels go with it.
    """
    if where.state is not None and not dry_run and _forgotten(app, where):
        return DONE
    with find_application(app, where) as found:
        if found.node or dry_run:
            return edit_found(found, {"edit": "remove"}, dry_run=dry_run, json=json)
        left = found.platform.remove(found.application)
        if json:
            print_json({"application": found.application, "removed": True, "left": left})
            return DONE
        print(f"{found.application}: removed" + ("" if left else "; a slet of it has not come to its end yet"))
    return DONE


def resume(node: str, /, *, where: Where = HERE) -> int:
    """Let items into a suspended slet again; the item that it is suspended on is tried first.

    An application that could not be started again with its platform is tried again.

    Exit code 1 if it fails again at once.

    Args:
        node: APP.NODE; APP for an application that is down.
    """
    with find_application(node, where) as found:
        if not found.node and found.application in found.platform.status()["failed_to_restart"]:
            found.platform.restart(found.application)
            print(f"{found.application}: started again")
            return DONE
        found.check_node()
        place = f"{found.application}.{found.node}"
        before = _facts(found)
        if before["state"] == "active":
            print(f"{place}: items are let in already: nothing to do")
            return DONE
        found.platform.resume(found.application, found.node)
        again = _failed_again(found, before)
        if again is not None:
            problem = f"{again}; mend it (exop replace, exop configure) or its cause first"
            raise Failure(ComponentFailed(node=place, phase="trying its item again", problem=problem))
        print(f"{place}: resumed")
    return DONE


def _facts(found: Found) -> Mapping[str, Any]:
    """Return the facts of the node that was found."""
    nodes = found.platform.status(found.application)["nodes"]
    if found.node not in nodes:
        raise UnknownName(place=f"the application {found.application!r}", kind="node", name=found.node, known=nodes)
    known: Mapping[str, Any] = nodes[found.node]
    return known


def _failed_again(found: Found, before: Mapping[str, Any]) -> str | None:
    """The error of a node that is broken again right after it was resumed; `None` once it has gone on, or hangs on.

    A slet that was suspended without an error has no item to be tried again.
    """
    deadline = time.monotonic() + SETTLING
    while before["state"] == "failed" and time.monotonic() < deadline:
        try:
            now = _facts(found)
        except (UnknownName, PeerUnreachable):  # it has come to its end, and an `exop run` leaves then
            return None
        if now["state"] == "failed" and "error" in now:
            return str(now["error"])
        if now["metrics"]["items_in"] > before["metrics"]["items_in"] + 1 or now["state"] == "ended":
            return None  # it is past that item
        time.sleep(GLANCE)
    return None


def _forgotten(app: str, where: Where) -> bool:
    """Take an application out of a state directory that no platform uses; `False` when one does."""
    from exop.remoting import control_address
    from exop.remoting.transport.client import ControlClient
    from exop.runtime.durable.store import Store

    state = where.state
    if state is None or not (state / "platform.sqlite").exists():
        return False
    try:
        with ControlClient(control_address(state)):
            return False
    except PeerUnreachable:
        store = Store(state)
    try:
        known = [one.name for one in store.applications()]
        if app not in known:
            raise UnknownName(place=f"the state directory {state}", kind="application", name=app, known=known)
        store.forget(app)
    finally:
        store.close()
    print(f"{app}: forgotten")
    return True

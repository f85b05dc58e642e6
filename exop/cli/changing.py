"""`exop apply`, `end`, `remove`, `resume`: changes to a running platform."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from exop.cli.options import HERE, Load, Where
from exop.cli.peers import Found, find_application, the_platform
from exop.cli.report import DONE
from exop.errors import BuilderError, PeerUnreachable, PlanError, UnknownName


def apply(app: str, /, *parameters: str, where: Where = HERE, load: Load = ()) -> int:
    """Deploy an application on a running platform (`exop serve`).

    Code does not travel: the platform must have the plugins whose slets the application uses (`exop serve --load`).

    Args:
        app: A topology file, or anything else that `exop run` takes.
        parameters: NAME=VALUE for the builder.
    """
    from exop.cli.building import build
    from exop.cli.loading import find_target, known_plugins
    from exop.model.resolve import resolved

    catalog = known_plugins(load)
    target = find_target(app, catalog)
    with the_platform(where) as platform:
        if target.topology is not None and not parameters:
            _check_free(_name_in(target.topology), platform.applications())
            name = platform.apply_topology(target.topology)
        else:
            mesh = resolved(build(target, parameters, catalog), catalog.slets, durable=True)
            _check_free(mesh.name, platform.applications())
            name = platform.apply(mesh).name
        print(f"{name} runs on {platform.name}")
    return DONE


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
        _whole(found.node, app)
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


def remove(app: str, /, *, where: Where = HERE) -> int:
    """Stop an application at once, between two items, and forget it.

    With --state and no platform running there, it is taken out of the state directory.

    Args:
        app: The name of the application.
    """
    if where.state is not None and _forgotten(app, where):
        return DONE
    with find_application(app, where) as found:
        _whole(found.node, app)
        left = found.platform.remove(found.application)
        print(f"{found.application}: removed" + ("" if left else "; a slet of it has not come to its end yet"))
    return DONE


def resume(node: str, /, *, where: Where = HERE) -> int:
    """Let items into a suspended slet again; the item that it is suspended on is tried first.

    Args:
        node: APP.NODE.
    """
    with find_application(node, where) as found:
        if not found.node:
            raise BuilderError(
                f"{node!r} names an application; write {node}.NODE, as `exop describe {node}` lists them"
            )
        found.platform.resume(found.application, found.node)
        print(f"{found.application}.{found.node}: resumed")
    return DONE


def _check_free(name: str, running: list[str]) -> None:
    if name in running:
        raise PlanError(f"{name!r} runs there already; end it first (`exop remove {name}`), or give it another name")


def _name_in(topology: str) -> str:
    """The application that a topology file describes; the platform tells what else is wrong with the file."""
    import tomllib

    try:
        return str(tomllib.loads(topology).get("application", {}).get("name", ""))
    except (tomllib.TOMLDecodeError, AttributeError):
        return ""


def _whole(node: str, given: str) -> None:
    if node:
        raise BuilderError(f"{given!r} names a node; this command takes a whole application")


def _forgotten(app: str, where: Where) -> bool:
    """Take an application out of a state directory that no platform uses; `False` when one does."""
    from exop.remoting import control_address
    from exop.remoting.client import ControlClient
    from exop.runtime.store import Store

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

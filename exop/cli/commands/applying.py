"""`exop apply` and `exop plan`: an application becomes what a topology file, or a builder, says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exop.cli.commands.editing import DryRun, edit_node
from exop.cli.commands.edits import AT_ONCE, NOW, PLAIN, UNBOUND, VERBS, Bounds, How, Point, Proof
from exop.cli.options import HERE, Json, Load, Params, Where
from exop.cli.peers import the_platform
from exop.cli.report import DONE, say
from exop.cli.text import print_json
from exop.errors import BuilderError, UnknownName, suggest

if TYPE_CHECKING:
    from exop.cli.live.view import View
    from exop.remoting.api.remote_platform import RemotePlatform

_NODE: Final = "APP.NODE is missing: exop plan {verb} APP.NODE …, as `exop {verb}` takes it"


def apply(
    app: str,
    /,
    *parameters: str,
    params: Params = (),
    proof: Proof = AT_ONCE,
    dry_run: DryRun = False,
    bounds: Bounds = UNBOUND,
    where: Where = HERE,
    load: Load = (),
    json: Json = False,
) -> int:
    """Deploy an application on a running platform (`exop serve`), or make one that runs what the file says now.

    What runs already is changed while it runs: the plan is shown, and made as a whole or not at all. Code does not
    travel: the platform must have the plugins whose slets the application uses (`exop serve --load`). Relative paths
    in settings are meant from the folder in which the command runs.

    Args:
        app: A topology file, or anything else that `exop run` takes.
        parameters: NAME=VALUE for the builder.
    """
    asked = proof.as_data()
    with the_platform(where) as platform:
        topology = _topology(app, parameters, params, load)
        return _apply(platform, topology, dry_run=dry_run, json=json, bounds=bounds, proof=asked)


def plan(
    change: str,
    /,
    *words: str,
    params: Params = (),
    how: How = PLAIN,
    point: Point = NOW,
    proof: Proof = AT_ONCE,
    where: Where = HERE,
    load: Load = (),
    json: Json = False,
) -> int:
    """Show what a change would do to a running application, node by node; nothing happens.

    Every step is shown with what it does in order and how the state is handed over, then the queues that come in
    between, and warnings. Exit code 0 for a change that could be made, and where there is nothing to do; 2 for one that
    could not.

    Args:
        change: The verb of an edit (replace, configure, rewire, add, suspend, resume, remove), the name of a running
            application, or what `exop apply` takes.
        words: Behind a verb what the command of that name takes, APP.NODE first; behind an application its topology
            file; behind a builder its NAME=VALUE.
    """
    if change in VERBS and not Path(change).exists():
        if not words:
            raise BuilderError(_NODE.format(verb=change))
        if params:
            raise BuilderError(f"--params is for the builder of an application; exop plan {change} takes NAME=VALUE")
        return edit_node(change, words[0], words[1:], how, where, dry_run=True, json=json, point=point, proof=proof)
    asked = proof.as_data()
    with the_platform(where) as platform:
        if len(words) == 1 and words[0].endswith(".toml") and "=" not in words[0]:
            topology = _topology(words[0], (), params, load)
            if (name := _name_in(topology)) != change:
                raise BuilderError(f"{words[0]} describes {name!r}, not {change!r}; {suggest(change, [name])}")
        else:
            topology = _topology(change, words, params, load)
        return _apply(platform, topology, dry_run=True, json=json, proof=asked)


def _topology(app: str, parameters: tuple[str, ...], params: Params, load: Load) -> str:
    """Return the topology that APP describes; a file is sent as it is, as only the platform may know its slets."""
    from exop.cli.building import build, refuse_parameters
    from exop.cli.loading import find_target, known_plugins
    from exop.model.meshes.resolve import resolved

    catalog = known_plugins(load)
    target = find_target(app, catalog)
    if target.topology is not None:
        refuse_parameters(target, parameters, params)
        return target.topology
    return resolved(build(target, parameters, catalog, params), catalog.slets, travels=True).to_toml()


def _apply(
    platform: RemotePlatform,
    topology: str,
    *,
    dry_run: bool,
    json: bool,
    bounds: Bounds = UNBOUND,
    proof: dict[str, Any] | None = None,
) -> int:
    from exop.cli.outcome import code_is_there, show_and_make

    name = _name_in(topology)
    running = platform.status()["applications"].get(name)
    if running is not None and running["state"] != "finished":
        with code_is_there():
            planned = platform.plan_topology(topology, proof=proof)
        return show_and_make(planned, dry_run=dry_run, json=json, bounds=bounds)
    if dry_run:
        with code_is_there():
            _check(platform, topology)
        text = f"{name} does not run on {platform.name}: `exop apply` would deploy it"
    else:
        with code_is_there():
            text = f"{_deployed(platform, topology, name)} runs on {platform.name}"
    if json:
        print_json({"application": name, "platform": platform.name, "deployed": not dry_run})
    else:
        print(text)
    return DONE


def _deployed(platform: RemotePlatform, topology: str, name: str) -> str:
    """Deploy an application, and show how far its opening is."""
    from exop.cli.live.view import choose_view

    views: list[View] = []  # none for an opening that takes no time

    def show() -> None:
        status = platform.status()["applications"].get(name, {})
        if "opening" in status:
            views.extend([] if views else [choose_view(quiet=False)])
            views[0].opening(name, status["opening"])

    try:
        return str(platform.ask("apply_topology", show, toml=topology))
    except KeyboardInterrupt:
        say(f"exop: {name}: the platform goes on opening it; `exop ps` shows how far it is")
        raise
    finally:
        for view in views:
            view.close()


def _check(platform: RemotePlatform, topology: str) -> None:
    """Let the platform find what is wrong with a file whose application does not run there (any more)."""
    try:
        platform.plan_topology(topology)
    except UnknownName as error:
        if error.facts.get("kind") != "application":
            raise


def _name_in(topology: str) -> str:
    """The application that a topology file describes; the platform tells what else is wrong with the file."""
    from exop.model.values.depth import read_toml

    try:
        return str(read_toml(topology).get("application", {}).get("name", ""))
    except (ValueError, AttributeError):
        return ""

"""`exop apply` and `exop plan`: deploy the application of a topology file or builder, or change the running one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exop.cli.options import Argument, Call, Load, Params, Program, Proof, Request
from exop.cli.outcome import code_is_there, show_and_make
from exop.cli.overview import PLANNED
from exop.cli.peers import started_slets, the_platform
from exop.cli.report import say
from exop.cli.text import answer
from exop.cli.view import View, choose_view
from exop.errors import BuilderError, MeshError, UnknownName, suggest
from exop.model.meshes.topology import name_in

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlatform


def apply(
    app: Program,
    /,
    *parameters: Argument,
    params: Params = (),
    proof: Proof = Proof(),
    request: Request = Request(),
    load: Load = (),
) -> int:
    """Deploy an application on a running platform (`exop serve`), or change the running one to match the file.

    For a running application, the command shows the plan, and makes the change as a whole or not at all, while the
    application runs. The command does not send code: the platform needs the plugins whose slets the application uses
    (`exop serve --load`). Relative paths in settings refer to the folder in which the command runs.

    Example: `exop apply apps/linear_road --params traffic.toml`

    Args:
        app: A topology file, or anything else that `exop run` takes.
    """
    proof.as_data()  # a mistake in it is reported before any platform is asked
    with the_platform(request) as platform:
        return _apply(platform, _topology(platform, app, parameters, params, load), request, proof)


def plan(
    change: str, /, *words: str, params: Params = (), proof: Proof = Proof(), call: Call = Call(), load: Load = ()
) -> int:
    """Show, node by node, how a change would alter a running application, without making the change.

    Each step is shown with its phases and the transfer of the state, followed by the queues that are inserted, and
    warnings. The exit code is 0 if the change can be made or is empty, 1 if not at the moment, and 2 if it cannot.

    `exop plan VERB …` is `exop VERB … --dry-run`, with all its arguments and options: replace, configure, rewire, add,
    move, suspend, resume, remove, drain.

    Examples: `exop plan replace app.average windows:median`, `exop plan app app.toml`

    Args:
        change: A verb; the name of a running application; or anything that `exop apply` takes.
        words: After an application, its topology file; after a builder, NAME=VALUE.
    """
    request = Request(**vars(call), dry_run=True)
    proof.as_data()
    with the_platform(call) as platform:
        if len(words) == 1 and words[0].endswith(".toml") and "=" not in words[0]:
            topology = _topology(platform, words[0], (), params, load)
            if (name := name_in(topology)) not in ("", change):  # without a name, the platform says what is wrong
                raise BuilderError(f"{words[0]} describes {name!r}, not {change!r}; `exop plan {words[0]}` plans that")
        else:
            try:
                topology = _topology(platform, change, words, params, load)
            except BuilderError as error:
                if (known := error.facts.get("known")) is None:
                    raise
                raise BuilderError(f"{error.problem}, and no verb; {suggest(change, [*PLANNED, *known])}") from None
        return _apply(platform, topology, request, proof)


def _topology(platform: RemotePlatform, app: str, parameters: tuple[str, ...], params: Params, load: Load) -> str:
    """Return the topology that APP describes; a file is sent unchanged, since only the platform may know the slets."""
    from exop.cli.loading import build, find_target, known_plugins, refuse_parameters
    from exop.model.meshes.checks import resolved

    catalog = known_plugins(load)
    if (target := find_target(app, catalog, bundles=platform.list_bundles)).topology is not None:
        refuse_parameters(target, parameters, params)
        return target.topology
    try:
        return resolved(build(target, parameters, catalog, params), catalog.slets, travels=True).to_toml()
    except MeshError as refused:
        if not (started := started_slets(refused.facts.get("slet", ""), platform.list_bundles)):
            raise
        bundle, problem = started[0].partition("@")[0], f"the slet {started[0]} is started on {platform.name} already"
        raise BuilderError(f"{app} itself cannot be sent; {problem}, by its bundle: `exop apply {bundle}`") from None


def _apply(platform: RemotePlatform, topology: str, request: Request, proof: Proof) -> int:
    name = name_in(topology)
    running = platform.status()["applications"].get(name)
    with code_is_there():
        if running is not None and running["state"] != "finished":
            # Once: planned again, it would undo the other change, which the file does not contain.
            planned = partial(platform.plan_topology, topology, proof=proof.as_data())
            return show_and_make(planned, request, proof, tries=1)
        if request.dry_run:
            try:
                platform.plan_topology(topology)  # checks it, and only then finds that no such application runs
            except UnknownName as error:
                if error.facts.get("kind") != "application":
                    raise
            text = f"{name} does not run on {platform.name}: `exop apply` would deploy it"
        else:
            text = f"{_deployed(platform, topology, name)} runs on {platform.name}"
    facts = {"application": name, "platform": platform.name, "deployed": not request.dry_run}
    return answer(facts, text, json=request.json)


def _deployed(platform: RemotePlatform, topology: str, name: str) -> str:
    """Deploy an application, and show the progress of its opening."""
    views: list[View] = []  # none if the application opens at once

    def show() -> None:
        if "opening" in (status := platform.status()["applications"].get(name, {})):
            views.extend([] if views else [choose_view(quiet=False)])
            views[0].show(status)

    try:
        return str(platform.ask("apply_topology", show, toml=topology))
    except KeyboardInterrupt:
        say(f"exop: {name}: the platform continues to open it; `exop ps` shows the progress")
        raise
    finally:
        for view in views:
            view.close()

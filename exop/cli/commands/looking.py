"""The commands that show platforms, applications, nodes, slets and services, running or not, and their history."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from exop.cli.options import Call, Load, Params, Picture, Request, Runs, Where
from exop.cli.outcome import show_and_make
from exop.cli.peers import Found, each_platform, find_application, is_local, running, runs, the_platform
from exop.cli.report import Failure
from exop.cli.status_text import access_lines, as_text, call_lines, held_nodes, lasts, problem_lines, state_text
from exop.cli.text import answer, columns, number, pause, print_json
from exop.errors import BuilderError, PeerUnreachable, entry
from exop.model.filter import where as properties_are
from exop.model.meshes.checks import resolved
from exop.model.properties import APPLICATION, KIND, NODE
from exop.model.slets.described import absent, summary
from exop.model.slets.described import describe as facts_of
from exop.model.slets.signature import read_settings
from exop.model.slets.spec import SletSpec
from exop.pictures.picture import DRAW
from exop.pictures.picture import Picture as Drawing
from exop.report import totals_of, whole

#: The treatment of an item for which a slet raises, by policy.
POLICIES: Final = {
    "suspend": "the item is kept and everything upstream waits; it is retried when the slet is resumed",
    "retry": "the item is retried three times, after 0.1, 0.2 and 0.4 s; then it is kept, as with suspend",
    "dead-letter": "the item is set aside with its traceback and memento, and the stream goes on",
    "skip": "the item is dropped and counted, and the stream goes on",
}
ATOMIC: Final = "a retry starts from the memento before the item (atomic)"
NOT_ATOMIC: Final = "a retry starts from the memento as the failed call left it (atomic=True would keep a copy)"
COMMANDS: Final = {"accept_loss": "accept", "abandon_proof": "rollback --abandon", "retry_dead_letters": "item retry"}


def ps(*, call: Call = Call()) -> int:
    """List the running platforms of this user with their applications, and all problems that need attention.

    While the slets of an application open (an engine may take a minute), its state is, for example, `opening 4 of 5`,
    and the nodes that are not open yet are listed below; `--json` has them as `opening`.

    With --on or --state, list only that platform, which may be one on another host.

    Example: `exop ps --json`
    """
    found: list[Any] = []
    if call.on or call.state:
        with the_platform(call) as there:
            found = [(there, there.status(), "")]
    platforms = [
        {"pid": one.pid, "platform": one.name, "address": str(one.address)}
        | (status or {})
        | ({"problem": problem} if problem else {})
        for one, status, problem in found or each_platform(lambda platform: platform.status())
    ]
    none = "no platform runs; start one with `exop run APP` or `exop serve`"
    return answer(platforms, lambda: "\n".join(_platform_lines(platforms)) if platforms else none, json=call.json)


def describe(target: Runs, /, *, call: Call = Call(), load: Load = ()) -> int:
    """Describe a running application or node, a slet, or the content of a folder or file.

    Examples: `exop describe stock:count_up`, `exop describe app.average`

    Args:
        target: APP or APP.NODE on a running platform; PLUGIN:SLET (with --on or --state, as the platform knows it); a
            package or bundle folder, a .py file (or FOLDER:NAME); the builder of a plugin or a bundle; a .json file of
            `exop describe SLET --json`.
    """
    if ":" in target and not is_local(target) and (call.on or call.state):  # no name of an application has a colon
        with the_platform(call) as platform:
            facts = slet_facts(platform.describe_slet(target))
    elif runs(target, call):
        with find_application(target, call) as found:
            at = {"platform": found.platform.name}
            facts = _node_facts(found) if found.node else at | found.platform.status(found.application)
    else:
        facts = _offered(target, load)
    return answer(facts, lambda: "\n\n".join(as_text(facts)), json=call.json)


def slets(text: str = "", /, *, call: Call = Call(), load: Load = ()) -> int:
    """List the slets of the base library and the installed plugins, with ports, settings and purpose.

    With --on or --state, list the slets that a running platform knows, including those of started bundles.

    Example: `exop slets window`

    Args:
        text: List only slets with this text in their name or purpose.
    """
    if call.on or call.state:
        with the_platform(call) as platform:
            known = platform.slet_summaries()
    else:
        from exop.cli.loading import known_plugins

        known = [summary(spec) for spec in known_plugins(load).slets.values()]
    fitting = [one for one in known if text.lower() in f"{one['slet']} {one['doc']}".lower()]
    found = sorted(fitting, key=lambda one: one["slet"])
    none = f"no slet has {text!r} in its name or purpose; `exop slets` lists all" if text else "no plugin offers a slet"
    return answer(found, lambda: "\n".join(map(_slet_lines, found)) or none, json=call.json)


def services(filter: str = "", /, *, call: Call = Call()) -> int:  # noqa: A002 (shown in the help)
    """List the services of a platform: its components, ports and channels, with their properties.

    Example: `exop services '(&(kind=port)(application=numbers))'`

    Args:
        filter: An LDAP-style filter, such as '(role=pi)'.
    """
    with the_platform(call) as platform:
        found = list(platform.services(filter))
    none = f"no service fits {filter}" if filter else "there is no service"
    return answer(found, lambda: "\n".join(map(_service_line, found)) or none, json=call.json)


def mesh(
    app: Runs,
    /,
    *parameters: str,
    format: Annotated[Picture, Parameter(name="--format")] = "mermaid",  # noqa: A002 (the option's name)
    params: Params = (),
    call: Call = Call(),
    load: Load = (),
) -> None:
    """Print the mesh of an application as a picture or as a topology file.

    Example: `exop mesh app --format svg > mesh.svg`

    Args:
        app: A running application, or anything that `exop run` takes.
        parameters: NAME=VALUE for the builder of an application that does not run.
        format: A Mermaid flow chart (the default), a DOT graph (for Graphviz), an SVG image, a topology
            file, or data. Dashed: a queue that the wiring inserts.
    """
    chosen = "json" if call.json else format
    if not parameters and not params and runs(app, call):
        with find_application(app, call) as found:
            found.check_whole(app)
            platform, name = found.platform, found.application
            if chosen == "toml":
                print(platform.topology(name), end="")
                return
            made, status = platform.mesh(name), platform.status(name)
            if "home" in status:  # a fragment: all of it runs there, and nothing of the home
                made = made.at_home(platform.name, made.nodes)
            inserted = {place: queue["reason"] for place, queue in status["inserted"].items()}
    else:
        from exop.cli.loading import load_mesh
        from exop.wiring.changes.channels import preview

        loaded, catalog, _ = load_mesh(app, parameters, params, load, running())
        made = resolved(loaded, catalog.slets, durable=False)
        # The preview refuses whatever `exop run` would refuse.
        inserted = preview(made, catalog.kinds)[0] if all(one.slet.is_here for one in made.nodes.values()) else {}
    if chosen == "toml":
        print(made.to_toml(), end="")
    elif chosen == "json":
        print_json(Drawing(made, inserted).as_data())
    else:
        print(DRAW[chosen](Drawing(made, inserted)), end="")


def history(app: Runs = "", /, *, reverse: int | None = None, make: bool = False, call: Call = Call()) -> int:
    """List the operations on an application: user, operation, revisions, pause and outcome.

    The state directory stores the last 1 000 operations, including failed ones and those that a kill has cut off. With
    --state DIR, the history is also available for a removed application, and while no platform uses the directory.

    Example: `exop history app --reverse 7 --make`

    Args:
        app: The name of the application; by default, list the operations on the platform: those on its bundles, and
            the calls of other platforms that concern no application, including refused ones.
        reverse: Show the plan that undoes the change with this number, but restores no state; needs a state directory.
        make: With --reverse: make the change as well.
    """
    if reverse is not None and not app:
        raise BuilderError("--reverse undoes a change of an application: write exop history APP --reverse NUMBER")
    if reverse is not None:
        with find_application(app, call) as found:
            request = Request(dry_run=not make, json=call.json)
            planned = partial(found.platform.plan_reverse, found.application, reverse)
            return show_and_make(planned, request, tries=1)  # as `apply`: the other change would be undone, too
    entries = _history(app, call)
    head = ("", "at", "by", "operation", "revision", "pause", "outcome")
    nothing = "no operation on the platform is recorded"
    return answer(entries, lambda: columns(head, map(_entry, entries)) or nothing, json=call.json)


def _history(app: str, where: Where) -> list[dict[str, Any]]:
    """Return the entries of an application, or of a platform; from the state directory if no platform uses it."""
    try:
        if not app or where.on or where.state:
            with the_platform(where) as platform:
                return platform.history(app)
        with find_application(app, where) as found:
            return found.platform.history(found.application)
    except (PeerUnreachable, Failure):
        if not (directory := where.state or Path(where.on or "-")).is_dir():
            raise
        from exop.runtime.durable.store import read_history
        from exop.runtime.history import shown

        return shown(read_history(directory, app))


def _entry(one: dict[str, Any]) -> tuple[object, ...]:
    operation = f"{COMMANDS.get(one['what'], one['what'])} {one.get('node', '')}".strip()
    steps = [step for step in one.get("steps", ()) if step != operation]
    outcome = [*steps, *([one["how"]] if "how" in one else ()), one["outcome"].split("\n")[0]]
    if "count" in one:
        last = ", the last" * (one["count"] > 1)
        outcome = [f"{one['outcome']} {one['count']}×" + (f"{last}: {one['reason']}" if one["reason"] else "")]
    revision = f"{one['from']} → {one['to']}" if "to" in one else one.get("revision", "-")
    paused = pause(one["paused_ms"]) if "paused_ms" in one else "-"
    return one["number"], one["at"], one["who"], operation, revision, paused, "; ".join(outcome)


def _platform_lines(platforms: list[dict[str, Any]]) -> Iterator[str]:
    head = ("pid", "platform", "application", "state", "for", "nodes", "items", "address")
    yield columns(head, [row for one in platforms for row in _rows(one)])
    shown = {one["platform"] for one in platforms if "applications" in one}
    for one in platforms:
        if "problem" in one:
            yield f"process {one['pid']}: {one['problem']}"
        yield from (f"{name}: not started again: {why}" for name, why in one.get("failed_to_restart", {}).items())
        for status in one.get("applications", {}).values():
            yield from problem_lines(status, shown)
        yield from call_lines(one)
        yield from access_lines(one)


def _rows(platform: dict[str, Any]) -> list[list[str]]:
    """One row per application; one for the platform itself if it has none."""
    begin, address = [str(platform["pid"]), platform["platform"]], platform["address"]
    if "problem" in platform:
        return [[*begin, "-", "does not answer", "", "", "", address]]
    rows = []
    for name, one in ((name, whole(status)) for name, status in platform["applications"].items()):
        facts = [lasts(one), str(len(one["nodes"])), number(totals_of(one)["items"])] if one["nodes"] else [""] * 3
        rows.append([*begin, name, state_text(one) + held_nodes(one), *facts, address])
    rows += [[*begin, name, "not started again", "", "", "", ""] for name in platform.get("failed_to_restart", ())]
    return rows or [[*begin, "-", "waits", "", "", "", address]]


def _service_line(service: dict[str, Any]) -> str:
    shown = {key: value for key, value in service["properties"].items() if key not in ("interface", "service.id")}
    facts = "  ".join(f"{key}={_value(value)}" for key, value in sorted(shown.items()))
    return f"{service['id']:>5}  {','.join(service['interfaces']):<18}  {facts}"


def _value(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"'{text}'" if " " in text else text


def _slet_lines(one: Mapping[str, Any]) -> str:
    ports = [f"{one['direction']} {one['port']}: {one['type']}{' (pulled)' * one['pulled']}" for one in one["ports"]]
    lines = (", ".join(ports), ", ".join(one["settings"]))
    return "\n".join([f"{one['slet']}  ({one['role']})  {one['doc']}", *(f"    {line}" for line in lines if line)])


def slet_facts(facts: dict[str, Any], *, here: bool = True) -> dict[str, Any]:
    """Return the facts of a slet that does not run, and whose code is *here*, or on the platform that was asked."""
    text = guarantee(facts["on_error"], atomic=facts["atomic"], state=facts["state"] is not None)
    return {**facts, "guarantee": text, "here": here}


def guarantee(policy: str, *, atomic: bool, state: bool) -> str:
    """Describe the guarantee for items for which the slet raises."""
    text = f"nothing of an item leaves before the slet has returned; if it raises, {POLICIES[policy]}"
    return f"{text}; {ATOMIC if atomic else NOT_ATOMIC}" if state and policy in ("suspend", "retry") else text


def builder_facts(name: str, builder: Any) -> dict[str, Any]:
    """Return the facts of an application builder."""
    known = read_settings(builder).values()
    settings = [{"setting": one.name, "text": str(one), "required": one.required} for one in known]
    return {"builder": name, "doc": inspect.getdoc(builder) or "", "settings": settings}


def _offered(target: str, load: Load) -> dict[str, Any]:
    """Return the facts of the slets and builders that *target* names."""
    from exop.cli.loading import find_target, known_plugins

    if target in (catalog := known_plugins(load)).slets:
        return slet_facts(facts_of(catalog.slets[target]))
    plugin, colon, _ = target.rpartition(":")
    if colon and not is_local(target) and plugin in catalog.plugins.names():
        builders = {f"{plugin}:{one.__name__}": one for one in catalog.builders().get(plugin, [])}
        entry("this installation", "slet", {**catalog.slets, **builders}, target)
    if target.endswith(".json") and Path(target).is_file():
        return slet_facts(facts_of(absent(Path(target).read_bytes())), here=False)
    if (found := find_target(target, catalog, running())).which:
        one = entry(target.rpartition(":")[0], "slet or builder", {**found.builders, **found.slets}, found.which)
        return slet_facts(facts_of(one)) if isinstance(one, SletSpec) else builder_facts(found.which, one)
    return {
        "of": target,
        "builders": [builder_facts(name, builder) for name, builder in found.builders.items()],
        "slets": [slet_facts(facts_of(spec)) for spec in found.slets.values()],
    }


def _node_facts(found: Found) -> dict[str, Any]:
    """Return the facts of a running node: its status, and its ports with their types."""
    node = found.node_status()
    query = properties_are({KIND: "port", APPLICATION: found.application, NODE: found.node})
    types = {one["properties"]["name"]: one["properties"]["item.type"] for one in found.platform.services(str(query))}
    ports = []
    for port, channel in node["ports"].items():
        direction = "in" if port in node["inputs"] else "out"
        ports.append({"port": port, "direction": direction, "type": types.get(port, ""), "channel": channel})
    app, text = found.application, guarantee(node["policy"], atomic=node["atomic"], state=node["memento"] is not None)
    return {"application": app, "node": f"{app}.{found.node}", **node, "ports": ports, "guarantee": text}

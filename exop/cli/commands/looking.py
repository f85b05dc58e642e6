"""`exop ps`, `exop services`, `exop mesh`, `exop history`: the state of running platforms, and how it came about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from exop.cli.commands.shadows import beside_lines
from exop.cli.live.troubles import (
    application_troubles,
    call_lines,
    held_nodes,
    lasts,
    opening_lines,
    pending_lines,
    state_text,
)
from exop.cli.options import HERE, Json, Load, Params, Picture, Where
from exop.cli.peers import each_platform, find_application, running, runs, the_platform
from exop.cli.report import DONE
from exop.cli.text import columns, number, pause, print_json
from exop.errors import PeerUnreachable
from exop.safe_repr import clean

if TYPE_CHECKING:
    from exop.pictures.picture import Picture as Drawing


def ps(*, json: Json = False) -> int:
    """List the running platforms of this user and their applications.

    While an application opens (an engine may take a minute), its state is `opening 4 of 5`, and what is waited for
    stands below; `--json` has it as `opening`.
    """
    platforms = _platforms()
    if json:
        print_json(platforms)
    elif not platforms:
        print("no platform runs; start one with `exop run APP` or `exop serve`")
    else:
        head = ("pid", "platform", "application", "state", "for", "nodes", "items", "address")
        print(columns(head, [row for one in platforms for row in _rows(one)]))
        for one in platforms:
            for status in one.get("applications", {}).values():
                told = (opening_lines, application_troubles, beside_lines, pending_lines)
                for line in (line for lines in told for line in lines(status)):
                    print(clean(line))
            for line in call_lines(one):
                print(clean(line))
    return DONE


def services(filter: str = "", /, *, where: Where = HERE, json: Json = False) -> int:  # noqa: A002 (shown in the help)
    """List the services of a platform: its components, ports and channels, with their properties.

    Args:
        filter: An LDAP-style filter: '(role=pi)', '(&(kind=port)(application=numbers))'.
    """
    with the_platform(where) as platform:
        found = list(platform.services(filter))
    if json:
        print_json(found)
        return DONE
    for service in found:
        shown = {key: value for key, value in service["properties"].items() if key not in ("interface", "service.id")}
        facts = "  ".join(f"{key}={_value(value)}" for key, value in sorted(shown.items()))
        print(clean(f"{service['id']:>5}  {','.join(service['interfaces']):<18}  {facts}"))
    if not found:
        print(clean(f"no service fits {filter}") if filter else "there is no service")
    return DONE


def mesh(
    app: str,
    /,
    *parameters: str,
    format: Annotated[Picture, Parameter(name="--format")] = "mermaid",  # noqa: A002 (the option's name)
    params: Params = (),
    where: Where = HERE,
    load: Load = (),
    json: Json = False,
) -> int:
    """Print the mesh of an application as a picture or as a topology file.

    Args:
        app: An application that runs, or anything that `exop run` takes.
        parameters: NAME=VALUE for the builder of an application that does not run.
        format: A Mermaid flow chart (the default), a DOT graph (for Graphviz), an SVG image, a topology
            file, or data. Dashed: a queue that the wiring inserts.
    """
    chosen = "json" if json else format
    deployed = not parameters and not params and runs(app, where)
    toml = chosen == "toml"
    drawn = _running(app, where, toml=toml) if deployed else _not_running(app, parameters, params, load, toml=toml)
    if isinstance(drawn, str):
        print(drawn, end="")
    elif chosen in ("mermaid", "dot", "svg"):
        from exop.pictures.drawing import draw

        print(draw(drawn, chosen), end="")
    else:
        print_json(drawn.as_data())
    return DONE


def history(
    app: str = "",
    /,
    *,
    reverse: Annotated[
        int | None,
        Parameter(
            help="Show the plan by which the nodes and channels of the change with this number become what they were."
        ),
    ] = None,
    make: Annotated[bool, Parameter(help="With --reverse: make the change as well.")] = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """List the operations on an application: who, what, from which revision to which, its pause and outcome.

    The last 1 000 are kept in the state directory, those that failed included. With --state DIR, they are also shown of
    an application that was removed, and while no platform runs there.

    Args:
        app: The name of the application; without it, operations on the bundles of the platform.
    """
    from exop.cli.outcome import show_and_make

    if reverse is not None:
        with find_application(app, where) as found:
            plan = found.platform.plan_reverse(found.application, reverse)
            return show_and_make(plan, dry_run=not make, json=json)
    entries = _history(app, where)
    if json:
        print_json(entries)
        return DONE
    rows = [
        (
            one["number"],
            one["at"],
            one["who"],
            f"{one['what']} {one.get('node', '')}".strip(),
            f"{one['from']} → {one['to']}" if "to" in one else "-",
            pause(one["paused_ms"]) if "paused_ms" in one else "-",
            "; ".join([*one.get("steps", ()), *([one["how"]] if "how" in one else ()), one["outcome"].split("\n")[0]]),
        )
        for one in entries
    ]
    print(columns(("", "at", "by", "operation", "revision", "pause", "outcome"), rows))
    return DONE


def _history(app: str, where: Where) -> list[dict[str, Any]]:
    """The entries of an application, or of a platform, from the state directory if no platform runs there."""
    try:
        if not app or where.on or where.state:
            with the_platform(where) as platform:
                return platform.history(app)
        with find_application(app, where) as found:
            return found.platform.history(found.application)
    except PeerUnreachable:
        directory = where.state or Path(where.on or "-")
        if not directory.is_dir():
            raise
        from exop.runtime.durable.store import read_history
        from exop.runtime.history import shown

        return shown(read_history(directory, app))


def _running(app: str, where: Where, *, toml: bool) -> Drawing | str:
    """The picture, or the topology, of an application that runs."""
    from exop.pictures.picture import Picture as Drawn

    with find_application(app, where) as found:
        if toml:
            return found.platform.topology(found.application)
        return Drawn.of_status(found.platform.status(found.application))


def _not_running(app: str, parameters: tuple[str, ...], params: Params, load: Load, *, toml: bool) -> Drawing | str:
    """The picture, or the topology, of an application that would run."""
    from exop.cli.building import build
    from exop.cli.loading import find_target, known_plugins
    from exop.model.meshes.resolve import resolved
    from exop.pictures.picture import Picture as Drawn
    from exop.wiring.changes.remarks import preview

    catalog = known_plugins(load)
    target = find_target(app, catalog, running())
    built = resolved(build(target, parameters, catalog, params), catalog.slets, durable=False)
    here = all(node.slet.is_here for node in built.nodes.values())
    inserted = preview(built, catalog.kinds)[0] if here else {}  # refuses what `exop run` would refuse
    return built.to_toml() if toml else Drawn.of_mesh(built, inserted)


def _platforms() -> list[dict[str, Any]]:
    return [
        {"pid": one.pid, "platform": one.name, "address": str(one.address)}
        | (status or {})
        | ({"problem": problem} if problem else {})
        for one, status, problem in each_platform(lambda platform: platform.status())
    ]


def _rows(platform: dict[str, Any]) -> list[list[str]]:
    """One row per application; one for the platform itself when it has none."""
    from exop.report import Totals

    begin = [str(platform["pid"]), platform["platform"]]
    if "problem" in platform:
        return [[*begin, "-", f"does not answer: {platform['problem']}", "", "", "", platform["address"]]]
    rows = [
        [
            *begin,
            name,
            state_text(status) + held_nodes(status),
            lasts(status),
            str(len(status["nodes"])),
            number(Totals.of(status).items),
            platform["address"],
        ]
        for name, status in platform["applications"].items()
    ]
    rows += [[*begin, name, f"not started again: {why}", "", "", "", ""] for name, why in _failed(platform)]
    return rows or [[*begin, "-", "waits", "", "", "", platform["address"]]]


def _failed(platform: dict[str, Any]) -> list[tuple[str, str]]:
    return list(platform.get("failed_to_restart", {}).items())


def _value(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"'{text}'" if " " in text else text

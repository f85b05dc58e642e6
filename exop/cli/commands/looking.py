"""`exop ps`, `exop services`, `exop mesh`, `exop history`: show the state and history of running platforms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from exop.cli.options import HERE, Json, Load, Params, Picture, Request, Where
from exop.cli.outcome import show_and_make
from exop.cli.peers import each_platform, find_application, running, runs, the_platform
from exop.cli.report import DONE
from exop.cli.status_text import access_lines, attention_lines, call_lines, held_nodes, lasts, state_text
from exop.cli.text import answer, columns, number, pause, print_json
from exop.errors import PeerUnreachable

if TYPE_CHECKING:
    from exop.pictures.picture import Picture as Drawing


def ps(*, json: Json = False) -> int:
    """List the running platforms of this user with their applications, and all problems that need attention.

    While the slets of an application open (an engine may take a minute), its state is, for example, `opening 4 of 5`,
    and the nodes that are not open yet are listed below; `--json` has them as `opening`.

    Example: `exop ps --json`
    """
    platforms = [
        {"pid": one.pid, "platform": one.name, "address": str(one.address)}
        | (status or {})
        | ({"problem": problem} if problem else {})
        for one, status, problem in each_platform(lambda platform: platform.status())
    ]
    none = "no platform runs; start one with `exop run APP` or `exop serve`"
    return answer(platforms, lambda: "\n".join(_platform_lines(platforms)) if platforms else none, json=json)


def services(filter: str = "", /, *, where: Where = HERE, json: Json = False) -> int:  # noqa: A002 (shown in the help)
    """List the services of a platform: its components, ports and channels, with their properties.

    Example: `exop services '(&(kind=port)(application=numbers))'`

    Args:
        filter: An LDAP-style filter, such as '(role=pi)'.
    """
    with the_platform(where) as platform:
        found = list(platform.services(filter))
    none = f"no service fits {filter}" if filter else "there is no service"
    return answer(found, lambda: "\n".join(map(_service_line, found)) or none, json=json)


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

    Example: `exop mesh app --format svg > mesh.svg`

    Args:
        app: A running application, or anything that `exop run` takes.
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
        from exop.pictures.picture import draw

        print(draw(drawn, chosen), end="")
    else:
        print_json(drawn.as_data())
    return DONE


def history(
    app: str = "", /, *, reverse: int | None = None, make: bool = False, where: Where = HERE, json: Json = False
) -> int:
    """List the operations on an application: user, operation, revisions, pause and outcome.

    The state directory stores the last 1 000 operations, including failed ones. With --state DIR, the history is also
    available for a removed application, and while no platform uses the directory.

    Example: `exop history app --reverse 7 --make`

    Args:
        app: The name of the application; by default, list the operations on the platform: those on its bundles, and
            the calls of other platforms that concern no application, including refused ones.
        reverse: Show the plan that undoes the change with this number in its nodes and channels.
        make: With --reverse: make the change as well.
    """
    if reverse is not None:
        with find_application(app, where) as found:
            plan = found.platform.plan_reverse(found.application, reverse)
            return show_and_make(plan, Request(dry_run=not make, json=json))
    entries = _history(app, where)
    head = ("", "at", "by", "operation", "revision", "pause", "outcome")
    nothing = "no operation on the platform is recorded"
    return answer(entries, lambda: columns(head, map(_entry, entries)) if entries else nothing, json=json)


def _history(app: str, where: Where) -> list[dict[str, Any]]:
    """Return the entries of an application, or of a platform; from the state directory if no platform uses it."""
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


def _entry(one: dict[str, Any]) -> tuple[object, ...]:
    operation = f"{one['what']} {one.get('node', '')}".strip()
    steps = [step for step in one.get("steps", ()) if step != operation]
    outcome = [*steps, *([one["how"]] if "how" in one else ()), one["outcome"].split("\n")[0]]
    if "count" in one:
        outcome = [f"{one['outcome']} {one['count']}×" + (f": {one['reason']}" if one["reason"] else "")]
    return (
        one["number"],
        one["at"],
        one["who"],
        operation,
        f"{one['from']} → {one['to']}" if "to" in one else one.get("revision", "-"),
        pause(one["paused_ms"]) if "paused_ms" in one else "-",
        "; ".join(outcome),
    )


def _running(app: str, where: Where, *, toml: bool) -> Drawing | str:
    """The picture, or the topology, of a running application."""
    from exop.pictures.picture import Picture as Drawn

    with find_application(app, where) as found:
        if toml:
            return found.platform.topology(found.application)
        status = found.platform.status(found.application)
        # The status of a home has the nodes of its fragment only.
        whole = found.platform.mesh(found.application) if "hosts" in status else None
        return Drawn.of_status(status) if whole is None else Drawn.of_mesh(whole)


def _not_running(app: str, parameters: tuple[str, ...], params: Params, load: Load, *, toml: bool) -> Drawing | str:
    """The picture, or the topology, of an application that does not run."""
    from exop.cli.loading import load_mesh
    from exop.model.meshes.checks import resolved
    from exop.pictures.picture import Picture as Drawn
    from exop.wiring.changes.channels import preview

    made, catalog, _ = load_mesh(app, parameters, params, load, running())
    built = resolved(made, catalog.slets, durable=False)
    here = all(node.slet.is_here for node in built.nodes.values())
    inserted = preview(built, catalog.kinds)[0] if here else {}  # refuses whatever `exop run` would refuse
    return built.to_toml() if toml else Drawn.of_mesh(built, inserted)


def _platform_lines(platforms: list[dict[str, Any]]) -> Iterator[str]:
    head = ("pid", "platform", "application", "state", "for", "nodes", "items", "address")
    yield columns(head, [row for one in platforms for row in _rows(one)])
    for one in platforms:
        for status in one.get("applications", {}).values():
            yield from attention_lines(status)
        yield from call_lines(one)
        yield from access_lines(one)


def _rows(platform: dict[str, Any]) -> list[list[str]]:
    """One row per application; one for the platform itself if it has none."""
    from exop.report import Totals

    begin, address = [str(platform["pid"]), platform["platform"]], platform["address"]
    if "problem" in platform:
        return [[*begin, "-", f"does not answer: {platform['problem']}", "", "", "", address]]
    rows = [
        [
            *begin,
            name,
            state_text(status) + held_nodes(status),
            lasts(status),
            str(len(status["nodes"])),
            number(Totals.of(status).items),
            address,
        ]
        for name, status in platform["applications"].items()
    ]
    failed = platform.get("failed_to_restart", {})
    rows += [[*begin, name, f"not started again: {why}", "", "", "", ""] for name, why in failed.items()]
    return rows or [[*begin, "-", "waits", "", "", "", address]]


def _service_line(service: dict[str, Any]) -> str:
    shown = {key: value for key, value in service["properties"].items() if key not in ("interface", "service.id")}
    facts = "  ".join(f"{key}={_value(value)}" for key, value in sorted(shown.items()))
    return f"{service['id']:>5}  {','.join(service['interfaces']):<18}  {facts}"


def _value(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"'{text}'" if " " in text else text

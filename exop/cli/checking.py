"""`exop check` and `exop doctor`: is the application right, is the machine ready."""

from __future__ import annotations

from typing import Any

from exop.cli.options import Json, Load, Params
from exop.cli.report import DONE, FAILED
from exop.cli.text import columns, print_json


def check(app: str, /, *parameters: str, params: Params = (), load: Load = (), json: Json = False) -> int:
    """Build an application and check it without running it: slets, types, wiring, plugins.

    Prints what would be deployed, and which queues the wiring would insert, and why.

    Args:
        app: Anything that `exop run` takes.
        parameters: NAME=VALUE for the builder.
    """
    facts = checked(app, parameters, params, load)
    if json:
        print_json(facts)
        return DONE
    print(f"{facts['application']}: {len(facts['nodes'])} slets, {len(facts['channels'])} channels; it can run")
    rows = [
        [name, one["role"], one["slet"], _ports(one["out"]), _ports(one["in"])] for name, one in facts["nodes"].items()
    ]
    print(columns(("node", "role", "slet", "out", "in"), rows, "  "))
    kept = [[name, one["kind"]] for name, one in facts["channels"].items() if one["kind"] != "direct"]
    if kept:
        print(columns(("channel", "kind"), kept, "  "))
    if facts["inserted"]:
        print("queues that the wiring inserts:")
        print(columns(("place", "because"), list(facts["inserted"].items()), "  "))
    for note in facts["notes"]:
        print(f"note: {note}")
    return DONE


def doctor(*, json: Json = False) -> int:
    """Look at the installation: Python, packages, Java, plugins, platforms; each thing missing with its cure.

    Exit code 1 when something is broken; what is only not installed, and optional, does not count.
    """
    from exop.cli.health import examine

    findings = examine()
    if json:
        print_json([finding.as_data() for finding in findings])
    else:
        print(columns(("", "", ""), [(one.verdict, one.subject, one.fact) for one in findings]))
        cures = [one for one in findings if one.cure]
        if cures:
            print("\nto mend:")
            print(columns(("", ""), [(one.subject, one.cure) for one in cures], "  "))
    return FAILED if any(one.verdict == "broken" for one in findings) else DONE


def checked(app: str, parameters: tuple[str, ...], params: Params, load: Load) -> dict[str, Any]:
    """What would be deployed, as plain data.

    Raises:
        MeshError, BuilderError, PluginError: what is wrong.
    """
    from exop.cli.building import build
    from exop.cli.loading import find_target, known_plugins
    from exop.model.picture import Picture
    from exop.model.resolve import resolved
    from exop.wiring.preview import preview

    catalog = known_plugins(load)
    mesh = resolved(build(find_target(app, catalog), parameters, catalog, params), catalog.slets, durable=False)
    data = Picture.of_mesh(mesh, preview(mesh, catalog.kinds)).as_data()
    embedded = sorted(name for name, node in mesh.nodes.items() if node.slet.plugin is None)
    notes = []
    if embedded:
        notes.append(
            f"{', '.join(embedded)}: the code stands in no plugin, so it runs embedded only (without --state, not by "
            f"`exop apply`)"
        )
    notes += [f"{problem}; it was left out" for problem in catalog.plugins.broken.values()]
    return {**data, "notes": notes}


def _ports(ports: dict[str, str]) -> str:
    return " ".join(f"{port}={channel}" for port, channel in ports.items()) or "-"

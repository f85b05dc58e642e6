"""`exop check` and `exop doctor`: is the application right, is the machine ready."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from exop.cli.options import Json, Load, Params
from exop.cli.report import DONE, FAILED
from exop.cli.text import columns, print_json
from exop.errors import ExopError, MeshError
from exop.safe_repr import RAISED, described

if TYPE_CHECKING:
    from exop.model.meshes.mesh import Mesh, Node
    from exop.model.slets.ports import PortType


def check(
    app: str,
    /,
    *parameters: str,
    deep: Annotated[bool, Parameter(help="Let engines analyse their queries, too; Spark is started for it.")] = False,
    params: Params = (),
    load: Load = (),
    json: Json = False,
) -> int:
    """Build an application and check it without running it: slets, types, wiring, plugins.

    Prints what would be deployed, and which queues the wiring would insert, and why. With --deep also the nodes whose
    queries were analysed: a column that is not there, or a mode that cannot be, is found before anything runs.

    Args:
        app: Anything that `exop run` takes.
        parameters: NAME=VALUE for the builder.
    """
    facts = checked(app, parameters, params, load, deep=deep)
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
    if "analysed" in facts:
        print(f"analysed: {', '.join(facts['analysed']) or 'nothing; no slet of it can be'}")
    for note in facts["notes"]:
        print(f"note: {note}")
    return DONE


def doctor(*, json: Json = False) -> int:
    """Look at the installation: Python, packages, Java, plugins, platforms; each thing missing with its cure.

    Exit code 1 when something is broken; what is only not installed, and optional, does not count.
    """
    from exop.cli.commands.health import examine

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


def checked(app: str, parameters: tuple[str, ...], params: Params, load: Load, *, deep: bool = False) -> dict[str, Any]:
    """Return what would be deployed, as plain data.

    Raises:
        MeshError, BuilderError, PluginError: what is wrong.
    """
    from exop.cli.building import build
    from exop.cli.loading import find_target, known_plugins
    from exop.model.meshes.resolve import resolved
    from exop.pictures.picture import Picture
    from exop.wiring.changes.remarks import preview

    catalog = known_plugins(load)
    mesh = resolved(build(find_target(app, catalog), parameters, catalog, params), catalog.slets, durable=False)
    inserted, warnings = preview(mesh, catalog.kinds)
    data = Picture.of_mesh(mesh, inserted).as_data()
    embedded = sorted(name for name, node in mesh.nodes.items() if node.slet.plugin is None)
    notes = []
    if embedded:
        notes.append(
            f"{', '.join(embedded)}: no plugin offers these slets, so the mesh runs by `exop run` without --state, but "
            f"not by `exop apply`"
        )
    notes += [f"warning: {text}" for text in warnings]
    notes += [f"{problem}; it was left out" for problem in catalog.plugins.broken.values()]
    return {**data, **({"analysed": analysed(mesh)} if deep else {}), "notes": notes}


def analysed(mesh: Mesh) -> list[str]:
    """Let the slets that offer a `deep_check` check themselves; return the names of their nodes.

    It gets the settings of its node, and by input port the type of what arrives. It raises if it finds a mistake, and
    may return a function that is called after the last check, so that several nodes share an engine until then.

    Raises:
        ExopError: the first mistake, with the node's name in its notes.
    """
    found = []
    with ExitStack() as afterwards:
        for name, node in mesh.nodes.items():
            check = getattr(node.slet.factory, "deep_check", None)
            if check is None:
                continue
            try:
                done = check(dict(node.settings), _arriving(mesh, node))
            except ExopError as problem:
                problem.add_note(f"in the node {name!r}")
                raise
            except RAISED as problem:
                told = described(problem)
                raise MeshError(f"{name}: the deep check of {node.slet.identity} failed: {told}") from problem
            if done is not None:
                afterwards.callback(done)
            found.append(name)
    return found


def _arriving(mesh: Mesh, node: Node) -> dict[str, PortType]:
    """By input port, the type of what is pushed into its channel, or else its own."""
    types = {}
    for port, channel in node.inputs().items():
        pushed = [producer.slet.ports[out].type for producer, out in mesh.producers(channel)]
        types[port] = pushed[0] if pushed else node.slet.ports[port].type
    return types


def _ports(ports: dict[str, str]) -> str:
    return " ".join(f"{port}={channel}" for port, channel in ports.items()) or "-"

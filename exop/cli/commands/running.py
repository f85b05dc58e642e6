"""`exop run` and `exop serve`: platforms in this process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from exop.cli.options import Load, Name, OnFailure, Params, State, check_seconds
from exop.cli.report import DONE, FAILED, say
from exop.cli.stopping import Stopping
from exop.errors import ExopError, StateError

#: How long threads may take to leave, in seconds: after a second Ctrl-C, and after a failure.
AT_ONCE, SOON = 0.5, 5.0

if TYPE_CHECKING:
    from exop.model.meshes.mesh import Mesh
    from exop.platform import Platform
    from exop.runtime.catalog import Catalog


def run(
    app: str,
    /,
    *parameters: str,
    params: Params = (),
    state: State = None,
    name: Name = None,
    load: Load = (),
    json: Annotated[bool, Parameter(name="--json")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False,
    on_failure: OnFailure | None = None,
    drain_timeout: Annotated[float, Parameter(validator=check_seconds)] = 20.0,
    check_sharing: bool = False,
) -> int:
    """Run an application until its sources end, showing its progress.

    Ctrl-C (or SIGTERM) ends the sources and processes what is under way; that is a clean end, exit code 0. A second
    Ctrl-C stops at once (130, or 143), a third kills. A slet that raises is suspended with its item: on a terminal the
    run waits for its repair (`exop resume`), elsewhere it stops with exit code 1. A run that leaves dead letters ends
    with exit code 3.

    Args:
        app: A package folder with a builder (apps/linear_road), a .py file with an Application or a builder, a .toml
            topology, or the builder of an installed plugin. APP:BUILDER names one of several.
        parameters: NAME=VALUE for the builder.
        json: Print the report of the run as one JSON object on stdout (see `app.run()`), and nothing else there.
        quiet: Show neither progress nor a summary.
        on_failure: Whether to wait for the repair of a slet that has failed, or to stop; wait on a terminal, else stop.
        drain_timeout: How many seconds suspended nodes may keep the run from ending after a Ctrl-C or SIGTERM; a
            durable application with a state directory keeps what waits for them.
        check_sharing: Compare items before and after every call; log each slet that alters one that others get, too,
            and end with exit code 1. Slow: for tests.
    """
    with _json_only(json) as report:
        mesh, catalog = _prepared(app, parameters, params, load)
        with Stopping(patience=2) as stopping:
            return _run(
                mesh, catalog, _Options(state, name, quiet, on_failure, report, drain_timeout, check_sharing), stopping
            )


def serve(*, state: State = None, name: Name = None, load: Load = ()) -> int:
    """Start a platform that waits for applications: see `exop apply`.

    With a state directory it starts again what ran there: a durable application goes on from its checkpoint, any other
    is started anew, from the beginning; the log says which. Ctrl-C (or SIGTERM) stops it, and the next platform there
    does the same.
    """
    from exop.cli.live.serving import Keeper
    from exop.cli.loading import known_plugins
    from exop.platform import Platform

    catalog = known_plugins(load)
    with Stopping(patience=1) as stopping:
        platform = Platform(state=state, name=name, plugins=catalog.plugins, control=True)
        with Keeper(platform, stopping) as keeper:
            keeper.start(catalog.plugins.folders.values())
            keeper.until_stopped()
    return DONE


@dataclass
class _Options:
    """The options of a run; `report` is filled for JSON, and `None` when a summary for people is wanted."""

    state: Path | None
    name: str | None
    quiet: bool
    on_failure: OnFailure | None
    report: dict[str, Any] | None
    drain_timeout: float
    check_sharing: bool

    @property
    def policy(self) -> OnFailure:
        """Return whether to wait for repair: by default only on a terminal."""
        return self.on_failure or ("wait" if sys.stderr.isatty() and sys.stdin.isatty() else "stop")


def _prepared(
    app: str, parameters: Sequence[str], params: Sequence[Path], load: Sequence[Path]
) -> tuple[Mesh, Catalog]:
    """Find every possible mistake of the user before a platform starts."""
    from exop.cli.building import build
    from exop.cli.loading import find_target, known_plugins, slets_in

    catalog = known_plugins(load)
    target = find_target(app, catalog)
    mesh = build(target, parameters, catalog, params)
    catalog.embed(slets_in(target, catalog).values())
    return mesh, catalog


def _run(mesh: Mesh, catalog: Catalog, options: _Options, stopping: Stopping) -> int:
    from exop.cli.live.view import choose_view, print_summary
    from exop.cli.live.watch import Watch
    from exop.model.meshes.resolve import resolved
    from exop.platform import Platform

    if options.state is not None:
        mesh = resolved(mesh, catalog.slets, durable=True)
        _check_same(options.state, mesh)
    platform = Platform(state=options.state, name=options.name, plugins=catalog.plugins, control=True)
    platform.catalog.embed(catalog.slets.values())  # `exop replace` finds those of a .py file
    if options.check_sharing:
        # Most runs do not look for it.
        from exop.wiring.sharing import Sharing

        platform.wiring.sharing = Sharing()
    view = choose_view(quiet=options.quiet)
    watch = Watch(platform, mesh.name, view, stopping, options.policy, drain_timeout=options.drain_timeout)
    try:
        watch.bring_up(lambda: _bring_up(platform, mesh))
        report = watch.until_the_end()
        view.close()
        if options.report is not None:
            options.report |= report
        elif not options.quiet:
            print_summary(report)
        # A durable application keeps its checkpoint, with what it failed on, or what waits for a suspended slet.
        keeps = mesh.durable is not None and (watch.outcome == "failed" or watch.late)
        if watch.outcome in ("stopped", "failed") and not keeps:
            _stop(platform, mesh.name, at_once=watch.outcome == "stopped")
        if watch.error is not None:
            raise watch.error
        altered = platform.wiring.sharing is not None and platform.wiring.sharing.found()
        return watch.exit_code or (FAILED if altered else DONE)
    finally:
        view.close()
        platform.close()


def _stop(platform: Platform, application: str, *, at_once: bool) -> None:
    """Stop an application; a slet that does not return is left behind, and named."""
    # What runs slets is imported by then.
    from exop.runtime.drivers.source import ThreadDriver
    from exop.runtime.supervision.watchdog import whereabouts

    deployment = platform.deployment(application)
    if platform.remove(application, timeout=AT_ONCE if at_once else SOON):
        return
    late = [one for one in deployment.drivers() if isinstance(one, ThreadDriver) and one.alive]
    where = whereabouts(deployment.components.values(), late)
    say(f"{application}: a slet has not come to its end, and is left behind{where and ':'}{where}")


def _bring_up(platform: Platform, mesh: Mesh) -> None:
    """Start the platform, which may start the application again by itself, and else deploy it."""
    platform.start()
    for folder in list(platform.plugins.folders.values()):
        platform.load(folder)
    if mesh.name not in platform.applications():
        platform.apply(mesh)


def _check_same(state: Path, mesh: Mesh) -> None:
    """An application that the state directory will start again by itself must be the one that is to run.

    Raises:
        StateError: it is another one under the same name; it is not started, and nothing of it is lost.
    """
    from exop.runtime.durable.store import Store

    if not os.path.exists(state / "platform.sqlite"):  # a place that cannot be asked is named by the start
        return
    store = Store(state)
    try:
        stored = next((one for one in store.applications() if one.name == mesh.name and one.active), None)
    finally:
        store.close()
    if stored is None:
        return
    if not _same(stored.topology, mesh):
        raise StateError(
            f"the state directory {state} is to start {mesh.name!r} again with other settings or slets; go on with "
            f"that one by `exop serve --state {state}`, or give it up by `exop remove {mesh.name} --state {state}`"
        )
    say(f"{mesh.name}: it ran in {state} and is started again")


def _same(topology: str, mesh: Mesh) -> bool:
    """Whether a stored topology describes *mesh*.

    Releases before this one stored no setting that had its default, and paths as they were given.
    """
    from exop.model.meshes.resolve import with_full_paths

    try:
        stored = mesh.from_toml(topology, {node.slet.identity: node.slet for node in mesh.nodes.values()})
        stored = with_full_paths(stored, Path.cwd())
    except ExopError:
        return False
    both = [
        replace(one, revision=0, nodes={name: replace(node, given=frozenset()) for name, node in one.nodes.items()})
        for one in (stored, mesh)
    ]
    return both[0] == both[1]


@contextlib.contextmanager
def _json_only(wanted: bool) -> Iterator[dict[str, Any] | None]:
    """Keep stdout for one JSON object; what slets, engines and their processes print goes to stderr meanwhile."""
    if not wanted:
        yield None
        return
    from exop.cli.text import print_json
    from exop.report import run_report

    report: dict[str, Any] = {}
    python = sys.stdout
    python.flush()
    # Processes that engines start inherit the descriptor, not Python's object.
    descriptor = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield report
    finally:
        sys.stdout = python
        os.dup2(descriptor, 1)
        os.close(descriptor)
        if report:
            print_json(run_report(**report))

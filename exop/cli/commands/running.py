"""`exop run` and `exop dev`: one application on a platform in this process, also while its folder is edited."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from exop.cli.options import Argument, Load, Name, OnFailure, Params, Program, State
from exop.cli.report import DONE, FAILED, TICK, Stopping, further, say
from exop.cli.text import pause, print_json
from exop.cli.view import View, choose_view, print_summary
from exop.cli.watch import Watch, report_failures
from exop.errors import ComponentFailed, ExopError, StateError, UnknownName
from exop.model.meshes.checks import resolved
from exop.model.meshes.mesh import Mesh
from exop.report import run_report
from exop.runtime.catalog import Catalog
from exop.runtime.drivers.source import ThreadDriver
from exop.runtime.supervision.watchdog import whereabouts

if TYPE_CHECKING:
    from exop.bundle.dev import Development, Generation, Outcome
    from exop.platform import Platform

Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"])]


def run(
    app: Program,
    /,
    *parameters: Argument,
    params: Params = (),
    state: State = None,
    name: Name = None,
    load: Load = (),
    json: Annotated[bool, Parameter(name="--json")] = False,
    quiet: Quiet = False,
    on_failure: OnFailure | None = None,
    drain_timeout: Annotated[float, Parameter(validator=Number(gte=0))] = 20.0,
    check_sharing: bool = False,
) -> int:
    """Run an application until its sources end, and show its progress.

    Ctrl-C (or SIGTERM) ends the sources and processes the items in flight; then the exit code is 0. A second Ctrl-C
    stops the run at once (exit code 130, or 143), and a third kills the process; a durable application with a state
    directory is kept there, and the same command continues it. While the slets open, the first one stops the run.
    A slet that raises is suspended on its item: on a terminal, the run then waits for a repair (`exop resume`);
    elsewhere, it stops with exit code 1. If there are dead letters at the end, the exit code is 3.

    Example: `exop run apps/linear_road --params traffic.toml --state state`

    Args:
        app: A package or bundle folder with a builder (apps/linear_road), a .py file with an Application or a builder,
            a .toml topology, a bundle that a platform here has started (NAME, or NAME@VERSION), or the builder of an
            installed plugin. APP:BUILDER names one of several.
        json: Print only the report of the run on stdout, as one JSON object (see `app.run()`).
        quiet: Show neither progress nor a summary.
        on_failure: Wait for the repair of a slet that has failed, or stop; the default is to wait only on a terminal.
        drain_timeout: Seconds for which suspended nodes may delay the end of the run after a Ctrl-C or SIGTERM; a
            durable application with a state directory stores the items that wait for them.
        check_sharing: Compare items before and after every call; log each slet that modifies an item that other slets
            also get, and end with exit code 1. This is slow, and intended for tests.
    """
    from exop.cli.loading import load_mesh
    from exop.platform import Platform
    from exop.wiring.sharing import Sharing

    policy = on_failure or ("wait" if sys.stderr.isatty() and sys.stdin.isatty() else "stop")
    with _json_only(json) as report:
        # All mistakes of the user are found before a platform starts.
        mesh, catalog, target = load_mesh(app, parameters, params, load)
        catalog.embed(target.slets.values())
        mesh = mesh if state is None else _durable(mesh, catalog, state)
        with (
            Stopping(patience=2) as stopping,
            closing(Platform(state=state, name=name, plugins=catalog.plugins, control=True)) as platform,
            closing(choose_view(quiet=quiet)) as view,
        ):
            platform.catalog.embed(catalog.slets.values())  # `exop replace` finds the slets of a .py file
            platform.wiring.sharing = Sharing() if check_sharing else None
            watch = Watch(platform, mesh.name, view, stopping, policy, drain_timeout)
            if not stopping.carry_out(lambda: _bring_up(platform, mesh), lambda: watch.show(view.every / 2)):
                return stopping.exit_code
            outcome = watch.until_the_end()
            view.close()
            if report is not None:
                report.update(outcome)
            elif not quiet:
                print_summary(outcome)
            return _ended(watch)


def dev(
    folder: Path,
    /,
    *parameters: Argument,
    params: Params = (),
    builder: str = "",
    name: Name = None,
    load: Load = (),
    quiet: Quiet = False,
) -> None:
    """Run the application of a folder, and apply every saved edit to it while the stream runs.

    Slets whose code has changed are replaced and retain their states; other slets are not affected. If an edit fails
    (its code cannot be imported, ports do not match, a slet does not open), the error is reported with file and line,
    and the application continues unchanged until the next valid edit. Ctrl-C ends the sources, and drains the rest.

    Example: `exop dev apps/linear_road --params traffic.toml`

    Args:
        folder: A package folder with a builder, or a folder with a bundle.toml that names one.
        builder: The application builder, if the folder offers several.
        quiet: Show only changes, and no progress.
    """
    from exop.bundle.dev import WatchedFolder, check_folder
    from exop.cli.loading import Target, build, gather, known_plugins
    from exop.platform import Platform

    check_folder(folder)  # only mistakes that a save can mend wait for the next one
    gather(parameters, params, ())
    catalog = known_plugins(load)
    with Stopping(patience=2) as stopping, Platform(name=name, plugins=catalog.plugins, control=True) as platform:

        def built(generation: Generation) -> Mesh:
            builders = {one.__name__: one for one in platform.catalog.builders().get(generation.name, [])}
            mesh = build(Target(str(folder), builders, which=builder), parameters, platform.catalog, params)
            return replace(mesh, durable=None)  # no checkpoints during development

        watched = WatchedFolder(folder)
        development = platform.bundles.develop(folder, built)
        session = Session(platform, development, watched.changed, choose_view(quiet=quiet), stopping)
        try:
            for one in list(platform.plugins.folders.values()):
                platform.load(one)
            session.take(first=True)
            session.until_stopped()
        finally:
            session.end()


def _ended(watch: Watch) -> int:
    """Stop the application of a run that has ended, if it still runs, and return the exit code."""
    # The checkpoint of a durable application remains, with the failed item and those in flight.
    if watch.outcome == "stopped" or (watch.outcome == "failed" and not watch.keeps):
        _stop(watch)
    if watch.error is not None:
        raise watch.error
    sharing = watch.platform.wiring.sharing
    return watch.exit_code or (FAILED if sharing is not None and sharing.found() else DONE)


def _stop(watch: Watch) -> None:
    """Stop the application of a run, and name a slet that does not return in 5 s, or 0.5 s after a second Ctrl-C."""
    deployment, timeout = watch.platform.deployment(watch.application), 0.5 if watch.stopping.count > 1 else 5.0
    if keeps := watch.keeps:
        watch.platform.close(timeout)
    left = keeps or watch.platform.remove(watch.application, timeout)
    if (late := [one for one in deployment.drivers() if isinstance(one, ThreadDriver) and one.alive]) or not left:
        where = whereabouts(deployment.components.values(), late)
        say(f"{watch.application}: a slet has not returned, and is left behind{where and ':'}{where}")


def _bring_up(platform: Platform, mesh: Mesh) -> None:
    """Start the platform; deploy the application, unless the platform has restarted it."""
    platform.start()
    for folder in list(platform.plugins.folders.values()):
        platform.load(folder)
    if mesh.name not in platform.applications():
        platform.apply(mesh)


def _durable(mesh: Mesh, catalog: Catalog, state: Path) -> Mesh:
    """Return the mesh with the settings of the state directory; an application that is restarted must be the same.

    Raises:
        StateError: the stored application with this name is another one; it is not started, and its state remains.
    """
    from exop.runtime.durable.store import Store

    mesh = resolved(mesh, catalog.slets, durable=True)
    if not os.path.exists(state / "platform.sqlite"):  # starting the platform reports a directory that cannot be read
        return mesh
    with closing(Store(state)) as store:
        stored = next((one for one in store.applications() if one.name == mesh.name and one.active), None)
    if stored is None:
        return mesh
    if not _same(stored.topology, mesh):
        raise StateError(
            f"the state directory {state} will start {mesh.name!r} again with other settings or slets; continue that "
            f"one with `exop serve --state {state}`, or remove it with `exop remove {mesh.name} --state {state}`"
        )
    say(f"{mesh.name}: it ran in {state} and is started again")
    return mesh


def _same(topology: str, mesh: Mesh) -> bool:
    """Whether a stored topology, which contains all settings, describes *mesh*."""
    try:
        stored = mesh.from_toml(topology, {node.slet.identity: node.slet for node in mesh.nodes.values()})
    except ExopError:
        return False

    def comparable(one: Mesh) -> Mesh:
        return replace(one, revision=0, nodes={k: replace(v, given=frozenset()) for k, v in one.nodes.items()})

    return comparable(stored) == comparable(mesh)


@contextmanager
def _json_only(wanted: bool) -> Iterator[dict[str, Any] | None]:
    """Reserve stdout for one JSON object; slets, engines and their processes print to stderr meanwhile."""
    if not wanted:
        yield None
        return
    report: dict[str, Any] = {}
    sys.stdout.flush()
    # Processes that engines start inherit the descriptor, not Python's file object.
    descriptor = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield report
    finally:
        os.dup2(descriptor, 1)
        os.close(descriptor)
        if report:
            print_json(run_report(**report))


@dataclass
class Session:
    """Applies each saved edit, and reports on the application between edits.

    Attributes:
        saved: Whether the folder was saved since the last call.
        stopping: Counts how often the user has asked to stop.
    """

    platform: Platform
    development: Development
    saved: Callable[[], bool]
    view: View
    stopping: Stopping
    _reported: list[BaseException] = field(default_factory=list)
    _finished: bool = False
    _shown: float = 0.0

    def take(self, *, first: bool = False) -> None:
        """Load the folder, apply the changes, and report the outcome; at *first*, raise what no save can mend."""
        begin = time.monotonic()
        for outcome in self.stopping.carry_out(self.development.take):
            if (error := outcome.error) is not None and self.stopping.count:
                return  # the user has given up the opening
            if error is not None and first and getattr(error, "kind", "") in ("builder", "parameter"):
                raise error  # the command line names it
            self._finished = self._finished and outcome.verb != "runs"
            report_outcome(outcome, time.monotonic() - begin)

    def until_stopped(self) -> None:
        """Apply every saved edit until the user stops the session."""
        while not self.stopping.count:
            if self.saved():
                self.take()
            self.look()
            time.sleep(TICK)

    def look(self) -> None:
        """Report metrics periodically, and failures and the end of the application at once."""
        if not (application := self.development.application) or self._finished:
            return
        try:
            if self.platform.wait(application, 0):
                self._finished = True
                say(f"{application}: finished; the next save runs it again", application=application)
                return
        except UnknownName:
            return  # it was removed: the next save deploys it again
        except ComponentFailed:
            report_failures(self.platform.deployment(application), self._reported, "edit it: the item is retried")
        if time.monotonic() - self._shown >= self.view.every:
            self._shown = time.monotonic()
            self.view.show(self.platform.status(application))

    def end(self) -> None:
        """End the sources, process the items in flight, and remove the application."""
        self.view.close()
        with closing(self.development):
            if (name := self.development.application) in self.platform.applications():
                self.platform.end(name)
                until = time.monotonic() + 10.0  # a second Ctrl-C stops at once
                try:  # an item on which a slet is suspended is told
                    while self.stopping.count < 2 and time.monotonic() < until and not self.platform.wait(name, TICK):
                        pass
                finally:
                    self.platform.remove(name)


def report_outcome(outcome: Outcome, seconds: float) -> None:
    """Report the outcome of a saved edit on one line, with a further line for each node."""
    name, error = outcome.application or "the application", outcome.error
    if error is not None:
        runs = f"{name}: runs on unchanged" if outcome.application else "fix it, and save it again"
        lines = [f"refused: {error if isinstance(error, ExopError) else repr(error)}", further(error), runs]
    elif outcome.verb == "runs":
        lines = [f"{name}: runs; edit the folder to change it, Ctrl-C ends it"]
    elif outcome.verb == "unchanged":
        lines = [f"{name}: nothing that runs has changed"]
    else:
        stopped = pause(outcome.paused * 1e3)
        lines = [f"{name}: changed in {seconds:.1f} s, the stream paused for {stopped}", *outcome.steps]
    say("\n  ".join(filter(None, lines)), application=outcome.application, outcome=outcome.verb)

"""`exop dev`: an application that runs while its folder is edited."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from exop.cli.options import Load, Name, Params
from exop.cli.report import DONE, Stopping, further, say
from exop.cli.text import pause
from exop.errors import ComponentFailed, ExopError, UnknownName
from exop.safe_repr import safe_repr

if TYPE_CHECKING:
    from exop.bundle.dev import Development, Outcome
    from exop.bundle.generation import Generation
    from exop.cli.view import View
    from exop.model.meshes.mesh import Mesh
    from exop.platform import Platform

#: The interval at which the folder, signals and failures are checked, in seconds.
TICK: Final = 0.1
#: Seconds for which items in flight are processed at the end; a second Ctrl-C stops at once.
PATIENCE: Final = 10.0


def dev(
    folder: Path,
    /,
    *parameters: str,
    params: Params = (),
    builder: str = "",
    name: Name = None,
    load: Load = (),
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False,
) -> int:
    """Run the application of a folder, and apply every saved edit to it while the stream runs.

    Slets whose code has changed are replaced and retain their states; other slets are not affected. If an edit fails
    (its code cannot be imported, ports do not match, a slet does not open), the error is reported with file and line,
    and the application continues unchanged until the next valid edit. Ctrl-C ends the sources and processes the items
    in flight.

    Example: `exop dev apps/linear_road --params traffic.toml`

    Args:
        folder: A package folder with a builder, or a folder with a bundle.toml that names one.
        parameters: NAME=VALUE for the builder.
        builder: The application builder, if the folder offers several.
        quiet: Show only changes, and no progress.
    """
    from exop.bundle.dev import WatchedFolder
    from exop.cli.loading import Target, build, known_plugins
    from exop.cli.view import choose_view
    from exop.platform import Platform

    catalog = known_plugins(load)
    with Stopping(patience=2) as stopping, Platform(name=name, plugins=catalog.plugins, control=True) as platform:

        def built(generation: Generation) -> Mesh:
            builders = {one.__name__: one for one in platform.catalog.builders().get(generation.name, [])}
            mesh = build(Target(str(folder), builders, which=builder), parameters, platform.catalog, params)
            return replace(mesh, durable=None)  # no checkpoints during development

        watched = WatchedFolder(folder)
        development = platform.bundles.develop(folder, built)
        session = Session(platform, development, watched.changed, choose_view(quiet=quiet), lambda: stopping.count)
        try:
            session.take()
            session.until_stopped()
        finally:
            session.end()
    return DONE


@dataclass
class Session:
    """Applies each saved edit, and reports on the application between edits.

    Attributes:
        saved: Whether the folder was saved since the last call.
        stops: How often the user has asked to stop.
    """

    platform: Platform
    development: Development
    saved: Callable[[], bool]
    view: View
    stops: Callable[[], int]
    _reported: list[BaseException | None] = field(default_factory=list)
    _finished: bool = False
    _shown: float = 0.0
    _rest: threading.Event = field(default_factory=threading.Event)

    def take(self) -> None:
        """Load the folder, apply the changes, and report the outcome."""
        begin = time.monotonic()
        outcome = self.development.take()
        self._finished = self._finished and outcome.verb != "runs"
        report_outcome(outcome, time.monotonic() - begin)

    def until_stopped(self) -> None:
        """Apply every saved edit until the user stops the session."""
        while not self.stops():
            if self.saved():
                self.take()
            self.look()
            self._rest.wait(TICK)

    def look(self) -> None:
        """Report metrics periodically, and failures and the end of the application at once."""
        application = self.development.application
        if not application or self._finished:
            return
        try:
            if self.platform.wait(application, 0):
                self._finished = True
                say(f"{application}: finished; the next save runs it again", application=application)
                return
        except UnknownName:
            return  # it was removed: the next save deploys it again
        except ComponentFailed:
            self._report_failures(application)
        if time.monotonic() - self._shown >= self.view.every:
            self._shown = time.monotonic()
            self.view.running(self.platform.status(application))

    def end(self) -> None:
        """End the sources, process the items in flight, and remove the application."""
        self.view.close()
        application = self.development.application
        if application in self.platform.applications():
            self.platform.end(application)
            deadline = time.monotonic() + PATIENCE
            while self.stops() < 2 and time.monotonic() < deadline and not self._is_over(application):
                pass
            self.platform.remove(application)
        self.development.close()

    def _is_over(self, application: str) -> bool:
        try:
            return self.platform.wait(application, TICK)
        except ExopError:
            return True

    def _report_failures(self, application: str) -> None:
        for component in self.platform.deployment(application).failures():
            error = component.error
            if any(error is known for known in self._reported):
                continue
            self._reported.append(error)
            kept, node = component.trouble.kept, component.node.name
            text = f"{application}.{node} has failed: {safe_repr(error)}; edit it: the item is retried"
            trace = kept.text.rstrip().splitlines() if kept is not None else ()
            say("\n  ".join([text, *trace]), application=application, node=node)


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

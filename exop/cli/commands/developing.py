"""`exop dev`: an application that runs while it is being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from exop.cli.options import Load, Name, Params
from exop.cli.report import DONE, Stopping, further, say
from exop.errors import ComponentFailed, ExopError, UnknownName
from exop.safe_repr import shown

if TYPE_CHECKING:
    from exop.bundle.dev import Development, Outcome
    from exop.bundle.generation import Generation
    from exop.cli.loading import Target
    from exop.cli.view import View
    from exop.model.meshes.mesh import Mesh
    from exop.platform import Platform
    from exop.runtime.catalog import Catalog

#: How often the folder, signals and failures are looked for, in seconds.
TICK: Final = 0.1
#: How long what is under way may take at the end, in seconds; a second Ctrl-C stops at once.
PATIENCE: Final = 10.0


def dev(
    folder: Path,
    /,
    *parameters: str,
    params: Params = (),
    builder: Annotated[str, Parameter(help="Which application builder, where the folder offers several.")] = "",
    name: Name = None,
    load: Load = (),
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False,
) -> int:
    """Run the application of a folder, and apply every edit to it when it is saved, while the stream runs.

    Slets whose code has changed are replaced and keep their state; what was not edited is not touched. An edit that is
    broken (it cannot be imported, its ports do not fit, it does not open) is shown with file and line, and what ran
    before runs on until the next good one. Ctrl-C ends the sources and processes what is under way.

    Args:
        folder: A package folder with a builder, or a folder with a bundle.toml that names one.
        parameters: NAME=VALUE for the builder.
        quiet: Show changes only, no progress.
    """
    from exop.bundle.dev import WatchedFolder
    from exop.cli.loading import Target, known_plugins
    from exop.cli.view import choose_view
    from exop.platform import Platform

    catalog = known_plugins(load)
    with Stopping(patience=2) as stopping, Platform(name=name, plugins=catalog.plugins, control=True) as platform:

        def build(generation: Generation) -> Mesh:
            return _built(Target(str(folder), which=builder), parameters, params, generation, platform.catalog)

        watched = WatchedFolder(folder)
        development = platform.bundles.develop(folder, build)
        session = Session(platform, development, watched.changed, choose_view(quiet=quiet), lambda: stopping.count)
        try:
            session.take()
            session.until_stopped()
        finally:
            session.end()
    return DONE


def _built(target: Target, parameters: Sequence[str], params: Params, generation: Generation, catalog: Catalog) -> Mesh:
    """The mesh that a builder of the folder makes; a durable application keeps no checkpoints while it is developed."""
    from exop.cli.loading import build

    builders = {one.__name__: one for one in catalog.builders().get(generation.name, [])}
    mesh = build(replace(target, builders=builders), parameters, catalog, params)
    return replace(mesh, durable=None)


@dataclass
class Session:
    """The person who edits, and what runs meanwhile.

    Attributes:
        saved: Tells whether the folder was saved since it was asked last.
        stops: How often the person has asked to stop.
    """

    platform: Platform
    development: Development
    saved: Callable[[], bool]
    view: View
    stops: Callable[[], int]
    _told: list[BaseException | None] = field(default_factory=list)
    _finished: bool = False
    _shown: float = 0.0
    _rest: threading.Event = field(default_factory=threading.Event)

    def take(self) -> None:
        """Take the folder as it is, and tell what has become of it."""
        begin = time.monotonic()
        outcome = self.development.take()
        self._finished = self._finished and outcome.verb != "runs"
        tell_outcome(outcome, time.monotonic() - begin)

    def until_stopped(self) -> None:
        """Take every save until the person stops it."""
        while not self.stops():
            if self.saved():
                self.take()
            self.look()
            self._rest.wait(TICK)

    def look(self) -> None:
        """Show the figures now and then, and at once what has failed or come to its end."""
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
            self._tell_failures(application)
        if time.monotonic() - self._shown >= self.view.every:
            self._shown = time.monotonic()
            self.view.running(self.platform.status(application))

    def end(self) -> None:
        """End the sources, process what is under way, and leave nothing behind."""
        self.view.close()
        application = self.development.application
        if application in self.platform.applications():
            self.platform.end(application)
            deadline = time.monotonic() + PATIENCE
            while self.stops() < 2 and time.monotonic() < deadline and not self._over(application):
                pass
            self.platform.remove(application)
        self.development.close()

    def _over(self, application: str) -> bool:
        try:
            return self.platform.wait(application, TICK)
        except ExopError:
            return True

    def _tell_failures(self, application: str) -> None:
        for component in self.platform.deployment(application).failures():
            error = component.error
            if any(error is told for told in self._told):
                continue
            self._told.append(error)
            kept = component.trouble.kept
            lines = [
                f"{application}.{component.node.name} has failed: {shown(error)}; edit it: the item is tried again"
            ]
            lines += [f"  {line}" for line in kept.text.rstrip().splitlines()] if kept is not None else []
            say("\n".join(lines), application=application, node=component.node.name)


def tell_outcome(outcome: Outcome, seconds: float) -> None:
    """Say what has become of a save: on one line, and a line for each node."""
    facts: dict[str, Any] = {"application": outcome.application, "outcome": outcome.verb}
    name = outcome.application or "the application"
    if outcome.error is not None:
        told = str(outcome.error) if isinstance(outcome.error, ExopError) else repr(outcome.error)
        more = further(outcome.error)
        runs = f"{name}: what ran before runs on" if outcome.application else "mend it, and save it again"
        say("\n".join([f"refused: {told}", *([f"  {more}"] if more else []), f"  {runs}"]), **facts)
    elif outcome.verb == "runs":
        say(f"{name}: runs; edit the folder to change it, Ctrl-C ends it", **facts)
    elif outcome.verb == "unchanged":
        say(f"{name}: nothing that runs has changed", **facts)
    else:
        pause = f"{outcome.paused * 1e3:.1f} ms"
        steps = [f"  {step}" for step in outcome.steps]
        say("\n".join([f"{name}: changed in {seconds:.1f} s, the stream paused for {pause}", *steps]), **facts)

"""`exop dev`: a folder is loaded again when it is saved, and changed slets are replaced in the running mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final, Literal

from exop.bundle.generation import Generation, Wire, load_generation
from exop.bundle.installed import BundleContext
from exop.bundle.modules import place_of, unload
from exop.errors import BundleBroken, StaleMesh
from exop.model.meshes.mesh import Mesh
from exop.remoting.api.folder_archive import belongs
from exop.remoting.identity import file_stamps
from exop.safe_repr import RAISED
from exop.wiring import Plan

#: Builds the mesh with the application builders of the folder.
Build = Callable[[Generation], Mesh]
#: How often a change is retried when the application is changed concurrently.
_TRIES: Final = 3
_SUFFIXES: Final = (".py", ".toml")
_UNSET: Final = object()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of saving a folder: the steps of the change, the seconds that it paused the stream, or the error."""

    verb: Literal["runs", "changed", "unchanged", "refused"]
    application: str = ""
    steps: tuple[str, ...] = ()
    paused: float = 0.0
    error: BaseException | None = None


class Development:
    """One folder that is being edited (a package with hooks, or a bundle), and the application that it describes."""

    def __init__(self, context: BundleContext, folder: Path, build: Build, wire: Wire) -> None:
        self._context = context
        self._wire = wire
        self._loaded: list[Generation] = []
        self._offered = ""
        self._folder = folder.resolve()
        self._build = build
        self._built: Mesh | None = None
        self._number = 0

    @property
    def application(self) -> str:
        """The application that was built last; empty before that."""
        return self._built.name if self._built is not None else ""

    def take(self) -> Outcome:
        """Load the folder as it is now, and change the running application to it.

        Problems are returned, never raised: the application runs on, and the next save is tried again.
        """
        self._number += 1
        before, made = self._loaded[-1] if self._loaded else None, None
        try:
            made = load_generation(self._folder, self._number, before, self._wire)
            self._offer(made)
            mesh = self._build(made)
            outcome = self._apply(mesh)
        except RAISED as error:
            if made is not None:
                self._offer(before)
                unload(made.namespace)
            return Outcome("refused", self.application, error=error)
        self._built = mesh
        self._loaded.append(made)
        return outcome

    def close(self) -> None:
        """Withdraw the slets of the folder, and remove its modules from Python; nothing of it runs any more."""
        self._offer(None)
        while self._loaded:
            unload(self._loaded.pop().namespace)
        self._built = None

    def _offer(self, generation: Generation | None) -> None:
        """Register the slets of one generation under the plugin name of the folder, in place of those before."""
        plugins = self._context.catalog.plugins
        if self._offered:
            plugins.unregister(self._offered)
            self._offered = ""
            self._context.gather()  # the old slets must be forgotten before others get their names
        if generation is None:
            return
        plugins.register(generation.name, generation.plugin)
        self._offered = generation.name
        self._context.gather()
        if (problem := plugins.broken.get(generation.name)) is not None:
            file, line = place_of(problem.__cause__ or problem, self._folder)
            raise BundleBroken(bundle=generation.name, file=file, line=line, problem=str(problem.problem)) from problem

    def _apply(self, mesh: Mesh) -> Outcome:
        hosts, deployed = self._context.hosts, self._context.applications.deployed
        for left in reversed(range(_TRIES)):
            running = next((one for one, _ in hosts.running() if one.name == mesh.name), None)
            if running is None:
                hosts.apply(mesh.at(0))
                return Outcome("runs", mesh.name)
            with suppress(StaleMesh) if left else nullcontext():
                if not (plan := hosts.plan(self._merged(running, mesh))):
                    return Outcome("unchanged", mesh.name)
                plan.apply(stall=True)
                last = deployed[mesh.name].last_change if mesh.name in deployed else None
                return Outcome("changed", mesh.name, _steps(plan), last[1] if last is not None else 0.0)
        raise AssertionError("the last try raises or returns")

    def _merged(self, running: Mesh, mesh: Mesh) -> Mesh:
        """Merge the new mesh with the settings that an operator has changed meanwhile; edited settings win."""
        nodes = dict(mesh.nodes)
        built = self._built.nodes if self._built is not None else {}
        for name in nodes.keys() & built.keys() & running.nodes.keys():
            was, now, node = built[name], running.nodes[name], nodes[name]
            before, current, edited = was.set_settings(), now.set_settings(), node.set_settings()
            known = {}
            for key in node.slet.settings:
                wins = current if edited.get(key, _UNSET) == before.get(key, _UNSET) else edited
                if key in wins:
                    known[key] = wins[key]
            complete = node.slet.configured(name, known)
            host = now.host if node.host == was.host else node.host
            nodes[name] = dataclasses.replace(
                node, settings=complete, given=frozenset(known), suspended=now.suspended, host=host
            )
        return dataclasses.replace(mesh, nodes=nodes, revision=running.revision)


class WatchedFolder:
    """The sources of a folder, polled for changes.

    A change counts when two polls in a row find the same: then an editor that writes several files, or one file in
    several steps, has finished. Polling some dozens of files is cheap, so it needs no library.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported = self._last = self._files()

    def changed(self) -> bool:
        """Poll; whether there is a change, and nothing has changed since the last poll."""
        now = self._files()
        settled, self._last = now == self._last, now
        if not settled or now == self._reported:
            return False
        self._reported = now
        return True

    def _files(self) -> tuple[object, ...]:
        """The files now; those that come and go meanwhile are found by the next poll."""
        files = (path for path in self._folder.rglob("*") if path.suffix in _SUFFIXES)
        return file_stamps(path for path in files if belongs(path.relative_to(self._folder).as_posix(), None))


def _steps(plan: Plan) -> tuple[str, ...]:
    done = [
        "; ".join([f"{step.verb} {step.node}", *([step.state.text] if step.state else []), *map(str, step.settings)])
        for step in plan.steps
    ]
    return (*done, *plan.notes)

"""Developing on a running mesh: a folder is loaded again when it is saved, and what has changed is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from exop.bundle.code import place_of
from exop.bundle.generation import Generation, Wire, load_generation, unload_generation
from exop.bundle.ground import Ground
from exop.errors import BundleBroken, StaleMesh
from exop.model.meshes.mesh import Mesh
from exop.safe_repr import RAISED
from exop.wiring import Plan

#: Makes the mesh out of the application builders of the folder.
Build = Callable[[Generation], Mesh]
#: How often a change is retried when the application is changed concurrently.
_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a saved folder: it runs, has changed the running application, changes nothing, or is refused.

    Attributes:
        steps: What was done, one line for each node, and what is worth knowing of it: a state that goes with its node.
        paused: For how many seconds the stream stood still.
        error: Why it was refused; what ran before runs on.
    """

    verb: Literal["runs", "changed", "unchanged", "refused"]
    application: str = ""
    steps: tuple[str, ...] = ()
    paused: float = 0.0
    error: BaseException | None = None


class Development:
    """One folder that is being developed, and the application that it describes.

    Args:
        ground: What it needs of the platform.
        folder: A package with hooks, or a bundle's folder.
        build: Makes the mesh, as `exop run` would.
        wire: Starts the bundles that the folder requires.
    """

    def __init__(self, ground: Ground, folder: Path, build: Build, wire: Wire) -> None:
        self._ground = ground
        self._wire = wire
        self._loaded: list[Generation] = []
        self._offered = ""
        self._folder = folder.resolve()
        self._build = build
        self._current: Generation | None = None
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
        made: Generation | None = None
        try:
            made = load_generation(self._folder, self._number, self._current, self._wire)
            self._offer(made)
            mesh = self._build(made)
            outcome = self._apply(mesh)
        except RAISED as error:
            if made is not None:
                self._offer(self._current)
                unload_generation(made)
            return Outcome("refused", self.application, error=error)
        self._current, self._built = made, mesh
        self._loaded.append(made)
        return outcome

    def close(self) -> None:
        """Withdraw what the folder offers, and take its modules out of Python; nothing of it runs any more."""
        self._offer(None)
        while self._loaded:
            unload_generation(self._loaded.pop())
        self._current = self._built = None

    def _offer(self, generation: Generation | None) -> None:
        """Let the names of the folder's slets mean those of one generation.

        Raises:
            BundleBroken: one of its hooks raises, or offers what is no slet.
        """
        plugins = self._ground.plugins
        if self._offered:
            plugins.unregister(self._offered)
            self._offered = ""
            self._ground.gather()  # what was offered is forgotten before another one has its name
        if generation is None:
            return
        plugins.register(generation.name, generation.plugin)
        self._offered = generation.name
        self._ground.gather()
        problem = plugins.broken.get(generation.name)
        if problem is not None:
            file, line = place_of(problem.__cause__ or problem, self._folder)
            raise BundleBroken(bundle=generation.name, file=file, line=line, problem=str(problem.problem)) from problem

    def _apply(self, mesh: Mesh) -> Outcome:
        applications = self._ground.applications
        tries = 0
        while True:
            tries += 1
            if mesh.name not in applications.names() or applications.get(mesh.name).finished.is_set():
                applications.apply(mesh.at(0))
                return Outcome("runs", mesh.name)
            try:
                plan = applications.plan(self._merged(applications.get(mesh.name).mesh, mesh))
                if not plan:
                    return Outcome("unchanged", mesh.name)
                plan.apply(stall=True)
            except StaleMesh:
                if tries == _TRIES:
                    raise
                continue
            last = applications.get(mesh.name).last_change
            return Outcome("changed", mesh.name, _steps(plan), last[1] if last is not None else 0.0)

    def _merged(self, running: Mesh, mesh: Mesh) -> Mesh:
        """Merge the new mesh with the settings that an operator has changed meanwhile; edited settings win."""
        nodes = {}
        for name, node in mesh.nodes.items():
            was = self._built.nodes.get(name) if self._built is not None else None
            now = running.nodes.get(name)
            if was is None or now is None:
                nodes[name] = node
                continue
            settings = _merged_settings(was.set_settings(), now.set_settings(), node.set_settings())
            known = {key: value for key, value in settings.items() if key in node.slet.settings}
            complete = node.slet.configured(name, known)
            nodes[name] = dataclasses.replace(node, settings=complete, given=frozenset(known), suspended=now.suspended)
        return dataclasses.replace(mesh, nodes=nodes, revision=running.revision)


def _merged_settings(was: Mapping[str, Any], now: Mapping[str, Any], built: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were set: of the builder where it says otherwise than before, else those that run now."""
    unset = object()
    merged = {
        key: (now if built.get(key, unset) == was.get(key, unset) else built).get(key, unset)
        for key in {**was, **now, **built}
    }
    return {key: value for key, value in merged.items() if value is not unset}


def _steps(plan: Plan) -> tuple[str, ...]:
    done = [
        "; ".join([f"{step.verb} {step.node}", *([step.state.text] if step.state else []), *map(str, step.settings)])
        for step in plan.steps
    ]
    return (*done, *plan.notes)

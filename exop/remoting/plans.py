"""A plan seen from another process: what will happen there, and `apply()`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exop.errors import PlanError
from exop.model.diff import marks_of, without_marks
from exop.model.memento import Memento
from exop.model.mesh import Mesh
from exop.model.resolve import resolved
from exop.model.shadow import Shadow, as_shadow
from exop.model.types.convert import written
from exop.pictures.notebook import as_text, picture_of
from exop.runtime.catalog import known_slets

if TYPE_CHECKING:
    from exop.remoting.planned import Changed, Planned, PlannedStep
    from exop.remoting.platform import RemotePlatform


@dataclass(frozen=True)
class RemotePlan:
    """A change that waits on its platform: print it, or `apply()` it. Nothing has happened yet.

    Attributes:
        planned: The plan as data.
        mesh: The mesh that it leads to, where it was made from one.
    """

    planned: Planned
    platform: RemotePlatform
    mesh: Mesh | None = None

    def __str__(self) -> str:
        return self.planned.text

    def __repr__(self) -> str:
        planned = self.planned
        steps = ", ".join(f"{step.verb} {step.node}" for step in planned.steps)
        none = "no node changes" if self else "nothing to do"
        return f"<RemotePlan {planned.application} rev {planned.revision}: {steps or none}>"

    def _repr_html_(self) -> str:
        changed = {step.node for step in self.planned.steps}
        return (picture_of(self.mesh, changed) if self.mesh is not None else "") + as_text(str(self))

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self.planned.anything

    @property
    def steps(self) -> tuple[PlannedStep, ...]:
        """The steps of the plan, node by node."""
        return tuple(self.planned.steps)

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks on the plan: queues that are inserted, items or state that are lost, steps that take long."""
        return tuple(self.planned.notes)

    def facts(self) -> dict[str, Any]:
        """Return the plan as plain data, without the number under which its platform keeps it."""
        from exop.remoting.planned import plain

        return {name: value for name, value in plain(self.planned).items() if name != "plan"}

    def apply(
        self,
        *,
        shadow: Shadow | None = None,
        keep: float | None = None,
        timeout: float | None = None,
        pause: float | None = None,
        stall: bool = False,
    ) -> Mesh:
        """Make the change; returns the mesh that runs then.

        Args:
            shadow: Let the successors run beside the old ones first, and take over only if they do the same.
            keep: For so many seconds the predecessors run on behind; `rollback` lets one take over again.
            timeout: How many seconds the drivers have to come to their safe points, 10 by default.
            pause: For how many seconds the hand-over of a state may stop the stream, 0.05 by default.
            stall: Where a successor cannot catch up, let it stop the stream for longer.

        Raises:
            StaleMesh: the application was changed after the plan was made.
            ShadowFailed: a successor was not proven; everything is as it was.
            PlanError: the change could not be made; everything is as it was.
        """
        changed = self.carry_out(timeout, pause=pause, stall=stall, proof=as_proof(shadow, keep))
        if self.mesh is None:
            return self.platform.mesh(changed.application)
        return without_marks(self.mesh).at(changed.revision)

    def carry_out(
        self,
        timeout: float | None = None,
        *,
        pause: float | None = None,
        stall: bool = False,
        proof: Mapping[str, Any] | None = None,
        told: Callable[[], object] | None = None,
    ) -> Changed:
        """Make the change, and return its result: the revision, and for how long the stream stood still.

        *told* is called from time to time until it ends.

        Raises:
            StaleMesh, PlanError: as `apply`.
        """
        return self.platform.carry_out(self.planned.plan, timeout, pause=pause, stall=stall, proof=proof, told=told)


def as_proof(shadow: Shadow | None, keep: float | None) -> dict[str, Any] | None:
    """Encode the conditions of a proof for sending.

    Raises:
        PlanError: by a comparison of the caller's, which is code.
    """
    if shadow is None:
        return None if keep is None else {"keep": keep}
    if as_shadow(shadow).compare is not None:
        raise PlanError(
            "a comparison is code, and code does not travel: prove the change in the platform's own process"
        )
    diverted = {name: written(f"divert: {name}", value) for name, value in shadow.divert.items()}
    found = {"items": shadow.items, "seconds": shadow.seconds, "slower": shadow.slower, "copy": shadow.copy}
    more = {"allow_no_output": shadow.allow_no_output, "keep": keep, "folder": os.getcwd()}
    return {**found, **more, "divert": diverted}


def as_topology(mesh: Mesh, send: Callable[[bytes], str]) -> Mapping[str, Any]:
    """A mesh as it is sent: its topology, revision and marks; a memento goes by *send*, which gives its number.

    Raises:
        MeshError: a slet stands in no plugin, so the other platform could not find its code.
    """
    if any(node.slet.plugin is None for node in mesh.nodes.values()):
        mesh = resolved(mesh, known_slets().slets, travels=True)
    marks = marks_of(mesh)
    for name, given in marks.items():
        if "memento" in given:
            given["memento"] = send(pack(given["memento"], f"{mesh.name}.{name}"))
    return {"toml": mesh.to_toml(), "revision": mesh.revision, "marks": marks, "folder": os.getcwd()}


def pack(memento: Memento, place: str) -> bytes:
    """A memento as it travels."""
    # Imported lazily: only this needs the encoding.
    from exop.model import stored

    return stored.pack(memento, place)

"""A plan seen from another process: what will happen there, and `apply()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exop.model.meshes.diff import without_marks
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.shadow import Shadow
from exop.pictures.notebook import as_text, picture_of

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlatform
    from exop.remoting.api.wire_types import Changed, Planned, PlannedStep


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
        import msgspec

        return {name: value for name, value in msgspec.to_builtins(self.planned).items() if name != "plan"}

    def apply(self, *, shadow: Shadow | None = None, keep: float | None = None, **bounds: Any) -> Mesh:
        """Make the change; returns the mesh that runs then.

        Args:
            shadow: Let the successors run beside the old ones first, and take over only if they do the same.
            keep: For so many seconds the predecessors run on behind; `rollback` lets one take over again.
            bounds: `timeout`, `pause` and `stall`, as for `Plan.apply`.

        Raises:
            StaleMesh: the application was changed after the plan was made.
            ShadowFailed: a successor was not proven; everything is as it was.
            PlanError: the change could not be made; everything is as it was.
        """
        from exop.remoting.api.wire_types import as_proof

        changed = self.carry_out(proof=as_proof(shadow, keep), **bounds)
        if self.mesh is None:
            return self.platform.mesh(changed.application)
        return without_marks(self.mesh).at(changed.revision)

    def carry_out(
        self,
        timeout: float | None = None,
        *,
        proof: Mapping[str, Any] | None = None,
        told: Callable[[], object] | None = None,
        **bounds: Any,
    ) -> Changed:
        """Make the change, and return its result: the revision, and for how long the stream stood still.

        *told* is called from time to time until it ends.

        Raises:
            StaleMesh, PlanError: as `apply`.
        """
        return self.platform.carry_out(self.planned.plan, timeout, proof=proof, told=told, **bounds)

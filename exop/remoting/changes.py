"""The requests for changes to a running platform: plan them, and carry out a plan."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from exop.errors import UnknownName
from exop.model.diff import marked
from exop.model.exported import imported
from exop.model.memento import memento_of
from exop.model.mesh import Mesh
from exop.model.resolve import with_full_paths
from exop.model.spec import SletSpec
from exop.remoting.declare import Request, operation
from exop.remoting.edits import AnyEdit, edited
from exop.remoting.offered import Changing, PlanLike
from exop.remoting.pieces import Pieces
from exop.remoting.planned import CarriedOut, Changed, Planned, Shelf, as_data
from exop.remoting.proof import Proof, proven
from exop.remoting.tasks import Tasks


class Marks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of one node, or channel, for the next change alone (`exop.model.diff`)."""

    lose_state: bool = False
    close_windows: bool = False
    rebuild: Literal["log"] | None = None
    memento: str | None = None
    """The number under which the platform keeps it."""


#: How long the drivers have to come to their safe points, in seconds; 10 where it is left out.
Patience = Annotated[float, msgspec.Meta(ge=0, le=3600)] | None


class Topology(Request, frozen=True):
    """A mesh as TOML; `revision` is the one it was read at, 0 for a new one, none for whichever runs.

    Relative paths in it are meant from `folder`, the working directory of the client.
    """

    toml: str
    revision: int | None = 0
    marks: Annotated[dict[str, Marks], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=dict)
    timeout: Patience = None
    pause: Patience = None
    stall: bool = False
    proof: Proof | None = None
    folder: str = ""


class Edits(Request, frozen=True):
    """Edits of the mesh that runs; relative paths in them are meant from `folder`."""

    application: str
    edits: Annotated[list[AnyEdit], msgspec.Meta(min_length=1, max_length=100)]
    proof: Proof | None = None
    folder: str = ""


class PlanNumber(Request, frozen=True):
    """Names a plan that was made."""

    plan: str
    timeout: Patience = None
    pause: Patience = None
    stall: bool = False
    proof: Proof | None = None


class TaskNumber(Request, frozen=True):
    """Names a change that is being made."""

    number: str


class KeptNode(Request, frozen=True):
    """Names a node behind which its predecessor runs on."""

    application: str
    node: str


class Proving(Request, frozen=True):
    """Names an application of which a change is being proven."""

    application: str


#: So many plans wait at a time that hold mementos, which may be large.
MOST_HEAVY: Final = 2


def bounds(request: Topology | PlanNumber) -> dict[str, Any]:
    """The bounds of a change that is asked for, as `apply` takes them."""
    return {"timeout": request.timeout, "pause": request.pause, "stall": request.stall}


class ChangeOperations:
    """The operations by which one platform is changed."""

    def __init__(self, platform: Changing, pieces: Pieces) -> None:
        self._platform = platform
        self._pieces = pieces
        self._plans: Shelf[PlanLike] = Shelf("plan")
        self._heavy: Shelf[PlanLike] = Shelf("plan", MOST_HEAVY)
        self._tasks: Tasks[Changed] = Tasks("change")

    @operation
    def apply(self, request: Topology) -> CarriedOut:
        """Begin to make a mesh what runs; as for `carry_out`."""
        mesh = self._mesh(request)
        number = self._tasks.begin(lambda: self._changed(self._platform.apply(mesh, **bounds(request))))
        return CarriedOut(number, self._tasks.result(number))

    @operation
    def plan(self, request: Topology) -> Planned:
        """Plan `apply` for a running application; the plan waits to be carried out."""
        return self.planned(self._mesh(request), request.proof)

    @operation
    def edit(self, request: Edits) -> Planned:
        """Plan edits of a running application; the plan waits to be carried out."""
        running = self._platform.mesh(request.application)
        mesh = edited(running, request.edits, self._platform.catalog)
        return self.planned(with_full_paths(mesh, Path(request.folder), running), request.proof)

    @operation
    def carry_out(self, request: PlanNumber) -> CarriedOut:
        """Begin a change that was planned; what came of it is asked for by `outcome`, if it takes long."""
        shelf = self._heavy if request.plan in self._heavy else self._plans
        plan = proven(shelf.take(request.plan), request.proof)
        number = self._tasks.begin(lambda: self._changed(plan.apply(**bounds(request))))
        return CarriedOut(number, self._tasks.result(number))

    @operation
    def outcome(self, request: TaskNumber) -> CarriedOut:
        """Return the result of a change that was begun; none while it is being made."""
        return CarriedOut(request.number, self._tasks.result(request.number))

    @operation
    def rollback(self, request: KeptNode) -> CarriedOut:
        """Begin to let the predecessor of a node take over again; as for `carry_out`."""
        number = self._tasks.begin(lambda: self._changed(self._platform.rollback(request.application, request.node)))
        return CarriedOut(number, self._tasks.result(number))

    @operation
    def abandon_proof(self, request: Proving) -> bool:
        """Give up the proof of a change; `False` when none is under way."""
        return self._platform.abandon_proof(request.application)

    def _mesh(self, request: Topology) -> Mesh:
        mesh = Mesh.from_toml(request.toml, self._slets())
        running = self._platform.mesh(mesh.name) if mesh.name in self._platform.applications() else None
        mesh = with_full_paths(mesh, Path(request.folder), running)
        revision = self._platform.mesh(mesh.name).revision if request.revision is None else request.revision
        for name, given in request.marks.items():
            marks = msgspec.to_builtins(given)
            number = marks.pop("memento", None)
            mesh = marked(mesh, {name: marks})
            if number is not None:
                place = f"{mesh.name}.{name}"
                kind = memento_of(place, mesh.node(name).slet)
                mesh = mesh.restore(name, imported(self._pieces.take(number), kind, place))
        return mesh.at(revision)

    def _slets(self) -> dict[str, SletSpec]:
        """Return the slets of plugins and of applications: only this process resolves those of a single file."""
        found: dict[str, SletSpec] = {}
        for application in self._platform.applications():
            with suppress(UnknownName):  # removed meanwhile
                found |= {node.slet.identity: node.slet for node in self._platform.mesh(application).nodes.values()}
        return found | self._platform.catalog.slets

    def planned(self, mesh: Mesh, proof: Proof | None = None) -> Planned:
        """Plan that *mesh* is to run; the plan waits to be carried out."""
        plan = proven(self._platform.plan(mesh), proof)
        heavy = any(node.memento is not None for node in mesh.nodes.values())
        return as_data((self._heavy if heavy else self._plans).put(plan), plan)

    def _changed(self, mesh: Mesh) -> Changed:
        last = self._platform.status(mesh.name)["last_change"]
        paused = last["paused_ms"] if last is not None and last["revision"] == mesh.revision else None
        return Changed(mesh.name, mesh.revision, paused)

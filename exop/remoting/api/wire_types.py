"""The wire types of the management interface: meshes as topologies, plans as data, proofs, bytes in chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec

from exop.errors import PlanError, SettingError, UnknownName
from exop.model.meshes.checks import resolved, with_full_paths
from exop.model.meshes.diff import marked, marks_of
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.shadow import Shadow, as_shadow
from exop.model.slets.stored_memento import dump_memento, import_memento
from exop.model.types.conversion import to_toml_value
from exop.remoting.api.edits import AnyEdit
from exop.remoting.transport.limits import KIB, MIB, check_length
from exop.runtime.catalog import known_slets

if TYPE_CHECKING:
    from exop.model.slets.spec import SletSpec
    from exop.remoting.api.management import Management
    from exop.wiring.changes.plan import Plan, Step

T = TypeVar("T")
Above = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
#: The size of one chunk, and of the largest value that travels in chunks, in bytes.
CHUNK: Final = 2 * MIB
LARGEST: Final = 64 * MIB
#: Bytes up to this size travel inside of a message; those of a memento, of which a mesh may hold many, up to `FEW`.
INLINE: Final = 32 * KIB
FEW: Final = KIB


class Chunked(msgspec.Struct, frozen=True):
    """Bytes that travel in chunks: the number under which the platform keeps them, and their size."""

    number: str
    size: int


Blob: TypeAlias = bytes | Chunked


def check_size(size: int) -> None:
    """Raise `MessageTooLarge` if so many bytes cannot be sent."""
    cure = "take it in the platform's own process, by platform.memento(application, node)"
    check_length("the memento", size, LARGEST, cure)


class Marks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of one node or channel that hold for the next change only (`exop.model.meshes.diff`)."""

    lose_state: bool = False
    close_windows: bool = False
    rebuild: Literal["log"] | None = None
    memento: Blob | None = None


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A mesh as TOML, and the identities of its slets.

    `revision` is the one at which the mesh was read: 0 for a new mesh, `None` for any running one. Relative paths start
    at `folder`, the working directory of the client.
    """

    toml: str
    revision: int | None = 0
    marks: Annotated[dict[str, Marks], msgspec.Meta(max_length=1000)] = {}
    folder: str = ""
    slets: list[str] = []

    @staticmethod
    def of(mesh: Mesh) -> Topology:
        """A mesh that runs."""
        slets = dict.fromkeys(node.slet.identity for node in mesh.nodes.values())
        return Topology(mesh.to_toml(), mesh.revision, slets=list(slets))

    @staticmethod
    def sent(mesh: Mesh, keep: Callable[[bytes], Blob]) -> Topology:
        """A mesh with its marks, for another platform; *keep* sends the mementos there."""
        if any(node.slet.plugin is None for node in mesh.nodes.values()):
            mesh = resolved(mesh, known_slets().slets, travels=True)
        marks = {}
        for name, given in marks_of(mesh).items():
            if "memento" in given:
                given["memento"] = keep(dump_memento(given["memento"], f"{mesh.name}.{name}"))
            marks[name] = Marks(**given)
        return Topology(mesh.to_toml(), mesh.revision, marks, os.getcwd())

    def read(self, platform: Management[Any], fetch: Callable[[Blob], bytes] = bytes) -> Mesh:  # type: ignore[assignment]
        """The mesh with the slets that *platform* knows; *fetch* returns the bytes of the mementos.

        The slets are those of plugins and of running applications; the latter may come from a single file.
        """
        slets: dict[str, SletSpec] = {}
        for application in platform.applications():
            with suppress(UnknownName):  # removed meanwhile
                slets |= {node.slet.identity: node.slet for node in platform.mesh(application).nodes.values()}
        mesh = Mesh.from_toml(self.toml, slets | platform.catalog.slets)
        running = platform.mesh(mesh.name) if mesh.name in platform.applications() else None
        mesh = with_full_paths(mesh, Path(self.folder), running)
        revision = platform.mesh(mesh.name).revision if self.revision is None else self.revision
        for name, given in self.marks.items():
            marks = {key: value for key, value in msgspec.structs.asdict(given).items() if value and key != "memento"}
            mesh = marked(mesh, name, marks)
            if given.memento is not None:
                place = f"{mesh.name}.{name}"
                kind = mesh.node(name).slet.memento_class(place)
                mesh = mesh.restore(name, import_memento(fetch(given.memento), kind, place))
        return mesh.at(revision)


class PlannedSetting(msgspec.Struct, frozen=True):
    """A setting that changes: its values as text, `None` for a slet without it, and why (`SettingChange`)."""

    name: str
    before: str | None
    after: str | None
    why: str


class PlannedStep(msgspec.Struct, frozen=True):
    """A step of a plan: the verb, the new slet, the actions, the changes of state and settings."""

    verb: str
    node: str
    text: str
    does: str
    state: str | None = None
    settings: list[PlannedSetting] = []
    hand_over_s: float | None = None  #: Seconds that the hand-over of the state took on a copy, if user code makes it.
    fields: list[str] = []  #: The fields of ports and of the memento that change.

    @staticmethod
    def of(step: Step, hand_over_s: float | None) -> PlannedStep:
        """The form of a step that is sent to the client."""
        state = step.state.text if step.state else None
        settings = []
        for one in step.settings:
            before, after = None if one.new else repr(one.before), None if one.why == "dropped" else repr(one.after)
            settings.append(PlannedSetting(one.name, before, after, one.why))
        return PlannedStep(step.verb, step.node, step.text, step.does, state, settings, hand_over_s, list(step.fields))


class Planned(msgspec.Struct, frozen=True):
    """A plan as data: `anything` is whether there is anything to do, `text` the printed form."""

    plan: str
    application: str
    revision: int
    anything: bool
    steps: list[PlannedStep]
    channels_added: list[str]
    channels_removed: list[str]
    notes: list[str]
    text: str
    proven: bool = False  #: Whether it is proven first, which takes time.

    @staticmethod
    def of(number: str, plan: Plan) -> Planned:
        """The form of a plan that is sent to the client; the platform keeps the plan under *number*."""
        notes = list(plan.notes)  # first: they try the hand-over of states, which fills `took`
        return Planned(
            plan=number,
            application=plan.after.name,
            revision=plan.before.revision,
            anything=bool(plan),
            steps=[PlannedStep.of(step, plan.took.get(step.node)) for step in plan.steps],
            channels_added=[f"{one.name} ({one.kind})" for one in plan.changes.channels_added],
            channels_removed=[one.name for one in plan.changes.channels_removed],
            notes=notes,
            text=str(plan),
            proven=plan.shadow is not None,
        )


class Changed(msgspec.Struct, frozen=True):
    """A change that was made: the new revision, and for how long it paused the stream."""

    application: str
    revision: int
    paused_ms: float | None = None


class Begun(msgspec.Struct, Generic[T], frozen=True):
    """The number of a task, whether it has ended, and then its result."""

    number: str
    ended: bool = False
    result: T | None = None


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shadow (`exop.model.meshes.shadow`), if it has items or seconds, and the seconds that predecessors are kept.

    Relative paths in `divert` start at `folder`, the working directory of the client.
    """

    items: Annotated[int, msgspec.Meta(ge=1)] | None = None
    seconds: Above | None = None
    slower: Above = 2.0
    divert: Annotated[Mapping[str, bool | int | float | str | None], msgspec.Meta(max_length=200)] = {}
    copy: bool = True
    allow_no_output: bool = False
    keep: Above | None = None
    folder: str = ""

    def of(self, plan: Plan) -> Plan:
        """The plan with this proof before it."""
        divert = {name: self._from_folder(plan, name, value) for name, value in self.divert.items()}
        return plan.proven(self.shadow(divert), self.keep)

    def shadow(self, divert: Mapping[str, Any]) -> Shadow | None:
        """The shadow, if there is one, with these diverted settings."""
        if self.items is None and self.seconds is None:
            return None
        return Shadow(**{name: getattr(self, name) for name in _SHADOW}, divert=divert)

    def _from_folder(self, plan: Plan, name: str, value: object) -> object:
        """Resolve a diverted path in the client's folder; the plan refuses a value that does not fit its setting."""
        node, _, key = name.rpartition(".")
        tried = [node] if node else [step.node for step in plan.steps]
        slets = [plan.after.nodes[one].slet for one in tried if one in plan.after.nodes]
        setting = next((one.settings[key] for one in slets if key in one.settings), None)
        with suppress(SettingError):
            path = setting.converted(name, value) if setting is not None else None
            return Path(self.folder) / path if isinstance(path, Path) else value
        return value


#: A proof as a value or as plain data.
ProofLike: TypeAlias = Proof | Mapping[str, Any]
_SHADOW: Final = ("items", "seconds", "slower", "copy", "allow_no_output")


def as_proof(shadow: Shadow | None, keep: float | None) -> dict[str, Any] | None:
    """Encode the conditions of a proof for sending."""
    if shadow is None:
        return None if keep is None else {"keep": keep}
    if as_shadow(shadow).compare is not None:
        raise PlanError("a comparison is code, and code does not travel: prove the change in the platform's process")
    divert = {name: to_toml_value(f"divert: {name}", value) for name, value in shadow.divert.items()}
    return {name: getattr(shadow, name) for name in _SHADOW} | {"divert": divert, "keep": keep, "folder": os.getcwd()}


def proven(plan: T, proof: ProofLike | None) -> T:
    """The plan, with a proof if there is one."""
    return plan if proof is None else cast("T", msgspec.convert(proof, Proof).of(cast("Plan", plan)))


#: The wire types, by the names in the annotations of operations.
WIRE: Final[dict[str, Any]] = {
    "AnyPlan": Planned,
    "Edits": Annotated[list[AnyEdit], msgspec.Meta(min_length=1, max_length=100)],
    "Made": Changed,
    "Mesh": Topology,
    "ProofLike": Proof,
    "bytes": Blob,
}

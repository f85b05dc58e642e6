"""A platform in another process: `RemotePlatform` and its plans, whose operations are sent."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial, wraps
from math import inf
from pathlib import Path
from typing import Any, Self

import msgspec

from exop.errors import CallTimeout, ConnectionLost, StoredStateError
from exop.model.meshes.diff import without_marks
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.shadow import Shadow
from exop.model.meshes.topology import name_in
from exop.model.slets.described import absent
from exop.model.slets.memento import Memento
from exop.model.slets.stored_memento import declared_by, header, load_memento
from exop.model.values.classes import Declared, class_named
from exop.pictures.notebook import Figures, as_text, picture_of
from exop.remoting.api import wire_types as wire
from exop.remoting.api.folder_archive import archive_of
from exop.remoting.api.management import Management
from exop.remoting.api.service import ManagementService, ServicesRequest
from exop.remoting.identity import Identity
from exop.remoting.transport.client import ControlClient
from exop.remoting.transport.operation import Operation, marked_operations, operation_of, unanswered
from exop.runtime.catalog import known_slets
from exop.runtime.channels.reader import RemoteChannel
from exop.runtime.supervision.failure_state import FailedItem


@dataclass(frozen=True)
class RemotePlan:
    """A plan that its platform keeps: print it, or `apply()` it. Nothing has happened yet.

    `mesh` is the one that it leads to, if it was made from one.
    """

    planned: wire.Planned
    platform: RemotePlatform
    mesh: Mesh | None = None

    def __str__(self) -> str:
        return self.planned.text

    def __repr__(self) -> str:
        steps = ", ".join(f"{step.verb} {step.node}" for step in self.steps)
        none = "no node changes" if self else "nothing to do"
        return f"<RemotePlan {self.planned.application} rev {self.planned.revision}: {steps or none}>"

    def _repr_html_(self) -> str:
        changed = {step.node for step in self.planned.steps}
        return (picture_of(self.mesh, changed) if self.mesh is not None else "") + as_text(str(self))

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self.planned.anything

    @property
    def steps(self) -> tuple[wire.PlannedStep, ...]:
        """The steps of the plan, node by node."""
        return tuple(self.planned.steps)

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks on the plan: queues that are inserted, items or state that are lost, steps that take long."""
        return tuple(self.planned.notes)

    def facts(self) -> dict[str, Any]:
        """Return the plan as plain data, without the number under which its platform keeps it."""
        return {name: value for name, value in msgspec.to_builtins(self.planned).items() if name != "plan"}

    def apply(self, *, shadow: Shadow | None = None, keep: float | None = None, **bounds: Any) -> Mesh:
        """Make the change, with the arguments and errors of `Plan.apply`; return the new mesh."""
        changed = self.carry_out(proof=wire.as_proof(shadow, keep), **bounds)
        if self.mesh is None:
            return self.platform.mesh(changed.application)
        return without_marks(self.mesh).at(changed.revision)

    def carry_out(self, *, on_wait: Callable[[], object] | None = None, **options: Any) -> wire.Changed:
        """Make the change as `apply`; return its revision, and for how long it paused the stream.

        The options are `timeout`, `pause`, `stall`, and `proof`, a proof as plain data; *on_wait* is called meanwhile.
        """
        found: wire.Changed = self.platform.ask("carry_out", on_wait, plan=self.planned.plan, **options)
        return found


class RemoteBundles:
    """`connect().bundles`: the same methods as `Platform.bundles`."""

    def __init__(self, platform: RemotePlatform) -> None:
        self._platform = platform
        self.list, self.start = platform.list_bundles, platform.start_bundle
        self.stop, self.uninstall = platform.stop_bundle, platform.uninstall_bundle

    def install(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Send the bundle of a folder, or of a zip archive, and install it there. Returns its facts."""
        return self._platform.install_bundle(archive_of(Path(path)), str(path))

    def update(self, path: str | os.PathLike[str], application: str | None = None, **bounds: Any) -> dict[str, Any]:
        """Send a new version of a bundle, which replaces the started versions there; these are stopped."""
        return self._platform.update_bundle(archive_of(Path(path)), str(path), application=application, **bounds)


class RemotePlatform(Management[RemotePlan]):
    """A running platform in another process, of this user or on another host: the interface of `Platform`.

    The operations of `Management` are sent; the methods below are those that differ at this end.
    """

    def __init__(
        self, address: str | Path, client: ControlClient | None = None, identity: Identity | None = None
    ) -> None:
        self.address = address
        self._client = client or ControlClient(address, identity=identity)

    def __enter__(self) -> Self:
        self._client.platform()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the platform."""
        return self._client.platform().name

    @property
    def pid(self) -> int:
        """The process of the platform."""
        return self._client.platform().pid

    def close(self) -> None:
        """End the connection; the platform goes on."""
        self._client.close()

    def ask(self, operation: str, /, on_wait: Callable[[], object] | None = None, **given: Any) -> Any:
        """Call an operation, and wait for its end; *on_wait* is called meanwhile, if it takes long.

        Relative paths start at the working directory of this process, if no `folder` is given.
        """
        asked, call = _operation(operation), self._client.call
        sent = {name: self._to_wire(value) for name, value in given.items()}
        if "folder" in asked.request.__struct_fields__:
            sent["folder"] = sent.get("folder") or os.getcwd()
        if not asked.long:
            return self._from_wire(call(operation, sent, asked.reply, timeout=asked.patience))
        kind = wire.Begun[asked.reply]  # type: ignore[name-defined]
        found = call(operation, sent, kind, timeout=asked.patience)
        while not found.ended:
            if on_wait is not None:
                on_wait()
            try:
                found = call("outcome", {"number": found.number}, kind)
            except (CallTimeout, ConnectionLost) as lost:  # the operation itself may go on
                facts = {name: fact for name, fact in lost.facts.items() if name != "cure"}
                raise type(lost)(**facts | unanswered(operation)) from None
        return self._from_wire(found.result)

    def _to_wire(self, value: Any) -> Any:
        """Encode a value for sending."""
        if isinstance(value, Mesh):
            return wire.Topology.sent(value, lambda memento: self._upload(memento, wire.FEW))
        return self._upload(value, wire.INLINE) if isinstance(value, bytes) else value

    def _from_wire(self, value: Any) -> Any:
        """Decode a received value."""
        if isinstance(value, wire.Chunked):
            return self._download(value)
        if isinstance(value, tuple):
            return tuple(self._from_wire(one) for one in value)
        if isinstance(value, wire.Topology):
            return self._mesh(value)
        if isinstance(value, wire.Planned):
            return RemotePlan(value, self)
        return Figures(value) if type(value) is dict else value

    def _upload(self, data: bytes, inline: int) -> Any:
        """Send bytes to the platform: up to *inline* bytes inside of the message, more in chunks."""
        wire.check_size(len(data))
        number = ""
        if len(data) <= inline:
            return data
        for offset in range(0, len(data), wire.CHUNK):
            chunk = {"number": number, "data": data[offset : offset + wire.CHUNK]}
            number = self._client.call("send_chunk", chunk, str)
        return wire.Chunked(number, len(data))

    def _download(self, chunked: wire.Chunked) -> bytes:
        """Fetch bytes that the platform keeps."""
        wire.check_size(chunked.size)
        found = bytearray()
        while len(found) < chunked.size:
            found += self._client.call("read_chunk", {"number": chunked.number, "offset": len(found)}, bytes)
        return bytes(found)

    def _mesh(self, found: wire.Topology) -> Mesh:
        """Read a mesh that runs there; slets without code here are in it as descriptions."""
        if not (slets := dict(known_slets().slets)).keys() >= set(found.slets):
            described = self.described(name_in(found.toml))
            slets |= {name: absent(one) for name, one in described.items() if name not in slets}
        return Mesh.from_toml(found.toml, slets).at(found.revision or 0)

    def services(self, query: str = "") -> Iterator[dict[str, Any]]:
        """The services that match a filter: `id`, `interfaces`, `properties`; they are fetched in pages."""
        return self._client.items("services", ServicesRequest(filter=query), dict[str, Any])

    def channel(self, application: str, name: str, item: Any = Any) -> RemoteChannel:
        """Return a channel, whose methods are called there; *item* is the type of its items.

        >>> vehicles = platform.channel("traffic", "vehicles")  # doctest: +SKIP
        >>> vehicles.query("item.speed > 100")  # doctest: +SKIP
        """
        return RemoteChannel(partial(self.call_channel, application, name), item)

    def plan(self, mesh: Mesh) -> RemotePlan:
        """Plan `apply`, as `Platform.plan`. Slets are found there by identity: code is never sent."""
        return RemotePlan(self.ask("plan", mesh=mesh).planned, self, mesh)

    def apply(self, mesh: Mesh, **bounds: Any) -> Mesh:
        """Deploy or change an application to *mesh*, as `Platform.apply`. Code is never sent."""
        return without_marks(mesh).at(self.ask("apply", mesh=mesh, **bounds).revision)

    def rollback(self, application: str, node: str) -> Mesh:
        """Let the predecessor of a node, kept by `plan.apply(keep=…)`, take over again, as `Platform.rollback`."""
        self.ask("rollback", application=application, node=node)
        return self.mesh(application)

    def memento(self, application: str, node: str) -> Memento:
        """A copy of a node's state as it is now; its class must be known here too, by an installed plugin.

        Raises:
            MeshError, PlanError: as `Platform.memento`.
            StoredStateError: its class is not here.
        """
        return as_memento(self.export_memento(application, node, "msgpack")[1], f"{application}.{node}")

    def kept_item(self, application: str, node: str) -> FailedItem | None:
        """The item that a node is suspended on; `None` if it is not. Its class must be known here too."""
        if self.failed_items(application, node)["kept"] is None:
            return None
        return FailedItem.from_bytes(self.export_item(application, node))

    def dead_letters(self, application: str, node: str) -> list[FailedItem]:
        """The items that a node has set aside, the oldest first. Their classes must be known here too."""
        count = int(self.failed_items(application, node)["count"])
        return [FailedItem.from_bytes(self.export_item(application, node, number + 1)) for number in range(count)]

    @property
    def bundles(self) -> RemoteBundles:
        """The platform's bundles, as in `Platform.bundles`: a folder is sent as an archive, by the owner alone."""
        return RemoteBundles(self)

    def wait(self, application: str, timeout: float | None = None) -> bool:
        """Wait until an application has finished, as `Platform.wait`, by asking again and again (role `operate`)."""
        deadline = time.monotonic() + (inf if timeout is None else timeout)
        while not (done := self.ask("wait", application=application)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return bool(done)


def _sender(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method of `RemotePlatform` that sends an operation."""
    name, signature = function.__name__, inspect.signature(function)

    @wraps(function)
    def send(self: RemotePlatform, *given: Any, **named: Any) -> Any:
        bound = signature.bind(self, *given, **named).arguments
        return self.ask(name, **{key: value for key, value in bound.items() if key != "self"})

    return send


for _one, _ in marked_operations(Management):
    if _one.__name__ not in vars(RemotePlatform):
        setattr(RemotePlatform, _one.__name__, _sender(_one))


@cache
def _operation(name: str) -> Operation:
    """An operation with its wire types."""
    own = getattr(ManagementService, name, None)
    marked = own or getattr(Management, name)
    return operation_of(marked, marked, None if own else wire.WIRE)


def as_memento(data: bytes, place: str) -> Memento:
    """Decode a memento that was sent; only the plugins that are installed here are loaded for it."""
    known_slets()
    name = header(data, place).kind
    try:
        kind = class_named(name, "memento", lambda one: issubclass(one, Memento), Declared(Any))
    except StoredStateError as error:
        problem = f"{name}: {error.problem}"
        raise StoredStateError(what=place, problem=problem, cure="install the same code here") from None
    return load_memento(data, kind, place, declared=declared_by(kind))

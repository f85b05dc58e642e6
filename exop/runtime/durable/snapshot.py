"""Snapshots of a deployment as bytes: mementos, contents of channels, in-flight items.

`capture` takes a snapshot while all drivers are parked; `restore_states` and `restore_contents` load it into a new
deployment before any item moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from exop.errors import CheckpointError, NotStorable, StoredStateError, counted
from exop.model.items import CONTROL, EndOfStream, Window
from exop.model.slets.stored_memento import dump_memento, load_memento
from exop.model.values.depth import AROUND, DEPTH, read_toml
from exop.model.values.encoding import decode, encode
from exop.runtime.channels.base import Channel, ControlMerge
from exop.runtime.channels.queue import Buffered
from exop.runtime.channels.window import WindowChannel
from exop.runtime.component import Component
from exop.runtime.dataflow.entry import NOWHERE, Call, InFlight, Method
from exop.runtime.dataflow.metrics import Tally
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.durable.engine_journal import DiskJournal
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.ports import BufferedOutput
from exop.runtime.supervision.budget import Owner, current_call
from exop.runtime.supervision.failure_state import DeadLetters

#: The phase of a call that captures mementos.
CAPTURING: Final = "taking the memento"
#: The kind of a part (`memento`, `node`, `channel`, `queue`, `merge`, `inlets`, `cut`), and its name.
Key: TypeAlias = tuple[str, str]
#: In-flight items, each with its endpoint and method.
Work: TypeAlias = Iterable[tuple[str, Method, Any]]
#: The cut of a change: the items in flight after it, and its `continued` and `coming`. What its new connections have
#: missed is delivered at the commit: a restart from the cut binds them again, as a change of `Deployment.joined`.
Cut: TypeAlias = tuple[Work, Collection[str], Collection[str]]


@dataclass(frozen=True)
class WindowOf:
    """A reference in a checkpoint to the open window of a port, which is stored with its channel."""

    channel: str
    port: str


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint: the mesh as a topology, reasons for inserted queues, and the parts as bytes."""

    application: str
    revision: int
    topology: str
    reasons: dict[str, str] = field(default_factory=dict)
    parts: dict[Key, bytes] = field(default_factory=dict)


def capture(
    deployment: Deployment, topology: str, revision: int, owners: Mapping[str, Owner], cut: Cut | None
) -> Snapshot:
    """Take a snapshot while every driver is parked, of slets that are flushed; *topology*, *revision*: of the mesh.

    The call in progress is attributed to each slet, and to the owner of each channel, in turn. The *cut* is that of a
    change that is not committed yet.
    """
    failpoint("memento-before")
    components, application = deployment.components, deployment.name
    parts: dict[Key, bytes] = {}
    call: Any = current_call() or SimpleNamespace(component=None)
    for name, component in components.items():
        if component.state is not None:
            call.component = component
            parts["memento", name] = dump_memento(component.state, f"{application}.{name}")
    failpoint("memento-after")
    tallies: dict[Tally, int] = {}
    held: dict[Key, Any] = {
        ("node", name): {**capture_node(component, tallies), "lineage": deployment.lineage.get(name, {})}
        for name, component in components.items()
    }
    for name, channel in deployment.channels.items():
        if type(channel).capture is not Channel.capture:
            call.component = owners.get(name, call.component)
            held["channel", name] = dict(channel.capture())
    captured_with_ports = {id(one) for c in components.values() for p in c.pulled.values() for one in p.earlier}
    for place, queue in deployment.inserted.items():
        if id(queue) not in captured_with_ports:
            held["queue", place] = dict(queue.capture())
    held |= {("merge", name): merge.capture() for name, merge in deployment.merges.items()}
    if in_flight := _work(deployment, None if cut is None else cut[0]):
        held["inlets", ""] = in_flight
    if cut is not None:
        held["cut", ""] = [deployment.joined, *map(sorted, cut[1:])]
    # Encoding takes a tenth of the time of a deep copy; later calls of the slets do not alter the bytes.
    for (kind, name), state in held.items():
        known: Mapping[str, Owner] = components if kind == "node" else owners
        call.component = known.get(name.removeprefix("-> ").partition(" -> ")[0], call.component)
        parts[kind, name] = _encoded(kind, name, state)
    return Snapshot(application, revision, topology, dict(deployment.reasons), parts)


def _encoded(kind: str, name: str, state: Any) -> bytes:
    """Return a part as bytes; of dead letters, which nothing can repair, without the items that cannot be stored."""
    encoded = partial(encode, levels=DEPTH + AROUND, place=f"{kind} {name}: what waits there")
    try:
        return encoded(state)
    except NotStorable:
        for endpoint, _, payload in state if kind == "inlets" else ():  # the error then names node and port
            encode(payload, levels=DEPTH + AROUND, place=f"{endpoint}: an item that waits there")
        if kind != "node" or "dead" not in state:
            raise
        return encoded({**state, "dead": DeadLetters.storable(state["dead"])})


def capture_node(component: Component, known: dict[Tally, int]) -> dict[str, Any]:
    """Return the counts, the end, the in-flight items and the dead letters of one component, for `restore_node`.

    *known* has the tallies that were read in the same pass over several components.
    """
    outputs = {name: one for name, one in component.outputs.items() if isinstance(one, BufferedOutput)}
    held: dict[str, Any] = {
        "merge": component.merge.capture(),
        "figures": component.metrics.capture(known),
        "over": component.has_ended,
        "ended": sorted(component.ended),
        "pulled": {name: port.capture() for name, port in component.pulled.items()},
        "pending": {name: list(output.pushed) for name, output in outputs.items()},
    }
    if component.trouble.dead or component.trouble.dead.dropped:
        held["dead"] = component.trouble.dead.capture()
    if component.ended_outputs:
        held["ended_outputs"] = sorted(component.ended_outputs)
    if isinstance(component.driver, SourceDriver):
        held["hand"] = component.driver.yielded
    if isinstance(component.tie, DiskJournal):
        held["tie"] = component.tie.capture()
    return held


def _work(deployment: Deployment, work: Work | None) -> list[tuple[str, str, Any]]:
    """Return the in-flight items (by default those in the inlets), in order, each with its endpoint."""
    found: list[tuple[str, str, Any]] = []
    if work is None:  # a call is no item; closed windows are also emitted with the next item
        waiting = (one for _, one in deployment.inlets.waiting() if one.entry is not NOWHERE)
        work = ((one.entry.endpoint, one.method, one.payload) for one in waiting if not isinstance(one, Call))
    for endpoint, method, payload in work:
        if endpoint not in deployment.entries:
            problem = f"{payload!r:.200} is on its way to {endpoint or 'a window of several ports'}"
            raise CheckpointError(application=deployment.name, problem=problem, cure="repair what is suspended first")
        found.append((endpoint, method, _referred(deployment, payload)))
    return found


def _referred(deployment: Deployment, payload: Any) -> Any:
    """Replace a window that belongs to a channel by a reference."""
    if isinstance(payload, Window):
        for name, channel in deployment.channels.items():
            for port, windows in channel.windows.items() if isinstance(channel, WindowChannel) else ():
                if windows.items is payload:
                    return WindowOf(name, port)
    return payload


def restore_states(deployment: Deployment, snapshot: Snapshot) -> None:
    """Restore the mementos of components and the positions of engines, before the wiring is bound."""
    deployment.reasons = dict(snapshot.reasons)
    deployment.merges = {name: ControlMerge() for kind, name in snapshot.parts if kind == "merge"}  # for the wiring
    positions = engine_positions(snapshot)
    for name, component in deployment.components.items():
        if component.spec.state is not None and (stored := snapshot.parts.get(("memento", name))) is not None:
            component.adopt(load_memento(stored, component.spec.state[1], f"the memento of {deployment.name}.{name}"))
        if isinstance(component.tie, DiskJournal):
            component.tie.restore(positions[name])


def engine_positions(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """Return the positions of engines in a snapshot, by node."""
    nodes = {name: _read(stored) for (kind, name), stored in snapshot.parts.items() if kind == "node"}
    return {name: held["tie"] for name, held in nodes.items() if "tie" in held}


def unacknowledged(snapshot: Snapshot) -> Iterator[str]:
    """Yield how many events each outbox holds for its peer."""
    for name, spec in read_toml(snapshot.topology).get("channels", {}).items():
        if spec.get("kind") == "outbox" and (stored := snapshot.parts.get(("channel", name))) is not None:
            held = _read(stored)
            if count := sum(event[0] for event in held["events"]) + held.get("spilled", {}).get("events", 0):
                yield f"{counted(count, 'event')} of {name} that {spec['peer']} has not acknowledged"


def restore_contents(deployment: Deployment, snapshot: Snapshot) -> list[list[str]]:
    """Restore the contents of channels, ports and drivers, when the wiring is bound, before any slet is opened.

    Returns the `continued` and `coming` of the change in whose cut the snapshot was taken; of no change, nothing.
    """
    parts = {key: _read(stored) for key, stored in snapshot.parts.items() if key[0] != "memento"}
    deployment.lineage = {name: held.get("lineage", {}) for (kind, name), held in parts.items() if kind == "node"}
    gone: list[tuple[str, Mapping[str, Any]]] = []
    # Channels first: an in-flight item may be a window of a channel.
    for (kind, name), held in sorted(parts.items(), key=lambda part: part[0][0] != "channel"):
        if kind == "node":
            restore_node(deployment.components[name], held)
        elif kind == "merge":
            deployment.merges.setdefault(name, ControlMerge()).restore(held)
        elif kind == "channel":
            deployment.channels[name].restore(held)
        elif kind == "queue":
            if (queue := deployment.inserted.get(name)) is not None:
                queue.restore(held)
            elif held["entries"]:
                gone.append((name, held))
    # Last, since the items that a port had taken precede those in its queue, which is already restored.
    for (kind, name), held in parts.items():
        for port, taken in held["pulled"].items() if kind == "node" else ():
            deployment.components[name].pulled[port].restore(taken)
    for place, method, payload in parts.get(("inlets", ""), ()):
        if place not in deployment.entries:
            raise _strange(deployment, f"{place!r}, to which an item is on its way,")
        deployment.inlets.post([InFlight(deployment.entries[place], method, _found(deployment, payload))])
    for channel in (*deployment.channels.values(), *deployment.inserted.values()):
        if isinstance(channel, Buffered) and channel.depth > channel.capacity:
            for driver in deployment.inlets.pushers(channel):
                driver.overfill(channel)
    deployment.joined, *cut = parts.get(("cut", ""), [deployment.joined])
    continued = cut[0] if cut else ()
    for name, held in gone:  # behind what was in flight at the port, before what waits in its queue
        port = name.rpartition(" -> ")[2]
        if (entry := deployment.entries.get(port)) is None:
            raise _strange(deployment, f"the queue {name!r}, which holds {len(held['entries'])} entries,")
        dropped = EndOfStream if port in continued else CONTROL  # as `CatchUp` moves the others
        deployment.inlets.post(InFlight(entry, *one) for one in held["entries"] if not isinstance(one[1], dropped))
    return [*cut]


def _read(stored: bytes) -> Any:
    return decode(stored, levels=DEPTH + AROUND)


def restore_node(component: Component, held: Mapping[str, Any]) -> None:
    """Restore the result of `capture_node`; the items of pulled ports come later."""
    component.over = held["over"]
    component.merge.restore(held["merge"])
    component.ended.update(held["ended"])
    component.ended_outputs = frozenset(held.get("ended_outputs", ()))
    if "dead" in held:
        component.trouble.dead.restore(held["dead"])
    component.metrics.restore(held["figures"])
    for name, pending in held["pending"].items():
        if isinstance(output := component.outputs.get(name), BufferedOutput):
            output.pushed[:] = pending
    if isinstance(component.driver, SourceDriver):
        component.driver.over = component.over
        component.driver.restore(held["hand"])


def _found(deployment: Deployment, payload: Any) -> Any:
    """Replace a reference by the restored window of the channel."""
    if not isinstance(payload, WindowOf):
        return payload
    if not isinstance(channel := deployment.channels.get(payload.channel), WindowChannel):
        raise _strange(deployment, f"the window {payload.channel!r}")
    return channel.windows[payload.port].items


def _strange(deployment: Deployment, what: str) -> StoredStateError:
    problem, cure = f"{what} is no longer in the mesh", "use the release and the code that wrote it"
    return StoredStateError(what=f"the checkpoint of {deployment.name}", problem=problem, cure=cure)

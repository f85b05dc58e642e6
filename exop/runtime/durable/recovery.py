"""Giving a deployment back what a snapshot holds, before anything moves in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exop.errors import StoredStateError
from exop.model.decoding import decode
from exop.model.depth import AROUND, DEPTH
from exop.model.stored import unpack
from exop.runtime.channel import ControlMerge
from exop.runtime.channels.window import WindowChannel, open_window
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.durable.snapshot import Snapshot, WindowOf
from exop.runtime.entry import Way, Work
from exop.runtime.ports import BufferedOutput
from exop.runtime.tied.durable import DurableTie


def restore_states(deployment: Deployment, snapshot: Snapshot) -> None:
    """Give the components their mementos: before they are bound, so that they are bound to these; engines their place.

    Raises:
        StoredStateError: a memento cannot be taken over by the class that there is now.
    """
    deployment.reasons = dict(snapshot.reasons)
    for name, component in deployment.components.items():
        stored = snapshot.parts.get(("memento", name))
        if component.spec.state is not None and stored is not None:
            place = f"the memento of {deployment.name}.{name}"
            component.adopt(unpack(stored, component.spec.state[1], place))
        if isinstance(component.tie, DurableTie):
            component.tie.restore(_read(snapshot.parts["node", name])["tie"])


def ties(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """Return the ties of engines in a snapshot, by node."""
    nodes = {name: _read(stored) for (kind, name), stored in snapshot.parts.items() if kind == "node"}
    return {name: held["tie"] for name, held in nodes.items() if "tie" in held}


def restore_contents(deployment: Deployment, snapshot: Snapshot) -> None:
    """Give channels, ports and drivers back what they held: after they are bound, before anything is opened.

    Raises:
        StoredStateError: something does not fit into this mesh any more, or is damaged.
    """
    # Channels first: a driver's in-flight item may be a window of theirs.
    for (kind, name), stored in sorted(snapshot.parts.items(), key=lambda part: part[0][0] != "channel"):
        if kind == "memento":
            continue
        held = _read(stored)
        if kind == "node":
            _node(deployment, deployment.components[name], held)
        elif kind == "merge":
            deployment.merges.setdefault(name, ControlMerge()).restore(held)
        elif kind == "channel":
            deployment.channels[name].restore(held)
        elif kind == "queue":
            queue = deployment.inserted.get(name)
            if queue is not None:
                queue.restore(held)
            elif held["entries"]:
                raise _strange(deployment, f"the queue {name!r}, which holds {len(held['entries'])} entries,")
    # Last: what a port had taken comes before what its queue has got back by now, and work for a queue behind it.
    for (kind, name), stored in snapshot.parts.items():
        if kind == "node":
            for port, taken in _read(stored)["pulled"].items():
                deployment.components[name].pulled[port].restore(taken)
    for (kind, _), stored in snapshot.parts.items():
        if kind == "inlets":
            deployment.inlets.post(_work(deployment, _read(stored)))
        elif kind in ("node", "worker"):  # an older form: with the worker, or the slet, whose driver had it
            deployment.inlets.post(_work(deployment, _read(stored).get("work", ())))


def _read(stored: bytes) -> Any:
    return decode(stored, levels=DEPTH + AROUND)


def _node(deployment: Deployment, component: Component, held: dict[str, Any]) -> None:
    component.over = held["over"]
    component.merge.restore(held["merge"])
    component.ended.update(held["ended"])
    if "dead" in held:
        component.trouble.dead.restore(held["dead"])
    component.metrics.restore(held.get("figures", {}))
    for name, pending in held["pending"].items():
        output = component.outputs.get(name)
        if isinstance(output, BufferedOutput):
            output.restore(pending)
    if isinstance(component.driver, SourceDriver):
        component.driver.over = component.over
        component.driver.hand = held["hand"]


def _work(deployment: Deployment, held: Iterable[tuple[str, Way, Any]]) -> list[Work]:
    found = []
    for place, way, payload in held:
        if place not in deployment.places:
            raise _strange(deployment, f"{place!r}, to which an item is on its way,")
        found.append(Work(deployment.places[place], way, _found(deployment, payload)))
    return found


def _found(deployment: Deployment, payload: Any) -> Any:
    """Replace a reference by the content of the channel that it refers to."""
    if not isinstance(payload, WindowOf):
        return payload
    channel = deployment.channels.get(payload.channel)
    if not isinstance(channel, WindowChannel):
        raise _strange(deployment, f"the window {payload.channel!r}")
    return open_window(channel, payload.port)


def _strange(deployment: Deployment, what: str) -> StoredStateError:
    return StoredStateError(
        what=f"the checkpoint of {deployment.name}",
        problem=f"{what} is not there any more in the mesh",
        cure="use the release and the code that wrote it",
    )

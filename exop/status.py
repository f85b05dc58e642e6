"""The status of a running application, as plain data that can be sent to other processes."""

from __future__ import annotations

import time
from typing import Any

from exop.errors import counted, told
from exop.model.items import CONTROL
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import ConditionalUpdate
from exop.model.meshes.partitions import ranges, ranges_text
from exop.runtime.channels.base import Channel
from exop.runtime.channels.queue import Buffered, QueueChannel
from exop.runtime.component import Component
from exop.runtime.conditional_updates import PendingUpdates
from exop.runtime.dataflow.metrics import READING, Counts, Tally, quantiles
from exop.runtime.deployment import Deployment
from exop.runtime.drivers.source import RESTART
from exop.runtime.lifecycle import State
from exop.safe_repr import error_text, message, safe_repr


def application_status(deployment: Deployment) -> dict[str, Any]:
    """Return the status of an application: its state, running time, nodes and channels."""
    change, present = deployment.last_change, {one.id for one in deployment.components.values()}
    return {
        "name": deployment.name,
        "revision": deployment.mesh.revision,
        "last_change": {"revision": change[0], "paused_ms": round(change[1] * 1e3, 3)} if change else None,
        "state": state_of(deployment),
        **({"opening": deployment.opening_progress()} if deployment.opens else {}),
        "running_s": _running_s(deployment),
        "nodes": {name: component_status(deployment, one) for name, one in deployment.components.items()},
        **_channels(deployment),
        # A previous slet that has taken over again reports its own errors.
        "replaced": [facts for key, facts in list(deployment.replaced.items()) if key not in present],
        "crashed": {
            name: told(error) if error is deployment.defect else f"{told(error)}; {RESTART}"
            for name, error in deployment.crashed()
        },
    }


def _channels(deployment: Deployment, *, whole: bool = True) -> dict[str, Any]:
    """Return the status of the channels of an application, and of the queues that the wiring has inserted.

    Unless *whole*, return only their metrics.
    """
    found: dict[str, dict[str, Any]] = {"channels": {}, "inserted": {}}
    for name, one in deployment.channels.items():
        facts = found["channels"][name] = channel_status(one, whole=whole)
        if whole:
            facts |= schema_status(deployment.mesh, one) | partitions_status(deployment.mesh, one)
            facts |= pending_status(one.asked.pending, deployment.update_log.pending.get(one))
    for name, queue in deployment.inserted.items():
        facts = found["inserted"][name] = channel_status(queue, whole=whole)
        if whole:
            facts["reason"] = deployment.reasons.get(name, "its consumer pulls")
    return found


def state_of(deployment: Deployment) -> str:
    """Return `opening`, `running`, `delivering`, `finished`, `crashed`, `suspended` (by an error) or `hangs`."""
    if deployment.opens:
        return "opening"
    if deployment.finished.is_set():
        return "finished"
    if deployment.crashed():
        return "crashed"
    if deployment.failures():
        return "suspended"
    if any(one.trouble.hang is not None for one in deployment.components.values()):
        return "hangs"
    return "delivering" if deployment.delivering else "running"


def component_status(deployment: Deployment, component: Component) -> dict[str, Any]:
    """Return the status of a component: its slet, state, settings, metrics, failures, and what it waits for."""
    node, spec, trouble = component.node, component.spec, component.trouble
    found: dict[str, Any] = {
        "id": component.id,
        "slet": spec.identity,
        "role": str(spec.role),
        "state": str(component.status),
        "policy": node.policy,
        "timeout": node.patience,
        "atomic": spec.atomic,
        "memento": spec.state[1].__qualname__ if spec.state else None,
        "settings": {name: plain(value) for name, value in node.settings.items()},
        **({} if node.group is None else {"group": node.group}),
        "ports": dict(node.ports),
        "inputs": [port.name for port in spec.inputs],
        "metrics": component_figures(component),
    }
    if component.error is not None:
        found["error"] = error_text(component.error)
    if component.metrics.last_error:
        found["last_error"] = component.metrics.last_error
    if (kept := trouble.kept) is not None:
        found["kept"] = {"port": kept.port, "item": _shortened(kept.item), "traceback": kept.text}
    if (hang := trouble.hang) is not None:
        seconds = round(hang.seconds, 1)
        found["hang"] = {"items": hang.items, "driver": hang.driver, "stack": hang.stack, "seconds": seconds}
    if (dead := trouble.dead) or dead.dropped or component.aside is not None:
        first = [
            {"port": one.port, "item": _shortened(one.item), "error": one.error, "traceback": one.traceback}
            for one in list(dead)[:5]
        ]
        found["dead_letters"] = {"count": len(dead), "dropped": dead.dropped, "first": first}
    if (aside := component.aside) is not None:
        sent = component.metrics.counts().get(("out", aside.spec.name), 0)
        found["dead_letters"] |= {"channel": node.ports[aside.spec.name], "sent": sent}
    # The channels, each with the producers that have not filled it yet, or why.
    waits_for = {one.name: [one.away] if one.away else deployment.silent(one) for one in component.unfilled}
    if waits_for := waits_for or (_starved(component) if deployment.is_fragment else {}):
        found["waits_for"] = waits_for
    return found | pending_status(node.pending, deployment.update_log.pending.get(component))


def _starved(component: Component) -> dict[str, list[str]]:
    """Return the empty queues for which a slet sleeps while another of its ports is full, each with what helps."""
    queues = [port.queue for port in component.pulled.values() if port.queue is not None]
    full = " and ".join(one.name for one in queues if one.depth >= one.capacity)
    asleep = [one for one in (component.pusher, *component.pullers) if full and one is not None and one.sleeping]
    cure = f"{full} is full; if one slet fills both, replace this one by one that pulls in turn, or make room for all"
    return {one.name: [f"{one.name}: {cure}"] for driver in asleep for one in driver.queues if not one.depth}


def pending_status(pending: tuple[ConditionalUpdate, ...], updates: PendingUpdates | None) -> dict[str, Any]:
    """Return the settings pending at a point in the stream, and any error of their conditions."""
    found: dict[str, Any] = {"pending": [str(update) for update in pending]} if pending else {}
    if pending and updates is not None and updates.problem is not None:
        found["pending_problem"] = f"the condition raised for {counted(updates.errors, 'item')}, last {updates.problem}"
    return found


def component_figures(component: Component) -> dict[str, Any]:
    """Return the metrics of a component: counts are exact, `sampled` lists the others; `own` has the slet's own."""
    metrics = component.metrics
    counts = metrics.counts()
    for _ in range(5):  # the driver may have continued in between
        before, counts = counts, metrics.counts()
        if before == counts:
            break
    figures = _figures(component, counts, 512)
    return figures | {"busy_s": round(figures["busy_s"], 6)}


def _figures(component: Component, counts: Counts, most: int, *, times: bool = True) -> dict[str, Any]:
    """Return the metrics for these *counts* from *most* samples, and the slet's own ones as soon as it is open."""
    figures = component.metrics.figures(counts, most, times=times)
    if component.status not in (State.CREATED, State.OPENING) and (own := plain(component.own_figures())):
        figures["own"] = own
    return figures


def application_metrics(deployment: Deployment, *, whole: bool = False) -> dict[str, Any]:
    """Return the metrics that change with every item, at a cost that permits polling.

    If *whole*, also return quantiles, and slet and ports of each node. The shapes are those of `application_status`.
    """
    components, nodes, known = dict(deployment.components), dict[str, dict[str, Any]](), dict[Tally, int]()
    with READING:
        counts = {name: one.metrics.counts(known) for name, one in components.items()}
    for name, one in components.items():
        facts = nodes[name] = _figures(one, counts[name], 5, times=whole)
        facts["state"] = str(one.status)
        if whole:
            dead = {"count": len(one.trouble.dead), "dropped": one.trouble.dead.dropped}
            ports = {"inputs": [port.name for port in one.spec.inputs], "ports": dict(one.node.ports)}
            facts |= {"slet": one.spec.identity, **ports, "dead_letters": dead}
    return {
        "revision": deployment.mesh.revision,
        "state": state_of(deployment),
        "running_s": _running_s(deployment),
        "nodes": nodes,
        **_channels(deployment, whole=whole),
    }


def _running_s(deployment: Deployment) -> float:
    return round(time.monotonic() - deployment.started, 3) if deployment.started else 0.0


def channel_status(channel: Channel, *, whole: bool = True) -> dict[str, Any]:
    """Return the kind and metrics of a channel; for a queue, also the waiting times of measured items.

    Unless *whole*, without these times; and the items of a queue are not looked at, where a control item counts as one.
    """
    if whole or not isinstance(channel, QueueChannel) or type(channel).metrics is not QueueChannel.metrics:
        figures = channel.metrics()
    else:
        depth, dropped = channel.depth, channel.dropped
        items = channel.taken + dropped + depth
        figures = {"depth": depth, "capacity": channel.capacity, "items": items, "dropped": dropped}
    found: dict[str, Any] = {"kind": channel.kind, **figures}
    if whole and isinstance(channel, Buffered):
        found["wait_ms"] = quantiles(channel.waits)
    if channel.trouble:
        found["trouble"] = channel.trouble
    return found


def partitions_status(mesh: Mesh, channel: Channel) -> dict[str, Any]:
    """Return the partitions of a channel, if it has any: the field, the number, and the ranges of each group."""
    if (found := channel.partitioning) is None:
        return {}
    groups: dict[str, list[str]] = {}
    for node, _ in mesh.consumers(channel.name):
        if node.group is not None:
            groups.setdefault(node.group, []).append(node.name)
    owned = {group: ranges_text(ranges(members, found.partitions)) for group, members in groups.items()}
    return {"by": found.by, "partitions": found.partitions, "groups": owned}


def schema_status(mesh: Mesh, channel: Channel) -> dict[str, Any]:
    """Return the schema of a channel: the type of what its producers push, with its fields where it has any."""
    pushed = [channel.carries(node.slet.ports[port].type) for node, port in mesh.producers(channel.name)]
    schemas = {one.fingerprint: one for one in pushed}
    fields = [{name: str(one.type) for name, one in schema.items.fields.items()} for schema in schemas.values()]
    kind = " | ".join(dict.fromkeys(map(str, schemas.values())))
    return {"schema": {"type": kind, "fields": fields[0] if len(fields) == 1 else {}, "fingerprint": ",".join(schemas)}}


def plain(value: Any) -> Any:
    """Return a value in the form of JSON."""
    if isinstance(value, dict):
        return {message(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(one) for one in value]
    # Text of a class of its own cannot be sent as it is.
    return value if value is None or type(value) is str or isinstance(value, (bool, int, float)) else message(value)


def _shortened(item: Any) -> str:
    return str(item) if isinstance(item, CONTROL) else safe_repr(item)

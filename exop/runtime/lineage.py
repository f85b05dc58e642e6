"""The lineage of states: the positions in the logs from which on a replay gives a slet all input that it has had."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from exop.model.meshes.diff import Difference
from exop.model.meshes.mesh import Mesh, Node
from exop.runtime.channels.log import LogChannel

if TYPE_CHECKING:
    from exop.runtime.deployment import Deployment

#: The positions of all logs when a slet began, if its input has come in the same way since then; else what was before.
#: Part of checkpoints, so plain values.
Lineage: TypeAlias = "Mapping[str, tuple[int, int]] | str"


def traced(deployment: Deployment, after: Mesh, changes: Difference, arriving: Collection[str]) -> dict[str, Lineage]:
    """Return the lineages behind a change, in whose cut this is called; its new channels are in place.

    A slet that replaces another one has the same input. The slets that it pushes into get other items than before.
    """
    logs = {name: one for name, one in deployment.channels.items() if isinstance(one, LogChannel)}
    if not logs:
        return {}
    found = {name: one for name, one in deployment.lineage.items() if name in after.nodes}
    until, runs = f"up to revision {deployment.mesh.revision}", deployment.started is not None
    for node in changes.added:
        pushed = (name for port, name in node.inputs().items() if runs and not node.slet.ports[port].pulled)
        replayed = {name for name in pushed if name in logs and logs[name].replays}
        begun = {name: (log.start, 0) if name in replayed else (*log.position,) for name, log in logs.items()}
        found[node.name] = "it came from another host" if node.name in arriving else _given(node) or begun
    for old, new in changes.changed:
        was, now = old.inputs(), new.inputs()
        ports = [f"its port {port} was on {was.get(port)!r}" for port in was | now if was.get(port) != now.get(port)]
        if other := _given(new) or "".join(ports[:1]):
            found[new.name] = f"{other} {until}"
    left, done = dict(_altered(changes)), {node.name for node in changes.added}
    while left:
        channel, reason = left.popitem()
        for node, _ in after.consumers(channel) if channel not in logs else ():
            if node.name not in done:
                done.add(node.name)
                found[node.name] = f"{reason} {until}"
                left |= dict.fromkeys(node.outputs().values(), reason)
    return found


def _given(node: Node) -> str:
    """Return how a node gets its state otherwise than by its input; or nothing."""
    return "its state was given" if node.memento is not None else "it lost another state" if node.lose_state else ""


def _altered(changes: Difference) -> Iterator[tuple[str, str]]:
    """Yield the channels that carry other items after a change, each with what was different before."""

    def form(node: Node) -> Any:
        return node.slet, dict(node.settings), dict(node.ports), node.policy, _given(node)

    nodes = [*changes.added, *changes.removed]
    nodes += [one for old, new in changes.changed if form(old) != form(new) for one in (old, new)]
    for node in nodes:
        for channel in node.outputs().values():
            yield channel, f"{node.name} pushed other items into {channel!r}"
    for old, new in changes.channels_changed:
        if dict(old.settings) != dict(new.settings) or new.close_windows:
            yield new.name, f"the {new.kind} {new.name!r} had other settings"

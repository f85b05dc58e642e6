"""What must hold of a mesh before it can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from exop.errors import MeshError, UnknownName, WiringError
from exop.model.mesh import Mesh, Node
from exop.model.ports import mismatch


def check(mesh: Mesh, buffered: Iterable[str]) -> None:
    """Find what keeps a mesh from running. *buffered* are the channel kinds that change threads.

    Raises:
        MeshError: an unknown port, an unconnected input, no slet at all.
        WiringError: two ports whose types do not fit, or a cycle without a queue.
    """
    if not mesh.nodes:
        raise MeshError(f"the application {mesh.name!r} has no slet; add one with app.add(name, slet)")
    for node in mesh.nodes.values():
        _check_ports(mesh, node)
    for channel in mesh.channels:
        check_join(mesh, channel)
    cycle = unbuffered_cycle(mesh, frozenset(buffered))
    if cycle:
        path = " -> ".join(cycle)
        raise WiringError(
            f"the cycle {path} contains no queue: it would call itself without end; "
            f"join two of its slets through app.channel(name, kind='queue')"
        )


def check_join(mesh: Mesh, channel: str) -> None:
    """Compare the types of all ports that a channel joins.

    Raises:
        WiringError: what one port sends is not what another takes.
    """
    for producer, out in mesh.producers(channel):
        for consumer, port in mesh.consumers(channel):
            reason = mismatch(producer.slet.ports[out].type, consumer.slet.ports[port].type)
            if reason:
                raise WiringError(
                    f"{producer.name}.{out} cannot feed {consumer.name}.{port} through {channel!r}: {reason}; "
                    f"put a slet that converts between them"
                )


def unbuffered_cycle(mesh: Mesh, buffered: frozenset[str]) -> list[str] | None:
    """A cycle of direct connections, as the names of its nodes, or `None`."""
    edges = successors(mesh, lambda channel: mesh.channels[channel].kind not in buffered)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as found:
        return [str(name) for name in reversed(found.args[1])]
    return None


def successors(mesh: Mesh, follow: Callable[[str], bool]) -> Mapping[str, set[str]]:
    """For each node, the nodes that its outputs reach through channels for which `follow(channel)` holds."""
    return {name: set(_next(mesh, node, follow)) for name, node in mesh.nodes.items()}


def _next(mesh: Mesh, node: Node, follow: Callable[[str], bool]) -> Iterator[str]:
    for channel in node.outputs().values():
        if follow(channel):
            yield from (consumer.name for consumer, _ in mesh.consumers(channel))


def _check_ports(mesh: Mesh, node: Node) -> None:
    for port in node.ports:
        if port not in node.slet.ports:
            raise UnknownName(place=node.name, kind="port", name=port, known=node.slet.ports)
    for spec in node.slet.inputs:
        if spec.name not in node.ports:
            raise MeshError(
                f"{node.name}.{spec.name} is connected to nothing: give it a channel, "
                f"app.add({node.name!r}, …, {spec.name}=channel)"
            )
        if not mesh.producers(node.ports[spec.name]):
            raise MeshError(
                f"{node.name}.{spec.name} reads the channel {node.ports[spec.name]!r}, into which nothing is pushed: "
                f"give it as an output, app.add(…, out={node.ports[spec.name]})"
            )

"""Whether a stream repeats: whether the same events come again after a restart, in the same order and number.

Connectors between hosts and the journals of engines recognize events that come again by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import ChannelSpec, Node
from exop.model.reached import reached
from exop.model.slets.spec import DEAD

#: Tells something about a node or channel.
Test: TypeAlias = Callable[[Node | ChannelSpec], bool]


def varies(mesh: Mesh, channel: str, here: Test, meets: Test | None = None) -> str | None:
    """Return why the events of a channel may differ after a restart of this host, in words; `None` if they do not.

    Their order may differ where streams meet, their number where the results of a slet depend on how many items it gets
    at once. What comes from another host, or from an engine that drives itself, is stored, and comes again as it was.
    *here* tells what is on this host, and *meets* where several drivers meet: by default, where several ports do.
    """

    def before(name: str) -> Iterator[str]:
        nodes = (node for node, _ in mesh.producers(name) if here(node) and not node.slet.own_driver)
        return (to for node in nodes for to in node.inputs().values() if here(mesh.channels[to]))

    parted, idle = False, ""
    for name in reached([channel], before):
        ends, spec = mesh.producers(name), mesh.channels[name]
        nodes = [node for node, _ in ends if here(node)]
        others = {node.host for node, _ in ends if not here(node)} if here(spec) else ()
        parted |= (several := len(nodes) + len(others) > 1)
        if several if meets is None else meets(spec):
            return f"several streams meet at the channel {name!r}"
        for node in nodes:
            if any(port == DEAD and one is node for one, port in ends) and (full := _refusing(mesh, node)):
                return f"dead letters of {node.name} come from several drivers, since others fill {full!r}, too"
            inputs = node.inputs()
            if not node.repeats():
                return f"{'results vary' if inputs else 'after a restart, other items may come'} at {node.name}"
            if node.slet.own_driver:
                continue
            parted |= (several := len(inputs) > 1)
            if several if meets is None else meets(node):
                return f"several streams meet at {node.name}"
            idle = idle or (node.name if node.settings.get("idle") is not None else "")
            for port, to in inputs.items():
                if node.slet.ports[port].pulled:
                    return f"{node.name} pulls what waits"
                if node.slet.ports[port].type.form != "item" and (why := vary_in_lots(mesh, to, here)):
                    return why
    return f"ways that meet wait for {idle} by the clock (`idle`)" if parted and idle else None


def vary_in_lots(mesh: Mesh, channel: str, here: Test) -> str | None:
    """Return why the items of a channel may come in batches of other sizes after a restart, in words, or `None`."""

    def before(name: str) -> Iterator[str]:
        for node, _ in mesh.producers(name):
            for port, to in node.inputs().items() if here(node) else ():
                if node.slet.ports[port].type.form == "item" and here(mesh.channels[to]):
                    yield to  # the results of a batch of single items are a batch, too

    for name in reached([channel], before):
        ends, known = mesh.producers(name), mesh.channels[name].type
        found = [node.name for node, _ in ends if here(node) and not node.inputs() and _gathers(node)]
        forms = [node.slet.ports[port].type.form for node, port in ends] or ["item" if known is None else known.form]
        for node, port in mesh.consumers(name) if "item" in forms else ():  # a batch that was pushed stays whole
            if here(node) and node.slet.ports[port].type.form != "item" and _gathers(node):
                found.append(node.name)
        if found:
            return f"{found[0]} takes what waits as one batch"
    return None


def lots_matter(mesh: Mesh, channel: str) -> bool:
    """Whether what leaves a slet behind a channel, on any host, depends on how many items come at once.

    The results of a batch of single items are a batch, too. The journal of an engine counts rows.
    """

    def goes_on(name: str) -> Iterator[tuple[Node, str]]:
        return ((node, port) for node, port in mesh.consumers(name) if node.outputs() and not node.slet.own_driver)

    behind = reached([channel], lambda name: (to for node, _ in goes_on(name) for to in node.outputs().values()))
    return any(node.slet.ports[port].type.form != "item" for name in behind for node, port in goes_on(name))


def _refusing(mesh: Mesh, node: Node) -> str | None:
    """Return a channel that another driver fills with the results of a slet: what it refuses is a dead letter, too."""
    filled = (to for port, to in node.outputs().items() if port != DEAD)
    return next((to for to in filled if len(mesh.producers(to)) > 1), None)


def _gathers(node: Node) -> bool:
    return getattr(node.slet.factory, "gathers", 0) > 0

"""The names of vertices, queues and endpoints, which are derived from those of nodes, ports and channels.

A *vertex* of the wiring graph is a node, by its name, or a channel. A *queue id* tells where the wiring may insert a
queue: between a channel and one port (`CHANNEL -> NODE.PORT`), or in front of a channel (`-> CHANNEL`). An *endpoint*
tells where an item waits or enters: a port, a channel (`channel NAME`; behind any queue in front of it `into NAME`),
one of its windows (`window NAME | PORT`), or a queue (`queue ID`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from exop.model.slets.ports import node_at

#: The prefix of the channels among the vertices.
CHANNEL: Final = "channel:"


def channel_vertex(channel: str) -> str:
    """The vertex of a channel."""
    return f"{CHANNEL}{channel}"


def input_queue(channel: str) -> str:
    """The id of a queue in front of a channel."""
    return f"-> {channel}"


def channel_of_queue(queue: str) -> str:
    """The channel behind or in front of which a queue stands, or the buffered channel of that name."""
    return queue.removeprefix("-> ").partition(" -> ")[0]


def vertex_behind(queue: str, vertices: Container[str]) -> str:
    """The one of these vertices that a queue feeds, or the vertex of a buffered channel."""
    channel, _, port = queue.rpartition(" -> ")
    return node_at(port, vertices)[0] if channel else channel_vertex(queue.removeprefix("-> "))


def channel_endpoint(channel: str) -> str:
    """The endpoint of a channel that keeps items, behind any queue in front of it."""
    return f"into {channel}"


def port_of_endpoint(endpoint: str) -> str:
    """The only port (`node.port`) that an endpoint leads to; empty for a channel."""
    if endpoint.startswith(("channel ", "into ")):
        return ""
    return endpoint.rpartition(" | " if endpoint.startswith("window ") else " -> ")[2]


def channel_of_endpoint(endpoint: str) -> str:
    """The channel that an endpoint leads into, or into one of whose windows; empty for a port."""
    kind, _, name = endpoint.partition(" ")
    return name.rpartition(" | ")[0] if kind == "window" else name if kind in ("channel", "into") else ""

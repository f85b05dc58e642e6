"""The names of the places where a queue can stand: between a channel and one port, or in front of a channel."""

from __future__ import annotations

from collections.abc import Iterator

from exop.wiring.circuit import Circuit, Join


def edge_key(channel: str, join: Join) -> str:
    """The place of a queue between a channel and one port."""
    return f"{channel} -> {join.name}"


def before_key(channel: str) -> str:
    """The place of a queue in front of a channel."""
    return f"-> {channel}"


def channel_of(queue: str) -> str:
    """The channel at which a queue stands, by its place, or which it is."""
    return queue.removeprefix("-> ").partition(" -> ")[0]


def inside(channel: str) -> str:
    """The place of the way into a channel that keeps something, behind a queue in front of it."""
    return f"into {channel}"


def port_at(place: str) -> str:
    """The port (`node.port`) to which alone a place leads; empty for a channel."""
    if place.startswith(("channel ", "into ")):
        return ""
    return place.rpartition(" | " if place.startswith("window ") else " -> ")[2]


def channel_at(place: str) -> str:
    """The channel whose own way stands at a place: into all of it, or into one of its windows; else empty."""
    kind, _, name = place.partition(" ")
    return name.rpartition(" | ")[0] if kind == "window" else name if kind in ("channel", "into") else ""


def in_front_of(circuit: Circuit, channel: str, join: Join) -> str:
    """Return the place of a queue in front of a port.

    What a live channel delivers stays its own (a window from which its slet evicts): no queue can stand behind it, so
    it stands before the channel.
    """
    return before_key(channel) if circuit.channels[channel].live else edge_key(channel, join)


def possible(circuit: Circuit) -> Iterator[str]:
    """Every place at which a queue can stand now."""
    for name, channel in circuit.channels.items():
        if not channel.buffered:
            yield before_key(name)
        yield from (edge_key(name, join) for join in circuit.consumers[name] if not join.port.pulled)

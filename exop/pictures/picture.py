"""The picture of a mesh, or of the status of an application, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PictureNode:
    """A node in a picture: its role, its slet, its input and output ports with their channels, and its group."""

    role: str
    slet: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None


@dataclass(frozen=True)
class Arrow:
    """An arrow between two nodes or channels; `queued`: the wiring has inserted a queue."""

    source: str
    target: str
    label: str = ""
    queued: bool = False

    @property
    def text(self) -> str:
        """The label: the ports, and whether there is a queue."""
        return ", ".join(filter(None, (self.label, "queue" if self.queued else "")))


@dataclass(frozen=True)
class Picture:
    """The content of a picture of an application.

    Attributes:
        nodes: By name.
        channels: The kind of each channel.
        inserted: The reasons for the queues that the wiring inserts, by their place: `channel -> node.port`, or `->
            channel`.
        by: The field by which each partitioned channel is partitioned.
    """

    name: str
    nodes: Mapping[str, PictureNode]
    channels: Mapping[str, str]
    inserted: Mapping[str, str] = field(default_factory=dict)
    by: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of_mesh(mesh: Any, inserted: Mapping[str, str] | None = None) -> Picture:
        """The picture of a mesh, running or not."""
        nodes = {
            name: PictureNode(str(node.slet.role), node.slet.identity, node.inputs(), node.outputs(), node.group)
            for name, node in mesh.nodes.items()
        }
        kinds = {name: one.kind for name, one in mesh.channels.items()}
        by = {name: one.settings["by"] for name, one in mesh.channels.items() if one.settings.get("by")}
        return Picture(mesh.name, nodes, kinds, dict(inserted or {}), by)

    @staticmethod
    def of_status(status: Mapping[str, Any]) -> Picture:
        """The picture of a running application, from its status; the code of its slets is not needed."""
        nodes = {}
        for name, node in status["nodes"].items():
            inputs = {port: channel for port, channel in node["ports"].items() if port in node["inputs"]}
            outputs = {port: channel for port, channel in node["ports"].items() if port not in node["inputs"]}
            nodes[name] = PictureNode(node["role"], node["slet"], inputs, outputs, node.get("group"))
        channels = {name: channel["kind"] for name, channel in status["channels"].items()}
        inserted = {place: queue["reason"] for place, queue in status["inserted"].items()}
        by = {name: channel["by"] for name, channel in status["channels"].items() if channel.get("by")}
        return Picture(status["name"], nodes, channels, inserted, by)

    def drawn(self) -> list[str]:
        """The channels with a box of their own: those that keep or share items, or join streams."""
        plain = {name for name, kind in self.channels.items() if kind == "direct" and name not in self.by}
        return [name for name in self.channels if name not in plain or len(self._producers(name)) > 1]

    def kind(self, channel: str) -> str:
        """The kind of a channel, and the field by which it is partitioned."""
        return " by ".join(filter(None, (self.channels[channel], self.by.get(channel))))

    def arrows(self) -> Iterator[Arrow]:
        """All arrows; slets are connected directly where the channel between them has no box."""
        drawn = set(self.drawn())
        for channel in self.channels:
            producers, consumers = self._producers(channel), self._consumers(channel)
            for consumer, port in consumers:
                queued = f"{channel} -> {consumer}.{port}" in self.inserted
                node = self.nodes[consumer]
                group = f"group {node.group}" if node.group and channel in self.by else ""
                taken = ", ".join(filter(None, (port if len(node.inputs) > 1 else "", group)))
                if channel in drawn:
                    yield Arrow(f"channel {channel}", consumer, taken, queued)
                    continue
                for producer, out in producers:
                    given = "" if out == "out" else out
                    label = " → ".join(dict.fromkeys(text for text in (given, taken) if text))
                    yield Arrow(producer, consumer, label, queued)
            if channel in drawn:
                for producer, out in producers:
                    queued = f"-> {channel}" in self.inserted
                    yield Arrow(producer, f"channel {channel}", "" if out == "out" else out, queued)

    def as_data(self) -> dict[str, Any]:
        """The picture as plain data."""
        return {
            "application": self.name,
            "nodes": {
                name: {"role": node.role, "slet": node.slet, "in": dict(node.inputs), "out": dict(node.outputs)}
                | ({"group": node.group} if node.group else {})
                for name, node in self.nodes.items()
            },
            "channels": {
                name: {"kind": kind} | ({"by": self.by[name]} if name in self.by else {})
                for name, kind in self.channels.items()
            },
            "inserted": dict(self.inserted),
        }

    def _producers(self, channel: str) -> list[tuple[str, str]]:
        return [(name, port) for name, node in self.nodes.items() for port, to in node.outputs.items() if to == channel]

    def _consumers(self, channel: str) -> list[tuple[str, str]]:
        return [(name, port) for name, node in self.nodes.items() for port, to in node.inputs.items() if to == channel]

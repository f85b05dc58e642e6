"""The picture of a mesh, or of what a platform says of one: as Mermaid, as DOT, as SVG, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Format = Literal["mermaid", "dot", "svg"]

#: By role: the letter of the paper, the brackets of Mermaid, the shape of DOT, the colour.
ROLES: Final = {
    "alpha": ("α", '(["', '"])', "cds", "#d5f0d5"),
    "pi": ("π", '["', '"]', "box", "#dce8fa"),
    "omega": ("ω", '[["', '"]]', "box3d", "#fae0cc"),
}
CHANNEL: Final = "#f2f2f2"


@dataclass(frozen=True)
class Shown:
    """A node as it is drawn: its role, its slet, its input and output ports with their channels, and its group."""

    role: str
    slet: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None


@dataclass(frozen=True)
class Link:
    """An arrow between two nodes or channels; `queued`: the wiring has put a queue there."""

    source: str
    target: str
    label: str = ""
    queued: bool = False

    @property
    def text(self) -> str:
        """The ports, and whether there is a queue."""
        return ", ".join(filter(None, (self.label, "queue" if self.queued else "")))


@dataclass(frozen=True)
class Picture:
    """The contents of a picture of an application.

    Attributes:
        nodes: By name.
        channels: The kind of each channel.
        inserted: The queues that the wiring inserts, by the place where they stand: `channel -> node.port`, or
            `-> channel`; and why.
        by: The field by which a channel is partitioned, of those that are.
    """

    name: str
    nodes: Mapping[str, Shown]
    channels: Mapping[str, str]
    inserted: Mapping[str, str] = field(default_factory=dict)
    by: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of_mesh(mesh: Any, inserted: Mapping[str, str] | None = None) -> Picture:
        """The picture of a mesh, whether it runs or not."""
        nodes = {
            name: Shown(str(node.slet.role), node.slet.identity, node.inputs(), node.outputs(), node.group)
            for name, node in mesh.nodes.items()
        }
        kinds = {name: one.kind for name, one in mesh.channels.items()}
        by = {name: one.settings["by"] for name, one in mesh.channels.items() if one.settings.get("by")}
        return Picture(mesh.name, nodes, kinds, dict(inserted or {}), by)

    @staticmethod
    def of_status(status: Mapping[str, Any]) -> Picture:
        """The picture of an application that runs somewhere, from its status; the code of its slets is not needed."""
        nodes = {}
        for name, node in status["nodes"].items():
            inputs = {port: channel for port, channel in node["ports"].items() if port in node["inputs"]}
            outputs = {port: channel for port, channel in node["ports"].items() if port not in node["inputs"]}
            nodes[name] = Shown(node["role"], node["slet"], inputs, outputs, node.get("group"))
        channels = {name: channel["kind"] for name, channel in status["channels"].items()}
        inserted = {place: queue["reason"] for place, queue in status["inserted"].items()}
        by = {name: channel["by"] for name, channel in status["channels"].items() if channel.get("by")}
        return Picture(status["name"], nodes, channels, inserted, by)

    def drawn(self) -> list[str]:
        """The channels that are drawn as things of their own: those that keep or share something, or join streams."""
        plain = {name for name, kind in self.channels.items() if kind == "direct" and name not in self.by}
        return [name for name in self.channels if name not in plain or len(self._producers(name)) > 1]

    def kind(self, channel: str) -> str:
        """The kind of a channel, and the field by which it is partitioned."""
        return " by ".join(filter(None, (self.channels[channel], self.by.get(channel))))

    def links(self) -> Iterator[Link]:
        """All arrows: straight from slet to slet where the channel between them is not drawn."""
        drawn = set(self.drawn())
        for channel in self.channels:
            producers, consumers = self._producers(channel), self._consumers(channel)
            for consumer, port in consumers:
                queued = f"{channel} -> {consumer}.{port}" in self.inserted
                node = self.nodes[consumer]
                group = f"group {node.group}" if node.group and channel in self.by else ""
                taken = ", ".join(filter(None, (port if len(node.inputs) > 1 else "", group)))
                if channel in drawn:
                    yield Link(f"channel {channel}", consumer, taken, queued)
                    continue
                for producer, out in producers:
                    given = "" if out == "out" else out
                    label = " → ".join(dict.fromkeys(text for text in (given, taken) if text))
                    yield Link(producer, consumer, label, queued)
            if channel in drawn:
                for producer, out in producers:
                    queued = f"-> {channel}" in self.inserted
                    yield Link(producer, f"channel {channel}", "" if out == "out" else out, queued)

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

    def draw(self, form: Format) -> str:
        """The picture as text of another program, or as SVG."""
        if form == "svg":
            from exop.pictures.svg import to_svg

            return to_svg(self)
        return to_mermaid(self) if form == "mermaid" else to_dot(self)

    def _producers(self, channel: str) -> list[tuple[str, str]]:
        return [(name, port) for name, node in self.nodes.items() for port, to in node.outputs.items() if to == channel]

    def _consumers(self, channel: str) -> list[tuple[str, str]]:
        return [(name, port) for name, node in self.nodes.items() for port, to in node.inputs.items() if to == channel]


def to_mermaid(picture: Picture) -> str:
    """A Mermaid flow chart, as GitHub and many editors show it."""
    ids = _ids(picture)
    lines = ["flowchart LR"]
    for name, node in picture.nodes.items():
        letter, opening, closing, _, _ = ROLES[node.role]
        label = f"{letter} {_mermaid(name)}<br/><small>{_mermaid(node.slet)}</small>"
        lines.append(f"  {ids[name]}{opening}{label}{closing}:::{node.role}")
    for channel in picture.drawn():
        label = f"{_mermaid(channel)}<br/><small>{_mermaid(picture.kind(channel))}</small>"
        lines.append(f'  {ids[f"channel {channel}"]}[("{label}")]:::channel')
    for link in picture.links():
        text, arrow = _mermaid(link.text), "-.->" if link.queued else "-->"
        lines.append(f"  {ids[link.source]} {arrow}{f'|{text}|' if text else ''} {ids[link.target]}")
    for role, (_, _, _, _, colour) in ROLES.items():
        lines.append(f"  classDef {role} fill:{colour},stroke:#555,color:#111")
    lines.append(f"  classDef channel fill:{CHANNEL},stroke:#999,color:#111")
    return "\n".join(lines) + "\n"


def to_dot(picture: Picture) -> str:
    """A graph for Graphviz: `exop mesh APP --format dot | dot -Tsvg`."""
    ids = _ids(picture)
    lines = [f"digraph {_quoted(picture.name)} {{", "  rankdir=LR", '  node [fontname="sans-serif", style=filled]']
    for name, node in picture.nodes.items():
        letter, _, _, shape, colour = ROLES[node.role]
        label = _quoted(f"{letter} {name}\n{node.slet}")
        lines.append(f'  {ids[name]} [label={label}, shape={shape}, fillcolor="{colour}"]')
    for channel in picture.drawn():
        label = _quoted(f"{channel}\n{picture.kind(channel)}")
        lines.append(f'  {ids[f"channel {channel}"]} [label={label}, shape=cylinder, fillcolor="{CHANNEL}"]')
    for link in picture.links():
        label = f"label={_quoted(link.text)}" if link.text else ""
        style = ", ".join(filter(None, (label, "style=dashed" if link.queued else "")))
        lines.append(f"  {ids[link.source]} -> {ids[link.target]}{f' [{style}]' if style else ''}")
    return "\n".join([*lines, "}"]) + "\n"


def _ids(picture: Picture) -> dict[str, str]:
    """Identifiers that no name can break."""
    names = {name: f"n{number}" for number, name in enumerate(picture.nodes, 1)}
    return names | {f"channel {name}": f"c{number}" for number, name in enumerate(picture.drawn(), 1)}


def _mermaid(text: str) -> str:
    escaped = text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    return escaped.replace("|", "#124;")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

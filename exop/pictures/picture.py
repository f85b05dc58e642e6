"""The picture of a mesh or a status as plain data, and its drawing: Mermaid, Graphviz, SVG without scripts or fonts."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, TypeAlias

from exop.pictures.layout import Layout, Spot, lay_out
from exop.pictures.notebook import html_text
from exop.safe_repr import clean

#: By role, and of channels: the letter of the paper, the brackets of Mermaid, the shape of DOT, the colour.
ROLES: Final = {
    "alpha": ("α", '(["', '"])', "cds", "#d5f0d5"),
    "pi": ("π", '["', '"]', "box", "#dce8fa"),
    "omega": ("ω", '[["', '"]]', "box3d", "#fae0cc"),
    "channel": ("", '[("', '")]', "cylinder", "#f2f2f2"),
}
#: Sizes in pixels: of a box and of the free space around it, and how much room a passing arrow takes.
HEIGHT: Final = 44
GAP_X, GAP_Y, PASS = 56, 22, 20
MARGIN: Final = 14
TIP: Final = 8
#: Names beyond this are cut; the whole name is the tooltip.
LONGEST: Final = 30
MARKED: Final = "#c0392b"
#: The colours of the frames of boxes, by their host; the first is that of the home.
FRAMES: Final = ("#555", "#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf")
STYLE: Final = 'style="max-width:100%;height:auto" font-family="system-ui, sans-serif"'


@dataclass(frozen=True)
class Arrow:
    """An arrow between two nodes or channels.

    Attributes:
        queued: Whether the wiring has inserted a queue.
        remote: Whether it leads to another host, through a remote connector.
    """

    source: str
    target: str
    label: str = ""
    queued: bool = False
    remote: bool = False

    @property
    def words(self) -> list[str]:
        """The ports, and whether there is a queue or a connector."""
        return [word for word in (self.label, "queue" * self.queued, "remote" * self.remote) if word]


#: The arrows between each two boxes.
Arrows: TypeAlias = Mapping[tuple[str, str], list[Arrow]]


@dataclass(frozen=True)
class Picture:
    """The picture of a mesh, running or not.

    Attributes:
        inserted: The reasons for the queues that the wiring inserts, by place: `channel -> node.port`, or `-> channel`.
    """

    mesh: Any
    inserted: Mapping[str, str] = field(default_factory=dict)

    def by(self, channel: str) -> str:
        """The field by which a channel is partitioned; empty if it is not."""
        return self.mesh.channels[channel].settings.get("by") or ""

    def drawn(self) -> list[str]:
        """The channels with a box of their own: those that keep or share items, or join streams."""
        return [
            name
            for name, channel in self.mesh.channels.items()
            if channel.kind != "direct" or self.by(name) or len(self.mesh.producers(name)) > 1
        ]

    def boxes(self) -> list[str]:
        """The names of all boxes: of nodes, and `channel NAME`."""
        return [*self.mesh.nodes, *(f"channel {name}" for name in self.drawn())]

    def texts(self, box: str) -> tuple[str, str, str]:
        """The two lines of text in a box, and the role: of a channel, its kind and the field that partitions it."""
        if box in self.mesh.nodes:
            slet = self.mesh.nodes[box].slet
            return f"{ROLES[slet.role][0]} {box}", slet.identity, str(slet.role)
        name = box.removeprefix("channel ")
        return name, " by ".join(filter(None, (self.mesh.channels[name].kind, self.by(name)))), "channel"

    def host(self, box: str) -> str:
        """The host of a node or of a `channel NAME`; empty for the home."""
        node = self.mesh.nodes.get(box)
        return (self.mesh.place_of(box.removeprefix("channel ")) if node is None else node.host) or ""

    @cached_property
    def by_host(self) -> dict[str, list[str]]:
        """The boxes on each host, the home first."""
        found: dict[str, list[str]] = {"": []}
        for box in self.boxes():
            found.setdefault(self.host(box), []).append(box)
        return dict(sorted(found.items()))

    def arrows(self) -> Iterator[Arrow]:
        """All arrows; slets are connected directly where the channel between them has no box."""
        drawn = set(self.drawn())
        for channel in self.mesh.channels:
            producers, box = self.mesh.producers(channel), f"channel {channel}"
            sources = [(box, "out")] if channel in drawn else [(node.name, out) for node, out in producers]
            for node, port in self.mesh.consumers(channel):
                queued = f"{channel} -> {node.name}.{port}" in self.inserted
                group = f"group {node.group}" if node.group and self.by(channel) else ""
                taken = ", ".join(filter(None, (port if len(node.inputs()) > 1 else "", group)))
                for source, out in sources:
                    label = " → ".join(dict.fromkeys(text for text in ("" if out == "out" else out, taken) if text))
                    yield self._arrow(source, node.name, label, queued)
            if channel in drawn:
                for producer, out in producers:
                    yield self._arrow(producer.name, box, "" if out == "out" else out, f"-> {channel}" in self.inserted)

    def _arrow(self, source: str, target: str, label: str, queued: bool) -> Arrow:
        return Arrow(source, target, label, queued, self.host(source) != self.host(target))

    def as_data(self) -> dict[str, Any]:
        """The picture as plain data."""
        channels = {}
        for name, channel in self.mesh.channels.items():
            more = {"by": self.by(name), "host": self.mesh.place_of(name)}
            channels[name] = {"kind": channel.kind} | {key: one for key, one in more.items() if one}
        return {
            "application": self.mesh.name,
            "nodes": {
                name: {"role": str(node.slet.role), "slet": node.slet.identity}
                | {"in": node.inputs(), "out": node.outputs()}
                | {key: one for key in ("group", "host") if (one := getattr(node, key))}
                for name, node in self.mesh.nodes.items()
            },
            "channels": channels,
            "inserted": dict(self.inserted),
        }


def to_mermaid(picture: Picture) -> str:
    """A Mermaid flow chart, as GitHub and many editors show it."""
    ids = _ids(picture)
    lines, boxes = ["flowchart LR"], {}
    for name in ids:
        title, under, role = picture.texts(name)
        _, opening, closing, _, _ = ROLES[role]
        label = f"{_mermaid(title)}<br/><small>{_mermaid(under)}</small>"
        boxes[name] = f"  {ids[name]}{opening}{label}{closing}:::{role}"
    lines += _framed(picture, boxes, lambda number, host: f'  subgraph h{number}["{_mermaid(host)}"]', "  end")
    for arrow in picture.arrows():
        text, line = _mermaid(", ".join(arrow.words)), "-.->" if arrow.queued else "==>" if arrow.remote else "-->"
        lines.append(f"  {ids[arrow.source]} {line}{f'|{text}|' if text else ''} {ids[arrow.target]}")
    lines += [f"  classDef {role} fill:{colour},stroke:#555,color:#111" for role, (*_, colour) in ROLES.items()]
    return "\n".join(lines) + "\n"


def to_dot(picture: Picture) -> str:
    """A graph for Graphviz: `exop mesh APP --format dot | dot -Tsvg`."""
    ids = _ids(picture)
    lines = [f"digraph {_quoted(picture.mesh.name)} {{", "  rankdir=LR", '  node [fontname="sans-serif", style=filled]']
    boxes = {}
    for name in ids:
        title, under, role = picture.texts(name)
        *_, shape, colour = ROLES[role]
        label = _quoted(f"{title}\n{under}")
        boxes[name] = f'  {ids[name]} [label={label}, shape={shape}, fillcolor="{colour}"]'
    lines += _framed(picture, boxes, lambda at, host: f"  subgraph cluster_{at} {{ label={_quoted(host)}", "  }")
    for arrow in picture.arrows():
        label = f"label={_quoted(', '.join(arrow.words))}" if arrow.words else ""
        look = "style=dashed" if arrow.queued else "style=bold" if arrow.remote else ""
        style = ", ".join(filter(None, (label, look)))
        lines.append(f"  {ids[arrow.source]} -> {ids[arrow.target]}{f' [{style}]' if style else ''}")
    return "\n".join([*lines, "}"]) + "\n"


def _framed(picture: Picture, boxes: Mapping[str, str], head: Callable[[int, str], str], tail: str) -> Iterator[str]:
    """Yield the lines of the boxes; with several hosts, those of each in a frame."""
    if len(picture.by_host) < 2:
        yield from boxes.values()
        return
    for number, (host, names) in enumerate(picture.by_host.items()):
        if names:
            yield from (head(number, host or "home"), *(f"  {boxes[name]}" for name in names), tail)


def _ids(picture: Picture) -> dict[str, str]:
    """Safe identifiers."""
    names = {name: f"n{number}" for number, name in enumerate(picture.mesh.nodes, 1)}
    return names | {f"channel {name}": f"c{number}" for number, name in enumerate(picture.drawn(), 1)}


def _mermaid(text: str) -> str:
    escaped = text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    return escaped.replace("|", "#124;")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def to_svg(picture: Picture, marked: Collection[str] = ()) -> str:
    """Draw a mesh; *marked* nodes are highlighted."""
    boxes = picture.boxes()
    arrows: dict[tuple[str, str], list[Arrow]] = {}
    for arrow in picture.arrows():
        arrows.setdefault((arrow.source, arrow.target), []).append(arrow)
    layout = lay_out(boxes, arrows)
    places = _placed(layout, {name: _width(picture, name) for name in boxes}, arrows)
    parts = [*_arrows(layout, places, arrows), *(_box(picture, name, places[name], name in marked) for name in boxes)]
    width = max((place.right for place in places.values()), default=MARGIN) + MARGIN
    height = max((place.y + HEIGHT / 2 for place in places.values()), default=MARGIN) + MARGIN
    height += PASS * len(layout.back)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {STYLE}>',
        f"<title>{html_text(picture.mesh.name)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
        *parts,
        "</svg>\n",
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Position:
    """The position of a box: its left and right edge, and its vertical centre."""

    left: float
    right: float
    y: float

    @property
    def middle(self) -> float:
        """The horizontal centre."""
        return (self.left + self.right) / 2


def _placed(layout: Layout, widths: Mapping[str, float], arrows: Arrows) -> dict[str | Spot, Position]:
    """Return the positions of the boxes, by name, and of the gaps where arrows cross a column, by `Spot`."""
    heights = [sum((HEIGHT if spot.name else PASS) + GAP_Y for spot in column) for column in layout.columns]
    middle = max(heights, default=0) / 2 + MARGIN - GAP_Y / 2
    places: dict[str | Spot, Position] = {}
    x = float(MARGIN)
    for number, (column, height) in enumerate(zip(layout.columns, heights, strict=True)):
        width = max(widths.get(spot.name, 0.0) for spot in column)
        y = middle - (height - GAP_Y) / 2
        for spot in column:
            own, tall = (widths[spot.name], HEIGHT) if spot.name else (width, PASS)
            begin = x + (width - own) / 2
            places[spot.name or spot] = Position(begin, begin + own, y + tall / 2)
            y += tall + GAP_Y
        arriving = [key for key, route in layout.routes.items() if route[-1].column == number + 1]
        x += width + GAP_X + 0.8 * max((_width_of(_label(arrows[key])) for key in arriving), default=0)
    return places


def _arrows(layout: Layout, places: Mapping[str | Spot, Position], arrows: Arrows) -> Iterator[str]:
    for key, route in layout.routes.items():
        stops = [places[spot.name or spot] for spot in route]
        d = f"M{stops[0].right:.1f} {stops[0].y:.1f}"
        last = stops[-1].left - TIP + 1
        for here, there in pairwise(stops):
            end = last if there is stops[-1] else there.left
            bend = (end - here.right) / 2
            d += f" C{here.right + bend:.1f} {here.y:.1f} {end - bend:.1f} {there.y:.1f} {end:.1f} {there.y:.1f}"
            d += "" if there is stops[-1] else f" H{there.right:.1f}"
        x, y = stops[-1].left, stops[-1].y
        tip = f"M{x - TIP:.1f} {y - 4:.1f} L{x:.1f} {y:.1f} L{x - TIP:.1f} {y + 4:.1f} z"
        yield from _arrow(arrows[key], d, tip, (stops[-2].right + last) / 2, (stops[-2].y + y) / 2)
    lowest = max((place.y for place in places.values()), default=0.0) + HEIGHT / 2
    for number, (source, target) in enumerate(layout.back, 1):
        here, there, low = places[source], places[target], lowest + PASS * number - 4
        x, y = there.middle - 10, there.y + HEIGHT / 2
        d = f"M{here.middle + 10:.1f} {here.y + HEIGHT / 2:.1f} V{low:.1f} H{x:.1f} V{y + TIP - 1:.1f}"
        tip = f"M{x - 4:.1f} {y + TIP:.1f} L{x:.1f} {y:.1f} L{x + 4:.1f} {y + TIP:.1f} z"
        yield from _arrow(arrows[source, target], d, tip, (here.middle + there.middle) / 2, low)


def _arrow(arrows: list[Arrow], line: str, tip: str, x: float, y: float) -> Iterator[str]:
    """Yield the line and the tip of an arrow, and its label, centred above (*x*, *y*)."""
    dashes = ' stroke-dasharray="5 4"' if any(arrow.queued for arrow in arrows) else ""
    width = 2.6 if any(arrow.remote for arrow in arrows) else 1.3
    yield f'<path d="{line}" fill="none" stroke="#666" stroke-width="{width}"{dashes}/><path d="{tip}" fill="#666"/>'
    style = 'font-size="10" fill="#555" text-anchor="middle" paint-order="stroke" stroke="#fff" stroke-width="4"'
    yield f'<text x="{x:.1f}" y="{y - 3:.1f}" {style}>{html_text(label)}</text>' if (label := _label(arrows)) else ""


def _label(arrows: list[Arrow]) -> str:
    return _cut(", ".join(dict.fromkeys(word for arrow in arrows for word in arrow.words)))


def _box(picture: Picture, name: str, place: Position, marked: bool) -> str:
    title, under, fill = _texts_of(picture, name)
    corner = 4 if name in picture.mesh.nodes else HEIGHT / 2
    number = [*picture.by_host].index(picture.host(name))
    own = f'stroke="{FRAMES[number % len(FRAMES)]}" stroke-width="{2 if number else 1}"'
    frame = f'stroke="{MARKED}" stroke-width="2.5"' if marked else own
    width, end = place.right - place.left, html_text(_cut(under, before=True))
    size = f'x="{place.left:.1f}" y="{place.y - HEIGHT / 2:.1f}" width="{width:.1f}" height="{HEIGHT}"'
    middle = f'x="{place.middle:.1f}" text-anchor="middle"'
    return (
        f"<g><title>{html_text(f'{title}: {under}')}</title>"
        f'<rect {size} rx="{corner:g}" fill="{fill}" {frame}/>'
        f'<text {middle} y="{place.y - 3:.1f}" font-size="13" fill="#111">{html_text(_cut(title))}</text>'
        f'<text {middle} y="{place.y + 13:.1f}" font-size="10" fill="#444">{end}</text></g>'
    )


def _texts_of(picture: Picture, name: str) -> tuple[str, str, str]:
    """The two lines of text in a box, the second one with the host, and its colour."""
    title, under, role = picture.texts(name)
    on = f" on {host}" if (host := picture.host(name)) else ""
    return clean(title), clean(f"{under}{on}"), ROLES[role][-1]


def _width(picture: Picture, name: str) -> float:
    title, under, _ = _texts_of(picture, name)
    return max(_width_of(_cut(title)) * 1.3, _width_of(_cut(under, before=True)), 44) + 22


def _width_of(text: str) -> float:
    """The approximate width of a text of size 10; fonts differ."""
    return sum(10.0 if unicodedata.east_asian_width(letter) in "WF" else 5.8 for letter in text)


def _cut(text: str, *, before: bool = False) -> str:
    """A text that is not too long; *before*: its end, as of a slet's identity, whose beginning says less."""
    short = f"…{text[1 - LONGEST :]}" if before else f"{text[: LONGEST - 1]}…"
    return text if len(text) <= LONGEST else short


#: The functions that draw a picture, by format.
DRAW: Final[dict[str, Callable[[Picture], str]]] = {"mermaid": to_mermaid, "dot": to_dot, "svg": to_svg}

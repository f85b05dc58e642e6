"""Two pictures of a run: how long the answers took, and what ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from apps.linear_road.answers import LIMITS
from exop import Mesh
from exop.pictures.layout import lay_out

mpl.use("Agg")
import matplotlib.pyplot as plt

NAMES = {0: "toll", 1: "accident", 2: "balance", 3: "expenditure"}
#: By output type, the columns of the question's second and of the emit time.
COLUMNS = {0: (2, 3), 1: (1, 2), 2: (1, 2), 3: (1, 2)}
COLORS = {"alpha": "#c7e0c1", "pi": "#dbe6f4", "omega": "#f4dfd0"}
SPARK = "#fbd78b"
#: The permitted bends of an arrow, the best first.
BENDS = (0.06, -0.06, 0.12, -0.12, 0.18, -0.18, 0.25, -0.25, 0.35, -0.35)


def read_response_times(output: Path) -> dict[int, Any]:
    """For each type of answer an array of (second of the question, response time in seconds)."""
    found: dict[int, list[tuple[float, float]]] = {kind: [] for kind in NAMES}
    with output.open() as lines:
        for line in lines:
            fields = line.split(",")
            kind = int(fields[0])
            asked, emitted = (float(fields[column]) for column in COLUMNS[kind])
            found[kind].append((asked, emitted - asked))
    return {kind: np.array(points).reshape(-1, 2) for kind, points in found.items()}


def draw_response_times(output: Path, picture: Path) -> Path:
    """Draw the response time of every answer over the simulated time, with the limits; returns *picture*."""
    times = read_response_times(output)
    figure, axes = plt.subplots(len(NAMES), 1, figsize=(10, 9), sharex=True)
    for axis, (kind, name) in zip(axes, NAMES.items(), strict=True):
        points = times[kind]
        axis.axhline(LIMITS[kind], color="#b03030", linewidth=1, linestyle="--")
        axis.text(0, LIMITS[kind], f" limit {LIMITS[kind]:g} s", color="#b03030", va="bottom", fontsize=8)
        if len(points):
            axis.plot(points[:, 0] / 60, points[:, 1], ".", markersize=1.5, alpha=0.4, color="#28548f", rasterized=True)
            facts = np.quantile(points[:, 1], [0.5, 0.99, 1.0])
            facts_text = (
                f"{len(points):,} answers: median {facts[0]:.2f} s, 99 % {facts[1]:.2f} s, max {facts[2]:.2f} s"
            )
            axis.set_title(f"{name}: {facts_text}", loc="left", fontsize=10)
        else:
            axis.set_title(f"{name}: no answers", loc="left", fontsize=10)
        axis.set_ylim(0, max(LIMITS[kind] * 1.2, points[:, 1].max(initial=0.0) * 1.05))
        axis.set_ylabel("seconds")
        axis.grid(alpha=0.2)
    axes[-1].set_xlabel("minute of the traffic")
    figure.suptitle("Linear Road: response times, from the moment the question was due until its answer was out")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
    plt.close(figure)
    return picture


def draw_mesh(mesh: Mesh, picture: Path) -> Path:
    """Draw the slets from left to right as the data flows; Spark's in their own colour. Returns *picture*."""
    places = _places(mesh)
    figure, axis = plt.subplots(figsize=(14, 5))
    boxes = {}
    for name, (x, y) in places.items():
        slet = mesh.nodes[name].slet
        spark = "spark" in slet.factory.__module__
        color = SPARK if spark else COLORS[str(slet.role)]
        box = {"boxstyle": "round,pad=0.5", "facecolor": color, "edgecolor": "#555555"}
        text = name.replace("_", "\n") + ("\n(Spark)" if spark else "")
        boxes[name] = axis.text(x, y, text, ha="center", va="center", fontsize=9, bbox=box)
    axis.set_xlim(-0.6, max(x for x, _ in places.values()) + 0.6)
    axis.set_ylim(min(y for _, y in places.values()) - 0.7, max(y for _, y in places.values()) + 0.7)
    axis.axis("off")
    axis.set_title(f"The mesh of {mesh.name}: α green, π blue, ω red; on Spark orange")
    figure.tight_layout()
    figure.canvas.draw()  # a box gets its size when its text is drawn
    patches = {name: box.get_bbox_patch() for name, box in boxes.items()}
    for name, follower in _arrows(mesh):
        style = {"arrowstyle": "-|>", "color": "#777777", "shrinkA": 0, "shrinkB": 1}
        ends = {"patchA": patches[name], "patchB": patches[follower]}
        bend = f"arc3,rad={_free_bend(axis, places, patches, name, follower)}"
        arrow = {**style, **ends, "connectionstyle": bend}
        axis.annotate("", places[follower], places[name], arrowprops=arrow, zorder=1)
    figure.savefig(picture, dpi=120)
    plt.close(figure)
    return picture


def _free_bend(
    axis: Any, places: dict[str, tuple[float, float]], patches: dict[str, Any], begin: str, end: str
) -> float:
    """Return the bend of the arrow between two boxes with which it passes by all others; a little if none does."""
    first, last = (axis.transData.transform(places[name]) for name in (begin, end))
    middle, along = (first + last) / 2, last - first
    boxes = [patch.get_window_extent().padded(4) for name, patch in patches.items() if name not in (begin, end)]
    share = np.linspace(0, 1, 50)[:, np.newaxis]
    for bend in BENDS:
        control = middle + bend * np.array([along[1], -along[0]])
        curve = (1 - share) ** 2 * first + 2 * share * (1 - share) * control + share**2 * last
        if not any(box.count_contains(curve) for box in boxes):
            return bend
    return BENDS[0]


def _arrows(mesh: Mesh) -> list[tuple[str, str]]:
    """Each node with one into which it pushes."""
    outputs = ((node.name, channel) for node in mesh.nodes.values() for channel in node.outputs().values())
    ends = ((name, end, port) for name, channel in outputs for end, port in mesh.consumers(channel))
    return list(dict.fromkeys((name, end.name) for name, end, port in ends if not end.slet.ports[port].pulled))


def _places(mesh: Mesh) -> dict[str, tuple[float, float]]:
    """The columns and rows of the picture that a notebook shows of a mesh."""
    return {
        spot.name: (float(spot.column), (len(column) - 1) / 2 - row)
        for column in lay_out(list(mesh.nodes), _arrows(mesh)).columns
        for row, spot in enumerate(column)
        if spot.name
    }

"""The display of values in a notebook: meshes and plans as pictures, figures as tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from exop.errors import counted
from exop.safe_repr import clean

#: The figures of a node that a table shows, by heading; times rest on samples, and are marked `~`.
_COUNTS: Final = {"in": "items_in", "out": "items_out", "errors": "errors", "busy s": "busy_s"}
#: Not `html.escape`: importing `html` loads a table of 2 231 entities.
_ESCAPED: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_CELL: Final = "text-align:right;font-variant-numeric:tabular-nums"


def picture_of(mesh: Any, marked: Collection[str] = ()) -> str:
    """The picture of a mesh as SVG; *marked* nodes are highlighted."""
    # Imported lazily: a mesh that is not displayed needs none of this.
    from exop.pictures.picture import Picture, to_svg

    return to_svg(Picture(mesh), marked)


def size(mesh: Any) -> str:
    """The number of slets and channels as text."""
    return f"{counted(len(mesh.nodes), 'slet')}, {counted(len(mesh.channels), 'channel')}"


def as_text(text: str) -> str:
    """Text of several lines as HTML."""
    return f"<pre>{html_text(text)}</pre>"


class Figures(dict[str, Any]):
    """Plain data that a notebook shows as tables: the results of `status()`, `metrics()` and `Application.run()`."""

    def _repr_html_(self) -> str:
        parts = [f"<b>{html_text(self._title())}</b>"] if self._title() else []
        if "nodes" in self:
            parts += [_nodes(self["nodes"]), _channels({**self.get("channels", {}), **self.get("inserted", {})})]
        elif "applications" in self:
            rows = [[name, one["state"], len(one["nodes"])] for name, one in self["applications"].items()]
            parts.append(_table(("application", "state", "nodes"), rows))
        else:
            parts.append(_table(("", ""), [[name, value] for name, value in self.items()]))
        return "".join(parts)

    def _title(self) -> str:
        """The application or platform with its state, and the totals of a run."""
        found = [str(self[key]) for key in ("application", "name", "platform", "outcome", "state") if self.get(key)]
        totals = [f"{_number(self[key])} {key}" for key in ("items", "errors", "dead", "skipped") if key in self]
        return ", ".join([": ".join(found), *totals] if found else totals)


def _nodes(nodes: Mapping[str, Any]) -> str:
    """The table of nodes, of a status or of metrics."""
    rows = []
    for name, node in nodes.items():
        figures = node.get("metrics", node)
        counts = [f"{'~' * (key == 'busy_s')}{_number(figures[key])}" for key in _COUNTS.values()]
        times = figures["latency_ms"] or figures["service_ms"]
        quantiles = [f"~{_number(times[one])}" if one in times else "" for one in ("p50", "p99")]
        rows.append([name, node.get("state", ""), node.get("slet", ""), *counts, *quantiles])
    return _table(("node", "state", "slet", *_COUNTS, "p50 ms", "p99 ms"), rows)


def _channels(channels: Mapping[str, Any]) -> str:
    """The table of channels with figures of their own."""
    rows = []
    for name, channel in channels.items():
        if own := {key: one for key, one in channel.items() if isinstance(one, (int, float))}:
            rows.append([name, channel["kind"], ", ".join(f"{key} {_number(one)}" for key, one in own.items())])
    return _table(("channel", "kind", "figures"), rows) if rows else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table; columns without values are omitted."""
    held = [[html_text(_number(cell)) for cell in row] for row in rows]
    used = [place for place in range(len(head)) if any(row[place] for row in held) or not held]
    right = {place for place in used if all(not row[place].strip("~0123456789.,e+-") for row in held)}
    titles = "".join(f"<th>{html_text(head[place])}</th>" for place in used)
    lines = [
        "".join(f'<td style="{_CELL if place in right else "text-align:left"}">{row[place]}</td>' for place in used)
        for row in held
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def html_text(text: str) -> str:
    """Text on one line or several as the content of an element of HTML or SVG."""
    return clean(text).translate(_ESCAPED)

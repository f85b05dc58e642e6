"""The figures of a running application: those of every node between two looks at it, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

from exop.cli.commands.shadows import beside_lines
from exop.cli.live.troubles import opening_lines, pending_lines, state_text
from exop.cli.text import number, pause, seconds
from exop.report import Totals

Sort: TypeAlias = Literal["mesh", "node", "in", "out", "busy", "latency", "queued", "errors"]
Status: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One node: items per second in and out, the share of the time that it works, how long it takes, what waits."""

    node: str
    state: str
    slet: str
    items_in: int | None
    items_out: int | None
    in_per_s: float | None
    out_per_s: float | None
    busy: float | None
    p50_ms: float | None
    p99_ms: float | None
    queued: int
    errors: int
    dead_letters: int


@dataclass(frozen=True)
class Section:
    """One application: its totals, its nodes, and notes on what needs attention or repair."""

    application: str
    state: str
    revision: int
    running_s: float
    items: int
    items_per_s: float
    queued: int
    errors: int
    last_change: Mapping[str, Any] | None
    nodes: list[Row]
    notes: list[str]

    def as_data(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return asdict(self)


_ORDER: Final[dict[Sort, Callable[[Row], Any]]] = {
    "node": lambda row: row.node,
    "in": lambda row: -(row.in_per_s or 0.0),
    "out": lambda row: -(row.out_per_s or 0.0),
    "busy": lambda row: -(row.busy or 0.0),
    "latency": lambda row: -(row.p99_ms or 0.0),
    "queued": lambda row: -row.queued,
    "errors": lambda row: (-row.errors, -row.dead_letters),
}


@dataclass
class Rates:
    """Remembers one look, so that the next one gives rates; an application that began anew begins here, too."""

    seen_at: dict[str, float] = field(default_factory=dict)
    counts: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)

    def section(self, status: Status, sort: Sort = "mesh") -> Section:
        """One application, with its rates since the look before (the first time: since its start)."""
        name, now, totals = status["name"], status["running_s"], Totals.of(status)
        before = self.seen_at.get(name, 0.0)
        if now < before:
            before = 0.0
            self.items.pop(name, None)
            self.counts = {key: value for key, value in self.counts.items() if key[0] != name}
        span = now - before
        rows = [self._row(status, node, span) for node in status["nodes"]]
        made = Section(
            application=name,
            state=state_text(status),
            revision=status.get("revision", 0),
            running_s=now,
            items=totals.items,
            items_per_s=_per(totals.items - self.items.get(name, totals.recovered), span),
            queued=totals.queued,
            errors=totals.errors,
            last_change=status.get("last_change"),
            nodes=sorted(rows, key=_ORDER[sort]) if sort in _ORDER else rows,
            notes=list(_notes(status)),
        )
        self.seen_at[name], self.items[name] = now, totals.items
        return made

    def _row(self, status: Status, name: str, span: float) -> Row:
        node = status["nodes"][name]
        figures = node["metrics"]
        count = (figures["items_in"], figures["items_out"], figures["busy_s"])
        key = status["name"], name
        before = self.counts.get(key, (*figures["recovered"].values(), 0.0))
        self.counts[key] = count
        came, went, worked = (_per(now - then, span) for now, then in zip(count, before, strict=True))
        latency = figures["latency_ms"] or figures["service_ms"]
        source, sink = node["role"] == "alpha", node["role"] == "omega"
        return Row(
            node=name,
            state=node["state"],
            slet=node["slet"],
            items_in=None if source else figures["items_in"],
            items_out=None if sink else figures["items_out"],
            in_per_s=None if source else came,
            out_per_s=None if sink else went,
            # What a source does between two items is its own affair, and not measured.
            busy=None if source else min(1.0, worked),
            p50_ms=latency.get("p50"),
            p99_ms=latency.get("p99"),
            queued=waiting(status, name),
            errors=figures["errors"],
            dead_letters=node.get("dead_letters", {}).get("count", 0),
        )


def _per(count: float, span: float) -> float:
    return max(0.0, count) / span if span > 0 else 0.0


#: The columns of a run, with the counts since its beginning, and of `exop top`; those of words stand to the left.
RUN: Final = ("node", "state", "in", "out", "rate/s", "busy", "queued", "p50 ms", "p99 ms")
TOP: Final = ("node", "state", "in/s", "out/s", "busy", "p50 ms", "p99 ms", "queued", "errors", "dead", "slet")
WORDS: Final = ("node", "state", "slet")


def cells(row: Row, columns: Sequence[str]) -> list[str]:
    """The cells of one node, under *columns*; times rest on samples, and are marked `~`."""
    rate = row.out_per_s if row.in_per_s is None else row.in_per_s
    found = {
        "node": row.node,
        "state": row.state,
        "slet": row.slet,
        "in": _cell(row.items_in),
        "out": _cell(row.items_out),
        "in/s": _cell(row.in_per_s),
        "out/s": _cell(row.out_per_s),
        "rate/s": _cell(rate),
        "busy": "" if row.busy is None else f"~{row.busy:.0%}",
        "p50 ms": "" if row.p50_ms is None else f"~{row.p50_ms:.3g}",
        "p99 ms": "" if row.p99_ms is None else f"~{row.p99_ms:.3g}",
        "queued": number(row.queued),
        "errors": number(row.errors),
        "dead": number(row.dead_letters),
    }
    return [found[name] for name in columns]


def title(section: Section) -> str:
    """One line on an application."""
    change = section.last_change
    return (
        f"{section.application}  {section.state}  {seconds(section.running_s)}"
        + (f"  revision {section.revision}" if section.revision else "")
        + f"  {number(section.items)} items  {number(round(section.items_per_s))}/s  {number(section.queued)} queued"
        + (f"  errors: {section.errors}" if section.errors else "")
        + (f"  last change stood still for {pause(change['paused_ms'])}" if change else "")
    )


def _cell(value: float | None) -> str:
    return "" if value is None else number(round(value))


def waiting(status: Mapping[str, Any], name: str) -> int:
    """Return the number of items that wait in the queues in front of a node."""
    node = status["nodes"][name]
    found = 0
    for port in node["inputs"]:
        channel = node["ports"].get(port)
        found += _depth(status["channels"].get(channel, {}))
        found += _depth(status["inserted"].get(f"{channel} -> {name}.{port}", {}))
        found += _depth(status["inserted"].get(f"-> {channel}", {}))
    return found


def own_figures(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the slets' own metrics, by node."""
    return {name: node["metrics"]["own"] for name, node in status["nodes"].items() if node["metrics"].get("own")}


def own_lines(status: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The same, a line each; figures called `group/name` stand on the line of their group."""
    lines: dict[str, dict[str, Any]] = {}
    for node, figures in own_figures(status).items():
        for name, value in figures.items():
            group, slash, rest = name.partition("/")
            lines.setdefault(f"{node} {group}" if slash else node, {})[rest if slash else name] = value
    return list(lines.items())


def _depth(channel: Mapping[str, Any]) -> int:
    return int(channel.get("depth", 0))


def _notes(status: Status) -> Iterator[str]:
    """List what waits for the operator, and what is pending."""
    yield from opening_lines(status)
    for name, node in status["nodes"].items():
        place = f"{status['name']}.{name}"
        if "error" in node:
            kept = node.get("kept")
            item = f" on the item {kept['item']:.200} at {kept['port']!r}" if kept and kept["port"] else ""
            yield f"{place} is {node['state']}{item}: {node['error']}; mend it, then `exop resume {place}`"
        if "hang" in node:
            yield f"{place} hangs: an item takes {node['hang']['seconds']:.1f} s by now, see `exop describe {place}`"
        dead = node.get("dead_letters", {}).get("count", 0)
        if dead:
            yield f"{place}: {dead} dead letters, see `exop item list {place}`"
    yield from pending_lines(status)
    for name, channel in {**status["channels"], **status["inserted"]}.items():
        if channel.get("trouble"):
            yield f"{status['name']}: {name}: {channel['trouble']}"
    yield from (f"{status['name']}: a driver has crashed: {one}: {error}" for one, error in status["crashed"].items())
    yield from beside_lines(status)
    trouble = status.get("checkpoints", {}).get("trouble")
    if trouble:
        yield f"{status['name']}: no checkpoints: {trouble}"

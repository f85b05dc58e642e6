"""The figures that `exop top` shows: those of every node between two snapshots of its platform."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

from exop.cli.beside import beside_lines
from exop.cli.figures import waiting
from exop.cli.troubles import opening_lines, state_text
from exop.report import Totals

Sort: TypeAlias = Literal["mesh", "node", "in", "out", "busy", "latency", "queued", "errors"]
Status: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One node: items per second in and out, the share of the time that it works, how long it takes, what waits."""

    node: str
    state: str
    slet: str
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
            revision=status["revision"],
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
        yield from (f"{place}: pending: {line}" for line in node.get("pending", ()))
        if "pending_problem" in node:
            yield f"{place}: {node['pending_problem']}"
    for name, channel in {**status["channels"], **status["inserted"]}.items():
        yield from (f"{status['name']}: {name}: pending: {line}" for line in channel.get("pending", ()))
        if channel.get("trouble"):
            yield f"{status['name']}: {name}: {channel['trouble']}"
    yield from (f"{status['name']}: a driver has crashed: {one}: {error}" for one, error in status["crashed"].items())
    yield from beside_lines(status)
    trouble = status.get("checkpoints", {}).get("trouble")
    if trouble:
        yield f"{status['name']}: no checkpoints: {trouble}"

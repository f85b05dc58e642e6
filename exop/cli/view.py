"""The live view of running applications (`top`, `run`): rates as a sorted table, as log lines, or nothing."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from exop.cli.report import say
from exop.cli.status_text import attention_lines, checkpoint_lines, error_lines, host_lines, state_text
from exop.cli.text import columns, number, pairs, pause, seconds
from exop.logs import is_json, logger
from exop.report import Totals

if TYPE_CHECKING:
    from rich.console import Console

Sort: TypeAlias = Literal["mesh", "node", "in", "out", "busy", "latency", "queued", "errors"]
Status: TypeAlias = Mapping[str, Any]

#: The interval between two live tables, and between two log lines, in seconds.
LIVE_EVERY: Final = 1.0
LOG_EVERY: Final = 5.0
#: A line of text, and its style on a terminal.
Line: TypeAlias = tuple[str, str]
ALARM: Final = "bold red"


@dataclass(frozen=True)
class Row:
    """The metrics of one node: rates since the last status, counts since the start, and sampled times."""

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
    """The metrics of one application, or of its part on one host, its nodes, and notes on all problems.

    Attributes:
        connectors: The halves of remote connectors, with the events not acknowledged (`lag`) and still accepted.
    """

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
    host: str = ""
    connectors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The application, with the host if this is the part on one host."""
        return f"{self.application} on {self.host}" if self.host else self.application


_ORDER: Final[dict[Sort, Callable[[Row], Any]]] = {
    "node": lambda row: row.node,
    "in": lambda row: -(row.in_per_s or 0.0),
    "out": lambda row: -(row.out_per_s or 0.0),
    "busy": lambda row: -(row.busy or 0.0),
    "latency": lambda row: -(row.p99_ms or 0.0),
    "queued": lambda row: -row.queued,
    "errors": lambda row: (-row.errors, -row.dead_letters),
}


class _Earlier(NamedTuple):
    """The counts of an application at its last status: of its sources, and of each node in, out and busy seconds."""

    running_s: float
    items: int
    nodes: dict[str, tuple[float, ...]]


@dataclass
class Rates:
    """Stores the last status of each application, to calculate rates from the next one."""

    _earlier: dict[tuple[str, str], _Earlier] = field(default_factory=dict)

    def sections(self, status: Status, sort: Sort = "mesh") -> list[Section]:
        """Return an application's metrics, or those of each of its hosts that can be reached."""
        hosts = {host: one for host, one in status.get("hosts", {}).items() if "nodes" in one}
        if not hosts:
            return [self.section(status, sort)]
        first, *others = (self.section(one, sort, host) for host, one in hosts.items())
        return [replace(first, notes=[*first.notes, *host_lines(status)]), *others]

    def section(self, status: Status, sort: Sort = "mesh", host: str = "") -> Section:
        """Return an application's metrics, with rates since its last status; at first, since its start."""
        name, now, totals = status["name"], status["running_s"], Totals.of(status)
        earlier = self._earlier.get((name, host))
        if earlier is None or now < earlier.running_s:  # the application is new, or was deployed again
            earlier = _Earlier(0.0, totals.recovered, {})
        span = now - earlier.running_s
        counts = {
            node: tuple(one["metrics"][key] for key in ("items_in", "items_out", "busy_s"))
            for node, one in status["nodes"].items()
        }
        rows = [_row(status, node, counts[node], earlier.nodes.get(node), span) for node in status["nodes"]]
        self._earlier[name, host] = _Earlier(now, totals.items, counts)
        return Section(
            application=name,
            state=state_text(status),
            revision=status.get("revision", 0),
            running_s=now,
            items=totals.items,
            items_per_s=_per(totals.items - earlier.items, span),
            queued=totals.queued,
            errors=totals.errors,
            last_change=status.get("last_change"),
            nodes=sorted(rows, key=_ORDER[sort]) if sort in _ORDER else rows,
            notes=list(attention_lines(status, brief=True)),
            host=host,
            connectors=[_connector(name, one) for name, one in status["channels"].items() if "credit" in one],
        )


def _connector(channel: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    lag = figures.get("lag", figures["depth"])  # what an inbox has not acknowledged is waiting in it
    return {"channel": channel, "lag": lag} | {key: figures.get(key) for key in ("peer", "state", "lag_s", "credit")}


def _row(status: Status, name: str, count: tuple[float, ...], before: tuple[float, ...] | None, span: float) -> Row:
    node = status["nodes"][name]
    figures = node["metrics"]
    before = before or (*figures["recovered"].values(), 0.0)
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
        # The work of a source between two items is not measured.
        busy=None if source else min(1.0, worked),
        p50_ms=latency.get("p50"),
        p99_ms=latency.get("p99"),
        queued=waiting(status, name),
        errors=figures["errors"],
        dead_letters=node.get("dead_letters", {}).get("count", 0),
    )


def _per(count: float, span: float) -> float:
    return max(0.0, count) / span if span > 0 else 0.0


def waiting(status: Status, name: str) -> int:
    """Return the number of items in the queues in front of a node."""
    node = status["nodes"][name]
    queues = ChainMap(status["inserted"], status["channels"])
    inputs = [(port, node["ports"].get(port)) for port in node["inputs"]]
    places = [place for port, channel in inputs for place in (channel, f"{channel} -> {name}.{port}", f"-> {channel}")]
    return sum(int(queues.get(place, {}).get("depth", 0)) for place in places)


#: The cells of a node by column; times are estimates from samples, which `~` marks.
_CELLS: Final[dict[str, Callable[[Row], str]]] = {
    "node": lambda row: row.node,
    "state": lambda row: row.state,
    "slet": lambda row: row.slet,
    "in": lambda row: _cell(row.items_in),
    "out": lambda row: _cell(row.items_out),
    "in/s": lambda row: _cell(row.in_per_s),
    "out/s": lambda row: _cell(row.out_per_s),
    "rate/s": lambda row: _cell(row.out_per_s if row.in_per_s is None else row.in_per_s),
    "busy": lambda row: "" if row.busy is None else f"~{row.busy:.0%}",
    "p50 ms": lambda row: "" if row.p50_ms is None else f"~{row.p50_ms:.3g}",
    "p99 ms": lambda row: "" if row.p99_ms is None else f"~{row.p99_ms:.3g}",
    "queued": lambda row: number(row.queued),
    "errors": lambda row: number(row.errors),
    "dead": lambda row: number(row.dead_letters),
}
#: The columns of a run, and of `exop top`.
RUN: Final = ("node", "state", "in", "out", "rate/s", "busy", "queued", "p50 ms", "p99 ms")
TOP: Final = ("node", "state", "in/s", "out/s", "busy", "p50 ms", "p99 ms", "queued", "errors", "dead", "slet")


def cells(row: Row, head: Sequence[str]) -> list[str]:
    """Return the cells of one node for the columns *head*."""
    return [_CELLS[name](row) for name in head]


def _cell(value: float | None) -> str:
    return "" if value is None else number(round(value))


def title(section: Section) -> str:
    """Return one line on an application."""
    change = section.last_change
    return (
        f"{section.name}  {section.state}  {seconds(section.running_s)}"
        + (f"  revision {section.revision}" if section.revision else "")
        + f"  {number(section.items)} items  {number(round(section.items_per_s))}/s  {number(section.queued)} queued"
        + (f"  errors: {section.errors}" if section.errors else "")
        + (f"  last change paused {pause(change['paused_ms'])}" if change else "")
    )


def tables(section: Section, head: Sequence[str]) -> Iterator[Line]:
    """Yield the tables of an application: its nodes, and its remote connectors; what does not run is marked."""
    nodes = [(cells(row, head), row.state in ("failed", "suspended")) for row in section.nodes]
    connectors = []
    for one in section.connectors:
        late = "" if one["lag_s"] is None else f"{one['lag_s']:.3g}"
        row = [one["channel"], one["peer"], one["state"], number(one["lag"]), late, number(one["credit"])]
        connectors.append((row, one["state"] != "connected"))
    of_connectors = ("connector", "peer", "state", "lag", "lag s", "credit")
    for names, rows in ((head, nodes), *([(of_connectors, connectors)] if connectors else [])):
        lines = columns(names, [row for row, _ in rows], indent="  ").split("\n")
        yield lines[0], "dim"
        yield from ((line, ALARM if marked else "") for line, (_, marked) in zip(lines[1:], rows, strict=True))


def page(head: str, sections: Sequence[Section]) -> Iterator[Line]:
    """Yield the titles, tables and notes of several applications."""
    yield head, "dim"
    for section in sections:
        yield "", ""
        yield title(section), "bold"
        yield from tables(section, TOP)
        yield from ((f"  {note}", ALARM) for note in section.notes)
    if not sections:
        yield "  no application runs", ""


def plain(lines: Iterable[Line]) -> str:
    """Return lines as plain text."""
    return "\n".join(text for text, _ in lines)


def own_figures(status: Status) -> Iterator[tuple[str, str, Any]]:
    """Yield the slets' own metrics: node, name and value."""
    for node, facts in status["nodes"].items():
        yield from ((node, name, value) for name, value in facts["metrics"].get("own", {}).items())


def own_lines(status: Status) -> list[tuple[str, dict[str, Any]]]:
    """Return the slets' own metrics line by line; metrics named `group/name` share the line of their group."""
    lines: dict[str, dict[str, Any]] = {}
    for node, name, value in own_figures(status):
        group, slash, rest = name.partition("/")
        lines.setdefault(f"{node} {group}" if slash else node, {})[rest if slash else name] = value
    return list(lines.items())


def opening_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Describe the progress of an opening: how many slets are ready, and which are not."""
    waited = ", ".join(f"{node} ({seconds(since)})" for node, since in facts["waiting"].items())
    return {"ready": f"{facts['opened']} of {facts['total']}"} | ({"waiting": waited} if waited else {})


class View:
    """Reports on an application while it runs; the base class shows nothing."""

    every = LOG_EVERY

    def opening(self, application: str, facts: Mapping[str, Any]) -> None:
        """Report the progress of the opening; *facts* as `opening` in the status."""

    def running(self, status: Status) -> None:
        """Report the metrics; called every `every` seconds."""

    def close(self) -> None:
        """Release the terminal."""


class Log(View):
    """One log line every few seconds: for files, pipes and log collectors."""

    def __init__(self) -> None:
        self._rates = Rates()

    def opening(self, application: str, facts: Mapping[str, Any]) -> None:
        """Log the slets that are open, and those that are not."""
        logger("exop.run").info("opening", application=application, **opening_facts(facts))

    def running(self, status: Status) -> None:
        """Log the totals and the slets' own metrics: all as JSON, else the non-zero ones of sources and sinks."""
        section = self._rates.section(status)
        own = {
            f"{node}.{name}": value
            for node, name, value in own_figures(status)
            if is_json() or (value and status["nodes"][node]["role"] != "pi")
        }
        logger("exop.run").info(
            status["state"],
            application=section.application,
            seconds=round(section.running_s, 1),
            items=section.items,
            rate=round(section.items_per_s),
            queued=section.queued,
            errors=section.errors,
            **own,
        )


class Live(View):
    """A table that is redrawn below the output of slets and logs, or on a *screen* of its own."""

    every = LIVE_EVERY

    def __init__(self, console: Console | None = None, *, screen: bool = False) -> None:
        # Imported lazily, here and below: rich takes 40 ms, and only a live table needs it.
        from rich.console import Console
        from rich.live import Live as Display

        self._rates = Rates()
        # Output of slets to a terminal appears above the table; output to a file or pipe is not changed.
        below = {"transient": True, "redirect_stdout": sys.stdout.isatty()}
        self._display = Display(
            console=console or Console(stderr=not screen), auto_refresh=False, **({"screen": True} if screen else below)
        )
        self._display.start()

    def opening(self, application: str, facts: Mapping[str, Any]) -> None:
        """Show the slets that are not ready yet."""
        shown = opening_facts(facts)
        tail = f": waiting for {shown['waiting']}" if "waiting" in shown else ""
        self.show([(f"{application}: opening, {shown['ready']} slets are ready{tail}", "")])

    def running(self, status: Status) -> None:
        """Draw the table, with the slets' own metrics below it."""
        section = self._rates.section(status)
        own = [(f"{line}  {pairs(figures)}", "dim") for line, figures in own_lines(status)]
        self.show([(title(section), "bold"), *tables(section, RUN), *own])

    def show(self, lines: Iterable[Line]) -> None:
        """Draw lines in place of those before; only problems are wrapped if they are wider than the terminal."""
        from rich.console import Group
        from rich.text import Text

        shown = (Text(text, style, no_wrap=style != ALARM, overflow="ellipsis") for text, style in lines)
        self._display.update(Group(*shown), refresh=True)

    def close(self) -> None:
        """Remove the table, and release the terminal."""
        self._display.stop()


def choose_view(*, quiet: bool) -> View:
    """Return the view for stderr: live on a terminal, else log lines, or nothing if *quiet*."""
    if quiet:
        return View()
    return Live() if sys.stderr.isatty() and not is_json() else Log()


def print_summary(report: Mapping[str, Any]) -> None:
    """Print the summary of a run: outcome, totals, the table of its nodes, errors."""
    status = report["status"]
    totals, span = Totals.of(status), status["running_s"]
    rate = number(round(totals.items / span)) if span else "0"
    counts = [
        f"{number(totals.items)} {'item' if totals.items == 1 else 'items'} ({rate}/s)",
        "1 error" if totals.errors == 1 else f"{totals.errors} errors",
        *([f"{totals.skipped} skipped"] if totals.skipped else []),
        *([f"{totals.dead} set aside as dead letters"] if totals.dead else []),
        *([f"{totals.queued} left in queues"] if totals.queued else []),
    ]
    text = f"{status['name']}: {report['outcome']} after {seconds(span)}: {', '.join(counts)}"
    if is_json():
        own = {f"{node}.{name}": value for node, name, value in own_figures(status)}
        say(text, application=status["name"], outcome=report["outcome"], seconds=span, **vars(totals), **own)
        return
    say(text)
    say(plain(tables(Rates().section(status), RUN)))
    for line in (*error_lines(status), *checkpoint_lines(status)):
        say(f"  {line}")
    for line, figures in own_lines(status):
        say(f"  {line}: {pairs(figures)}")

"""The live view of running applications (`top`, `run`): rates as a sorted table, as log lines, or nothing."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from exop.cli.report import say
from exop.cli.status_text import attention_lines, checkpoint_lines, error_lines, host_lines, state_text
from exop.cli.text import columns, number, pairs, pause, seconds
from exop.errors import counted
from exop.logs import is_json, logger
from exop.report import totals_of

if TYPE_CHECKING:
    from rich.console import Console

Sort: TypeAlias = Literal["mesh", "node", "in", "out", "busy", "latency", "queued", "errors"]
Status: TypeAlias = Mapping[str, Any]

#: A line of text, and its style on a terminal.
Line: TypeAlias = tuple[str, str]
ALARM: Final = "bold red"
#: The metrics of an application, or of its part on one host, as `exop top --json` prints them: see `Rates.section`.
Section: TypeAlias = dict[str, Any]
#: The order of nodes: the metrics by which they are sorted, the largest first; by default the order of the mesh.
_ORDER: Final[Mapping[Sort, Sequence[str]]] = {
    "in": ("in_per_s",),
    "out": ("out_per_s",),
    "busy": ("busy",),
    "latency": ("p99_ms",),
    "queued": ("queued",),
    "errors": ("errors", "dead_letters"),
}


@dataclass
class Rates:
    """Stores the last status of each application on each host, to calculate rates from the next one."""

    _last: dict[tuple[str, str], Status] = field(default_factory=dict)

    def sections(self, status: Status, sort: Sort = "mesh") -> list[Section]:
        """Return an application's metrics, or those of each of its hosts: of one that does not answer, the state."""
        if not (hosts := status.get("hosts")):
            return [self.section(status, sort)]
        nothing = {"name": status["name"], "running_s": 0.0, "nodes": {}, "channels": {}, "inserted": {}, "crashed": {}}
        known = {host: one if "nodes" in one else nothing | {"state": one["state"]} for host, one in hosts.items()}
        own = {"revision": status["revision"], "home": None}  # a host knows the revision of its own part
        found = [self.section(one | own, sort, host) for host, one in known.items()]
        found[0]["notes"] += host_lines(status)
        return found

    def section(self, status: Status, sort: Sort = "mesh", host: str = "") -> Section:
        """Return an application's metrics, with rates since its last status; at first, since its start.

        They are totals, a row for each of the `nodes`, `notes` on all problems, and the halves of remote `connectors`
        with the events that are not acknowledged (`lag`) and those still accepted (`credit`).
        """
        name, now, totals = status["name"], status["running_s"], totals_of(status)
        if (last := self._last.get((name, host))) is not None and now < last["running_s"]:
            last = None  # the application was deployed again
        self._last |= {(name, host): status} if now else {}  # unless the host does not answer
        span = now - (last["running_s"] if last else 0.0)
        fresh = totals["items"] - (totals_of(last)["items"] if last else totals["recovered"])
        rows = [_row(status, node, last["nodes"].get(node) if last else None, span) for node in status["nodes"]]
        rows.sort(key=lambda row: row["node"] if sort == "node" else [-(row[key] or 0) for key in _ORDER.get(sort, ())])
        return {
            "application": name,
            "state": state_text(status),
            "revision": status.get("revision", 0),
            "running_s": now,
            **totals,
            "items_per_s": _per(fresh, span),
            "last_change": status.get("last_change"),
            "nodes": rows,
            "notes": list(attention_lines(status, brief=True)),
            "host": host,
            "home": status.get("home"),
            "connectors": [_connector(name, one) for name, one in status["channels"].items() if "credit" in one],
        }


def _connector(channel: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    lag = figures.get("lag", figures["depth"])  # what an inbox has not acknowledged is waiting in it
    return {"channel": channel, "lag": lag} | {key: figures.get(key) for key in ("peer", "state", "lag_s", "credit")}


def _row(status: Status, name: str, last: Status | None, span: float) -> dict[str, Any]:
    """Return the metrics of a node: rates since its *last* status, counts since the start, and sampled times."""
    node = status["nodes"][name]
    figures = node["metrics"]
    before = last["metrics"] if last else {**figures["recovered"], "busy_s": 0.0}
    came, went, worked = (_per(figures[key] - before[key], span) for key in ("items_in", "items_out", "busy_s"))
    latency = figures["latency_ms"] or figures["service_ms"]
    source, sink = node["role"] == "alpha", node["role"] == "omega"
    return {
        "node": name,
        "state": node["state"],
        "slet": node["slet"],
        "items_in": None if source else figures["items_in"],
        "items_out": None if sink else figures["items_out"],
        "in_per_s": None if source else came,
        "out_per_s": None if sink else went,
        # The work of a source between two items is not measured.
        "busy": None if source else min(1.0, worked),
        "p50_ms": latency.get("p50"),
        "p99_ms": latency.get("p99"),
        "queued": waiting(status, name),
        "errors": figures["errors"],
        "dead_letters": node.get("dead_letters", {}).get("count", 0),
        "own": figures.get("own", {}),
    }


def _per(count: float, span: float) -> float:
    return max(0.0, count) / span if span > 0 else 0.0


def waiting(status: Status, name: str) -> int:
    """Return the number of items in the queues in front of a node."""
    node = status["nodes"][name]
    queues = ChainMap(status["inserted"], status["channels"])
    inputs = [(port, node["ports"].get(port)) for port in node["inputs"]]
    places = [place for port, channel in inputs for place in (channel, f"{channel} -> {name}.{port}", f"-> {channel}")]
    return sum(int(queues.get(place, {}).get("depth", 0)) for place in places)


#: The metric of a node in each column, and its format; times are estimates from samples, which `~` marks.
_CELLS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "node": ("node", str),
    "state": ("state", str),
    "slet": ("slet", str),
    "in": ("items_in", number),
    "out": ("items_out", number),
    "in/s": ("in_per_s", "{:,.0f}".format),
    "out/s": ("out_per_s", "{:,.0f}".format),
    "rate/s": ("per_s", "{:,.0f}".format),
    "busy": ("busy", "~{:.0%}".format),
    "p50 ms": ("p50_ms", lambda value: f"~{number(value)}"),
    "p99 ms": ("p99_ms", lambda value: f"~{number(value)}"),
    "queued": ("queued", number),
    "errors": ("errors", number),
    "dead": ("dead_letters", number),
}
#: The columns of a run, and of `exop top`.
RUN: Final = ("node", "state", "in", "out", "rate/s", "busy", "queued", "p50 ms", "p99 ms")
TOP: Final = ("node", "state", "in/s", "out/s", "busy", "p50 ms", "p99 ms", "queued", "errors", "dead", "slet")


def cells(row: Mapping[str, Any], head: Sequence[str]) -> list[str]:
    """Return the cells of one node for the columns *head*."""
    figures = {**row, "per_s": row["out_per_s"] if row["in_per_s"] is None else row["in_per_s"]}
    return ["" if figures[key] is None else form(figures[key]) for key, form in map(_CELLS.__getitem__, head)]


def place(section: Section) -> str:
    """Return the application, with the host if this is its part on one host, and its state."""
    host = f" on {section['host']}" if section["host"] else ""
    return f"{section['application']}{host}  {section['state']}"


def title(section: Section) -> str:
    """Return one line on an application."""
    if not (section["nodes"] or section["running_s"]):  # its host does not answer
        return place(section)
    change, errors, revision = section["last_change"], section["errors"], section["revision"]
    rate, queued = (number(round(section[key])) for key in ("items_per_s", "queued"))
    return (
        f"{place(section)}  {seconds(section['running_s'])}"
        + (f"  revision {revision}{' of this part' if section['home'] else ''}" if revision else "")
        + f"  {counted(section['items'], 'item')}  {rate}/s  {queued} queued"
        + (f"  errors: {errors}" if errors else "")
        + (f"  last change paused {pause(change['paused_ms'])}" if change else "")
    )


def tables(section: Section, head: Sequence[str]) -> Iterator[Line]:
    """Yield the tables of an application: its nodes, and its remote connectors; what does not run is marked."""
    nodes = [(cells(row, head), row["state"] in ("failed", "suspended")) for row in section["nodes"]]
    connectors = []
    for one in section["connectors"]:
        late = "" if one["lag_s"] is None else number(one["lag_s"])
        row = [one["channel"], one["peer"], one["state"], number(one["lag"]), late, number(one["credit"])]
        connectors.append((row, one["state"] != "connected"))
    for names, rows in ((head, nodes), (("connector", "peer", "state", "lag", "lag s", "credit"), connectors)):
        lines = columns(names, [row for row, _ in rows], indent="  ").splitlines()
        yield from zip(lines, ["dim", *(ALARM if marked else "" for _, marked in rows)], strict=False)


def page(head: str, sections: Sequence[Section]) -> Iterator[Line]:
    """Yield the titles, tables and notes of several applications."""
    yield head, "dim"
    for section in sections:
        yield "", ""
        yield title(section), "bold"
        yield from tables(section, TOP)
        yield from ((f"  {note}", ALARM) for note in section["notes"])
    if not sections:
        yield "  no application runs", ""


def plain(lines: Iterable[Line]) -> str:
    """Return lines as plain text."""
    return "\n".join(text for text, _ in lines)


def own_lines(section: Section) -> list[tuple[str, dict[str, Any]]]:
    """Return the slets' own metrics line by line; metrics named `group/name` share the line of their group."""
    lines: dict[str, dict[str, Any]] = {}
    for row in section["nodes"]:
        for name, value in row["own"].items():
            group, slash, rest = name.partition("/")
            lines.setdefault(f"{row['node']} {group}" if slash else row["node"], {})[rest if slash else name] = value
    return list(lines.items())


def opening_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Describe the progress of an opening: how many slets are ready, and which are not."""
    waited = ", ".join(f"{node} ({seconds(since)})" for node, since in facts["waiting"].items())
    return {"ready": f"{facts['opened']} of {facts['total'] or '?'}"} | ({"waiting": waited} if waited else {})


class View:
    """Reports on an application while it runs, *every* so many seconds; the base class shows nothing."""

    every = 5.0

    def __init__(self) -> None:
        self._rates = Rates()

    def show(self, status: Status) -> None:
        """Report the metrics, or the progress of the opening; called every `every` seconds."""

    def close(self) -> None:
        """Release the terminal."""


class Log(View):
    """One log line every few seconds: for files, pipes and log collectors."""

    def show(self, status: Status) -> None:
        """Log the totals and the slets' own metrics: all as JSON, else the non-zero ones of sources and sinks."""
        if "opening" in status:
            logger("exop.run").info("opening", application=status["name"], **opening_facts(status["opening"]))
            return
        section = self._rates.section(status)
        own = {
            f"{row['node']}.{name}": value
            for row in section["nodes"]
            for name, value in row["own"].items()
            if is_json() or (value and None in (row["items_in"], row["items_out"]))
        }
        logger("exop.run").info(
            status["state"],
            seconds=round(section["running_s"], 1),
            rate=round(section["items_per_s"]),
            **{key: section[key] for key in ("application", "items", "queued", "errors")},
            **own,
        )


class Live(View):
    """A table that is redrawn below the output of slets and logs, or on a *screen* of its own."""

    every = 1.0

    def __init__(self, console: Console | None = None, *, screen: bool = False) -> None:
        # Imported lazily, here and below: rich takes 40 ms, and only a live table needs it.
        from rich.console import Console
        from rich.live import Live as Display

        super().__init__()
        console = console or Console(stderr=not screen)
        # Output of slets to a terminal appears above the table; output to a file or pipe is not changed.
        above = sys.stdout.isatty()
        self._display = Display(
            console=console, screen=screen, auto_refresh=False, transient=True, redirect_stdout=above
        )
        self._display.start()

    def show(self, status: Status) -> None:
        """Draw the table, with the slets' own metrics below it; before, the slets that are not ready yet."""
        if "opening" in status:
            shown = opening_facts(status["opening"])
            tail = f": waiting for {shown['waiting']}" if "waiting" in shown else ""
            self.draw([(f"{status['name']}: opening, {shown['ready']} slets are ready{tail}", "")])
            return
        section = self._rates.section(status)
        own = [(f"{line}  {pairs(figures)}", "dim") for line, figures in own_lines(section)]
        self.draw([(title(section), "bold"), *tables(section, RUN), *own])

    def draw(self, lines: Iterable[Line]) -> None:
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
    return View() if quiet else Live() if sys.stderr.isatty() and not is_json() else Log()


def print_summary(report: Mapping[str, Any]) -> None:
    """Print the summary of a run: outcome, totals, the table of its nodes, errors."""
    status = report["status"]
    span, section = status["running_s"], Rates().section(status)
    items, errors, totals = section["items"], section["errors"], totals_of(status)
    more = {"skipped": "skipped", "dead": "set aside as dead letters", "queued": "left in queues"}
    counts = [
        f"{counted(items, 'item')} ({number(round(section['items_per_s']))}/s)",
        counted(errors, "error"),
        *(f"{totals[key]} {words}" for key, words in more.items() if totals[key]),
    ]
    text = f"{status['name']}: {report['outcome']} after {seconds(span)}: {', '.join(counts)}"
    own = {f"{row['node']}.{name}": value for row in section["nodes"] for name, value in row["own"].items()}
    say(text, application=status["name"], outcome=report["outcome"], seconds=span, **totals, **own)
    if is_json():
        return
    say(plain(tables(section, RUN)))
    for line in (*error_lines(status), *checkpoint_lines(status)):
        say(f"  {line}")
    for line, figures in own_lines(section):
        say(f"  {line}: {pairs(figures)}")

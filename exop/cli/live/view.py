"""The display of running applications: a live table on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from exop.cli.live.rates import RUN, TOP, WORDS, Rates, Section, cells, own_figures, own_lines, title
from exop.cli.live.troubles import error_lines
from exop.cli.report import say
from exop.cli.text import columns, number, pairs, seconds
from exop.logs import is_json, logger
from exop.report import Totals

if TYPE_CHECKING:
    from rich.console import Console

#: How often a live table is drawn anew, and how often a log gets a line, in seconds.
LIVE_EVERY: Final = 1.0
LOG_EVERY: Final = 5.0
NOTHING: Final = "no application runs"


class View(Protocol):
    """The reports printed while an application runs."""

    every: float

    def opening(self, application: str, facts: Mapping[str, Any]) -> None:
        """Show that the slets are being opened; *facts* are the progress, as `opening` in the status."""
        ...

    def running(self, status: Mapping[str, Any]) -> None:
        """The figures of now; called every `every` seconds."""
        ...

    def close(self) -> None:
        """The run has ended; what is printed next stands for itself."""
        ...


class Quiet:
    """Shows nothing."""

    every = LOG_EVERY

    def opening(self, application: str, facts: Mapping[str, Any]) -> None:
        """Show nothing."""

    def running(self, status: Mapping[str, Any]) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


class Log:
    """One line every few seconds: for files, pipes and log collectors."""

    every = LOG_EVERY

    def __init__(self) -> None:
        self._rates = Rates()

    def opening(self, application: str, facts: Mapping[str, Any]) -> None:
        """Log one line with the slets that are open, and those that are not."""
        self._info("opening", application=application, **opening_facts(facts))

    def running(self, status: Mapping[str, Any]) -> None:
        """Log one line with the totals and the slets' own metrics."""
        section = self._rates.section(status)
        own = {f"{node}.{name}": value for node, own in self._own(status).items() for name, value in own.items()}
        self._info(
            status["state"],
            application=section.application,
            seconds=round(section.running_s, 1),
            items=section.items,
            rate=round(section.items_per_s),
            queued=section.queued,
            errors=section.errors,
            **own,
        )

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _own(self, status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the slets' own metrics: all for programs; for people the non-zero ones of sources and sinks."""
        own = own_figures(status)
        if is_json():
            return own
        ends = {node for node, one in status["nodes"].items() if one["role"] != "pi"}
        return {node: {name: value for name, value in own[node].items() if value} for node in own if node in ends}

    def _info(self, event: str, **facts: Any) -> None:
        logger("exop.run").info(event, **facts)


class Live:
    """A table that is drawn anew, below what slets and logs print, or on a whole *screen* of a terminal.

    What was on the screen before comes back at the end.
    """

    every = LIVE_EVERY

    def __init__(self, console: Console | None = None, *, screen: bool = False) -> None:
        # rich costs 40 ms: only a live table needs it.
        from rich.console import Console
        from rich.live import Live as Display

        self._rates = Rates()
        # What slets print on a terminal goes above the table; into a file or pipe it goes untouched.
        below = {"transient": True, "redirect_stdout": sys.stdout.isatty()}
        self._display = Display(
            console=console or Console(stderr=not screen), auto_refresh=False, **({"screen": True} if screen else below)
        )
        self._display.start()

    def opening(self, application: str, facts: Mapping[str, Any]) -> None:
        """Show the slets that are not ready yet."""
        from rich.text import Text

        told = opening_facts(facts)
        tail = f": waiting for {told['waiting']}" if "waiting" in told else ""
        self._display.update(Text(f"{application}: opening, {told['ready']} slets are ready{tail}"), refresh=True)

    def running(self, status: Mapping[str, Any]) -> None:
        """The table of now, with the slets' own metrics below it."""
        self._display.update(self.table(status), refresh=True)

    def table(self, status: Mapping[str, Any]) -> Any:
        """Return the table with the slets' own metrics below it."""
        from rich.console import Group
        from rich.text import Text

        own = [Text(f"{line}  {pairs(figures)}", style="dim") for line, figures in own_lines(status)]
        return Group(*_drawn(self._rates.section(status), RUN), *own)

    def show(self, head: str, sections: Sequence[Section]) -> None:
        """Draw a look at several applications."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(head, style="dim")]
        for section in sections:
            notes = [Text(note, style="bold red") for note in section.notes]
            parts += [Text(""), *_drawn(section, TOP), *notes]
        self._display.update(Group(*(parts if sections else [*parts, Text(NOTHING)])), refresh=True)

    def close(self) -> None:
        """Remove the table, and give the terminal back."""
        self._display.stop()


def _drawn(section: Section, columns: Sequence[str]) -> list[Any]:
    """The title and the table of an application."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, justify="left" if name in WORDS else "right", no_wrap=True)
    for row in section.nodes:
        table.add_row(*cells(row, columns), style="bold red" if row.state in ("failed", "suspended") else None)
    return [Text(title(section), style="bold"), table]


def plain(section: Section, head: Sequence[str]) -> str:
    """The table of an application as plain text."""
    return columns(head, [cells(row, head) for row in section.nodes], indent="  ")


def as_text(head: str, sections: Sequence[Section]) -> str:
    """A look at several applications as plain text."""
    parts = [head]
    for section in sections:
        parts += ["", title(section), plain(section, TOP), *(f"  {note}" for note in section.notes)]
    return "\n".join(parts if sections else [*parts, f"  {NOTHING}"])


def opening_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Describe the progress of an opening: the slets that are ready, and those that are not."""
    waited = ", ".join(f"{node} ({seconds(since)})" for node, since in facts["waiting"].items())
    return {"ready": f"{facts['opened']} of {facts['total']}"} | ({"waiting": waited} if waited else {})


def choose_view(*, quiet: bool) -> View:
    """The view that fits where stderr goes."""
    if quiet:
        return Quiet()
    return Live() if sys.stderr.isatty() and not is_json() else Log()


def print_summary(report: Mapping[str, Any]) -> None:
    """The last word on a run, for people."""
    status = report["status"]
    totals = Totals.of(status)
    span = status["running_s"]
    rate = number(round(totals.items / span)) if span else "0"
    counts = [
        f"{number(totals.items)} {'item' if totals.items == 1 else 'items'} ({rate}/s)",
        "1 error" if totals.errors == 1 else f"{totals.errors} errors",
    ]
    if totals.skipped:
        counts.append(f"{totals.skipped} skipped")
    if totals.dead:
        counts.append(f"{totals.dead} set aside as dead letters")
    if totals.queued:
        counts.append(f"{totals.queued} left in queues")
    title = f"{status['name']}: {report['outcome']} after {seconds(span)}: {', '.join(counts)}"
    if is_json():
        own = {f"{node}.{name}": value for node, own in own_figures(status).items() for name, value in own.items()}
        say(title, application=status["name"], outcome=report["outcome"], seconds=span, **vars(totals), **own)
        return
    say(title)
    say(plain(Rates().section(status), RUN))
    for line in error_lines(status):
        say(f"  {line}")
    for line, figures in own_lines(status):
        say(f"  {line}: {pairs(figures)}")

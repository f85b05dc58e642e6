"""How `exop top` looks: a screen that is drawn anew, or plain tables one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from exop.cli.rates import Row, Section
from exop.cli.text import columns, number, pause, seconds

if TYPE_CHECKING:
    from rich.console import Console

HEAD: Final = ("node", "state", "in/s", "out/s", "busy", "p50 ms", "p99 ms", "queued", "errors", "dead", "slet")
#: Columns of words; those of numbers stand to the right.
_WORDS: Final = ("node", "state", "slet")


def title(section: Section) -> str:
    """One line on an application."""
    change = section.last_change
    changed = f"  last change stood still for {pause(change['paused_ms'])}" if change else ""
    errors = f"  errors: {section.errors}" if section.errors else ""
    return (
        f"{section.application}  {section.state}  {seconds(section.running_s)}  revision {section.revision}"
        f"  {number(section.items)} items  {number(round(section.items_per_s))}/s  {number(section.queued)} queued"
        f"{errors}{changed}"
    )


def cells(row: Row) -> list[str]:
    """One node, under `HEAD`; times rest on samples, and are marked `~`."""
    return [
        row.node,
        row.state,
        "" if row.in_per_s is None else number(round(row.in_per_s)),
        "" if row.out_per_s is None else number(round(row.out_per_s)),
        "" if row.busy is None else f"~{row.busy:.0%}",
        "" if row.p50_ms is None else f"~{row.p50_ms:.3g}",
        "" if row.p99_ms is None else f"~{row.p99_ms:.3g}",
        number(row.queued),
        number(row.errors),
        number(row.dead_letters),
        row.slet,
    ]


def as_text(head: str, sections: Sequence[Section]) -> str:
    """The plain tables."""
    parts = [head]
    for section in sections:
        parts += ["", title(section), columns(HEAD, [cells(row) for row in section.nodes], indent="  ")]
        parts += [f"  {note}" for note in section.notes]
    if not sections:
        parts.append("  no application runs")
    return "\n".join(parts)


class Screen:
    """The whole terminal, drawn anew with every look; what was there before comes back at the end."""

    def __init__(self, console: Console | None = None) -> None:
        # rich costs 40 ms: only a live table needs it.
        from rich.console import Console
        from rich.live import Live as Display

        self._display = Display(console=console or Console(), auto_refresh=False, screen=True)
        self._display.start()

    def show(self, head: str, sections: Sequence[Section]) -> None:
        """Draw a look."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(head, style="dim")]
        for section in sections:
            parts += [Text(""), Text(title(section), style="bold"), _table(section)]
            parts += [Text(note, style="bold red") for note in section.notes]
        if not sections:
            parts.append(Text("no application runs"))
        self._display.update(Group(*parts), refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._display.stop()


def _table(section: Section) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in HEAD:
        table.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=True)
    for row in section.nodes:
        table.add_row(*cells(row), style="bold red" if row.state in ("failed", "suspended") else None)
    return table

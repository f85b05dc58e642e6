"""Facts as text: aligned columns that are never cut, so that they can be searched, and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from exop.safe_repr import clean, json_text, message


def columns(head: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Rows under their headings; a column of numbers stands to the right."""
    shown = [[clean(str(cell)) for cell in row] for row in rows]
    table = [list(head), *shown] if any(head) else shown
    if not table:
        return ""
    width = [max(len(line[index]) for line in table) for index in range(len(head))]
    right = [bool(shown) and all(_is_number(row[index]) for row in shown) for index in range(len(head))]
    lines = []
    for line in table:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, width, right, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print one JSON value on stdout; without *indent* on one line."""
    print(json_text(value, indent=indent, default=message), flush=True)


def number(value: float) -> str:
    """A count for people: grouped digits, and no more of them than say something."""
    if isinstance(value, float) and value < 100:
        return f"{value:.3g}" if value else "0"
    return f"{value:,.0f}"


def seconds(value: float) -> str:
    """A time span for people."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def pause(milliseconds: float) -> str:
    """Format how long a stream stood still: to a fraction of a millisecond, or in seconds."""
    return f"{milliseconds:.3g} ms" if milliseconds < 999.5 else seconds(milliseconds / 1000)


def pairs(figures: dict[str, Any]) -> str:
    """Figures of a slet's own on one line."""
    return "  ".join(
        f"{name} {number(value) if _counts(value) else clean(str(value))}" for name, value in figures.items()
    )


def _counts(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_number(text: str) -> bool:
    return not text.strip("0123456789.,~-%")

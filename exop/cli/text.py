"""Formats results as text and as JSON: numbers, and aligned columns, which are never truncated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from exop.cli.report import say
from exop.model.slets.spec import is_number
from exop.safe_repr import clean, json_text, message


def answer(facts: object, text: str | Callable[[], str], *, json: bool) -> int:
    """Print a result: *facts* as JSON, or else *text*. Return exit code 0.

    A command that only looks gives its text as a function. Any other text is what has become of a request: if stdout
    does not take it, it goes to stderr before the `OSError` of stdout is raised.
    """
    try:
        if json:
            print_json(facts)
        elif text:
            print(clean(text if isinstance(text, str) else text()), flush=True)
    except OSError as problem:
        problem.filename = "stdout"
        if text and isinstance(text, str):
            say(f"exop: {text}")
        raise
    return 0


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print one JSON value on stdout; without *indent* on one line."""
    print(json_text(value, indent=indent, default=message), flush=True)


def columns(head: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Format rows under their headings, or nothing without rows; columns of numbers are aligned to the right."""
    if not (shown := [["-" if cell is None else clean(str(cell)) for cell in row] for row in rows]):
        return ""
    table = [list(head), *shown] if any(head) else shown
    width = [max(len(line[index]) for line in table) for index in range(len(head))]
    right = [{"-"} < {"-", *"".join(row[at] for row in shown)} <= {*"0123456789.,~-%"} for at in range(len(head))]
    lines = []
    for line in table:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, width, right, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """Format a count: with grouped digits, below 100 with three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"


def seconds(value: float) -> str:
    """Format a time span."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def pause(milliseconds: float) -> str:
    """Format the length of a pause of the stream: to a fraction of a millisecond, or in seconds."""
    return f"{milliseconds:.3g} ms" if milliseconds < 999.5 else seconds(milliseconds / 1000)


def paused(milliseconds: float | None) -> str:
    """Return the suffix of a message about a change: the length of its pause, if known."""
    return "" if milliseconds is None else f"; the stream paused for {pause(milliseconds)}"


def pairs(figures: dict[str, Any]) -> str:
    """Format metrics by name on one line."""
    return "  ".join(f"{name} {number(one) if is_number(one) else clean(str(one))}" for name, one in figures.items())

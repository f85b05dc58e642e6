"""What ExoP logs and how it is shown: on stderr, for people or as JSON lines. The one place that sets up structlog."""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

FORMATS: Final = ("console", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass
class _Choice:
    """What the program that owns the process has asked for; nobody has while `made` is false."""

    level: int = logging.INFO
    form: str = "console"
    made: bool = False
    processors: list[Any] = field(default_factory=list)


_choice: Final = _Choice()


def set_up(level: str = "info", form: str = "console") -> None:
    """Decide what is shown and how; called once, by a program that owns its process (the command line does).

    Standard logging is routed the same way: all of ExoP's own from *level* on, that of libraries from `warning` on.
    A program that embeds a platform leaves this alone, and its own structlog configuration holds.
    """
    _choice.level = getattr(logging, level.upper())
    _choice.form = form
    _choice.made = True
    _choice.processors = []
    root = logging.getLogger()
    root.handlers = [_Route()]
    root.setLevel(max(_choice.level, logging.WARNING))
    logging.getLogger("exop").setLevel(_choice.level)


def logger(name: str) -> Any:
    """A structlog logger called *name*."""
    # structlog costs 70 ms: only those who have something to say import it.
    import structlog

    if structlog.is_configured() and not _choice.made:
        return structlog.get_logger(name)
    if not _choice.processors:
        _choice.processors = _processors()  # at once: several threads may come here first
    wrapper = structlog.make_filtering_bound_logger(_choice.level)
    return structlog.wrap_logger(_Stderr(), _choice.processors, wrapper).bind(logger=name)


def is_json() -> bool:
    """Whether what is logged is read by programs."""
    return _choice.form == "json"


def _processors() -> list[Any]:
    import structlog

    stamp = structlog.processors.TimeStamper
    if is_json():
        return [
            structlog.processors.add_log_level,
            stamp("iso"),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(default=str),
        ]
    colors = sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    console = structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=0, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )
    return [structlog.processors.add_log_level, stamp("%H:%M:%S", utc=False), _cleaned, console]


#: What moves the cursor, changes colours or turns the direction of the text; not the end of a line, nor a tabulator.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with its control characters as escapes: what is told may come from items, and stand in a terminal."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def tell(text: str) -> None:
    """Print a line on stderr; where that is closed, or full, there is nobody to be told, and everything runs on."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 (the one place where logs leave)


def _cleaned(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """Texts of an event as they may stand in a terminal."""
    return {name: clean(value) if isinstance(value, str) else value for name, value in event.items()}


class _Stderr:
    """Prints on what stderr is now: a live display, or a test, may have put something in its place."""

    def msg(self, text: str) -> None:
        tell(text)

    debug = info = warning = error = critical = exception = msg


class _Route(logging.Handler):
    """Hands what standard logging is told to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            method = getattr(logger(record.name), record.levelname.lower(), None) or logger(record.name).error
            method(record.getMessage(), exc_info=record.exc_info)
        except Exception:  # noqa: BLE001 (as every handler: a log line that fails does not stop the platform)
            self.handleError(record)

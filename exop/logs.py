"""What ExoP logs and how it is shown: on stderr, for people or as JSON lines. The one place that sets up structlog."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from exop.shown import class_of, indented, message, shown, traceback_of

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
        render = structlog.processors.JSONRenderer(default=message)
        return [structlog.processors.add_log_level, stamp("iso"), _as_data, render]
    colors = sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    console = structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, sort_keys=False)
    return [structlog.processors.add_log_level, stamp("%H:%M:%S", utc=False), _with_traceback, _cleaned, console]


def tell(text: str) -> None:
    """Print a line on stderr; where that is closed, or full, there is nobody to be told, and everything runs on."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 (the one place where logs leave)


def _raised(found: Any) -> BaseException | None:
    """The exception that is logged, by `exc_info` as standard logging and structlog take it."""
    error = found[1] if type(found) is tuple else sys.exc_info()[1] if found is True else found
    return error if issubclass(type(error), BaseException) else None


def _with_traceback(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """The exception of an event as text under `exception`: no class of the user's can break, or forge, a log line."""
    error = _raised(event.pop("exc_info", None))
    return event if error is None else {**event, "exception": traceback_of(error).rstrip()}


def _as_data(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """The exception of an event as data: its class and message beside the text."""
    error = _raised(event.pop("exc_info", None))
    if error is None:
        return event
    facts = {"exc_type": class_of(error), "exc_value": message(error), "traceback": traceback_of(error)}
    return {**event, "exception": [facts]}


def _cleaned(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """An event as text for a terminal: no value holds control characters, or begins a line."""
    cleaned = {name: indented(value) if type(value) is str else _Shown(value) for name, value in event.items()}
    if "exception" in cleaned:
        cleaned["exception"] = f"    {cleaned['exception']}"
    return cleaned


class _Shown:
    """Any other value: the renderer shows its `repr()`."""

    def __init__(self, value: Any) -> None:
        self._text = shown(value)

    def __repr__(self) -> str:
        return self._text


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

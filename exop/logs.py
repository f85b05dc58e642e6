"""ExoP's log output: on stderr, for people or as JSON lines. The only module that configures structlog."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from exop.safe_repr import Verbatim, class_of, indented, message, safe_repr, traceback_of

LEVELS: Final = ("debug", "info", "warning", "error")
#: Parts of the paths of libraries: the standard library, and installed packages.
_LIBRARIES: Final = (f"{os.path.dirname(os.__file__)}{os.sep}", "site-packages", "dist-packages")


@dataclass
class _Choice:
    """The logging configuration of the program; the default while `made` is false."""

    level: int = logging.INFO
    form: str = "console"
    named: Mapping[str, int] = field(default_factory=dict)
    made: bool = False
    processors: list[Any] = field(default_factory=list)


_choice: Final = _Choice()


def set_up(level: str = "info", form: str = "console", named: Mapping[str, str] | None = None) -> None:
    """Configure logging; called once, by a program that owns its process, such as the command line.

    Records of standard logging are routed to structlog: those of ExoP and of the user's code from *level* on, those
    of libraries from `warning` on. *named* sets other levels for loggers and their descendants. A program that embeds
    a platform configures structlog itself instead of calling this function.
    """
    for name in _choice.named:
        logging.getLogger(name).setLevel(logging.NOTSET)
    levels = {name: getattr(logging, one.upper()) for name, one in (named or {}).items()}
    vars(_choice).update(vars(_Choice(getattr(logging, level.upper()), form, levels, made=True)))
    root = logging.getLogger()
    root.handlers = [_Route()]
    root.setLevel(min(_choice.level, logging.WARNING))
    for name, one in {"exop": _choice.level, **_choice.named}.items():
        logging.getLogger(name).setLevel(one)


def levels_in(texts: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Parse `LEVEL` and `LOGGER=LEVEL`; return the general level and those of loggers. The last value of each counts.

    Raises:
        ValueError: a level does not exist.
    """
    general, named = "info", {}
    for text in texts:
        name, _, level = text.rpartition("=")
        if level.lower() not in LEVELS:
            raise ValueError(f"there is no level {level!r}; known: {', '.join(LEVELS)}; or LOGGER=LEVEL")
        if name:
            named[name] = level.lower()
        else:
            general = level.lower()
    return general, named


class Located(logging.Filter):
    """Adds to every record the `application` and `node` of the slet that logs it; both are empty outside of slets.

    A filter for the handlers of programs that set up logging themselves. The slet is determined only when a record is
    created, so the filter adds no cost per item.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add both attributes to the record, and accept it."""
        # The runtime is a layer above this module; while it is not imported, no slet runs.
        runtime = sys.modules.get("exop.runtime.supervision.watchdog")
        record.application, record.node = (runtime.current_node() if runtime is not None else None) or ("", "")
        return True


def logger(name: str) -> Any:
    """Return a structlog logger named *name*."""
    # Imported lazily: structlog costs 70 ms.
    import structlog

    if structlog.is_configured() and not _choice.made:
        return structlog.get_logger(name)
    if not _choice.processors:
        _choice.processors = _processors()  # one assignment, since several threads may arrive here at once
    wrapper = structlog.make_filtering_bound_logger(_level_of(name) or _choice.level)
    return structlog.wrap_logger(_STDERR, _choice.processors, wrapper).bind(logger=name)


def _level_of(name: str) -> int | None:
    """Return the configured level of a logger, or of its nearest ancestor that has one."""
    while name and name not in _choice.named:
        name = name.rpartition(".")[0]
    return _choice.named.get(name)


def is_json() -> bool:
    """Whether logs are written as JSON."""
    return _choice.form == "json"


def _processors() -> list[Any]:
    import structlog

    stamp = structlog.processors.TimeStamper
    if is_json():
        render = structlog.processors.JSONRenderer(default=message)
        return [structlog.processors.add_log_level, stamp("iso"), _with_exception, render]
    colors = sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    console = structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, sort_keys=False)
    return [structlog.processors.add_log_level, stamp("%H:%M:%S", utc=False), _with_exception, _cleaned, console]


def print_stderr(text: str) -> None:
    """Print a line on stderr; if stderr is closed or full, the line is lost and the program continues."""
    with suppress(OSError, ValueError):
        print(f"{text}\n", end="", file=sys.stderr, flush=True)  # noqa: T201 (the only output of logs; in one piece)


def _with_exception(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """Store the exception of an event under `exception`: its traceback; in JSON also its class and message, as data."""
    found = event.pop("exc_info", None)  # in any form that standard logging and structlog accept
    error: Any = found[1] if type(found) is tuple else sys.exc_info()[1] if found is True else found
    if not issubclass(type(error), BaseException):
        return event
    text = traceback_of(error)
    facts = {"exc_type": class_of(error), "exc_value": message(error), "traceback": text}
    return {**event, "exception": [facts] if is_json() else f"    {text.rstrip()}"}


def _cleaned(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
    """Make an event safe for a terminal: remove control characters and line breaks from all values."""
    return {name: indented(one) if type(one) is str else Verbatim(safe_repr(one)) for name, one in event.items()}


#: Prints to the current `sys.stderr`, which a live display or a test may have replaced.
_STDERR: Final = SimpleNamespace(**dict.fromkeys((*LEVELS, "critical"), print_stderr))


class _Route(logging.Handler):
    """Passes the records of standard logging to structlog."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept a record of a library only from `warning` on, unless its logger has a level."""
        wanted = record.levelno >= logging.WARNING or _level_of(record.name) is not None
        ours = record.name.partition(".")[0] == "exop" or not any(place in record.pathname for place in _LIBRARIES)
        return (wanted or ours) and Located().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            method = getattr(logger(record.name), record.levelname.lower(), None) or logger(record.name).error
            places = {name: place for name in ("application", "node") if (place := getattr(record, name))}
            method(record.getMessage(), **places, exc_info=record.exc_info)
        except Exception:  # noqa: BLE001 (as in every handler: a log record that fails must not stop the platform)
            self.handleError(record)

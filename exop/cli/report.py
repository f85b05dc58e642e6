"""The end of a command: errors as one line on stderr, exit codes, and the signals that ask a run to stop."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TypeVar

from exop import errors
from exop.errors import ComponentFailed, ExopError
from exop.logs import is_json, logger, print_stderr
from exop.safe_repr import class_of, clean, error_text, frames_of, notes_of, traceback_of

T = TypeVar("T")

#: Exit codes. After an interrupted run, the code is 130 (Ctrl-C) or 143 (SIGTERM), as shells expect.
DONE: Final = 0
FAILED: Final = 1
MISTAKE: Final = 2
#: A run has processed all items except those that were set aside.
LETTERS: Final = 3
INTERRUPTED: Final = 130

#: Errors of ExoP that are not a mistake of the user, but failures at run time.
_FAILURES: Final = (
    errors.OperationFailed,
    errors.LifecycleError,
    errors.PlatformBusy,
    errors.NotNow,
    errors.ShadowFailed,
    errors.ConnectionLost,
    errors.CallTimeout,
    errors.ChannelClosed,
    errors.ChannelFull,
    errors.LastCheckpointFailed,
)
#: Errors of a slet's environment that a user can repair: a file, a permission, a free port.
_ENVIRONMENT: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

#: The interval at which signals are checked, in seconds.
TICK: Final = 0.1
_SHOW_CURSOR: Final = b"\x1b[?25h"


class Failure(Exception):
    """Contains an error that was raised while a change was carried out: the exit code is 1 for any class of error."""


def exit_code(error: BaseException) -> int:
    """Whether *error* is the user's mistake (2) or a failure (1)."""
    if isinstance(error, ComponentFailed):
        cause = error.__cause__
        refused = error.facts.get("phase") == "opening" and issubclass(type(cause), ExopError)
        return MISTAKE if refused or _in_environment(cause) else FAILED
    if isinstance(error, ExopError):
        return FAILED if isinstance(error, _FAILURES) else MISTAKE
    return MISTAKE if _in_environment(error) else FAILED


def say(text: str, **facts: object) -> None:
    """Print a message on stderr; stdout is for answers and for the output of slets.

    With `--log-format json` it is a log line with *facts*. Further lines are indented, so that no line of an
    exception's text looks like another message.
    """
    if is_json():
        logger("exop.cli").info(text, **facts)
    else:
        print_stderr(re.sub(r"\n(?=\S)", "\n    ", clean(text)))


def report_error(error: BaseException, *, debug: bool = False) -> int:
    """Print *error* as one line, its place or notes as one further line, and return the exit code."""
    if isinstance(error, Failure):
        report_error(error.args[0], debug=debug)
        return FAILED
    if is_json():
        shown = {"exc_info": error} if debug else {}
        logger("exop.cli").error(str(error), error=class_of(error), notes=further(error), **shown)
    elif debug:
        print_stderr(traceback_of(error).rstrip())
    elif isinstance(error, (ExopError, OSError)):
        say(f"exop: {error}")
        if more := further(error):
            say(f"  {more}")
    else:
        say(f"exop: a defect, please report it: {error_text(error)}")
        say("  `exop --debug …` shows where")
    return exit_code(error)


def further(error: BaseException) -> str:
    """The second line: the notes of the error, or the place in the user's code where it or its cause was raised."""
    if notes := [note.splitlines()[0] for note in notes_of(error) if note]:
        return "; ".join(notes)
    cause = error.__cause__
    if isinstance(error, errors.MeshError) and cause is None:
        return f"at {place}" if (place := where(error)) else ""
    if cause is None or issubclass(type(cause), ExopError):
        return ""
    place = where(cause)
    notes = [note.splitlines()[0] for note in notes_of(cause) if note]
    return "; ".join([*notes, *([f"raised at {place}"] if place and place not in str(error) else [])])


def where(error: BaseException) -> str:
    """The innermost line of user code in the traceback of *error*."""
    if issubclass(type(error), SyntaxError) and isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    ours = str(Path(errors.__file__).parent)
    for frame in reversed(frames_of(error)):
        if not (frame.filename.startswith((ours, sys.base_prefix, "<")) or "site-packages" in frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _in_environment(error: BaseException | None) -> bool:
    return issubclass(type(error), _ENVIRONMENT) or (type(error) is OSError and error.errno == errno.EADDRINUSE)


@dataclass
class Stopping:
    """Counts Ctrl-C and SIGTERM while the block runs. The handler does nothing else: it may run at any point.

    Attributes:
        patience: The signal after this many kills the process immediately.
        count: The number of signals so far.
        key: The name of the last one, as its sender knows it.
    """

    patience: int = 2
    count: int = 0
    last: int = signal.SIGINT
    key: str = "Ctrl-C"
    _before: dict[int, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects of a process that the last signal has ended."""
        return 128 + self.last

    def __enter__(self) -> Self:
        # Only the main thread can handle signals; a run in another thread is stopped by its owner.
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._noted) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def carry_out(self, steps: Callable[[], T], look: Callable[[], object] = bool) -> list[T]:
        """Carry out *steps*, and *look* meanwhile; return their result, or nothing if a signal has ended them.

        They run in a thread, so that a signal is noticed while a slow engine starts: the first one gives up the slets
        that are being opened, the second kills the process.
        """
        # Imported lazily: most commands open no slets.
        from concurrent.futures import ThreadPoolExecutor, wait

        from exop.runtime.supervision.interrupts import Request, delegated

        patience, self.patience, request = self.patience, 1, Request()
        with ThreadPoolExecutor(1, thread_name_prefix="exop bring up") as pool:
            running = pool.submit(delegated(steps, request))
            while not wait([running], TICK).done:
                if self.count and not request.kept:
                    request.keep(KeyboardInterrupt())
                    say(f"what is being opened is given up; {self.key} again kills the process")
                look()
        self.patience = patience
        return [] if request.kept and running.exception() is not None else [running.result()]

    def _noted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.last, self.key = number, "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        if self.count > self.patience:
            # The signal may have interrupted print(): only calls that are safe here.
            os.write(2, (_SHOW_CURSOR if sys.__stderr__ and sys.__stderr__.isatty() else b"") + b"exop: killed\n")
            os._exit(self.exit_code)

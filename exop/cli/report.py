"""The end of a command: errors as one line on stderr, and the exit codes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from exop import errors
from exop.errors import ComponentFailed, ExopError
from exop.logs import is_json, logger
from exop.logs import tell as to_stderr
from exop.safe_repr import class_of, clean, described, frames_of, notes_of, traceback_of

#: Exit codes. After Ctrl-C that did not end cleanly it is 130, after SIGTERM 143, as a shell expects.
DONE: Final = 0
FAILED: Final = 1
MISTAKE: Final = 2
#: A run has processed everything, except for what was set aside.
LETTERS: Final = 3
INTERRUPTED: Final = 130

#: Errors of ExoP that are no mistake of the user: something broke while it ran.
_FAILURES: Final = (
    errors.OperationFailed,
    errors.LifecycleError,
    errors.PlatformBusy,
    errors.StillOpening,
    errors.ConnectionLost,
    errors.CallTimeout,
    errors.ChannelClosed,
    errors.ChannelFull,
)
#: Errors of a slet's environment that a person can repair: a file, a permission, a free port.
_SURROUNDINGS: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class Failure(Exception):
    """An error that came while something was carried out: exit code 1, whatever its class."""

    def __init__(self, error: ExopError) -> None:
        super().__init__(str(error))
        self.error = error


def exit_code(error: BaseException) -> int:
    """Whether *error* is the user's mistake (2) or a failure (1)."""
    if isinstance(error, ComponentFailed):
        cause = error.__cause__
        if _in_surroundings(cause) or (error.facts.get("phase") == "opening" and issubclass(type(cause), ExopError)):
            return MISTAKE
        return FAILED
    if isinstance(error, ExopError):
        return FAILED if isinstance(error, _FAILURES) else MISTAKE
    return MISTAKE if _in_surroundings(error) else FAILED


def say(text: str, **facts: object) -> None:
    """Tell the person at the terminal something; stdout stays for facts and for what slets print.

    With `--log-format json` it is a log line like any other, and has *facts*. Further lines are indented, so
    that no line of an exception's text looks like the line of another event.
    """
    if is_json():
        logger("exop.cli").info(text, **facts)
    else:
        to_stderr(re.sub(r"\n(?=\S)", "\n    ", clean(text)))


def tell(error: BaseException, *, debug: bool = False) -> int:
    """Print *error* as one line, its place or notes as one further line, and return the exit code."""
    if isinstance(error, Failure):
        tell(error.error, debug=debug)
        return FAILED
    if is_json():
        shown = {"exc_info": error} if debug else {}
        logger("exop.cli").error(str(error), error=class_of(error), notes=further(error), **shown)
    elif debug:
        to_stderr(traceback_of(error).rstrip())
    elif isinstance(error, (ExopError, OSError)):
        say(f"exop: {error}")
        more = further(error)
        if more:
            say(f"  {more}")
    else:
        say(f"exop: a defect, please report it: {described(error)}")
        say("  `exop --debug …` shows where")
    return exit_code(error)


def further(error: BaseException) -> str:
    """The line after the first: the notes of the error, or where in the user's code it or its cause was raised."""
    notes = [note.splitlines()[0] for note in notes_of(error) if note]
    if notes:
        return "; ".join(notes)
    cause = error.__cause__
    if isinstance(error, errors.MeshError) and cause is None:
        place = where(error)
        return f"at {place}" if place else ""
    if cause is None or issubclass(type(cause), ExopError):
        return ""
    place = where(cause)
    notes = [note.splitlines()[0] for note in notes_of(cause) if note]
    return "; ".join([*notes, *([f"raised at {place}"] if place else [])])


def where(error: BaseException) -> str:
    """The innermost line of code that is neither ExoP's, nor Python's own, on the way of *error*."""
    if issubclass(type(error), SyntaxError) and isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    ours = str(Path(errors.__file__).parent)
    for frame in reversed(frames_of(error)):
        if not (frame.filename.startswith((ours, sys.base_prefix, "<")) or "site-packages" in frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _in_surroundings(error: BaseException | None) -> bool:
    import errno

    return issubclass(type(error), _SURROUNDINGS) or (type(error) is OSError and error.errno == errno.EADDRINUSE)

"""Items and errors of the user's own classes as text: one that cannot be shown must not end what reports on it.

What is shown may stand in a terminal: control characters are written as escapes, and nothing is longer than a screen.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from exop.logs import clean

#: So many characters of an error's text, and of a traceback, are shown.
MESSAGE: Final = 1000
TRACEBACK: Final = 20_000
#: Files whose frames stand between a driver and a slet: the compiled ways, and this package.
_CALLERS: Final = ("<fused ", str(Path(__file__).parent))


def shown(item: object, most: int = 500) -> str:
    """The item's `repr()`, shortened; whose `repr()` raises, of that the class."""
    try:
        text = repr(item)
    except Exception as problem:  # noqa: BLE001 (whatever a class of the user's raises)
        return f"{type(item).__name__} (its repr() raised {type(problem).__name__})"
    return clean(text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)")


def message(error: BaseException) -> str:
    """What an exception says, shortened; of one whose `str()` raises, that it does."""
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 (whatever a class of the user's raises)
        return f"(its str() raised {type(problem).__name__})"
    return clean(text if len(text) <= MESSAGE else f"{text[:MESSAGE]}… ({len(text)} characters)")


def without_own_frames(error: BaseException) -> None:
    """Drop the frames from which the platform called a slet: the traceback then begins in the user's code."""
    trace, own = error.__traceback__, None
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_CALLERS):
        own = trace  # the last one stays where the platform itself has raised
        trace = trace.tb_next
    if trace is None and own is not None and not own.tb_frame.f_code.co_filename.startswith(_CALLERS[0]):
        trace = own
    # With `with_traceback` of the base class: a class of the user's may forbid to set attributes.
    BaseException.with_traceback(error, trace)


def described(error: BaseException) -> str:
    """The class of an exception and what it says."""
    return f"{type(error).__name__}: {message(error)}"


def traceback_of(error: BaseException, without: type[BaseException] | None = None) -> str:
    """The traceback, as Python prints it; what was raised by *without* before is no part of it."""
    told = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = told
    while part is not None:
        if part.__context__ is not None and part.__context__.exc_type is without:
            part.__context__ = None
        part = part.__cause__ or part.__context__
    text = "".join(told.format())
    if len(text) > TRACEBACK:  # what is in the middle of a long one is the least telling
        half = TRACEBACK // 2
        text = f"{text[:half]}\n… ({len(text) - TRACEBACK} characters) …\n{text[-half:]}"
    return clean(text)

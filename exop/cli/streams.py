"""Standard streams on which anything can be printed: also those that were closed before the program began (`2>&-`)."""

from __future__ import annotations

import io
import os
import sys
from typing import Final

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Give Python a stream where it has none, and keep the descriptor from becoming that of the next file.

    What a stream cannot encode (the name of a file that is no text, an arrow in an old locale) is printed as an escape.
    """
    for descriptor, (name, mode) in enumerate(_STREAMS):
        stream = getattr(sys, name)
        if stream is not None:
            if mode == "w" and isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)
        if not _is_open(descriptor):
            os.dup2(nowhere, descriptor)
        setattr(sys, name, open(nowhere, mode, encoding="utf-8"))  # noqa: SIM115 (it is open as long as the program)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True

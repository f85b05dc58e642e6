"""Standard streams that were closed before the program began (`2>&-`): they lead nowhere, instead of into a file."""

from __future__ import annotations

import os
import sys
from typing import Final

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Give Python a stream where it has none, and keep the descriptor from becoming that of the next file."""
    for descriptor, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
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

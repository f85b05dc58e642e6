"""Ctrl-C and SIGTERM, counted: the first one ends the sources and drains, the second stops, the third kills."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR: Final = b"\x1b[?25h"


class Stopping:
    """Counts the requests to stop while the block runs. The handler does nothing else: it may run at any point.

    Attributes:
        count: So many requests have come.
        patience: One more than that ends the process on the spot, whatever it waits for.
    """

    def __init__(self, patience: int = 2) -> None:
        self.count = 0
        self.patience = patience
        self.last: int = signal.SIGINT
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects of a process that this signal has ended."""
        return 128 + self.last

    def __enter__(self) -> Self:
        # Python lets the main thread alone handle signals; a run elsewhere is stopped by its owner.
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._noted) for each in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.last = number
        if self.count > self.patience:
            # print() may be what was interrupted: only calls that are safe here.
            os.write(2, (_SHOW_CURSOR if sys.__stderr__ and sys.__stderr__.isatty() else b"") + b"exop: killed\n")
            os._exit(self.exit_code)

"""A shared allowance of bytes for large messages, so that many connections cannot add up."""

from __future__ import annotations

import threading
import time


class Budget:
    """Bytes that all connections of a server share; small messages take nothing.

    Without it 64 connections with 4 MiB under way each, copied once or twice, were a gigabyte.
    """

    def __init__(self, total: int, free_up_to: int) -> None:
        self._left = total
        self._total = total
        self._free_up_to = free_up_to
        self._changed = threading.Condition()

    @property
    def left(self) -> int:
        """Bytes that are free at the moment."""
        return self._left

    def take(self, size: int, deadline: float) -> int:
        """Wait for *size* bytes until *deadline* (of `time.monotonic`); return what has to be given back.

        Raises:
            TimeoutError: others held the allowance for too long.
        """
        if size <= self._free_up_to:
            return 0
        size = min(size, self._total)
        with self._changed:
            if not self._changed.wait_for(lambda: self._left >= size, max(0.0, deadline - time.monotonic())):
                raise TimeoutError("other large messages are under way")
            self._left -= size
        return size

    def give(self, size: int) -> None:
        """Return what `take` gave out."""
        if size:
            with self._changed:
                self._left += size
                self._changed.notify_all()

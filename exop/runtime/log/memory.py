"""`OffsetLog`: a log in memory, which ends with its process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from exop.errors import MeshError
from exop.runtime.convert import cut, weight


class OffsetLog:
    """Batches under row offsets, in memory: appended at the end, read from any offset, trimmed from the front.

    What an engine with offsets of its own reads from. Row `o` keeps its offset for ever; `start` is the oldest row
    that is still kept, `end` the offset of the next one.
    """

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self._batches: list[Any] = []
        self._offsets: list[int] = []
        self._head = 0
        self._lock = threading.Lock()

    def append(self, batch: Any) -> int:
        """Add a batch (a list, or a record batch); returns the offset of the next row."""
        with self._lock:
            size = weight(batch)
            if size:
                self._batches.append(batch)
                self._offsets.append(self.end)
                self.end += size
            return self.end

    def read(self, start: int, end: int) -> list[Any]:
        """The rows from *start* up to *end*, as slices of the batches that hold them.

        Raises:
            MeshError: rows that are not kept any more, or not yet there.
        """
        with self._lock:
            check_range(start, end, self.start, self.end)
            first = max(self._head, bisect_right(self._offsets, start, lo=self._head) - 1)
            found = []
            for index in range(first, len(self._batches)):
                offset, batch = self._offsets[index], self._batches[index]
                if offset >= end:
                    break
                found.append(cut(batch, max(0, start - offset), min(weight(batch), end - offset)))
            return [batch for batch in found if weight(batch)]

    def trim(self, offset: int) -> None:
        """Forget the rows before *offset* (whole batches)."""
        with self._lock:
            while self._head < len(self._batches):
                after = self._offsets[self._head] + weight(self._batches[self._head])
                if after > offset:
                    break
                self._batches[self._head] = None
                self._head += 1
                self.start = after
            if self._head > len(self._batches) // 2:  # rarely, so that a trim costs next to nothing on average
                del self._batches[: self._head], self._offsets[: self._head]
                self._head = 0

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every row that is kept; record batches stay as they are."""
        with self._lock:
            for place, batch in enumerate(self._batches):
                if isinstance(batch, list):
                    self._batches[place] = type(batch)(map(replace, batch))

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin at *offset*."""
        self.start = self.end = offset


def check_range(start: int, end: int, kept: int, there: int) -> None:
    """Refuse to read what is not there.

    Raises:
        MeshError: rows that are not kept any more, or not yet there.
    """
    if not kept <= start <= end <= there:
        raise MeshError(f"rows {start} to {end} were asked for; kept are {kept} to {there}")

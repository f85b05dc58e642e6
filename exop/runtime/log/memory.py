"""The log in memory, and what it shares with the log on disk: the retention and the check of a range."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from exop.errors import MeshError
from exop.runtime.convert import cut, weight

#: When appended rows are forced to the disk: with every append, with every checkpoint (`sync()`), or when the operating
#: system does it. The death of the process alone loses nothing in any of them.
Fsync: TypeAlias = Literal["append", "checkpoint", "never"]


@dataclass(frozen=True)
class Retention:
    """The retention of a log; without bounds it keeps everything. Only whole segments are dropped, never the newest.

    Attributes:
        items: The number of rows to keep at least.
        seconds: The seconds for which rows are kept at least.
        size: The number of bytes to keep at most, roughly; it takes precedence over the two bounds above.
        segment: The size in bytes at which a new segment begins (one also begins after `seconds`).
        fsync: When appended rows are forced to the disk.

    Raises:
        MeshError: a bound that keeps nothing.
    """

    items: int | None = None
    seconds: float | None = None
    size: int | None = None
    segment: int = 16 * 2**20
    fsync: Fsync = "checkpoint"

    def __post_init__(self) -> None:
        for name in ("items", "seconds", "size", "segment"):
            bound = getattr(self, name)
            if bound is not None and bound <= 0:
                raise MeshError(f"a log that keeps {name}={bound} keeps nothing; give more than 0, or leave it out")

    @property
    def endless(self) -> bool:
        """Whether nothing is ever dropped."""
        return self.items is None and self.seconds is None and self.size is None


class OffsetLog:
    """Batches under row offsets, in memory: appended at the end, read from any offset, trimmed from the front.

    Attributes:
        start: The oldest offset kept.
        end: The offset of the next row.
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
        """Return the rows from *start* up to *end*, as slices of the batches that hold them; see `check_range`."""
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
        """Drop the rows before *offset* (whole batches)."""
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
        """Apply *replace* to every row kept; record batches stay as they are."""
        with self._lock:
            for place, batch in enumerate(self._batches):
                if isinstance(batch, list):
                    self._batches[place] = type(batch)(map(replace, batch))

    def begin_at(self, offset: int) -> None:
        """Let an empty log begin at *offset*."""
        self.start = self.end = offset


def check_range(start: int, end: int, kept: int, there: int) -> None:
    """Raise `MeshError` for rows that are no longer kept, or not yet appended."""
    if not kept <= start <= end <= there:
        raise MeshError(f"rows {start} to {end} were asked for; kept are {kept} to {there}")

"""`OffsetLog`: a log in memory; with the retention and the check of a range, which the log on disk shares."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from exop.errors import MeshError
from exop.runtime.convert import cut, weight

#: When appended rows are forced to the disk: with every append, with every checkpoint (`sync()`), or when the operating
#: system does it. If only the process dies, nothing is lost in any case.
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

    def __init__(self, start: int = 0) -> None:
        self.start = self.end = start
        self._batches: deque[tuple[int, Any]] = deque()  # with the offset of the first row
        self._lock = threading.Lock()

    def append(self, batch: Any) -> int:
        """Add a batch (a list, or a record batch); return the offset of the next row."""
        with self._lock:
            if size := weight(batch):
                self._batches.append((self.end, batch))
                self.end += size
            return self.end

    def read(self, start: int, end: int) -> list[Any]:
        """Return the rows from *start* up to *end*, as slices of the batches that hold them; see `check_range`."""
        with self._lock:
            check_range(start, end, self.start, self.end)
            first = max(0, bisect_right(self._batches, start, key=itemgetter(0)) - 1)
            last = bisect_left(self._batches, end, key=itemgetter(0))
            held = islice(self._batches, first, last)
            found = [cut(batch, max(0, start - at), min(weight(batch), end - at)) for at, batch in held]
            return [batch for batch in found if weight(batch)]

    def trim(self, offset: int) -> None:
        """Drop the rows before *offset* (whole batches)."""
        with self._lock:
            while self._batches and (after := self._batches[0][0] + weight(self._batches[0][1])) <= offset:
                self._batches.popleft()
                self.start = after

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every row kept; record batches stay as they are."""
        with self._lock:
            self._batches = deque(
                (at, type(batch)(map(replace, batch)) if isinstance(batch, list) else batch)
                for at, batch in self._batches
            )


def check_range(start: int, end: int, kept: int, there: int) -> None:
    """Raise `MeshError` for rows that are no longer kept, or not yet appended."""
    if not kept <= start <= end <= there:
        raise MeshError(f"rows {start} to {end} were asked for; kept are {kept} to {there}")

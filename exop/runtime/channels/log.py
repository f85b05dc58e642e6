"""`log`: keeps what passes under increasing offsets; readers go through it at their own pace, from any offset."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from exop.errors import MeshError
from exop.runtime.channel import Channel, Outlet
from exop.runtime.channels.latch import storing
from exop.runtime.convert import cut, to_items, weight
from exop.runtime.entry import Entry, fan_out


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
        """Add a batch (a list, or a record batch); returns the offset after it."""
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
            if not self.start <= start <= end <= self.end:
                raise MeshError(f"rows {start} to {end} were asked for; kept are {self.start} to {self.end}")
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


class LogChannel(Channel):
    """Passes items on and keeps the last `keep` of them under offsets, in memory.

    Extended interface: `replay(start, end)`, `start`, `end`, `trim(offset)`.
    """

    kind: ClassVar[str] = "log"

    def __init__(self, name: str, *, keep: int = 100_000) -> None:
        super().__init__(name)
        if keep < 1:
            raise MeshError(f"the log {name!r} keeps {keep} items: it must be at least 1")
        self._keep = keep
        self._log = OffsetLog()

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Keep, then hand on."""
        return storing(self._keep_items, fan_out([outlet.entry for outlet in outlets]), self._keep_batch)

    @property
    def start(self) -> int:
        """The oldest offset that is kept."""
        return self._log.start

    @property
    def end(self) -> int:
        """The offset of the next item."""
        return self._log.end

    def replay(self, start: int, end: int | None = None) -> list[Any]:
        """The items from offset *start* on, up to *end*.

        Raises:
            MeshError: they are not kept any more.
        """
        pieces = self._log.read(start, self._log.end if end is None else end)
        return [item for piece in pieces for item in to_items(piece)]

    def trim(self, offset: int) -> None:
        """Forget what stands before *offset*."""
        self._log.trim(offset)

    def metrics(self) -> dict[str, int | float | str]:
        """The range of offsets kept."""
        return {"start": self.start, "end": self.end}

    def capture(self) -> Mapping[str, Any]:
        """What is kept, and at which offset it begins."""
        return {"start": self.start, "items": self.replay(self.start)}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Keep it again under the same offsets."""
        self._log = OffsetLog()
        self._log.start = self._log.end = held["start"]
        self._keep_batch(held["items"])

    def _keep_items(self, items: Iterable[Any]) -> None:
        self._keep_batch(list(items))

    def _keep_batch(self, batch: Any) -> None:
        self._log.append(batch)
        if self._log.end - self._log.start > self._keep:
            self._log.trim(self._log.end - self._keep)

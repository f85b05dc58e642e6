"""`EventLog`: rows under offsets, with the control items between them; `MemoryLog`: one in memory."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from exop.errors import MeshError
from exop.model.items import CONTROL, Punctuation
from exop.runtime.dataflow.batches import cut, to_items, weight

if TYPE_CHECKING:
    from exop.runtime.log.disk import DiskLog

#: Rows in lists and record batches, and control items, appended at the end, read from any position, trimmed in front.
EventLog: TypeAlias = "MemoryLog | DiskLog"
#: When appended rows are forced to the disk: with every append, with every checkpoint (`sync()`), or by the operating
#: system alone. A crash of the process alone never loses rows.
Fsync: TypeAlias = Literal["append", "checkpoint", "never"]
#: The number of punctuations that a log with retention stores after one row; later ones replace the last of these.
_MOST_MARKS = 100_000
_PLACE = itemgetter(0, 1)
_GONE = (0, 0, None)


@dataclass(frozen=True)
class Retention:
    """The retention of a log; without limits, no row is dropped. Only whole segments are dropped, never the newest.

    Attributes:
        items: The least number of rows to store.
        seconds: The least number of seconds for which rows are stored.
        size: The largest number of bytes to store on disk; it takes precedence over the two limits above.
        segment: The size in bytes at which a new segment begins (one also begins after `seconds`); at most a quarter of
            `size`. A single batch may be larger.
        fsync: When appended rows are forced to the disk.
    """

    items: int | None = None
    seconds: float | None = None
    size: int | None = None
    segment: int = 16 * 2**20
    fsync: Fsync = "checkpoint"

    def __post_init__(self) -> None:
        for name in ("items", "seconds", "size", "segment"):
            if (bound := getattr(self, name)) is not None and bound <= 0:
                raise MeshError(f"a log that keeps {name}={bound} keeps nothing; give more than 0, or leave it out")
        if self.size is not None:
            object.__setattr__(self, "segment", min(self.segment, max(1, self.size // 4)))

    @property
    def endless(self) -> bool:
        """Whether no row is ever dropped."""
        return self.items is None and self.seconds is None and self.size is None


class Position(NamedTuple):
    """A place in a log, before the next event: the rows before it, and the control items since the last of these rows.

    A row has an offset, which consumers store. A control item has none, and is located between two rows.
    """

    offset: int
    marks: int = 0

    @classmethod
    def at(cls, place: int | Position) -> Position:
        """Return the position of a row, before the control items that precede it, or *place* itself."""
        return place if isinstance(place, Position) else Position(place)


class MemoryLog:
    """A log in memory; it stores payloads by reference, and control items as long as the preceding row.

    Attributes:
        start: The oldest stored offset.
        end: The offset of the next row.
    """

    def __init__(self, start: int | Position = 0, retention: Retention | None = None) -> None:
        self.end, self._marks = Position.at(start)
        self.start = self.end
        self._retention = retention or Retention()
        self._bounded = self._retention.items is not None or self._retention.seconds is not None
        self._events: list[tuple[int, int, Any]] = []  # with the positions; accessing the middle of a deque is slow
        self._first = 0  # the index of the oldest stored one
        self._times: deque[tuple[float, int]] = deque()
        self._old = 0
        self._lock = threading.RLock()

    @property
    def position(self) -> Position:
        """The position of the next event."""
        with self._lock:
            return Position(self.end, self._marks)

    def append(self, payload: Any, body: bytes | None = None) -> int:
        """Add a list, a record batch, or a control item; return the offset of the next row."""
        with self._lock:
            if not isinstance(payload, list) and isinstance(payload, CONTROL):
                if self._bounded and self._marks >= _MOST_MARKS and isinstance(payload, Punctuation):
                    self._events.pop()
                self._events.append((self.end, self._marks, payload))
                self._marks += 1
            elif size := weight(payload):
                self._events.append((self.end, self._marks, payload))
                self.end += size
                self._marks = 0
                if self._bounded:
                    self._forget()
            return self.end

    def events(self, start: int | Position, end: int | Position) -> list[Any]:
        """Return the events from *start* up to *end*, rows as slices of their batches."""
        start, end = Position.at(start), Position.at(end)
        with self._lock:
            check_range(start, end, self.start, Position(self.end, self._marks))
            first = max(self._first, bisect_right(self._events, start, self._first, key=_PLACE) - 1)
            last = bisect_left(self._events, end, self._first, key=_PLACE)
            found: list[Any] = []
            for at, marks, payload in self._events[first:last]:
                if start.offset <= at and at + 1 <= end.offset and type(payload) is list and len(payload) == 1:
                    found.append(payload)  # most are single items
                elif isinstance(payload, CONTROL):
                    if (at, marks) >= start:
                        found.append(payload)
                elif (low := max(0, start.offset - at)) < (high := min(weight(payload), end.offset - at)):
                    found.append(cut(payload, low, high))
            return found

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every row; record batches remain unchanged."""
        with self._lock:
            self._events[self._first :] = [
                (at, marks, type(payload)(map(replace, payload)) if isinstance(payload, list) else payload)
                for at, marks, payload in self._events[self._first :]
            ]

    def trim(self, offset: int) -> None:
        """Drop the events before *offset*, as far as they fill whole batches."""
        with self._lock:
            events = self._events
            while self._first < len(events):
                at, _, payload = events[self._first]
                if (after := at + (0 if isinstance(payload, CONTROL) else weight(payload))) > offset or at == offset:
                    break
                events[self._first] = _GONE
                self._first += 1
                self.start = after
            if self._first > len(events) // 2 + 100:
                del events[: self._first]
                self._first = 0

    def _forget(self) -> None:
        keep = self._retention
        before = self.end if keep.items is None else self.end - keep.items
        if keep.seconds is not None:
            now = time.monotonic()
            self._times.append((now, self.end))
            while self._times[0][0] < now - keep.seconds:
                self._old = self._times.popleft()[1]
            before = min(before, self._old)
        self.trim(before)


def check_range(start: Position, end: Position, kept: int, there: Position) -> None:
    """Raise `MeshError` for events that are no longer stored, or not yet appended."""
    if not (kept <= start.offset and start <= end <= there):
        raise MeshError(f"rows {start.offset} to {end.offset} were asked for; kept are {kept} to {there.offset}")


def flat(payloads: Iterable[Any]) -> list[Any]:
    """Return the items of lists and record batches, and the control items, one by one."""
    return [item for one in payloads for item in ((one,) if isinstance(one, CONTROL) else to_items(one))]

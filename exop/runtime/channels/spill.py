"""`Spill`: the events of an outbox beyond its capacity, on disk, in the mode `offline`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from exop.errors import StateError, StoredStateError
from exop.runtime.channels.wire import MOST_BYTES, Event
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.segment import DISK, Files

#: The number of pushes that are read from the disk at once, if they are small.
AHEAD: Final = 256


class Spill:
    """Events on disk; each push is one row of a log.

    Args:
        folder: The folder of the log; without one, a temporary folder, which is removed at the end.

    Attributes:
        events: The number of events that were not taken out.
    """

    def __init__(self, folder: Path | None, files: Files = DISK) -> None:
        self._temporary = None if folder is not None else tempfile.mkdtemp(prefix="exop-outbox-")
        self._log = DiskLog(folder or Path(self._temporary or ""), files=files)
        self._next = self._log.end
        self._captured = self._next, self._next
        self._durable = False
        self._behind: list[Event] = []
        self._largest = MOST_BYTES  # the bytes of the largest event, of which the log may have some from before
        self.events = 0

    def append(self, event: Event, *, waits: bool = True) -> None:
        """Add an event.

        Raises:
            StateError: the event cannot be written, and may *wait*; other events then stay in memory until they can.
        """
        try:
            while self._behind:
                self._log.append([tuple(self._behind[0][:4])])
                del self._behind[0]
            self._log.append([tuple(event[:4])])
        except StateError:
            if waits:
                raise
            self._behind.append(event)
        self._largest = max(self._largest if self.events else 1, event.size)
        self.events += event.events

    def read(self, now: float) -> list[Event]:
        """Return all events; raise `StateError` if they cannot be read."""
        return [*self._read(now, self._log.end), *self._behind]

    def _read(self, now: float, end: int) -> list[Event]:
        return [Event._make((*row, now)) for rows in self._log.events(self._next, end) for row in rows]

    def take(self, now: float) -> list[Event]:
        """Take out the next events; raise `StateError` if they cannot be read."""
        end = min(self._log.end, self._next + max(1, min(AHEAD, MOST_BYTES // self._largest)))
        found = self._read(now, end)
        if end == self._next:
            found, self._behind = self._behind, []
        self._next = end
        self.events -= sum(event.events for event in found)
        if not self._durable:
            self._log.trim(end)
        return found

    def take_part(self, *, on: bool) -> None:
        """Record whether checkpoints count the events; if not, those of earlier runs are dropped."""
        self._durable = on
        if not on:
            self._log.settle(None)
            self._log.trim(self._next)

    def sync(self) -> None:
        """Force the events to disk."""
        self._log.sync()

    def capture(self) -> dict[str, int]:
        """Return the range of rows, and the number of events in them."""
        self._captured = self._next, self._log.end
        return {"start": self._next, "end": self._captured[1], "events": self.events, "largest": self._largest}

    def restore(self, held: Mapping[str, int]) -> None:
        """Continue with the captured rows, and remove later ones, which will be pushed again."""
        if not self._log.start <= held["start"] <= held["end"] <= self._log.end:
            problem = f"it holds the rows {self._log.start} to {self._log.end}, and the checkpoint counts {held}"
            raise StoredStateError(what=f"the log {self._log.folder}", problem=problem, cure="put its files back")
        self._log.cut(held["end"])
        self._next, self.events = held["start"], held["events"]
        self._largest = held.get("largest", MOST_BYTES)  # a former release has not stored it

    def committed(self) -> None:
        """Drop the rows that the checkpoint does not need, and settle the others; later ones are pushed again."""
        start, end = self._captured
        self._log.trim(start)  # first: it makes room on a full disk
        self._log.settle(end, None)

    def close(self) -> None:
        """Close the files."""
        self._log.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

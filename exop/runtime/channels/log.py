"""`log`: stores items under increasing offsets, in memory or on disk, so that they can be read from any offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from exop.errors import MeshError, StateError, StoredStateError
from exop.model.items import CONTROL, EndOfStream
from exop.runtime.channels.base import KeepingChannel, Outlet
from exop.runtime.channels.wire import Undecoded
from exop.runtime.dataflow.batches import weight
from exop.runtime.dataflow.entry import Entry
from exop.runtime.log.memory import EventLog, Fsync, MemoryLog, Position, Retention, flat

if TYPE_CHECKING:
    from exop.runtime.log.disk import DiskLog, Replay

#: The number of items that are stored by default.
KEPT = 100_000


class LogChannel(KeepingChannel):
    """Passes items on and stores them under offsets: on disk at `path`, or in the state directory; else in memory.

    Control items are stored between the items, in the order of arrival, and have no offset. `keep` (a number of items,
    or "all") and `seconds` are lower limits of the stored range, `size` (bytes on disk) is an upper limit; `segment`
    and `fsync` also apply to logs on disk. With `replay`, a port that connects to a running application first receives
    the content.

    Extended interface: `replay`, `pieces` and `events(start, end)`, `start`, `end`, `began`, `trim(offset)`.

    Attributes:
        origin: The position at which the application began.
        order: The ports that receive each payload, one after the other.
        replays: Whether a port that connects to a running application first receives the content.
    """

    kind: ClassVar[str] = "log"
    _stores_control: ClassVar[bool] = True
    reading: ClassVar[frozenset[str]] = frozenset({"began", "end", "events", "pieces", "position", "replay", "start"})

    def __init__(
        self,
        name: str,
        *,
        keep: int | Literal["all"] | None = None,
        seconds: float | None = None,
        size: int | None = None,
        segment: int = 16 * 2**20,
        fsync: Fsync = "checkpoint",
        path: Path | None = None,
        replay: bool = False,
    ) -> None:
        super().__init__(name)
        if isinstance(keep, int) and keep < 1:
            raise MeshError(f"the log {name!r} keeps {keep} items: it must be at least 1")
        unbounded = keep is None and seconds is None and size is None
        items = KEPT if unbounded else keep if isinstance(keep, int) else None
        self._retention = Retention(items, seconds, size, segment, fsync)
        self._path = path
        self.replays = replay
        # In memory, `size` alone does not apply: the default number of items does.
        self._kept = self._retention if (keep, seconds) != (None, None) else replace(self._retention, items=KEPT)
        self._log: EventLog = MemoryLog(0, self._kept)
        self._disk: DiskLog | None = None
        self._recovery: Replay | None = None
        self._captured = self.origin = Position(0)
        self._trimmed = self._given_up = 0
        self.order: list[str] = []

    def open(self) -> None:
        """Open the log on disk, if there is a folder for it."""
        if (folder := self._path or self.home) is not None:
            # Imported lazily: only logs on disk need the encoding.
            from exop.runtime.log.disk import DiskLog

            self._log = self._disk = DiskLog(folder, self._retention)
            self.logs = {"": self._disk}
            self.origin = self._disk.position

    def close(self) -> None:
        """Close the files."""
        if self._disk is not None:
            self._disk.close()

    def kept_for(self, port: str) -> list[Any]:
        """Return the content, if `replay` is set, without the end of the stream, which the wiring sends."""
        rows = flat(self.events(self.start)) if self.replays else ()
        return [one for one in rows if not isinstance(one, EndOfStream)]

    @property
    def start(self) -> int:
        """The oldest stored offset."""
        return self._log.start

    @property
    def end(self) -> int:
        """The offset of the next item."""
        return self.position.offset

    @property
    def began(self) -> int:
        """The offset at which the application began."""
        return self.origin.offset

    @property
    def settled(self) -> int:
        """The offset before which no crash changes a row: that of the last checkpoint, or the end without any."""
        held = self._disk.hold if self._disk is not None else None
        return self.end if held is None else min(held, self.end)

    @property
    def position(self) -> Position:
        """The position of the next event."""
        return self._recovery.next if self._recovery is not None else self._log.position

    def replay(self, start: int, end: int | None = None) -> list[Any]:
        """Return the items from offset *start* up to *end*, or raise `MeshError` if they are no longer stored."""
        return flat(self.pieces(start, self.end if end is None else end))

    def pieces(self, start: int, end: int) -> list[Any]:
        """Return the items from offset *start* up to *end* as lists and record batches, as they arrived."""
        return [one for one in self._log.events(start, end) if not isinstance(one, CONTROL)]

    def events(self, start: int | Position, end: int | Position | None = None) -> list[Any]:
        """Return lists, record batches and the control items between them, from offset *start* up to *end*."""
        return self._log.events(start, self.position if end is None else end)

    def trim(self, offset: int) -> None:
        """Drop the rows before *offset* (on disk: whole segments; with checkpoints, after the next one)."""
        self._trimmed = max(self._trimmed, offset)
        if self._disk is None or self._disk.hold is None:
            self._log.trim(offset)

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Return an entry that stores each payload and then passes it on."""
        self.order = [outlet.port for outlet in outlets]
        return super().entry(outlets)

    def metrics(self) -> dict[str, int | float | str]:
        """Return the range of stored offsets; for a log on disk, also its bytes and folder."""
        found: dict[str, int | float | str] = {"start": self.start, "end": self.end}
        if self._disk is not None:
            found |= {"bytes": self._disk.size, "folder": str(self._disk.folder)}
        return found

    def capture(self) -> Mapping[str, Any]:
        """Return the offsets, and the content of a log in memory."""
        self._captured, self._given_up = self.position, self._trimmed
        end = self._captured
        found: dict[str, Any] = {"began": self.began, "end": end.offset}
        if self._disk is None:
            items = ([one] if type(one) is Undecoded else flat([one]) for one in self.events(self.start, end))
            return {**found, "items": [*chain.from_iterable(items)]}
        return {**found, "marks": [self.origin.marks, end.marks], "start": max(self.start, self._trimmed)}

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every row in memory; rows on disk, which name their classes, remain unchanged."""
        if isinstance(self._log, MemoryLog):
            self._log.exchange(replace)

    def restore(self, held: Mapping[str, Any]) -> None:
        """Continue at the captured offset, if the log on disk contains it; later rows will arrive again."""
        if (self._disk is None) is not ("items" in held):
            cure = "start both with a state directory (--state), or both without"
            raise StateError(f"the log {self.name!r} is on disk on one host, and in memory on the other; {cure}")
        if self._disk is None:
            events = [one if isinstance(one, (Undecoded, *CONTROL)) else [one] for one in held["items"]]
            self.origin = Position(held["began"])
            rows = sum(weight(one) for one in events if not isinstance(one, CONTROL))
            self._log = MemoryLog(held["end"] - rows, self._kept)
            for one in events:
                self._log.append(one)
            return
        # Imported lazily: only logs on disk need the encoding.
        from exop.runtime.log.disk import Replay
        from exop.runtime.log.segment import check_given_up

        self.origin, end = map(Position, (held["began"], held["end"]), held["marks"])
        if not (self._disk.start <= end.offset and end <= self._disk.position):
            problem = f"it holds the rows {self._disk.start} to {self._disk.end}, and the checkpoint counts "
            problem += f"{end.offset}" + (f" and {end.marks} control items behind" if end.marks else "")
            raise StoredStateError(what=f"the log {self._disk.folder}", problem=problem, cure="put its files back")
        if self._retention.endless:
            check_given_up(self._disk.folder, self._disk.start, held["start"])
        self._disk.hold = end.offset
        if end < self._disk.position:
            self._recovery = Replay(self._disk, end)

    def take_part(self, *, on: bool) -> None:
        """Settle every row when no checkpoints are taken."""
        if self._disk is not None and not on:
            self._disk.settle(None)

    def begin_anew(self) -> None:
        """Remove rows of an earlier attempt at the change, which no checkpoint counts and which will arrive again."""
        if self._disk is not None:
            counted = self._disk.settled
            if counted is not None and self._disk.start <= counted.offset and counted < self._disk.position:
                self._disk.cut(counted)
            self.origin = self._disk.position
            self._disk.settle(self.origin)

    def sync(self) -> None:
        """Force the rows that the checkpoint counts to disk."""
        if self._disk is not None:
            self._disk.sync()

    def committed(self) -> None:
        """Settle the rows before the checkpoint, which no recovery needs."""
        if self._disk is not None:
            self._disk.settle(self._captured, self._given_up)
            self._disk.trim(self._given_up)

    def _keep(self, payload: Any, body: bytes | None = None) -> None:
        if self._recovery is None:
            self._log.append(payload, body)
        elif self._recovery.append(payload):
            self._recovery = None
        self.trouble = None

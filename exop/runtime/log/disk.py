"""`DiskLog`: a log in segments on disk; `Replay`: detects rows that are sent again after a crash."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from exop.errors import MeshError, StateError, counted
from exop.logs import logger
from exop.model.items import CONTROL, Punctuation
from exop.model.values.encoding import encode
from exop.runtime.dataflow.batches import cut, to_items, weight
from exop.runtime.log import segment as segments
from exop.runtime.log.memory import Position, Retention, check_range, flat

#: The bytes of a part of a file at most that is copied at a time.
PART: Final = 2**20
_CURE: Final = "make its disk usable, and restart the platform, which opens it again"


class DiskLog:
    """A log in a folder, which survives the process.

    One process at a time may open it. A torn batch at the end (a crash) is removed and logged; all else is an error.

    Attributes:
        hold: Rows from this offset on are stored regardless of the retention.
        copied: The bytes of each file that a copy has already.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention | None = None,
        *,
        files: segments.Files = segments.DISK,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.hold: int | None = None
        self.copied: dict[str, int] = {}
        self._retention = retention or Retention()
        self._files = files
        self._clock = clock
        self._turn = threading.RLock()
        self._syncing = threading.RLock()
        self._broken: str | None = None
        self._version, self._synced = 1, 0  # of the content, which a killed process may not have forced to the disk
        self._segments: list[segments.Segment] = []
        with ExitStack() as undo, self._doing("opened"):
            names = files.names(folder)
            self._lock = files.lock(folder / "lock")
            if self._lock is None:
                raise StateError(f"the log {folder} is in use; one channel of one platform at a time may have it open")
            undo.callback(self.close)
            self._open_segments(names)
            undo.pop_all()

    @property
    def start(self) -> int:
        """The oldest stored offset."""
        return self._segments[0].base

    @property
    def position(self) -> Position:
        """The position of the next event."""
        with self._turn:
            return self._segments[-1].position

    @property
    def end(self) -> int:
        """The offset of the next row."""
        return self._segments[-1].end

    @property
    def size(self) -> int:
        """The bytes on disk."""
        return sum(one.size for one in list(self._segments))

    @property
    def settled(self) -> Position | None:
        """The position that `settle` has stored last, possibly in another process."""
        return segments.noted(self.folder, self._files)[0]

    def encoded(self, payload: Any) -> bytes:
        """Return rows in the form in which the log stores them, or raise `NotStorable`, or `MeshError` if too large."""
        body = b"" if isinstance(payload, CONTROL) else encode(payload, levels=segments.LEVELS)
        if len(body) > segments.LARGEST:
            size = f"{counted(weight(payload), 'row')} and {len(body)} bytes"
            raise MeshError(f"a batch of {size} is too large for a log; append it in parts")
        return body

    def append(self, payload: Any, body: bytes | None = None) -> int:
        """Add a list, a record batch, or a control item; return the offset of the next row."""
        mark = isinstance(payload, CONTROL)
        rows = 0 if mark else weight(payload)
        body = self.encoded(payload) if body is None else body
        with self._turn:
            end, marks = self._segments[-1].position
            if not (rows or mark):
                return end
            self._check_whole()
            with self._doing("written"):
                now = self._clock()
                if mark:
                    told = (payload.time, payload.idle) if isinstance(payload, Punctuation) else ()
                    body = encode([marks, *told])
                frame = segments.written(end, now, rows, body, kind=segments.MARK if mark else segments.ROWS)
                self._write(frame, end + rows, marks + 1 if mark else 0, now)
            return end + rows

    def events(self, start: int | Position, end: int | Position) -> list[Any]:
        """Return the events from *start* up to *end*, rows as slices of their batches."""
        start, end = Position.at(start), Position.at(end)
        found: list[segments.Frame] = []
        with self._turn:
            check_range(start, end, self.start, self.position)
            with self._doing("read"):
                for segment in self._segments if start < end else ():
                    # Control items may be at the end of one segment, before the first row of the next.
                    if (segment.base, 0) < end and start.offset <= segment.end:
                        found += segment.between(start, end)
                        if segment is not self._segments[-1]:
                            segment.close()
        # Decoded without the lock, so that appending threads do not wait.
        return segments.contents(found, start.offset, end.offset)

    def trim(self, offset: int) -> None:
        """Drop the rows before *offset*, as far as they fill whole segments."""
        with self._turn:
            while len(self._segments) > 1 and self._segments[1].base <= offset:
                self._drop_oldest()

    def cut(self, place: int | Position) -> None:
        """Remove the events from *place* on; after an error, the log may end after *place*."""
        place = Position.at(place)
        offset = place.offset
        with self._turn:
            check_range(place, self.position, self.start, self.position)
            if place == self.position:
                return
            # Control items before the first row of a segment are in the previous segment.
            holder = next((one for one in reversed(self._segments) if one.base < offset), self._segments[0])
            rest, position = b"", holder.size
            for frame in holder.frames(offset):
                if frame.behind <= place:
                    continue
                if frame.first < offset:
                    (kept,) = segments.contents([frame], frame.first, offset)
                    rest = segments.written(frame.first, frame.time, weight(kept), encode(kept, levels=segments.LEVELS))
                position = frame.position
                break
            with self._doing("cut", broken=True):
                self._cut(place, holder, position, rest)

    def sync(self) -> None:
        """Force appended rows to disk; after an error, the log has to be opened again before an append."""
        if self._retention.fsync == "never":
            return
        with self._turn:
            self._check_whole()
            newest, version = self._segments[-1], self._version
            if version == self._synced:
                return
            self._syncing.acquire()  # with the lock held, so that the file is not closed meanwhile
        try:
            # After a failure, the operating system may count pages in memory as written.
            with self._doing("forced to the disk", broken=True):
                newest.sync()  # without the lock, so that appending threads do not wait for the disk
            self._synced = version
        finally:
            self._syncing.release()

    def settle(self, place: int | Position | None, start: int | None = 0) -> None:
        """Store, for readers in other processes, that the events before *place* (or all, if `None`) are final.

        Rows from *place* on are stored regardless of the retention. If the retention is endless, so are rows from
        *start* on, the end of the next `trim`: the log is refused if these rows are missing. `None`: it is not known.
        """
        self.hold = None if place is None else Position.at(place).offset
        with self._doing("written"):
            if place is not None:
                first = max(start, self.start) if start is not None and self._retention.endless else None
                with closing(segments.note(self._files, self.folder, Position.at(place), first)) as file:
                    if start is not None and start > self.start:  # on disk before the segments are removed
                        file.sync()
            elif segments.COMMITTED in self._files.names(self.folder):
                self._files.remove(self.folder / segments.COMMITTED)

    def retain(self) -> None:
        """Drop the segments that are out of retention; also done whenever a segment is full."""
        with self._turn:
            bounds, now = self._retention, self._clock()
            while len(self._segments) > 1:
                after = self._segments[1]
                old = bounds.seconds is None or now - after.born > bounds.seconds
                enough = bounds.items is None or self.end - after.base >= bounds.items
                bounded = bounds.seconds is not None or bounds.items is not None
                full = self.size - self._segments[-1].size + bounds.segment
                large = bounds.size is not None and full > bounds.size
                held = self.hold is not None and after.base > self.hold
                if held or not (large or (bounded and old and enough)):
                    return
                self._drop_oldest()

    @property
    def files(self) -> list[str]:
        """The names of the files with rows."""
        return [one.path.name for one in self._segments]

    def parts(self, place: str) -> Iterator[tuple[str, int, bytes]]:
        """Yield the parts that the files of a copy at *place* lack: the name, the position and the bytes of each."""
        for segment in [*self._segments]:
            name, data = segment.path.name, b"-"
            while data:
                with self._turn, self._doing("read"):
                    at = self.copied.get(name, 0)
                    # A segment that was dropped meanwhile must not be opened again.
                    size = min(segment.size - at, PART) if segment in self._segments else 0
                    data = segment.rest(at, size) if size > 0 else b""
                    self.copied[name] = at + len(data)
                    if segment is not self._segments[-1]:
                        segment.close()
                if data:
                    yield place + name, at, data

    def close(self) -> None:
        """Close the files."""
        with self._turn:
            if self._segments and self._broken is None and self._retention.fsync != "never":
                with suppress(OSError):
                    self._segments[-1].sync()
            self._broken = "it is closed"
            with self._syncing:
                for segment in self._segments:
                    segment.close()
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _open_segments(self, names: list[str]) -> None:
        """Open the segments, and continue after the last whole frame."""
        for name in names:
            if name.endswith(segments.UNFINISHED):
                self._files.remove(self.folder / name)
        for name in segments.segment_names(names):
            self._segments.append(segments.Segment(self._files, self.folder / name))
            self._segments[-1].close()  # the number of open files of a process is limited
        if not self._segments:
            self._segments.append(segments.Segment.create(self._files, self.folder, Position(0), self._clock()))
        for one, after in pairwise(self._segments):
            one.sealed(after.base)
        counted, given_up = segments.noted(self.folder, self._files)
        segments.check_given_up(self.folder, self.start, given_up)
        self._segments[-1].find_end(counted)
        self.retain()

    def _write(self, data: bytes, end: int, marks: int, now: float) -> None:
        newest, bounds, self._version = self._segments[-1], self._retention, self._version + 1
        aged = bounds.seconds is not None and now - newest.born >= bounds.seconds
        # A control item is in the segment of the row before it, so that no two segments begin with the same row.
        if end > newest.end > newest.base and (newest.size + len(data) > bounds.segment or aged):
            newest = self._roll(newest, now)
        before = newest.size, newest.position if bounds.fsync == "append" else None
        newest.put(data, end, marks)
        if bounds.fsync == "append":
            try:
                newest.sync()
            except OSError as problem:
                newest.take_back(*before)
                self._broken = f"{problem.strerror}; {_CURE}"
                raise

    def _roll(self, full: segments.Segment, now: float) -> segments.Segment:
        """Force the full segment to disk, and begin another one."""
        with self._doing("forced to the disk", broken=True):  # the system reports a lost write once
            full.sync()
        newest = segments.Segment.create(self._files, self.folder, full.position, now)
        with self._syncing:
            full.close()
        self._segments.append(newest)
        self.retain()
        return newest

    def _cut(self, place: Position, holder: segments.Segment, position: int, rest: bytes) -> None:
        """Remove the segments after *holder*, and replace the bytes of *holder* from *position* on by *rest*."""
        self._version += 1
        self.copied.clear()  # a copy gets all of it again
        while self._segments[-1] is not holder:  # from the end, so that a crash leaves no gap
            with self._syncing:
                self._segments[-1].remove()
            self._segments.pop()
        self._files.sync(self.folder)
        if rest:
            head = holder.rest(0)[:position]
            with self._syncing:
                holder.close()
            segments.replace_file(self._files, holder.path, head + rest)
            self._segments[-1] = segments.Segment(self._files, holder.path)
        else:
            holder.take_back(position, place)
        self._segments[-1].sync()
        self._segments[-1].find_end(None)

    def _drop_oldest(self) -> None:
        with self._doing("made shorter"):
            self._segments[0].remove()
        del self._segments[0]

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise StateError(f"the log {self.folder} cannot be used any more: {self._broken}")

    @contextmanager
    def _doing(self, done: str, *, broken: bool = False) -> Iterator[None]:
        """Turn an error of the file system into a `StateError`; if *broken*, the log is unusable after the error."""
        try:
            yield
        except OSError as problem:
            if broken:
                self._broken = f"{problem.strerror}; {_CURE}"
            failed = f"the log {self.folder} could not be {done}: {problem.strerror or problem}"
            many = problem.errno in (errno.EMFILE, errno.ENFILE)
            repair = "raise the limit of open files (ulimit -n)" if many else "make room there, or make it usable"
            cure = _CURE if broken else f"its content is unchanged; {repair}, and try again"
            raise StateError(f"{failed}; {cure}") from problem


class Replay:
    """Compares the events of a log after a checkpoint with those that the sources send again after a crash.

    Equal events are not appended again. At the first difference (the order of several producers is not guaranteed), the
    rest of the log is removed, because a log contains the events that its consumers receive.

    Attributes:
        next: The position of the next event.
    """

    #: Rows to read from the log at once, since each read may scan many frames before the requested row.
    AHEAD: Final = 1000

    def __init__(self, log: DiskLog, place: Position) -> None:
        self.next = self._read = place
        self._log = log
        self._ahead: deque[Any] = deque()

    def append(self, payload: Any) -> bool:
        """Append what the log does not have yet of *payload*; return whether the stream has come to its end."""
        before = self.next
        try:
            if (rest := self._missing(payload)) is not None:
                self._log.append(rest)
        except BaseException:
            self.next = self._read = before  # the whole payload will arrive again
            self._ahead.clear()
            raise
        return self._over or rest is not None

    @property
    def _over(self) -> bool:
        return self.next >= self._log.position

    def _missing(self, payload: Any) -> Any:
        """Return the part of *payload* that the log does not have yet; `None` if the log has all of it."""
        mark = isinstance(payload, CONTROL)
        known = 1 if mark else min(weight(payload), self._log.end - self.next.offset)
        for number, one in enumerate((payload,) if mark else to_items(cut(payload, 0, known))):
            if self._over or encode(self._expected()) != encode(one):
                known = number
                break
            self._ahead.popleft()
            self.next = Position(self.next.offset, self.next.marks + 1) if mark else Position(self.next.offset + 1)
        if known == (1 if mark else weight(payload)):
            return None
        if not self._over:
            removed = self._log.end - self.next.offset
            facts = {"log": str(self._log.folder), "offset": self.next.offset, "removed": removed}
            logger("exop.log").warning("the stream differs from the log: the rest of the log is removed", **facts)
            self._log.cut(self.next)
        return payload if mark else cut(payload, known, weight(payload))

    def _expected(self) -> Any:
        """Return the event of the log at `next`."""
        while not self._ahead:
            end = min(self._log.position, Position(self._read.offset + self.AHEAD))
            self._ahead += flat(self._log.events(self._read, end))
            self._read = end
        return self._ahead[0]

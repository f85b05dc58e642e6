"""`DiskLog`: a log in segments on disk; what was appended is there after a crash, whole batches in their order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from exop.errors import MeshError, StateError
from exop.model.decoding import decode
from exop.model.encoding import encode
from exop.runtime.convert import cut, weight
from exop.runtime.log.files import DISK, Files
from exop.runtime.log.frames import LARGEST, LONGEST_KEY, Frame, written
from exop.runtime.log.memory import check_range
from exop.runtime.log.retention import Retention
from exop.runtime.log.segment import (
    COMMITTED,
    LEVELS,
    UNFINISHED,
    Segment,
    check_start,
    replace_file,
    segment_names,
    settled,
    write_all,
)

#: The producer that has appended, and its number: numbers rise; one that has been there is not appended again.
Key = tuple[str, int]


class DiskLog:
    """Batches under row offsets, in a folder: appended at the end, read from any offset, given up from the front.

    It has the methods of `OffsetLog`, and keeps what it has across processes. A batch is there whole or not at all.
    What a crash has left half written at the end is cut off and logged; damage before that is an error, and nothing
    is changed.

    Args:
        folder: Its own folder; one process at a time has it open.
        retention: What is kept, and when it is forced to the disk.
        files: The file system.
        clock: The time in seconds.

    Attributes:
        hold: Rows from this offset on are kept, whatever the retention says.

    Raises:
        StateError: another process has it open, or the folder cannot be used.
        StoredStateError: it is damaged, or of another release.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention | None = None,
        *,
        files: Files = DISK,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.hold: int | None = None
        self._retention = retention or Retention()
        self._files = files
        self._clock = clock
        self._turn = threading.RLock()
        self._syncing = threading.RLock()
        self._broken: str | None = None
        self._segments: list[Segment] = []
        self._last: dict[str, int] = {}
        self._size = 0
        try:
            names = files.names(folder)
            self._lock = files.lock(folder / "lock")
        except OSError as problem:
            raise self._unusable("opened", problem) from problem
        if self._lock is None:
            raise StateError(f"the log {folder} is in use; one channel of one platform at a time may have it open")
        try:
            self._take_up(names)
        except BaseException:
            self.close()
            raise

    @property
    def start(self) -> int:
        """The oldest offset that is kept."""
        return self._segments[0].base

    @property
    def end(self) -> int:
        """The offset of the next row."""
        return self._segments[-1].end

    @property
    def size(self) -> int:
        """The bytes on disk."""
        return self._size + self._segments[-1].size

    def append(self, batch: Any, *, key: Key | None = None) -> int:
        """Add a batch (a list, or a record batch), once for each key; returns the offset of the next row.

        Numbers of one producer rise: what comes under the last number or a lower one has been appended before.

        Raises:
            NotStorable: something in it cannot be stored.
            StateError: it cannot be written (a full disk); nothing of it is there, and it may be tried again.
        """
        rows = weight(batch)
        body = encode(batch, levels=LEVELS)
        tag = encode(list(key)) if key is not None else b""
        if len(body) > LARGEST or len(tag) > LONGEST_KEY:
            raise MeshError(f"a batch of {rows} rows and {len(body)} bytes is too large for a log; append it in parts")
        with self._turn:
            if (key is None and not rows) or (key is not None and key[1] <= self._last.get(key[0], -1)):
                return self.end
            self._check_whole()
            try:
                now = self._clock()
                self._write(written(self.end, now, rows, body, key=tag), self.end + rows, now)
            except OSError as problem:
                raise self._unusable("written", problem) from problem
            if key is not None:
                self._last[key[0]] = key[1]
            return self.end

    def read(self, start: int, end: int) -> list[Any]:
        """The rows from *start* up to *end*, as slices of the batches that hold them.

        Raises:
            MeshError: rows that are not kept any more, or not yet there.
            StoredStateError: the log is damaged there.
        """
        found: list[tuple[Frame, bytes]] = []
        with self._turn:
            check_range(start, end, self.start, self.end)
            try:
                for segment in self._segments:
                    if segment.base < end and start < segment.end:
                        found += segment.between(start, end)
                        if segment is not self._segments[-1]:
                            segment.close()
            except OSError as problem:
                raise self._unusable("read", problem) from problem
        # Decoded without the lock, so that appending threads do not wait.
        pieces = ((frame, decode(body, levels=LEVELS)) for frame, body in found)
        return [cut(batch, max(0, start - f.first), min(f.rows, end - f.first)) for f, batch in pieces]

    def trim(self, offset: int) -> None:
        """Give up the rows before *offset* (whole segments)."""
        with self._turn:
            while len(self._segments) > 1 and self._segments[1].base <= offset:
                self._give_up_oldest()

    def cut(self, offset: int) -> None:
        """Take back the rows from *offset* on, and forget the keys under which they came.

        Raises:
            MeshError: *offset* is not kept, or stands inside of a batch with a key.
            StateError: it cannot be written; the log ends somewhere behind *offset*.
        """
        with self._turn:
            check_range(offset, self.end, self.start, self.end)
            if offset == self.end:
                return
            holder = next(one for one in reversed(self._segments) if one.base <= offset)
            part = b""
            for frame, key, body in holder.frames(offset):
                if frame.first < offset < frame.after:
                    if key:
                        raise MeshError(
                            f"the log {self.folder} cannot be cut at {offset}, inside of a batch with a key"
                        )
                    kept = cut(decode(body, levels=LEVELS), 0, offset - frame.first)
                    part = written(frame.first, frame.time, weight(kept), encode(kept, levels=LEVELS))
                    break
            self._cut(offset, holder, part)

    def sync(self) -> None:
        """Force what was appended to the disk, unless it is to be left to the operating system.

        Raises:
            StateError: the disk refuses; nothing can be appended before the log is opened again.
        """
        if self._retention.fsync == "never":
            return
        with self._turn:
            self._check_whole()
            newest = self._segments[-1]
            self._syncing.acquire()  # always within the turn: the file is not closed now
        try:
            newest.sync()  # outside of it: appending threads do not wait for the disk
        except OSError as problem:
            # What the operating system still has in memory may count as written now: it must not be relied upon.
            self._broken = str(problem.strerror)
            raise self._unusable("forced to the disk", problem) from problem
        finally:
            self._syncing.release()

    @property
    def settled(self) -> int | None:
        """The offset noted last by `settle`, perhaps by another process."""
        return settled(self.folder, self._files)

    def settle(self, offset: int | None, start: int = 0) -> None:
        """Note, for who reads the log beside us, that what stands before *offset* counts for good; `None`: all does.

        What stands behind it is kept, whatever the retention says. If that gives up nothing, so is what stands behind
        *start*, where the next `trim` ends, and it is missed if it is gone.

        Raises:
            StateError: it cannot be written.
        """
        self.hold = offset
        path = self.folder / COMMITTED
        try:
            if offset is not None:
                file = self._files.open(path)
                first = max(start, self.start)
                write_all(file, 0, b"%020d%20s" % (offset, b"%020d" % first if self._retention.endless else b""))
                if start > self.start:  # on the disk before the segments are gone
                    file.sync()
                file.close()
            elif COMMITTED in self._files.names(self.folder):
                self._files.remove(path)
        except OSError as problem:
            raise self._unusable("written", problem) from problem

    def retain(self) -> None:
        """Give up what need not be kept any more; done by itself when a segment is full."""
        with self._turn:
            bounds, now = self._retention, self._clock()
            while len(self._segments) > 1:
                after = self._segments[1]
                old = bounds.seconds is None or now - after.born > bounds.seconds
                enough = bounds.items is None or self.end - after.base >= bounds.items
                bounded = bounds.seconds is not None or bounds.items is not None
                large = bounds.size is not None and self.size > bounds.size
                held = self.hold is not None and after.base > self.hold
                if held or not (large or (bounded and old and enough)):
                    return
                self._give_up_oldest()

    def close(self) -> None:
        """Let go of the files."""
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

    def _take_up(self, names: list[str]) -> None:
        """Find what is there, and go on behind the last whole frame."""
        try:
            for name in (name for name in names if name.endswith(UNFINISHED)):
                self._files.remove(self.folder / name)
            for name in segment_names(names):
                self._segments.append(Segment(self._files, self.folder / name))
            if not self._segments:
                self._segments.append(Segment.create(self._files, self.folder, 0, self._clock(), {}))
            for one, after in pairwise(self._segments):
                one.sealed(after.base)
            check_start(self.folder, self._files, self.start)
            self._open_newest(self.settled)
            self.retain()
        except OSError as problem:
            raise self._unusable("opened", problem) from problem

    def _open_newest(self, counted: int | None) -> None:
        """Look through the newest segment: its keys, its end, and what a crash has left behind that.

        Raises:
            StoredStateError: it is damaged in the middle, or ends before what a checkpoint has counted.
        """
        self._size = sum(one.size for one in self._segments[:-1])
        self._last = self._segments[-1].find_end(counted)

    def _write(self, data: bytes, after: int, now: float) -> None:
        newest, bounds = self._segments[-1], self._retention
        aged = bounds.seconds is not None and now - newest.born >= bounds.seconds
        if newest.end > newest.base and (newest.size >= bounds.segment or aged):
            newest = self._roll(newest, now)
        size, end = newest.size, newest.end
        newest.put(data, end, after)
        if bounds.fsync == "append":
            try:
                newest.sync()
            except OSError as problem:
                newest.take_back(size, end)
                self._broken = str(problem.strerror)
                raise

    def _roll(self, full: Segment, now: float) -> Segment:
        """Begin another segment; the full one is on the disk before."""
        full.sync()
        newest = Segment.create(self._files, self.folder, full.end, now, self._last)
        with self._syncing:
            full.close()
        self._size += full.size
        self._segments.append(newest)
        self.retain()
        return newest

    def _cut(self, offset: int, holder: Segment, part: bytes) -> None:
        try:
            while self._segments[-1] is not holder:  # from the end, so that no gap is left by a crash
                with self._syncing:
                    self._segments[-1].remove()
                self._segments.pop()
            self._files.sync(self.folder)
            position = next((f.position for f, _, _ in holder.frames(offset) if f.after > offset), holder.size)
            if part:
                head = holder.rest(0)[:position]
                with self._syncing:
                    holder.close()
                replace_file(self._files, holder.path, head, part)
                self._segments[-1] = Segment(self._files, holder.path)
            else:
                holder.take_back(position, offset)
            self._segments[-1].sync()
            self._open_newest(None)
        except OSError as problem:
            self._broken = str(problem.strerror)
            raise self._unusable("cut", problem) from problem

    def _give_up_oldest(self) -> None:
        oldest = self._segments[0]
        try:
            oldest.remove()
        except OSError as problem:
            raise self._unusable("made shorter", problem) from problem
        del self._segments[0]
        self._size -= oldest.size

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise StateError(f"the log {self.folder} cannot be used any more: {self._broken}; open it again")

    def _unusable(self, done: str, problem: OSError) -> StateError:
        return StateError(
            f"the log {self.folder} could not be {done}: {problem.strerror or problem}; what it has is kept; "
            f"make room there, or make it usable, and try again"
        )

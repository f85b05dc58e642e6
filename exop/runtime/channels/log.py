"""`log`: keeps what passes under increasing offsets, on disk where there is one; read again from any offset."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from exop.errors import ExopError, MeshError, StateError, StoredStateError
from exop.logs import logger
from exop.model.items import EndOfStream, Punctuation
from exop.runtime.channel import Channel, Outlet
from exop.runtime.convert import to_items
from exop.runtime.drivers.base import current_driver
from exop.runtime.entry import Control, Entry, Push, Unwind, Way, Work, fan_out
from exop.runtime.log.memory import OffsetLog
from exop.runtime.log.retention import Fsync, Retention

if TYPE_CHECKING:
    from exop.runtime.log.course import Course
    from exop.runtime.log.disk import DiskLog

#: So many items are kept by a log that was not told what to keep.
KEPT = 100_000
#: After so many seconds it is tried again to write to a disk that was full.
AGAIN = 1.0


class LogChannel(Channel):
    """Passes items on and keeps them under offsets: on disk at `path`, or in the state directory; else in memory.

    `keep` (items, or "all") and `seconds` say what is kept at least, `size` (bytes on disk) what at most; `segment` and
    `fsync` are for the disk, too. With `replay` a port that connects to a running application first receives what is
    kept. Extended interface: `replay(start, end)`, `pieces(start, end)`, `start`, `end`,
    `began`, `trim(offset)`.

    Attributes:
        began: The offset at which the application began.
    """

    kind: ClassVar[str] = "log"
    refuses_whole: ClassVar[bool] = True

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
        self._replay = replay
        self._memory = OffsetLog()
        self._times: deque[tuple[float, int]] = deque()
        self._disk: DiskLog | None = None
        self._course: Course | None = None
        self._captured = self._old = 0
        self._trimmed = self._given_up = 0
        self.began = 0

    def open(self) -> None:
        """Take up the log on disk, if it has a place there.

        Raises:
            StateError: it is in use, damaged, or cannot be opened.
        """
        folder = self._path or self.home
        if folder is not None:
            # Imported lazily: only logs on disk need the encoding.
            from exop.runtime.log.disk import DiskLog

            self._disk = DiskLog(folder, self._retention)
            self.began = self._disk.end

    def close(self) -> None:
        """Let go of the files."""
        if self._disk is not None:
            self._disk.close()

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Keep, then hand on."""
        return self._way(fan_out([outlet.entry for outlet in outlets]), measured=False)

    def kept_for(self, port: str) -> list[Any]:
        """Return the items for a port that connects later: all that are kept, if the port asks for them."""
        return self.replay(self.start) if self._replay else []

    @property
    def start(self) -> int:
        """The oldest offset that is kept."""
        return self._log.start

    @property
    def end(self) -> int:
        """The offset of the next item."""
        return self._course.next if self._course is not None else self._log.end

    def replay(self, start: int, end: int | None = None) -> list[Any]:
        """The items from offset *start* on, up to *end*.

        Raises:
            MeshError: they are not kept any more.
        """
        return [item for piece in self.pieces(start, self.end if end is None else end) for item in to_items(piece)]

    def pieces(self, start: int, end: int) -> list[Any]:
        """The same as lists and record batches, as they came.

        Raises:
            MeshError: they are not kept any more.
        """
        return self._log.read(start, end)

    def trim(self, offset: int) -> None:
        """Forget what stands before *offset* (on disk: whole segments; with checkpoints, behind the next one)."""
        self._trimmed = max(self._trimmed, offset)
        if self._disk is None or self._disk.hold is None:
            self._log.trim(offset)

    def metrics(self) -> dict[str, int | float | str]:
        """The range of offsets kept; and where, and how many bytes, if that is on disk."""
        found: dict[str, int | float | str] = {"start": self.start, "end": self.end}
        if self._disk is not None:
            found |= {"bytes": self._disk.size, "folder": str(self._disk.folder)}
        return found

    def capture(self) -> Mapping[str, Any]:
        """How far it has come; in memory also what is kept."""
        self._captured, self._given_up = self.end, self._trimmed
        found: dict[str, Any] = {"began": self.began, "end": self.end}
        if self._disk is None:
            return {**found, "items": self.replay(self.start)}
        return {**found, "start": max(self.start, self._trimmed)}

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every row in memory; rows on disk say their classes by name."""
        if self._disk is None:
            self._memory.exchange(replace)

    def restore(self, held: Mapping[str, Any]) -> None:
        """Go on where that was captured. Rows on disk behind that are not appended again when they come once more.

        Raises:
            StoredStateError: the log on disk is not the one of then.
        """
        self.began, end, start = held["began"], held["end"], held.get("start")
        if self._disk is None:
            self._memory = OffsetLog()
            self._memory.begin_at(end - len(held["items"]))
            self._append(held["items"])
            return
        if not self._disk.start <= end <= self._disk.end:
            problem = f"it holds the rows {self._disk.start} to {self._disk.end}, and the checkpoint counts {end}"
            raise StoredStateError(what=f"the log {self._disk.folder}", problem=problem, cure="put its files back")
        if start is not None and self._retention.endless and self._disk.start > start:
            problem = f"its first row is {self._disk.start}, and nothing from {start} on has been given up"
            raise StoredStateError(what=f"the log {self._disk.folder}", problem=problem, cure="put its files back")
        self._disk.hold = end
        if end < self._disk.end:
            from exop.runtime.log.course import Course

            self._course = Course(self._disk, end)

    def take_part(self, *, on: bool) -> None:
        """Without checkpoints everything that is there counts."""
        if self._disk is not None and not on:
            self._disk.settle(None)

    def begin_anew(self) -> None:
        """Cut what an earlier attempt at the change has appended and no checkpoint has counted: it comes again."""
        if self._disk is not None:
            counted = self._disk.settled
            if counted is not None and self._disk.start <= counted < self._disk.end:
                self._disk.cut(counted)
            self.began = self._disk.end
            self._disk.settle(self.began)

    def sync(self) -> None:
        """Force what the checkpoint counts to the disk."""
        if self._disk is not None:
            self._disk.sync()

    def committed(self) -> None:
        """Settle the entries before the checkpoint: a recovery does not need them any more."""
        if self._disk is not None:
            self._disk.settle(self._captured, self._given_up)
            self._disk.trim(self._given_up)

    @property
    def _log(self) -> OffsetLog | DiskLog:
        return self._disk if self._disk is not None else self._memory

    def _way(self, after: Entry, *, measured: bool) -> Entry:
        def push(item: Any) -> None:
            try:
                self._append([item])
            except StateError as problem:
                self._wait(problem, entry, "push", item)
            after.push(item)

        def push_batch(batch: Any) -> None:
            try:
                self._append(batch)
            except StateError as problem:
                self._wait(problem, entry, "push_batch", batch)
            after.push_batch(batch)

        entry = Entry(push, push_batch, self._ending(after.control))
        if not measured:
            entry.probe = self._way(after.probe, measured=True)
        return entry

    def _append(self, batch: Any) -> None:
        course = self._course
        if course is None:
            self._log.append(batch)
        else:
            self._pass(course, batch)
        if self.trouble is not None:
            self.trouble = None
        if self._disk is None:
            self._forget()

    def _pass(self, course: Course, batch: Any) -> None:
        """Append what the log does not have yet; if it does not come to that, the whole batch comes again."""
        came = course.next
        try:
            rest = course.passed(batch)
            if course.over:
                self._log.append(rest)
                self._course = None
        except BaseException:
            course.next = came
            raise

    def _forget(self) -> None:
        """Apply the retention to the log in memory, as the log on disk does by itself."""
        log, keep = self._memory, self._retention
        before = log.end if keep.items is None else log.end - keep.items
        if keep.seconds is not None:
            now = time.monotonic()
            self._times.append((now, log.end))
            while self._times[0][0] < now - keep.seconds:
                self._old = self._times.popleft()[1]
            before = min(before, self._old)
        if before > log.start and (keep.items is not None or keep.seconds is not None):
            log.trim(before)

    def _ending(self, control: Control) -> Push:
        """The end of the stream: what it did not give once more after a crash is not part of it."""

        def end(mark: Punctuation | EndOfStream) -> None:
            if self._course is not None and isinstance(mark, EndOfStream):
                self._course.leave()
                self._course = None
            control(mark)

        return end

    def _wait(self, problem: ExopError, entry: Entry, way: Way, payload: Any) -> None:
        """Nothing is lost: the pusher waits at its safe point, and tries again.

        Raises:
            ExopError: there is no driver that could wait here.
        """
        driver = current_driver()
        if driver is None:
            raise problem
        if self.trouble is None:
            logger("exop.log").error("the stream waits for its log", channel=self.name, problem=str(problem))
        self.trouble = str(problem)
        driver.told()
        raise Unwind(self.trouble, lambda: False, Work(entry, way, payload), patience=AGAIN)

"""A segment is one file of a log: named by the offset of the first row, and made of frames. Also the file operations.

One append writes one frame, whole or not at all: a header with two checksums, and the rows or a control item.
The body of a control item is its number among those since the last row, and time and allowance of a punctuation.

    magic, first offset, time, rows, length of the body, 0, kind, sum of the body, sum of the header

In place of the 0, earlier releases wrote the length of a key in front of the body.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from exop.errors import StoredStateError
from exop.logs import logger
from exop.model.items import EndOfStream, Punctuation
from exop.model.values.depth import DEPTH
from exop.model.values.encoding import decode, decode_each, encode
from exop.runtime.dataflow.batches import cut
from exop.runtime.durable.failpoints import armed, failpoint
from exop.runtime.log.memory import Position

#: The version of the file format.
FORMAT: Final = 1
#: The nesting depth of a batch: one level around its rows.
LEVELS: Final = DEPTH + 1
SUFFIX, UNFINISHED = ".log", ".new"
#: The file with the position up to which the last checkpoint of a durable application counts.
COMMITTED: Final = "committed"
#: The distance in bytes between two positions in the index of a segment; also the size of one read.
STRIDE: Final = 2**16

MAGIC: Final = b"ExL1"
_HEAD: Final = struct.Struct("<4sQdIIHHI")
_SUM: Final = struct.Struct("<I")
_SUMMED: Final = struct.Struct("<4sQdIIHHII")
#: The longest body.
LARGEST: Final = 2**31 - 1
#: The kinds of frames: rows, the opening of each segment (its `rows` are the control items before it since the last
#: row), and control items.
ROWS, OPENING, MARK = 0, 1, 2


class File:
    """One open file, read and written at given positions."""

    locked = False

    def __init__(self, path: Path, how: int) -> None:
        self.number = os.open(path, how | os.O_CLOEXEC, 0o600)

    def size(self) -> int:
        """Return the length in bytes."""
        return os.fstat(self.number).st_size

    def read(self, position: int, length: int) -> bytes:
        """Read *length* bytes, or up to the end of the file."""
        found = os.pread(self.number, length, position)
        while len(found) < length and (more := os.pread(self.number, length - len(found), position + len(found))):
            found += more
        return found

    def write(self, position: int, data: bytes) -> None:
        """Write all of *data*, in one or more calls; after an error, a part may be written."""
        done = 0
        while done < len(data):
            done += os.pwrite(self.number, memoryview(data)[done:], position + done)

    def truncate(self, size: int) -> None:
        """Truncate the file to *size* bytes."""
        os.ftruncate(self.number, size)

    def sync(self) -> None:
        """Force the content to disk."""
        os.fdatasync(self.number)

    def close(self) -> None:
        """Close the file, and release a lock on it."""
        if self.locked:  # a forked child also has the file open
            fcntl.flock(self.number, fcntl.LOCK_UN)
        os.close(self.number)


class Files:
    """The file operations of a log. Tests replace them by a file system that fails or is full.

    Args:
        how: The flags by which files are opened: for reading and writing, and created if needed; or `os.O_RDONLY`.
    """

    def __init__(self, how: int = os.O_RDWR | os.O_CREAT) -> None:
        self._how = how

    def names(self, folder: Path) -> list[str]:
        """List a folder; create it if needed, unless files are only read."""
        if self._how != os.O_RDONLY:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.listdir(folder)

    def open(self, path: Path) -> File:
        """Open a file."""
        return File(path, self._how)

    def rename(self, path: Path, to: Path) -> None:
        """Replace the file *to* atomically."""
        os.replace(path, to)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def sync(self, folder: Path) -> None:
        """Force the names in a folder to disk."""
        with closing(File(folder, os.O_RDONLY | os.O_DIRECTORY)) as file:
            os.fsync(file.number)

    def lock(self, path: Path) -> File | None:
        """Lock a file until it is closed or the process ends; `None` if another holder has it locked."""
        file = self.open(path)
        try:
            fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        file.locked = True
        return file


DISK: Final = Files()


class Frame(NamedTuple):
    """A whole frame.

    Attributes:
        position, end: The start and end of the frame in the file.
        first, after: The offsets of the first row, and of the row after the frame.
    """

    position: int
    end: int
    first: int
    after: int
    time: float
    rows: int
    kind: int
    body: bytes

    @property
    def behind(self) -> tuple[int, int]:
        """The position after the frame."""
        return self.after, decode(self.body)[0] + 1 if self.kind == MARK else 0


def contents(frames: Sequence[Frame], start: int, end: int) -> list[Any]:
    """Return the control items in frames, and their rows from *start* up to *end*."""
    found = decode_each([frame.body for frame in frames], levels=LEVELS)
    for n in [n for n, frame in enumerate(frames) if frame.kind == MARK]:
        found[n] = Punctuation(*found[n][1:]) if len(found[n]) > 1 else EndOfStream()
    for n in {0, len(frames) - 1} if frames else ():  # all frames between are in the range
        if (frame := frames[n]).rows and (frame.first < start or frame.after > end):
            found[n] = cut(found[n], max(0, start - frame.first), min(frame.rows, end - frame.first))
    return found


def written(first: int, time: float, rows: int, body: bytes, *, kind: int = ROWS) -> bytes:
    """Return a frame as bytes."""
    head = _HEAD.pack(MAGIC, first, time, rows, len(body), 0, kind, zlib.crc32(body))
    return b"".join((head, _SUM.pack(zlib.crc32(head)), body))


def _frame_at(data: bytes, at: int, position: int) -> Frame | int:
    """Return the frame in *data* at *at*, *position* in the file; if it is not whole, its length (0: no header)."""
    if len(data) < (begin := at + _SUMMED.size):
        return 0
    magic, first, time, rows, length, key_length, kind, known, head = _SUMMED.unpack_from(data, at)
    if magic != MAGIC or zlib.crc32(data[at : at + _HEAD.size]) != head:
        return 0
    body = begin + key_length
    if len(data) < (end := body + length) or zlib.crc32(data[begin:end]) != known:
        return int(end - at)
    held = (position, position + end - at, first, first + rows, time, rows, kind, data[body:end])
    return tuple.__new__(Frame, held)  # in half the time of `Frame(...)`


def _whole_frame_in(data: bytes) -> Frame | None:
    """Find a whole frame after the first byte, which proves that the bytes before it were not written last."""
    found = 0
    while (found := data.find(MAGIC, found + 1)) >= 0:
        if isinstance(frame := _frame_at(data, found, found), Frame):
            return frame
    return None


def segment_names(names: Iterable[str]) -> list[str]:
    """Return the file names of segments, oldest first."""
    return sorted(name for name in names if re.fullmatch(rf"[0-9]{{20}}{re.escape(SUFFIX)}", name))


class Segment:
    """One file of a log.

    Attributes:
        base, end: The offsets of the first row, and of the row after the last one.
        marks: The number of control items since the last row, which may be in the previous segment.
        born: The time at which the segment was begun.
        size: The number of bytes of whole frames.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self.path, self._cure = path, f"restore {path.name} from a copy"
        self.base = int(path.name.removesuffix(SUFFIX))
        self._files = files
        self._file: File | None = None
        self._overhang = False
        self._index: list[tuple[int, int]] = []  # the first row and the position of a frame in each STRIDE
        self._begin = 0
        if (opening := next(self.frames(), None)) is None or opening.kind != OPENING:
            raise self.damaged("its header is not that of a segment")
        if (form := decode(opening.body)[0]) != FORMAT:
            problem = f"it is written in the form {form}, this release reads {FORMAT}"
            raise self.damaged(problem, cure="use the release that wrote it")
        self.born = opening.time
        self.size = self._begin = opening.end
        self.end, self.marks = self.base, opening.rows

    @classmethod
    def create(cls, files: Files, folder: Path, begin: Position, time: float) -> Segment:
        """Create a segment atomically."""
        path = folder / f"{begin.offset:020d}{SUFFIX}"
        replace_file(files, path, written(begin.offset, time, begin.marks, encode([FORMAT]), kind=OPENING))
        return cls(files, path)

    @property
    def position(self) -> Position:
        """The position of the next event."""
        return Position(self.end, self.marks)

    def put(self, data: bytes, end: int, marks: int) -> None:
        """Append a frame and set `end` and `marks`; after an `OSError`, no part of the frame remains."""
        file = self._opened()
        if self._overhang:
            file.truncate(self.size)
            self._overhang = False
        failpoint("log-append-before")
        try:
            if half := len(data) // 2 if armed("log-append-half") else 0:
                file.write(self.size, data[:half])
                failpoint("log-append-half")
            file.write(self.size + half, data[half:])
        except OSError:
            self.take_back()
            raise
        failpoint("log-append-after")
        self._note(self.end, self.size)
        self.size += len(data)
        self.end, self.marks = end, marks

    def take_back(self, size: int | None = None, end: Position | None = None) -> None:
        """Truncate the file to *size*, by default to the end of the last whole frame; the next `put` tries again."""
        self.size = self.size if size is None else size
        self.end, self.marks = end or self.position
        while self._index and self._index[-1][1] >= self.size:
            self._index.pop()
        self._overhang = True
        with suppress(OSError):
            self._opened().truncate(self.size)
            self._overhang = False

    def frames(self, first: int | None = None) -> Generator[Frame, None, tuple[int, int]]:
        """Yield the frames from one before row *first* on, up to the first torn one; return its position and row."""
        expected, at = self.base, self._begin
        if first is not None and (before := bisect_left(self._index, first, key=itemgetter(0))):
            expected, at = self._index[before - 1]
        file, data, low, noted = self._opened(), b"", at, 0
        while True:
            if isinstance(frame := _frame_at(data, at - low, at), int):
                # The frame may continue after the bytes read so far.
                more = file.read(at, max(STRIDE, frame))
                if low == at and len(more) <= len(data):
                    return at, expected
                data, low = more, at
                continue
            if frame.first != expected:
                return at, expected
            yield frame
            if at >= noted:  # after it was used: a reader in another process ends at a frame that may be taken back
                self._note(expected, at)
                noted = at + STRIDE
            at, expected = frame.end, frame.after

    def between(self, start: Position, end: Position) -> list[Frame]:
        """Return the frames with events from *start* up to *end*; a damaged frame is an error."""
        wanted: list[Frame] = []
        reached, size = self.base, self._begin
        for frame in self.frames(start.offset):
            reached, size, behind = frame.after, frame.end, frame.behind
            if behind > start and (frame.first < end.offset or behind <= end):
                wanted.append(frame)
            if behind >= end:
                return wanted
        if reached < min(end.offset, self.end) or size < self.size:
            raise self.damaged(f"damaged at row {reached}")
        return wanted

    def scan(self) -> None:
        """Find the end of the last whole frame."""
        for last in deque(self.frames(), maxlen=1):
            self.size, (self.end, self.marks) = last.end, last.behind

    def find_end(self, counted: Position | None) -> None:
        """Find the end, and truncate a torn tail (see `check_tail`)."""
        self.scan()
        if rest := self.check_tail(counted):
            self.take_back()
            facts = {"log": str(self.path.parent), "bytes": len(rest), "at": self.size, "offset": self.end}
            logger("exop.log").warning("a torn write at the end of a log was removed", **facts)

    def check_tail(self, counted: Position | None) -> bytes:
        """Return the bytes after the end, which a crash may have left.

        After the position *counted* by a checkpoint, a power failure may also have left whole frames after a gap.
        """
        rest = self.rest(self.size)
        if counted is None and (behind := _whole_frame_in(rest)) is not None:
            frame = _frame_at(self.rest(self.size), 0, self.size)  # another process may have appended a frame meanwhile
            if not (isinstance(frame, Frame) and frame.first == self.end):
                problem = f"damaged at byte {self.size}, row {self.end}; whole rows from {behind.first} on follow"
                cure = f"{self._cure}, or drop the rows from there on: truncate -s {self.size} {self.path}"
                raise self.damaged(problem, cure=cure)
        if counted is not None and self.position < counted:
            has = f"it ends at row {self.end}" + (f" with {self.marks} control items" if counted.marks else "")
            wanted = f"the rows up to {counted.offset}" + (f", and {counted.marks} behind" if counted.marks else "")
            raise self.damaged(f"{has}, and a checkpoint has counted {wanted}")
        return rest

    def check_end(self, place: int, row: int, counted: Position | None) -> None:
        """Raise `StoredStateError` if the frames end at *place* because of damage; another process may be appending."""
        if counted is None or row < counted.offset:
            self.size, self.end, self.marks = place, row, 0
            self.check_tail(counted)

    def rest(self, position: int, most: int | None = None) -> bytes:
        """Read the file from *position* to its end, or *most* bytes."""
        file = self._opened()
        return file.read(position, max(0, file.size() - position) if most is None else most)

    def sealed(self, end: int) -> None:
        """Record that another segment follows, which begins at *end*."""
        self.size, self.end = self._opened().size(), end
        self.close()

    def sync(self) -> None:
        """Force the file to the disk."""
        self._opened().sync()

    @property
    def replaced(self) -> bool:
        """Whether another file has this name now, since a cut inside a batch rewrites the file."""
        return not os.path.samestat(os.fstat(self._opened().number), os.stat(self.path))

    def close(self) -> None:
        """Close the file; the next access opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the file."""
        self.close()
        self._files.remove(self.path)

    def damaged(self, problem: str, cure: str | None = None) -> StoredStateError:
        """Return the error for damage of this file."""
        what, cure = f"the log {self.path.parent}", cure or self._cure
        return StoredStateError(what=what, problem=f"{self.path.name}: {problem}", cure=cure)

    def _note(self, first: int, place: int) -> None:
        if not self._index or place >= self._index[-1][1] + STRIDE:
            self._index.append((first, place))

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file


def check_given_up(folder: Path, start: int, given_up: int | None) -> None:
    """Refuse a log that begins at *start* if only the rows before *given_up* were trimmed; `None`: it is not known."""
    if given_up is not None and start > given_up:
        problem = f"its first row is {start}, and nothing from {given_up} on has been given up"
        raise StoredStateError(what=f"the log {folder}", problem=problem, cure="put its files back")


def note(files: Files, folder: Path, end: Position, start: int | None) -> File:
    """Store that a checkpoint counts the rows up to *end*, from *start* on if older ones may be missing."""
    data = b"%020d%20s%020d" % (end.offset, b"" if start is None else b"%020d" % start, end.marks)
    if COMMITTED not in files.names(folder):  # atomic, so that a crash or a full disk leaves no empty file
        replace_file(files, folder / COMMITTED, data)
    file = files.open(folder / COMMITTED)
    file.write(0, data)
    return file


def noted(folder: Path, files: Files) -> tuple[Position | None, int | None]:
    """Return the position up to which the last checkpoint counts, `None` if every row counts; and its first row."""
    if COMMITTED not in files.names(folder):
        return None, None
    try:
        with closing(files.open(folder / COMMITTED)) as file:
            end, start, marks = file.read(0, 20), file.read(20, 20).strip(), file.read(40, 20)
        return Position(int(end), int(marks or b"0")), int(start) if start else None
    except FileNotFoundError:  # removed meanwhile
        return None, None
    except ValueError as problem:
        cure = f"restore it from a copy, or remove it: then every row of the log counts: {folder / COMMITTED}"
        raise StoredStateError(what=f"the log {folder}", problem=f"{COMMITTED} is damaged", cure=cure) from problem


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Replace a file atomically, and force it to disk; after an `OSError`, the file is unchanged."""
    unfinished = path.with_suffix(UNFINISHED)
    with closing(files.open(unfinished)) as file:
        file.truncate(0)
        file.write(0, data)
        file.sync()
    files.rename(unfinished, path)
    files.sync(path.parent)

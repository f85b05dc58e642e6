"""A segment: one file of a log, named by the offset of its first row, made of frames.

One append writes one frame, whole or not at all: a header with two check sums, the key, the rows.

    magic, first offset, time, rows, length of the body, length of the key, kind, sum of key and body, sum of the header
"""

from __future__ import annotations

import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from exop.errors import StoredStateError
from exop.logs import logger
from exop.model.decoding import decode
from exop.model.depth import DEPTH
from exop.model.encoding import encode
from exop.runtime.durable.failpoints import armed, failpoint
from exop.runtime.log.files import File, Files

#: The version of the file format.
FORMAT: Final = 1
#: How deeply a batch may be nested: one level around its rows.
LEVELS: Final = DEPTH + 1
SUFFIX, UNFINISHED = ".log", ".new"
#: The file with the offset up to which the last checkpoint of a durable application counts.
COMMITTED: Final = "committed"
#: The distance in bytes between two positions in the index of a segment; also the size of one read.
STRIDE: Final = 2**16

MAGIC: Final = b"ExL1"
_HEAD: Final = struct.Struct("<4sQdIIHHI")
_SUM: Final = struct.Struct("<I")
#: The bytes of a header.
HEADER: Final = _HEAD.size + _SUM.size
#: The longest body, and the longest key.
LARGEST, LONGEST_KEY = 2**31 - 1, 2**16 - 1
#: The kinds of frames: rows of the log, and the opening of each segment.
ROWS, OPENING = 0, 1


class Frame(NamedTuple):
    """The header of a frame, and its position in the file."""

    position: int
    first: int
    time: float
    rows: int
    length: int
    key_length: int
    kind: int
    sum: int

    @property
    def after(self) -> int:
        """The offset of the row after it."""
        return self.first + self.rows

    @property
    def end(self) -> int:
        """The position of the next frame."""
        return self.position + HEADER + self.key_length + self.length


def written(first: int, time: float, rows: int, body: bytes, *, key: bytes = b"", kind: int = ROWS) -> bytes:
    """Return a frame as bytes."""
    head = _HEAD.pack(MAGIC, first, time, rows, len(body), len(key), kind, zlib.crc32(body, zlib.crc32(key)))
    return b"".join((head, _SUM.pack(zlib.crc32(head)), key, body))


def _frame_at(data: bytes, at: int, position: int) -> tuple[Frame | None, tuple[bytes, bytes] | None]:
    """Return the header in *data* at *at*, which is *position* in the file, and key and body, where they are whole."""
    if len(data) < at + HEADER or data[at : at + 4] != MAGIC:
        return None, None
    (known,) = _SUM.unpack_from(data, at + _HEAD.size)
    if zlib.crc32(data[at : at + _HEAD.size]) != known:
        return None, None
    frame = Frame(position, *_HEAD.unpack_from(data, at)[1:])
    held = data[at + HEADER : at + frame.end - position]
    if len(data) < at + frame.end - position or zlib.crc32(held) != frame.sum:
        return frame, None
    return frame, (held[: frame.key_length], held[frame.key_length :])


def _whole_frame_in(data: bytes) -> Frame | None:
    """Find a whole frame behind the first byte: it proves that the bytes before it were not written last."""
    found = 0
    while (found := data.find(MAGIC, found + 1)) >= 0:
        frame, held = _frame_at(data, found, found)
        if held is not None:
            return frame
    return None


def segment_names(names: Iterable[str]) -> list[str]:
    """Return the file names of segments, oldest first."""
    return sorted(name for name in names if re.fullmatch(rf"[0-9]{{20}}{re.escape(SUFFIX)}", name))


class Segment:
    """One file of a log.

    Attributes:
        base, end: The offsets of its first row, and of the row after its last one.
        born: The time at which it was begun.
        keys: The last number of each producer in the log, at `base`.
        size: The bytes of its whole frames.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self.path, self._cure = path, f"restore {path.name} from a copy"
        self.base = int(path.name.removesuffix(SUFFIX))
        self._files = files
        self._file: File | None = None
        self._overhang = False
        self._index: list[tuple[int, int]] = []  # the first row and the position of a frame in each STRIDE
        file = self._opened()
        opening, held = _frame_at(file.read(0, HEADER), 0, 0)
        if opening is not None:
            opening, held = _frame_at(file.read(0, opening.end), 0, 0)
        if opening is None or held is None or opening.kind != OPENING:
            raise self.damaged("it does not begin as a segment does")
        form, self.keys = decode(held[1])
        if form != FORMAT:
            problem = f"it is written in the form {form}, this release reads {FORMAT}"
            raise self.damaged(problem, cure="use the release that wrote it")
        self.born = opening.time
        self.size = self._begin = opening.end
        self.end = self.base

    @classmethod
    def create(cls, files: Files, folder: Path, base: int, time: float, keys: dict[str, int]) -> Segment:
        """Create a segment atomically."""
        path = folder / f"{base:020d}{SUFFIX}"
        replace_file(files, path, written(base, time, 0, encode([FORMAT, keys]), kind=OPENING))
        return cls(files, path)

    def put(self, data: bytes, first: int, after: int) -> None:
        """Append a frame with the rows from *first* to before *after*; an `OSError` leaves nothing of it."""
        file = self._opened()
        if self._overhang:
            file.truncate(self.size)
            self._overhang = False
        failpoint("log-append-before")
        try:
            half = len(data) // 2 if armed("log-append-half") else 0
            if half:
                file.write(self.size, data[:half])
                failpoint("log-append-half")
            file.write(self.size + half, data[half:])
        except OSError:
            self.take_back()
            raise
        failpoint("log-append-after")
        self._note(first, self.size)
        self.size += len(data)
        self.end = after

    def take_back(self, size: int | None = None, end: int | None = None) -> None:
        """Cut off everything behind *size*, or behind the last whole frame; if that fails, the next `put` does it."""
        self.size = self.size if size is None else size
        self.end = self.end if end is None else end
        while self._index and self._index[-1][1] >= self.size:
            self._index.pop()
        self._overhang = True
        with suppress(OSError):
            self._opened().truncate(self.size)
            self._overhang = False

    def frames(self, first: int | None = None) -> Iterator[tuple[Frame, bytes, bytes]]:
        """Yield the frames with key and body, up to the first that is not whole; from one at or before *first*."""
        expected, at = self.base, self._begin
        if first is not None and (before := bisect_right(self._index, first, key=itemgetter(0))):
            expected, at = self._index[before - 1]
        file, data, low = self._opened(), b"", at
        while True:
            frame, held = _frame_at(data, at - low, at)
            if frame is None or held is None:
                # It may continue behind the bytes read so far.
                wanted = max(STRIDE, frame.end - at if frame is not None else 0)
                more = file.read(at, wanted)
                if low == at and len(more) <= len(data):
                    return
                data, low = more, at
                continue
            if frame.first != expected:
                return
            self._note(frame.first, at)
            yield frame, *held
            at, expected = frame.end, frame.after

    def between(self, start: int, end: int) -> list[tuple[Frame, bytes]]:
        """Return the frames with rows from *start* up to *end*, and their bodies; a damaged one is an error."""
        wanted, reached = [], self.base
        for frame, _, body in self.frames(start):
            reached = frame.after
            if frame.after > start and frame.first < end and frame.rows:
                wanted.append((frame, body))
            if frame.after >= end:
                return wanted
        if reached < min(end, self.end):
            raise self.damaged(f"damaged at row {reached}")
        return wanted

    def find_end(self, counted: int | None) -> dict[str, int]:
        """Find the end, cut off a torn tail (see `check_tail`), and return the last number of each producer."""
        last = dict(self.keys)
        for frame, key, _ in self.frames():
            self.size, self.end = frame.end, frame.after
            if key:
                producer, number = decode(key)
                last[producer] = number
        rest = self.check_tail(counted)
        if rest:
            self.take_back()
            facts = {"log": str(self.path.parent), "bytes": len(rest), "at": self.size, "offset": self.end}
            logger("exop.log").warning("a torn tail was cut off", **facts)
        return last

    def check_tail(self, counted: int | None) -> bytes:
        """Return the bytes behind the end, which a crash may have left.

        Raises:
            StoredStateError: a whole frame follows the end, or the end is before the row *counted* by a checkpoint.
        """
        rest = self.rest(self.size)
        if (behind := _whole_frame_in(rest)) is not None:
            problem = f"damaged at byte {self.size}, row {self.end}; whole rows from {behind.first} on follow"
            cure = f"{self._cure}, or give up what stands behind that place: truncate -s {self.size} {self.path}"
            raise self.damaged(problem, cure=cure)
        if counted is not None and self.end < counted:
            raise self.damaged(f"it ends at row {self.end}, and a checkpoint has counted the rows up to {counted}")
        return rest

    def rest(self, position: int) -> bytes:
        """Read the file from *position* to its end."""
        file = self._opened()
        return file.read(position, max(0, file.size() - position))

    def sealed(self, end: int) -> None:
        """Note that another segment follows, which begins at *end*."""
        self.size, self.end = self._opened().size(), end
        self.close()

    def sync(self) -> None:
        """Force the file to the disk."""
        self._opened().sync()

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


def settled(folder: Path, files: Files) -> int | None:
    """Return the offset up to which the last checkpoint counts; `None`: every row counts."""
    return _noted(folder, files)[0]


def check_start(folder: Path, files: Files, start: int) -> None:
    """Refuse a log that begins at *start* if its oldest rows are gone, and were not given up."""
    given_up = _noted(folder, files)[1]
    if given_up is not None and start > given_up:
        problem = f"its first row is {start}, and nothing from {given_up} on has been given up"
        raise StoredStateError(what=f"the log {folder}", problem=problem, cure="put its files back")


def _noted(folder: Path, files: Files) -> tuple[int | None, int | None]:
    """Return the end and the start of the rows that the last checkpoint counts, as far as it has noted them."""
    if COMMITTED not in files.names(folder):
        return None, None
    file = files.open(folder / COMMITTED)
    try:
        end, start = file.read(0, 20), file.read(20, 20).strip()
        return int(end), int(start) if start else None
    except ValueError as problem:
        cure = f"restore it from a copy, or remove it: then every row of the log counts, {folder / COMMITTED}"
        raise StoredStateError(what=f"the log {folder}", problem=f"{COMMITTED} is damaged", cure=cure) from problem
    finally:
        file.close()


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Replace a file atomically, and force it to the disk; after an `OSError` it is as it was."""
    unfinished = path.with_suffix(UNFINISHED)
    file = files.open(unfinished)
    try:
        file.truncate(0)
        file.write(0, data)
        file.sync()
    finally:
        file.close()
    files.rename(unfinished, path)
    files.sync(path.parent)

"""A segment: one file of a log, named by the offset of its first row; frames one behind the other."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from exop.errors import StoredStateError
from exop.logs import logger
from exop.model.decoding import decode
from exop.model.depth import DEPTH
from exop.model.encoding import encode
from exop.runtime.durable.failpoints import armed, failpoint
from exop.runtime.log.files import File, Files
from exop.runtime.log.frames import HEADER, OPENING, Frame, content, header, one_behind, written

#: The form of what is written here.
FORMAT: Final = 1
#: How deeply a batch may be nested: one level around its rows.
LEVELS: Final = DEPTH + 1
SUFFIX, UNFINISHED = ".log", ".new"
#: The file that tells how far the last checkpoint of a durable application counts.
COMMITTED: Final = "committed"
#: A place of the file is remembered after so many bytes, and so many are read at once.
STRIDE: Final = 2**16


def segment_names(names: Iterable[str]) -> list[str]:
    """The file names of segments, oldest first; other files in the folder are left alone."""
    return sorted(name for name in names if re.fullmatch(rf"[0-9]{{20}}{re.escape(SUFFIX)}", name))


class Segment:
    """One file of a log.

    Attributes:
        base: The offset of its first row.
        born: When it was begun.
        keys: The last number of each producer in the log, at `base`.
        size: How many bytes of it are whole frames.
        end: The offset of the row after its last one.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self.path = path
        self.base = int(path.name.removesuffix(SUFFIX))
        self._files = files
        self._file: File | None = None
        self._overhang = False
        self._firsts = array("Q")
        self._places = array("Q")
        with_file = self._opened()
        opening = header(with_file.read(0, HEADER), 0, 0)
        held = content(with_file.read(0, opening.end), 0, opening) if opening is not None else None
        if opening is None or held is None or opening.kind != OPENING:
            raise self.damaged("it does not begin as a segment does")
        form, self.keys = decode(held[1])
        if form != FORMAT:
            problem = f"{path.name} is written in the form {form}, this release reads {FORMAT}"
            cure = "use the release that wrote it"
            raise StoredStateError(what=f"the log {path.parent}", problem=problem, cure=cure)
        self.born = opening.time
        self.size = self._begin = opening.end
        self.end = self.base

    @classmethod
    def create(cls, files: Files, folder: Path, base: int, time: float, keys: dict[str, int]) -> Segment:
        """Begin a segment; it is there whole, or not at all.

        Raises:
            OSError: it cannot be written.
        """
        path = folder / f"{base:020d}{SUFFIX}"
        replace_file(files, path, written(base, time, 0, encode([FORMAT, keys]), kind=OPENING))
        return cls(files, path)

    def put(self, data: bytes, first: int, after: int) -> None:
        """Write a frame with the rows from *first* to before *after* behind the last one, whole or not at all.

        Raises:
            OSError: it could not be written; nothing of it is there.
        """
        file = self._opened()
        if self._overhang:
            file.truncate(self.size)
            self._overhang = False
        failpoint("log-append-before")
        try:
            half = len(data) // 2 if armed("log-append-half") else 0
            if half:
                write_all(file, self.size, data[:half])
                failpoint("log-append-half")
            write_all(file, self.size + half, data[half:])
        except OSError:
            self.take_back()
            raise
        failpoint("log-append-after")
        self._note(first, self.size)
        self.size += len(data)
        self.end = after

    def take_back(self, size: int | None = None, end: int | None = None) -> None:
        """Let go of what stands behind the last whole frame, or behind *size*; at the next `put` if it must be."""
        self.size = self.size if size is None else size
        self.end = self.end if end is None else end
        while self._places and self._places[-1] >= self.size:
            del self._places[-1], self._firsts[-1]
        self._overhang = True
        with suppress(OSError):
            self._opened().truncate(self.size)
            self._overhang = False

    def frames(self, first: int | None = None) -> Iterator[tuple[Frame, bytes, bytes]]:
        """The frames, one behind the other, with key and body; from one that begins at or before *first*.

        It ends where no whole frame stands.
        """
        at = self._begin
        expected = self.base
        if first is not None and (index := bisect_right(self._firsts, first) - 1) >= 0:
            at, expected = self._places[index], self._firsts[index]
        file, data, low = self._opened(), b"", at
        while True:
            frame = header(data, at - low, at)
            held = content(data, at - low, frame) if frame is not None else None
            if frame is None or held is None:
                # Perhaps it goes on behind what has been read.
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
        """The frames that hold rows from *start* up to *end*, with their bodies.

        Raises:
            StoredStateError: one of them is damaged.
        """
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
        """Find the end, and the last number of each producer; cut off what a crash has left behind the end.

        Raises:
            StoredStateError: it is damaged in the middle, or ends before the row that a checkpoint has *counted* up to;
                nothing is changed.
        """
        last = dict(self.keys)
        for frame, key, _ in self.frames():
            self.size, self.end = frame.end, frame.after
            if key:
                producer, number = decode(key)
                last[producer] = number
        rest = self.check_tail(counted)
        if rest:
            self.take_back()
            logger("exop.log").warning(
                "a torn tail was cut off", log=str(self.path.parent), bytes=len(rest), at=self.size, offset=self.end
            )
        return last

    def check_tail(self, counted: int | None) -> bytes:
        """The bytes behind the end, which a crash may have left: no whole frame stands among them.

        Raises:
            StoredStateError: one does, or the end is before the row up to which a checkpoint has *counted*.
        """
        rest = self.rest(self.size)
        if (behind := one_behind(rest, 0)) is not None:
            problem = f"damaged at byte {self.size}, row {self.end}; whole rows from {behind.first} on follow"
            raise self.damaged(problem, self.size)
        if counted is not None and self.end < counted:
            raise self.damaged(f"it ends at row {self.end}, and a checkpoint has counted the rows up to {counted}")
        return rest

    def rest(self, position: int) -> bytes:
        """Read the file from *position* on."""
        file = self._opened()
        return file.read(position, max(0, file.size() - position))

    def sealed(self, end: int) -> None:
        """Note that another segment follows it, which begins at *end*."""
        self.size, self.end = self._opened().size(), end
        self.close()

    def sync(self) -> None:
        """Wait until the disk has it."""
        self._opened().sync()

    def close(self) -> None:
        """Close the file; it is opened again when it is wanted."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the file."""
        self.close()
        self._files.remove(self.path)

    def damaged(self, problem: str, position: int | None = None) -> StoredStateError:
        """The error that says so."""
        cure = f"restore {self.path.name} from a copy"
        if position is not None:
            cure += f", or give up what stands behind that place: truncate -s {position} {self.path}"
        return StoredStateError(what=f"the log {self.path.parent}", problem=f"{self.path.name}: {problem}", cure=cure)

    def _note(self, first: int, place: int) -> None:
        if not self._places or place >= self._places[-1] + STRIDE:
            self._firsts.append(first)
            self._places.append(place)

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file


def settled(folder: Path, files: Files) -> int | None:
    """Return the offset up to which the last noted checkpoint counts; `None`: none was noted, and all counts.

    Raises:
        StoredStateError: the note is damaged.
    """
    return _noted(folder, files, 0)


def check_start(folder: Path, files: Files, start: int) -> None:
    """Refuse a log that begins at *start* if its oldest rows are gone, and were not given up.

    Raises:
        StoredStateError: they are, or the note of the last checkpoint is damaged.
    """
    given_up = _noted(folder, files, 20)
    if given_up is not None and start > given_up:
        problem = f"its first row is {start}, and nothing from {given_up} on has been given up"
        raise StoredStateError(what=f"the log {folder}", problem=problem, cure="put its files back")


def _noted(folder: Path, files: Files, position: int) -> int | None:
    """Return a number that the last checkpoint has noted: the end of the rows that it counts, or their start."""
    if COMMITTED not in files.names(folder):
        return None
    file = files.open(folder / COMMITTED)
    try:
        found = file.read(position, 20)
        return int(found) if position == 0 or found.strip() else None
    except ValueError as problem:
        cure = f"restore it from a copy, or remove it: then every row of the log counts, {folder / COMMITTED}"
        raise StoredStateError(what=f"the log {folder}", problem=f"{COMMITTED} is damaged", cure=cure) from problem
    finally:
        file.close()


def write_all(file: File, position: int, data: bytes) -> None:
    """Write everything, however little is taken at a time.

    Raises:
        OSError: it cannot be written.
    """
    view = memoryview(data)
    while view:
        taken = file.write(position, view)
        position, view = position + taken, view[taken:]


def replace_file(files: Files, path: Path, *pieces: bytes) -> None:
    """Put a file in its place at once, whole and on the disk.

    Raises:
        OSError: it cannot be written; what was there before is there still.
    """
    unfinished = path.with_suffix(UNFINISHED)
    file = files.open(unfinished)
    try:
        file.truncate(0)
        position = 0
        for piece in pieces:
            write_all(file, position, piece)
            position += len(piece)
        file.sync()
    finally:
        file.close()
    files.rename(unfinished, path)
    files.sync(path.parent)

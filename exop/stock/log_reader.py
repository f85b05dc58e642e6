"""`LogReader`: reads a log on disk while another process writes it; changes nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from exop.errors import MeshError, StateError
from exop.model.decoding import decode
from exop.runtime.convert import cut, to_items
from exop.runtime.log.files import File, Files
from exop.runtime.log.segment import LEVELS, SUFFIX, Segment, check_start, segment_names, settled


class _ReadOnly(Files):
    """The file system, for reading only."""

    def names(self, folder: Path) -> list[str]:
        """List the files of a folder."""
        return os.listdir(folder)

    def open(self, path: Path) -> File:
        """Open a file for reading."""
        return File(path, os.O_RDONLY)


class LogReader:
    """Reads rows from any offset, as far as they are there whole, and count.

    Raises:
        StateError: there is no log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _ReadOnly()
        self._segment: Segment | None = None
        if not folder.is_dir():
            raise StateError(f"there is no log in {folder}; give the folder of a log channel that is on disk")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    @property
    def start(self) -> int:
        """The oldest offset that is kept.

        Raises:
            StoredStateError: older rows are gone that were not given up.
        """
        found = min(self._bases(), default=0)
        check_start(self._folder, self._files, found)
        return found

    @property
    def committed(self) -> int | None:
        """The offset up to which the last checkpoint of a durable application counts; `None`: everything counts."""
        try:
            return settled(self._folder, self._files)
        except FileNotFoundError:  # removed between two looks
            return None

    def read(self, offset: int, most: int) -> list[Any]:
        """The rows from *offset* on that are there, at most so many; none, if there is nothing yet.

        Raises:
            MeshError: they are not kept any more.
            StoredStateError: the log is damaged, or of another release.
        """
        bound = self.committed
        most = most if bound is None else min(most, bound - offset)
        found: list[Any] = []
        while len(found) < most:
            segment = self._holding(offset + len(found))
            rows = self._rows(segment, offset + len(found), most - len(found)) if segment is not None else []
            if not rows:
                return found
            found += rows
        return found

    def _rows(self, segment: Segment, offset: int, most: int) -> list[Any]:
        found: list[Any] = []
        for frame, _, body in segment.frames(offset):
            if frame.after > offset and frame.rows:
                found += to_items(cut(decode(body, levels=LEVELS), max(0, offset - frame.first), frame.rows))
            if len(found) >= most:
                break
        return found[:most]

    def _holding(self, offset: int) -> Segment | None:
        """The segment in which a row stands, or will stand."""
        bases = self._bases()
        if not bases:
            return None
        if offset < bases[0]:
            raise MeshError(f"{self._folder}: rows from {offset} on were asked for; kept are those from {bases[0]} on")
        base = max(base for base in bases if base <= offset)
        if self._segment is None or self._segment.base != base:
            self._leave()
            with suppress(FileNotFoundError):  # given up between two looks
                self._segment = Segment(self._files, self._folder / f"{base:020d}{SUFFIX}")
        return self._segment

    def _bases(self) -> list[int]:
        return [int(name.removesuffix(SUFFIX)) for name in segment_names(os.listdir(self._folder))]

    def _leave(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

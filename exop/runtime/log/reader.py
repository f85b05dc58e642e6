"""`LogReader`: reads a log on disk while another process appends to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from exop.errors import MeshError, StateError
from exop.model.items import CONTROL
from exop.runtime.log.memory import Position, flat
from exop.runtime.log.segment import SUFFIX, Files, Frame, Segment, check_given_up, contents, noted, segment_names


class LogReader(AbstractContextManager["LogReader"]):
    """Reads rows from any offset, up to the last checkpoint of the writer, or the last whole frame."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = Files(os.O_RDONLY)
        self._segment: Segment | None = None
        self._next: tuple[Position, Position | None] | None = None  # the start and limit of `_ahead`
        self._ahead: Iterator[Frame] = iter(())
        if not folder.is_dir() or not self._bases():
            raise StateError(f"there is no log in {folder}; give the folder of a log channel that is on disk")

    def __exit__(self, *exc: object) -> None:
        self._leave()

    @property
    def start(self) -> int:
        """The oldest stored offset; raise `StoredStateError` if older rows are lost."""
        found = min(self._bases(), default=0)
        check_given_up(self._folder, found, noted(self._folder, self._files)[1])
        return found

    @property
    def committed(self) -> Position | None:
        """The position up to which the last checkpoint of a durable application counts; `None` if all rows count."""
        return noted(self._folder, self._files)[0]

    def read(self, offset: int, most: int) -> list[Any]:
        """Return up to *most* rows from *offset* on; see `events`."""
        return [one for one in flat(self.events(Position(offset), most)[0]) if not isinstance(one, CONTROL)][:most]

    def events(self, place: Position, most: int) -> tuple[list[Any], Position]:
        """Return events from *place* on in whole batches, at least *most* if possible, and the position after them."""
        found: list[Frame] = []
        start, bound, count = place.offset, self.committed, 0
        if (place, bound) != self._next:  # rows after a checkpoint may have been removed since
            self._ahead = self._frames(start, bound)
        self._next, at = None, (place.offset, place.marks)
        for frame in self._ahead:
            if (behind := frame.behind) <= at:
                continue
            if bound is not None and behind > bound:
                if frame.rows and at[0] < bound.offset:
                    found.append(frame)
                    at = (bound.offset, 0)
                break
            found.append(frame)
            at, count = behind, count + (frame.rows or 1)
            if count >= most:
                self._next = Position(*at), bound
                break
        return contents(found, start, at[0]), Position(*at)

    def _frames(self, offset: int, bound: Position | None) -> Iterator[Frame]:
        """Yield the frames from a row on, with the control items before it, which may be in the previous segment.

        The log is damaged if the frames end before *bound*, or before a whole frame.
        """
        if (bases := self._bases()) and offset < bases[0]:
            raise MeshError(f"{self._folder}: rows from {offset} on were asked for; kept are those from {bases[0]} on")
        first = max((base for base in bases if base < offset), default=offset)
        reached, stopped = first, 0
        for base in (base for base in bases if base >= first):
            if self._segment is not None and base > reached:
                raise self._segment.damaged(f"damaged at row {reached}")
            with suppress(FileNotFoundError):  # removed meanwhile
                if self._segment is None or self._segment.base != base or self._segment.replaced:
                    self._leave()
                    self._segment = Segment(self._files, self._folder / f"{base:020d}{SUFFIX}")
            if self._segment is None:
                return
            stopped, reached = yield from self._segment.frames(offset)
        if self._segment is not None:
            self._segment.check_end(stopped, reached, bound)

    def _bases(self) -> list[int]:
        return [int(name.removesuffix(SUFFIX)) for name in segment_names(self._files.names(self._folder))]

    def _leave(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

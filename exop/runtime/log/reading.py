"""Reading a segment: the frames in it, and the handling of damage."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from exop.logs import logger
from exop.model.decoding import decode
from exop.runtime.log.files import Files
from exop.runtime.log.frames import Frame, one_behind
from exop.runtime.log.segment import Segment, segment_names, settled


def looked_through(newest: Segment, counted: int | None = None) -> dict[str, int]:
    """Find the end of the newest segment, and the last key of each producer; cut off what a crash has left behind it.

    Raises:
        StoredStateError: it is damaged in the middle, or ends before the row up to which a checkpoint has *counted*;
            nothing is changed.
    """
    last = dict(newest.keys)
    for frame, key, _ in newest.frames():
        newest.size, newest.end = frame.end, frame.after
        if key:
            producer, number = decode(key)
            last[producer] = number
    rest = newest.rest(newest.size)
    if (behind := one_behind(rest, 0)) is not None:
        problem = f"damaged at byte {newest.size}, row {newest.end}; whole rows from {behind.first} on follow"
        raise newest.damaged(problem, newest.size)
    if counted is not None:
        newest.check_end(counted)
    if not rest:
        return last
    newest.take_back()
    logger("exop.log").warning(
        "a torn tail was cut off", log=str(newest.path.parent), bytes=len(rest), at=newest.size, offset=newest.end
    )
    return last


def frames_between(segment: Segment, start: int, end: int) -> list[tuple[Frame, bytes]]:
    """The frames of a segment that hold rows from *start* up to *end*, with their bodies.

    Raises:
        StoredStateError: one of them is damaged.
    """
    wanted, reached = [], segment.base
    for frame, _, body in segment.frames(start):
        reached = frame.after
        if frame.after > start and frame.first < end and frame.rows:
            wanted.append((frame, body))
        if frame.after >= end:
            return wanted
    if reached < min(end, segment.end):
        raise segment.damaged(f"damaged at row {reached}")
    return wanted


def examined(files: Files, folder: Path) -> tuple[int, int]:
    """Read all of a log that is not open: from which offset to which it reaches. Nothing is changed.

    Raises:
        StoredStateError: it is damaged, but for a torn tail, which is cut off when the log is opened.
        OSError: it cannot be read.
    """
    segments = [Segment(files, folder / name) for name in segment_names(path.name for path in folder.iterdir())]
    reached = [one.base for one in segments]
    try:
        for number, one in enumerate(segments):
            for frame, _, _ in one.frames():
                one.size, one.end, reached[number] = frame.end, frame.after, frame.after
        for (one, after), end in zip(pairwise(segments), reached, strict=False):
            if end != after.base:
                raise one.damaged(f"damaged at row {end}")
        rest = segments[-1].rest(segments[-1].size)
        if rest and one_behind(rest, 0) is not None:
            raise segments[-1].damaged(f"damaged at byte {segments[-1].size}", segments[-1].size)
        if (counted := settled(folder, files)) is not None:
            segments[-1].check_end(counted)
    finally:
        for one in segments:
            one.close()
    return segments[0].base, reached[-1]

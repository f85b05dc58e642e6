"""A frame: what one append writes, whole or not at all: a header with two check sums, the key, the rows.

    magic, first offset, time, rows, length of the body, length of the key, kind, sum of key and body, sum of the header

Both the header and what follows have a sum of their own, so that a reader may hop from header to header.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

MAGIC: Final = b"ExL1"
_HEAD: Final = struct.Struct("<4sQdIIHHI")
_SUM: Final = struct.Struct("<I")
#: The bytes of a header.
HEADER: Final = _HEAD.size + _SUM.size
#: The longest body, and the longest key.
LARGEST, LONGEST_KEY = 2**31 - 1, 2**16 - 1
#: The kinds of frames: rows of the log, and what each segment begins with.
ROWS, OPENING = 0, 1


class Frame(NamedTuple):
    """The header of a frame, and where it stands."""

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
        """Where the next frame stands."""
        return self.position + HEADER + self.key_length + self.length


def written(first: int, time: float, rows: int, body: bytes, *, key: bytes = b"", kind: int = ROWS) -> bytes:
    """A frame as bytes."""
    head = _HEAD.pack(MAGIC, first, time, rows, len(body), len(key), kind, zlib.crc32(body, zlib.crc32(key)))
    return b"".join((head, _SUM.pack(zlib.crc32(head)), key, body))


def header(data: bytes, at: int, position: int) -> Frame | None:
    """The frame whose header stands in *data* at *at*; `None` if none is there. *position* is its place in the file."""
    if len(data) < at + HEADER or data[at : at + 4] != MAGIC:
        return None
    (known,) = _SUM.unpack_from(data, at + _HEAD.size)
    if zlib.crc32(data[at : at + _HEAD.size]) != known:
        return None
    _, first, time, rows, length, key_length, kind, total = _HEAD.unpack_from(data, at)
    return Frame(position, first, time, rows, length, key_length, kind, total)


def content(data: bytes, at: int, frame: Frame) -> tuple[bytes, bytes] | None:
    """Key and body of a frame whose header stands in *data* at *at*; `None` if they are not whole."""
    begin = at + HEADER
    end = begin + frame.key_length + frame.length
    held = data[begin:end]
    if len(data) < end or zlib.crc32(held) != frame.sum:
        return None
    return held[: frame.key_length], held[frame.key_length :]


def one_behind(data: bytes, at: int) -> Frame | None:
    """A whole frame somewhere behind *at*, where none stands: then what is at *at* was not the last thing written."""
    found = data.find(MAGIC, at + 1)
    while found >= 0:
        frame = header(data, found, found)
        if frame is not None and content(data, found, frame) is not None:
            return frame
        found = data.find(MAGIC, found + 1)
    return None

"""Time and place as dense numbers: the minute of a second, the number of a segment, lookups by it."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .columns import Ints, columns

MINUTE: Final = 60
SEGMENTS: Final = 100
DIRECTIONS: Final = 2
EAST: Final = 0
EXIT_LANE: Final = 4
#: An accident is felt in its own segment and so many upstream of it.
REACH: Final = 4
#: The highest expressway that is taken for real; a mistyped digit must not cost gigabytes of segments.
LAST_XWAY: Final = 9_999


def minute_of(second: float) -> int:
    """The minute of a second; minutes count from 1."""
    return int(second) // MINUTE + 1


def complete_minute(second: float) -> int:
    """The last minute that is over once everything through *second* is there."""
    return (int(second) + 1) // MINUTE


def segment_numbers(batch: pa.RecordBatch) -> Ints:
    """The number of each row's segment, over all expressways and directions."""
    xway, direction, segment = columns(batch, "xway", "dir", "seg")
    numbers: Ints = (xway * DIRECTIONS + direction) * SEGMENTS + segment
    return numbers


def segment_places(numbers: Ints) -> tuple[Ints, Ints, Ints]:
    """Expressway, direction and segment of each number: the inverse of `segment_numbers`."""
    roads, segments = np.divmod(numbers, np.int32(SEGMENTS))
    xways, directions = np.divmod(roads, np.int32(DIRECTIONS))
    return xways, directions, segments


def looked_up(table: npt.NDArray[Any], numbers: Ints, default: int) -> npt.NDArray[Any]:
    """The table's value for each number, *default* beyond its end."""
    if len(table) == 0:
        return np.full(len(numbers), default, table.dtype)
    return np.where(numbers < len(table), table[np.minimum(numbers, len(table) - 1)], table.dtype.type(default))

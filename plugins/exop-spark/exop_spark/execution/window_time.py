"""`WindowTime`: the event time of an aggregate, which counts complete windows."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf, nextafter
from typing import Final

from exop.engine.pull import EventTime

#: Added to the number of a window: Spark expects positive numbers, also for times before 0.
OFFSET: Final = 1 << 42
#: The last number: in milliseconds, it is before the end of Spark's calendar.
_LAST: Final = 250_000_000_000_000 - OFFSET
#: The largest power of two below.
_LAST_POWER: Final = 1 << 47


@dataclass(frozen=True, slots=True)
class WindowTime(EventTime):
    """The event time of an aggregate: its watermark is the number of the last complete window, as milliseconds.

    Rows do not move this watermark: as in all other engines, only punctuations determine which rows are late.

    Args:
        slide: The distance of two windows.
        exact: Whether the column has integers.
    """

    slide: float = 1
    exact: bool = True

    def never(self, bits: int = 64) -> float:
        """Return the end of a window after all others."""
        if not self.exact:  # the product is exact: the number computed from it is the same
            return _LAST_POWER * self.slide
        return int(min((1 << (bits - 1)) - 1, _LAST * self.slide) // self.slide * self.slide)

    def after(self, complete: float) -> float:
        """Return the earliest time that may follow if the stream is complete up to *complete*."""
        return floor(complete) + 1 if self.exact else nextafter(complete, inf)

    def number(self, column: str) -> str:
        """Return the SQL expression for the number of the window that ends at, or last before, a time."""
        if self.exact:
            time = f"CAST({column} AS BIGINT)"
            return f"(({time} - pmod({time}, {self.slide:d}L)) DIV {self.slide:d}L)"
        return f"floor(CAST({column} AS DOUBLE) / {self.slide!r}D)"

    def of_watermark(self, milliseconds: int) -> float:
        """Return the end of the last complete window; minus infinity if there is none."""
        return (milliseconds - OFFSET) * self.slide if milliseconds else -inf

    def complete(self, end: float) -> float | None:
        """Return the time up to which the output is complete if all windows up to *end* have left."""
        if end == -inf:
            return None
        return end - 1 if self.exact else nextafter(end, -inf)


def moment(number: str) -> str:
    """Return the SQL expression for the timestamp that stands for the number of a window."""
    return f"timestamp_millis({number} + {OFFSET}L)"

"""`EventTime`: the column of an input with the time of each row, and its unit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, inf, nextafter
from typing import Any, Final, Self

#: The units of time, in microseconds.
MICROSECONDS: Final = {"us": 1, "ms": 1_000, "s": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
#: The end of the year 9999, where the calendars of most engines end.
_LAST: Final = 253_402_300_799_000_000

_FLOATING: Final = ("halffloat", "float", "double")


@dataclass(frozen=True, slots=True)
class EventTime:
    """The column of an input that contains the time of each row. The punctuations of the input have the same unit.

    Args:
        column: An integer or floating-point column.
        unit: Its unit: `us`, `ms`, `s`, `minute` or `hour`.
        alias: The name of an additional column of the input, a timestamp that the engine computes from the column.
        step: The least difference of two times: a stream that is complete up to `t` continues with `t + step` or later.
            By default, one for integers, and zero for floating-point numbers.
    """

    column: str
    unit: str = "s"
    alias: str = "event"
    step: float | None = None

    def __post_init__(self) -> None:
        if self.unit not in MICROSECONDS:
            raise ValueError(f"{self.unit!r} is no unit of time; there are {', '.join(MICROSECONDS)}")

    def never(self, bits: int = 64) -> float:
        """Return a time after every window: the end of the calendar, or the largest number of *bits*."""
        return min((1 << (bits - 1)) - 1, _LAST // MICROSECONDS[self.unit])

    def of(self, columns: Any) -> Self:
        """Return the event time with the step of its column, if it is one of *columns*, a `pyarrow.Schema`."""
        if self.step is not None or self.column not in columns.names:
            return self
        return replace(self, step=0 if str(columns.field(self.column).type) in _FLOATING else 1)

    def after(self, complete: float) -> float:
        """Return the earliest time that may follow if the stream is complete up to *complete*."""
        return nextafter(complete, inf) if self.step == 0 else floor(complete) + (self.step or 1)

    def before(self, time: float) -> float:
        """Return the time up to which the stream is complete if it continues with *time*."""
        return nextafter(time, -inf) if self.step == 0 else time - (self.step or 1)

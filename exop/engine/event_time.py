"""`EventTime`: the column of an input with the time of each row, and its unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The units of time, in microseconds.
MICROSECONDS: Final = {"us": 1, "ms": 1_000, "s": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
#: The end of the year 9999, where the calendars of most engines end.
_LAST: Final = 253_402_300_799_000_000


@dataclass(frozen=True, slots=True)
class EventTime:
    """The column of an input that contains the time of each row. The punctuations of the input have the same unit.

    Args:
        column: An integer or floating-point column.
        unit: Its unit: `us`, `ms`, `s`, `minute` or `hour`.
        alias: The name of an additional column of the input, a timestamp that the engine computes from the column.
        step: The least difference of two times: a stream that is complete up to `t` continues with `t + step` or later.
            One for integers, and zero for floating-point numbers.
    """

    column: str
    unit: str = "s"
    alias: str = "event"
    step: float = 1

    def __post_init__(self) -> None:
        if self.unit not in MICROSECONDS:
            raise ValueError(f"{self.unit!r} is no unit of time; there are {', '.join(MICROSECONDS)}")

    def never(self, bits: int = 64) -> int:
        """Return a time after every window: the end of the calendar, or the largest number of *bits*."""
        return min((1 << (bits - 1)) - 1, _LAST // MICROSECONDS[self.unit])

    def after(self, complete: float) -> float:
        """Return the earliest time that may follow if the stream is complete up to *complete*."""
        return complete + self.step

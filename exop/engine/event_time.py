"""Event time: which column of a stream tells when a row happened, and in what unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MICROSECONDS: Final = {"us": 1, "ms": 1_000, "s": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
#: The end of Spark's calendar.
_LAST: Final = 253_402_300_799_000_000


@dataclass(frozen=True, slots=True)
class EventTime:
    """The column of a port that tells when a row happened.

    In the query the port has one column more, `alias`, a timestamp made of it: what `window(...)` wants. Punctuations
    of the port are in the unit of the column.

    Args:
        column: an integer or floating-point column.
        unit: what one of it is: `us`, `ms`, `s`, `minute` or `hour`.
        alias: the name of the timestamp column.
        step: the smallest distance of two different times: a stream that is complete through `t` goes on with
            `t + step` at the earliest. One for integers; zero for floating point.
    """

    column: str
    unit: str = "s"
    alias: str = "event"
    step: float = 1

    def __post_init__(self) -> None:
        if self.unit not in _MICROSECONDS:
            raise ValueError(f"{self.unit!r} is no unit of time; there are {', '.join(_MICROSECONDS)}")

    @property
    def expression(self) -> str:
        """The SQL expression that makes the timestamp of the column."""
        name = "`" + self.column.replace("`", "``") + "`"
        return f"timestamp_micros(CAST({name} * {_MICROSECONDS[self.unit]}L AS BIGINT))"

    def never(self, bits: int = 64) -> int:
        """Return a time after every window: the end of the calendar, or the last that *bits* can hold."""
        return min((1 << (bits - 1)) - 1, _LAST // _MICROSECONDS[self.unit])

    def after(self, complete: float) -> float:
        """Return the earliest time that may follow when the stream is complete through *complete*."""
        return complete + self.step

    def of_watermark(self, milliseconds: int) -> float:
        """Return a watermark in the unit of the column."""
        return milliseconds * 1_000 / _MICROSECONDS[self.unit]

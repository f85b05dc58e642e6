"""The due times of tuples on the wall clock, for the source that releases them and the sink that judges answers."""

from dataclasses import dataclass
from math import floor
from typing import Any


@dataclass(frozen=True)
class Clock:
    """From the second `first` on, due at the wall time `start`, the stream goes `speed` times as fast as the wall."""

    start: float
    first: int
    speed: float

    def due(self, second: Any) -> Any:
        """The wall time at which the tuples of *second* are due; of an array of seconds, an array."""
        return self.start + (second - self.first) / self.speed

    def second(self, wall: float) -> int:
        """The last second that is due at this wall time."""
        return self.first + floor((wall - self.start) * self.speed)

    def at(self, speed: float, wall: float) -> "Clock":
        """The same clock at another speed, from the first second on that is not due yet at this wall time.

        What is overdue stays overdue: a slower clock forgives no delay.
        """
        first = self.second(wall) + 1
        return Clock(self.due(first), first, speed)

"""When a tuple is due on the wall clock: shared by the source that releases it and the sink that judges answers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The run began at the wall time `start` with the second `first` and goes `speed` times as fast as the wall."""

    start: float
    first: int
    speed: float

    def due(self, second: float) -> float:
        """The wall time at which the tuples of *second* are due."""
        return self.start + (second - self.first) / self.speed

    def second(self, wall: float) -> int:
        """The last second that is due at this wall time."""
        return self.first + int((wall - self.start) * self.speed)

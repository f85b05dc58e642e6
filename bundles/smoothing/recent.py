"""The state of what looks at the last readings."""

from collections import deque
from dataclasses import field

from exop import Memento


class Recent(Memento):
    """The last readings, the oldest first."""

    readings: deque[float] = field(default_factory=deque)

    def take(self, reading: float, count: int) -> list[float]:
        """Add a reading, and return the last *count* of them."""
        self.readings.append(reading)
        while len(self.readings) > count:
            self.readings.popleft()
        return list(self.readings)

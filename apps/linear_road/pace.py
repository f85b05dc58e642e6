"""The pace of the demo's traffic: as fast as was asked, or as the machine answers in time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

#: A minute whose slowest answer took longer, in seconds, slows the traffic down: well before the limit of 5.
COMFORTABLE: Final = 3.0
#: The traffic never goes slower than this share of what was asked: the demo has to end.
LEAST: Final = 2 / 3
#: A machine that gives a busy process less than this share of a core is busy with something else.
_QUIET: Final = 0.9
#: So many seconds of traffic pass before the effect of another speed can be judged.
_EFFECT: Final = 120


@dataclass
class Pace:
    """The speed of the traffic, lowered when the answers take too long, and never raised.

    Attributes:
        asked: How many times as fast as real time the traffic is to go.
        speed: The speed in force.
        slowed: Where it was lowered: the second of the traffic, the new speed, and the response time that was too long.
    """

    asked: float
    speed: float = 0.0
    slowed: list[tuple[float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.speed = self.asked
        self._share = 1.0
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._loads: list[float] = []

    @contextmanager
    def calibrated(self) -> Iterator[None]:
        """Calibrate by the block, which only computes: the share of a core that it gets shows how busy others are."""
        begun, used = time.monotonic(), time.process_time()
        yield
        self.calibrate((time.process_time() - used) / (time.monotonic() - begun))

    def calibrate(self, share: float) -> None:
        """Begin slower on a machine that gave a process of ours, which never waits, this *share* of a core."""
        if share < _QUIET:
            self._share = share
            self.speed = round(self._bounded(self.asked * share), 2)

    def look(self, second: float, slowest: float) -> float | None:
        """Note how far the traffic is and how slow its latest minute was answered; the new speed if it needs one."""
        self._first = self._first or (second, time.monotonic())
        self._last = (second, time.monotonic())
        self._loads.append(os.getloadavg()[0])
        rested = not self.slowed or second >= self.slowed[-1][0] + _EFFECT
        wanted = round(self._bounded(self.speed * COMFORTABLE / max(slowest, COMFORTABLE)), 2)
        return wanted if rested and wanted < self.speed else None

    def slow_down(self, second: float, speed: float, slowest: float) -> None:
        """Note that another speed is in force."""
        self.speed = speed
        self.slowed.append((second, speed, slowest))

    @property
    def load(self) -> float:
        """The average number of processes that wanted a core while the traffic flowed."""
        return sum(self._loads) / len(self._loads) if self._loads else 0.0

    @property
    def saturated(self) -> bool:
        """The machine had no core to spare."""
        return self.load >= (os.cpu_count() or 1)

    def reached(self) -> float:
        """The speed that the traffic had in fact, over all that was looked at."""
        if self._first is None or self._last[1] <= self._first[1]:
            return self.speed
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])

    def text(self) -> str:
        """Return the speed reached, and why it is lower than was asked; what was asked is no speed of this run."""
        flowed = f"the traffic flowed at {self.reached():.1f} times real time"
        lines = [flowed if self._loads else "no traffic has flowed"]
        if self._share < 1:
            lines.append(f"slower than asked: other processes left {self._share:.0%} of a core to one that never waits")
        lines += [
            f"slowed down to {speed:.1f} at second {second:.0f}: an answer had taken {slowest:.1f} s"
            for second, speed, slowest in self.slowed
        ]
        lines += [f"load of the machine: {self.load:.1f} on {os.cpu_count()} cores"] if self._loads else []
        return "\n".join(lines)

    def _bounded(self, speed: float) -> float:
        return max(self.asked * LEAST, min(self.asked, speed))

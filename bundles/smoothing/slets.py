"""Smoothing, one function each; they have the same port and state, so that each can replace another."""

import statistics

from exop import Memento, slet

from .recent import Recent


@slet
def mean(reading: float, recent: Recent, *, window: int = 5) -> float:
    """Give the mean of the last *window* readings."""
    return statistics.fmean(recent.take(reading, window))


@slet
def median(reading: float, recent: Recent, *, window: int = 5) -> float:
    """Give the median of the last *window* readings: a single spike does not show."""
    return statistics.median(recent.take(reading, window))


class Level(Memento):
    """The level that the readings have led to."""

    value: float | None = None

    @classmethod
    def upgrade(cls, old: Recent) -> "Level":
        """Begin with the mean of what a window held."""
        return cls(value=statistics.fmean(old.readings) if old.readings else None)


@slet
def exponential(reading: float, level: Level, *, weight: float = 0.2) -> float:
    """Give a level that follows the readings, the latest one with *weight*."""
    level.value = reading if level.value is None else (1 - weight) * level.value + weight * reading
    return level.value

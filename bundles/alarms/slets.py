"""Alarms on a stream of readings."""

import statistics
from dataclasses import dataclass

from smoothing.recent import Recent

from exop import Memento, slet


@dataclass(frozen=True)
class Alarm:
    """A reading that left its bounds (`on`), or came back."""

    reading: float
    on: bool


class Watched(Memento):
    """Whether the last reading was outside."""

    outside: bool = False


@slet
def watch(reading: float, watched: Watched, *, above: float, margin: float = 0.0) -> Alarm | None:
    """Tell when readings go *above* a bound, and when they are *margin* below it again."""
    outside = reading > (above - margin if watched.outside else above)
    if outside is watched.outside:
        return None
    watched.outside = outside
    return Alarm(reading, outside)


@slet
def spikes(reading: float, recent: Recent, *, window: int = 20, times: float = 4.0) -> Alarm | None:
    """Tell readings that are *times* the usual distance from the median of the last *window*."""
    readings = recent.take(reading, window)
    middle = statistics.median(readings)
    usual = statistics.median(abs(one - middle) for one in readings)
    return Alarm(reading, on=True) if usual and abs(reading - middle) > times * usual else None

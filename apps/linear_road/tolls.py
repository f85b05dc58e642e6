"""Toll calculation: what each segment tells and charges in a minute."""

from collections.abc import Iterator
from dataclasses import field
from typing import Final

import numpy as np
import pyarrow as pa

from exop import Memento, Punctuation, Slet, input_port

from .columns import columns, concatenated, record_batch
from .incidents import NO_ACCIDENT, Incidents
from .schema import TARIFFS, Accidents, Statistics, Tariffs
from .segments import looked_up, segment_numbers

#: A toll is asked below this average velocity ...
SLOW: Final = 40
#: ... and above so many cars.
CROWDED: Final = 50
#: Averages are sums of fractions: one that is exactly 40 or a whole number must not fall below it by rounding. The
#: next possible averages are further away than this unless hundreds of cars share no factor.
_ROUNDING: Final = 1e-9


class Figures(Memento):
    """Statistics that wait for their minute, the accidents, and how far both are complete."""

    rows: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    incidents: Incidents = field(default_factory=Incidents)
    counted: int = 0
    watched: int = 0
    announced: int = 0


class Tolls(Slet, name="tolls"):
    """Work out the tariff of a minute once the statistics of it and the accidents before it are complete."""

    figures: Figures

    @input_port
    def statistics(self, statistics: Statistics | Punctuation) -> Iterator[Tariffs | Punctuation]:
        """Rows of a minute; punctuation: all rows through that minute are there."""
        figures = self.figures
        if isinstance(statistics, Punctuation):
            figures.counted = max(figures.counted, int(statistics.time))
            yield from self._tariffs()
            return
        for minute, batch in _by_minute(statistics):
            figures.rows.setdefault(minute, []).append(batch)

    @input_port
    def accidents(self, accidents: Accidents | Punctuation) -> Iterator[Tariffs | Punctuation]:
        """Accidents detected and cleared; punctuation: all events through that minute are there."""
        if isinstance(accidents, Punctuation):
            self.figures.watched = max(self.figures.watched, int(accidents.time))
            yield from self._tariffs()
        else:
            self.figures.incidents.learn(accidents)

    def _tariffs(self) -> Iterator[Tariffs | Punctuation]:
        """Put out the minutes that have become complete."""
        figures = self.figures
        complete = min(figures.counted, figures.watched + 1)
        if complete <= figures.announced:
            return
        for minute in sorted(minute for minute in figures.rows if minute <= complete):
            yield tariff(minute, figures.rows.pop(minute), figures.incidents)
        figures.announced = complete
        yield Punctuation(complete)


def tariff(minute: int, statistics: list[pa.RecordBatch], incidents: Incidents) -> pa.RecordBatch:
    """The LAV and the toll of each segment that has statistics in *minute*."""
    xway, direction, segment, cars, lav = concatenated(statistics, "xway", "dir", "seg", "cars", "lav")
    numbers = np.concatenate([segment_numbers(batch) for batch in statistics])
    free = looked_up(incidents.seen_from(minute), numbers, NO_ACCIDENT) != NO_ACCIDENT
    due = (lav < SLOW - _ROUNDING) & (cars > CROWDED) & ~free
    toll = np.where(due, 2 * (cars - CROWDED) ** 2, 0)
    shown = np.floor(lav + _ROUNDING).astype(np.int32)
    return record_batch(TARIFFS, np.full_like(numbers, minute), xway, direction, segment, shown, toll)


def _by_minute(statistics: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each minute; engines may put several minutes into one batch."""
    (minutes,) = columns(statistics, "minute")
    different = np.unique(minutes)
    for minute in different.tolist():
        yield minute, statistics if len(different) == 1 else statistics.filter(pa.array(minutes == minute))

"""The possible speed at each place: lower with more cars; jams come and go, and an accident blocks the road."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apps.linear_road.traffic_model.cars import SEGMENTS, Cars, Floats, places_of
from apps.linear_road.traffic_model.settings import Settings

#: Cars in a mile at which an open road is half as fast as an empty one, and a road in a jam.
OPEN_CAPACITY, JAM_CAPACITY = 900.0, 320.0
JAM_SPEED = 0.72
FREE_SPEED = (46.0, 58.0)
CRAWL = 16.0


@dataclass(slots=True)
class Jam:
    """One stretch of slow traffic, or the pause before the next one (`stretch` is empty then)."""

    way: int
    until: float
    stretch: slice


class Congestion:
    """The speed limits of all places, by what stands and drives there."""

    def __init__(self, settings: Settings, rng: np.random.Generator) -> None:
        places = settings.ways * SEGMENTS
        self._rng = rng
        self._free: Floats = rng.uniform(*FREE_SPEED, places)
        self._cars = np.zeros(places, np.int64)
        self._blocked_until = np.zeros(places)
        self._factor = np.ones(places)
        self._jammed = np.zeros(places, np.bool_)
        nothing = slice(0, 0)
        self._jams = [
            Jam(way, 60 * rng.uniform(1.0, 6.0), nothing) for way in range(settings.ways) for _ in range(settings.jams)
        ]

    def limits(self, second: int) -> Floats:
        """The speed to be driven at every place in *second*."""
        if second % 60 == 0:
            self._move_jams(second)
        capacity = np.where(self._jammed, JAM_CAPACITY, OPEN_CAPACITY)
        limits = self._free / (1 + (self._cars / capacity) ** 2)
        limits *= np.where(self._jammed, JAM_SPEED, 1.0)
        limits *= np.where(self._blocked_until > second, self._factor, 1.0)
        return np.maximum(limits, CRAWL)

    def left(self, cars: Cars) -> None:
        """These cars are no longer where they were."""
        self._cars -= np.bincount(places_of(cars), minlength=len(self._cars))

    def arrived(self, cars: Cars) -> None:
        """These cars are now where they are."""
        self._cars += np.bincount(places_of(cars), minlength=len(self._cars))

    def block(self, way: int, segment: int, until: float) -> None:
        """An accident: one creeps past it, and slows down before it."""
        for distance, factor in ((1, 0.7), (0, 0.45)):
            if segment >= distance:
                place = way * SEGMENTS + segment - distance
                self._blocked_until[place], self._factor[place] = until, factor

    def _move_jams(self, second: int) -> None:
        """End what is over; the next jam is somewhere else."""
        for jam in self._jams:
            if second < jam.until:
                continue
            minutes = self._rng.uniform(8.0, 20.0)
            begin, length = int(self._rng.integers(5, SEGMENTS - 8)), int(self._rng.integers(2, 6))
            over = jam.stretch.stop > jam.stretch.start
            place = jam.way * SEGMENTS + begin
            jam.stretch = slice(0, 0) if over else slice(place, place + length)
            jam.until = second + 60 * (minutes / 4 if over else minutes)
        self._jammed[:] = False
        for jam in self._jams:
            self._jammed[jam.stretch] = True

"""Drives the traffic second by second and gives it out minute by minute."""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, sin

import numpy as np

from apps.linear_road.traffic_model.cars import (
    CAR,
    EXIT_LANE,
    FEET,
    SEGMENTS,
    Cars,
    Integers,
    drive,
    entering,
    segment_of,
)
from apps.linear_road.traffic_model.congestion import Congestion
from apps.linear_road.traffic_model.incidents import Incidents
from apps.linear_road.traffic_model.questions import FIELDS, Questions
from apps.linear_road.traffic_model.settings import Settings

#: Seconds between two reports of a car.
PERIOD = 30
#: The load rises and falls again like half a sine over so many minutes.
WAVE = 180
LAST_FOOT = SEGMENTS * FEET - 1
#: So many cars come back for another trip after they have left, and so many of those to the segment they left in.
SHARE_RETURNING, SHARE_SAME_SEGMENT = 0.25, 0.3
#: Seconds from the last report of a trip to the first of the next.
PAUSE = (45, 600)


class Simulation:
    """One run; longer runs with the same settings begin with the shorter ones."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rng = rng = np.random.default_rng(settings.seed)
        self._congestion = Congestion(settings, rng)
        self.incidents = Incidents(settings, self._congestion, rng)
        self.questions = Questions(settings, rng)
        self._popular = _shares(rng, settings.ways)
        self._cohorts: list[Cars] = [np.zeros(0, CAR) for _ in range(PERIOD)]
        self._coming: dict[int, list[Cars]] = {}
        self.vehicles = 0
        self.trips = 0

    def minutes(self) -> Iterator[Integers]:
        """The input of each minute: rows of 15 fields, ordered by time."""
        for minute in range(self._settings.minutes):
            seconds = [self._second(second) for second in range(60 * minute, 60 * minute + 60)]
            yield self.questions.ask(np.concatenate(seconds))

    def _second(self, second: int) -> Integers:
        """Move the cars whose turn it is, let new ones enter, and have both report."""
        self.incidents.happen(second, self._cohorts)
        cars = self._cohorts[second % PERIOD]
        self._congestion.left(cars)
        drive(cars, self._congestion.limits(second), self._rng)
        cars = np.concatenate([cars, self._entering(second), *self._coming.pop(second, [])])
        reports = _reports(cars, second)
        leaving = cars["lane"] == EXIT_LANE
        self._send_back(cars[leaving], second)
        self._cohorts[second % PERIOD] = cars = cars[~leaving]
        self._congestion.arrived(cars)
        return reports

    def _entering(self, second: int) -> Cars:
        """New vehicles, as many as the time of day wants."""
        settings = self._settings
        swell = 1 + (settings.peak - 1) * max(0.0, sin(pi * second / (60 * WAVE)))
        number = int(self._rng.poisson(settings.cars_per_minute * settings.xways * swell / 60))
        places = self._rng.choice(len(self._popular), number, p=self._popular).astype(np.int32)
        vids = np.arange(self.vehicles, self.vehicles + number, dtype=np.int32)
        self.vehicles += number
        self.trips += number
        return entering(vids, places // SEGMENTS, places % SEGMENTS, self._rng)

    def _send_back(self, cars: Cars, second: int) -> None:
        """Have some of the cars that leave return later, to any road, or to where they left."""
        rng = self._rng
        cars = cars[rng.random(len(cars)) < SHARE_RETURNING]
        same = (rng.random(len(cars)) < SHARE_SAME_SEGMENT) & (segment_of(cars) < SEGMENTS - 1)
        places = rng.choice(len(self._popular), len(cars), p=self._popular)
        ways = np.where(same, cars["way"], places // SEGMENTS).astype(np.int32)
        segments = np.where(same, segment_of(cars), places % SEGMENTS).astype(np.int32)
        again = entering(cars["vid"], ways, segments, rng)
        for index, pause in enumerate(rng.integers(*PAUSE, len(cars))):
            self._coming.setdefault(second + int(pause), []).append(again[index : index + 1])
        self.trips += len(cars)


def _shares(rng: np.random.Generator, ways: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the share of the cars at each entry; no car enters at the end of a road."""
    weights = rng.uniform(0.4, 1.6, (ways, SEGMENTS))
    weights[:, -1] = 0
    shares: np.ndarray[tuple[int], np.dtype[np.float64]] = (weights / weights.sum()).ravel()
    return shares


def _reports(cars: Cars, second: int) -> Integers:
    """The lines of *cars*; from here on the west has shrinking positions."""
    rows: Integers = np.full((len(cars), len(FIELDS)), -1, np.int32)
    west = cars["way"] % 2 == 1
    position = np.where(west, LAST_FOOT - cars["x"], cars["x"])
    fields = (0, second, cars["vid"], cars["speed"], cars["way"] // 2, cars["lane"], west, position // FEET, position)
    for column, values in enumerate(fields):
        rows[:, column] = values
    return rows

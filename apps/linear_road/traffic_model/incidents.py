"""Accidents, and what looks like one: cars that stand alone, too short, in two lanes, or swaying between lanes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from apps.linear_road.traffic_model.cars import (
    EXIT_LANE,
    FASTEST,
    FEET,
    FEET_PER_MPH,
    SEGMENTS,
    Cars,
    segment_of,
)
from apps.linear_road.traffic_model.congestion import Congestion
from apps.linear_road.traffic_model.settings import Settings

#: Traffic creeps past the place for so long after an accident.
RECOVERY = 120
#: Where no two cars are near enough to each other, look again after so many seconds.
RETRY = 5
#: Seconds from one look-alike to the next, per road.
LOOKALIKE_EVERY = 75
LOOKALIKES = ("alone", "brief", "two lanes", "swaying")
REACH = FEET_PER_MPH * FASTEST


@dataclass(frozen=True, slots=True)
class Accident:
    """Two cars that stop at one place; `minutes`: the time for which both stand there."""

    second: int
    xway: int
    direction: int
    segment: int
    minutes: float


@dataclass(slots=True)
class Road:
    """The plan for one road; every second accident is in the segment of the one before."""

    ways: tuple[int, ...]
    accident_at: float
    lookalike_at: float
    spot: tuple[int, int] | None = None
    lookalikes: int = 0


class Pair(NamedTuple):
    """Two cars (slices of their cohorts) and a place ahead of both that each reaches by its next report."""

    ahead: Cars
    behind: Cars
    place: int


class Stand(NamedTuple):
    """The stop of a car: the number of its reports, and their lane and speed."""

    reports: int
    lane: int
    speed: int = 0
    sways: bool = False


class Incidents:
    """Makes cars stand, road by road."""

    def __init__(self, settings: Settings, congestion: Congestion, rng: np.random.Generator) -> None:
        self._settings = settings
        self._congestion = congestion
        self._rng = rng
        self.accidents: list[Accident] = []
        self.lookalikes = 0
        self._roads = [self._road(range(2 * road, min(2 * road + 2, settings.ways))) for road in range(settings.roads)]

    def _road(self, ways: range) -> Road:
        first = 60 * self._settings.accident_gap * self._rng.uniform(0.5, 1.0)
        return Road(tuple(ways), first, self._rng.uniform(0.5, 1.5) * LOOKALIKE_EVERY)

    def happen(self, second: int, cohorts: list[Cars]) -> None:
        """Begin what is due in *second*."""
        for road in self._roads:
            if second >= road.accident_at:
                self._accident(second, road, cohorts)
            if second >= road.lookalike_at:
                self._lookalike(second, road, cohorts)

    def _accident(self, second: int, road: Road, cohorts: list[Cars]) -> None:
        way, segment = road.spot or self._anywhere(road)
        pair = self._pair(way, segment, cohorts)
        if pair is None:
            road.accident_at = second + RETRY
            return
        # rule 4: the speed does not matter, so now and then it is not 0
        creeps = int(self._rng.integers(1, 4)) if self._rng.random() < 0.25 else 0
        reports = self._reports()
        for car, number in zip((pair.ahead, pair.behind), reports, strict=True):
            _stop(car, pair.place, Stand(number, int(pair.ahead["lane"][0]), speed=creeps))
        # it is over when the first car moves on; the other one then stands alone
        self._congestion.block(way, segment, second + 30 * min(reports) + RECOVERY)
        east = way % 2 == 0
        self.accidents.append(
            Accident(second, way // 2, way % 2, segment if east else SEGMENTS - 1 - segment, min(reports) / 2)
        )
        road.spot = None if road.spot else (way, segment)
        road.accident_at = second + 30 * max(reports) + self._around(self._settings.accident_gap)

    def _reports(self) -> tuple[int, int]:
        """Return the numbers of reports that the two cars make from the place; four make a stop."""
        number = max(4, round(self._around(self._settings.accident_length) / 30))
        first, second = self._rng.integers(0, 4, 2)
        return number + int(first), number + int(second)

    def _around(self, mean: float) -> float:
        """About so many minutes, in seconds."""
        return 60 * mean * self._rng.uniform(0.5, 1.5)

    def _lookalike(self, second: int, road: Road, cohorts: list[Cars]) -> None:
        """Let cars stand so that it must not be taken for an accident."""
        pair = self._pair(*self._anywhere(road), cohorts)
        if pair is None:
            road.lookalike_at = second + RETRY
            return
        place = pair.place
        match LOOKALIKES[road.lookalikes % len(LOOKALIKES)]:
            case "alone":
                _stop(pair.ahead, place, Stand(int(self._rng.integers(4, 12)), 2))
            case "brief":  # three reports are not a stop
                _stop(pair.ahead, place, Stand(3, 1))
                _stop(pair.behind, place, Stand(3, 1))
            case "two lanes":
                _stop(pair.ahead, place, Stand(6, 1))
                _stop(pair.behind, place, Stand(7, 2))
            case _:
                _stop(pair.ahead, place, Stand(8, 1, sways=True))
                _stop(pair.behind, place, Stand(8, 1, sways=True))
        self.lookalikes += 1
        road.lookalikes += 1
        road.lookalike_at = second + self._rng.uniform(0.5, 1.5) * LOOKALIKE_EVERY

    def _anywhere(self, road: Road) -> tuple[int, int]:
        return int(self._rng.choice(road.ways)), int(self._rng.integers(6, SEGMENTS - 6))

    def _pair(self, way: int, segment: int, cohorts: list[Cars]) -> Pair | None:
        """Two cars of the segment that can be made to stop at one place there."""
        found = [(cohort, row) for cohort in cohorts for row in _drivers(cohort, way, segment)]
        found.sort(key=lambda at: (int(at[0]["x"][at[1]]), int(at[0]["vid"][at[1]])), reverse=True)
        pairs = list(pairwise(found))
        for index in self._rng.permutation(len(pairs)):
            (ahead, row), (behind, other) = pairs[index]
            place = int(ahead["x"][row]) + FEET_PER_MPH * int(self._rng.integers(2, 12))
            if place < (segment + 1) * FEET and place - int(behind["x"][other]) <= REACH:
                return Pair(ahead[row : row + 1], behind[other : other + 1], place)
        return None


def _drivers(cohort: Cars, way: int, segment: int) -> list[int]:
    """The rows of the cars that drive on a travel lane there and do not leave yet."""
    free = (cohort["way"] == way) & (cohort["stand"] == 0) & (cohort["leaves"] > segment)
    free &= (cohort["lane"] > 0) & (cohort["lane"] < EXIT_LANE) & (segment_of(cohort) == segment)
    return [int(row) for row in np.flatnonzero(free)]


def _stop(car: Cars, place: int, stand: Stand) -> None:
    """Tell a car (a slice of its cohort) to make its next reports from *place*."""
    car["stand"], car["stand_x"], car["stand_lane"] = stand.reports, place, stand.lane
    car["stand_speed"], car["sways"] = stand.speed, stand.sways

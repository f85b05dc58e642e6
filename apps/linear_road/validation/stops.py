"""Stopped cars and accidents (section 4; rules 3, 4, 5, 6 and 14 of section 8)."""

from __future__ import annotations

from dataclasses import dataclass

from apps.linear_road.validation.values import Place, Report, Segment, minute_of

#: This many consecutive reports from one place make a car stopped; its speed does not matter (rules 4 and 5).
REPORTS_TO_STOP = 4
#: An accident concerns its own segment and this many upstream of it.
REACH = 4


@dataclass(slots=True)
class Accident:
    """One accident in one segment, from the minute of its detection to the minute of its clearing."""

    detected: int
    cleared: int | None = None

    def counts_for(self, minute: int) -> bool:
        """From the minute after the detection to the minute of the clearing, both included (rule 3)."""
        return self.detected + 1 <= minute and (self.cleared is None or minute <= self.cleared)


class Stops:
    """The standing vehicles, and all accidents so far; a later one in the same segment is a new one (rule 6)."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Place, int]] = {}
        self._standing: dict[Place, set[int]] = {}
        self._current: dict[Place, Accident] = {}
        self._accidents: dict[Segment, list[Accident]] = {}

    def add(self, report: Report) -> None:
        """Follow a vehicle: it stands on, comes to stand, or moves."""
        here = report.place
        last, number = self._last.get(report.vid, (None, 0))
        if last is not None and last != here:
            self._moved(report, last)
            number = 0
        self._last[report.vid] = (here, number + 1)
        if number + 1 == REPORTS_TO_STOP:
            self._stopped(report, here)

    def accident_ahead(self, minute: int, segment: Segment) -> int | None:
        """The nearest segment, the own one first, with an accident that counts for *minute* (rule 14)."""
        if not self._accidents:
            return None
        towards = 1 if segment.direction == 0 else -1  # east: positions grow
        for distance in range(REACH + 1):
            ahead = segment._replace(number=segment.number + towards * distance)
            if any(accident.counts_for(minute) for accident in self._accidents.get(ahead, ())):
                return ahead.number
        return None

    def _stopped(self, report: Report, here: Place) -> None:
        """Two cars stopped at one place are an accident, detected now: at the second one's fourth report."""
        cars = self._standing.setdefault(here, set())
        cars.add(report.vid)
        if len(cars) == 2:
            self._current[here] = accident = Accident(detected=minute_of(report.time))
            self._accidents.setdefault(report.segment, []).append(accident)

    def _moved(self, report: Report, place: Place) -> None:
        """The report that shows movement clears the accident (rule 3), unless two others still stand there."""
        cars = self._standing.get(place, set())
        if report.vid not in cars:
            return
        cars.remove(report.vid)
        if len(cars) == 1:
            self._current.pop(place).cleared = minute_of(report.time)
        elif not cars:
            del self._standing[place]

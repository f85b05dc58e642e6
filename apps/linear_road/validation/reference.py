"""The rules of Linear Road, one tuple after the other: slow, obviously right, and shared with no slet.

The numbers of the rules are those of the table "where the specification is ambiguous", reading `spec`; the README of
this application repeats them. Travel time (type 4) is not answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from apps.linear_road.validation.minutes import Minutes
from apps.linear_road.validation.stops import Stops
from apps.linear_road.validation.values import (
    AccidentAlert,
    Answer,
    Balance,
    Expenditure,
    Report,
    Row,
    TollNotice,
    minute_of,
)
from apps.linear_road.validation.vehicles import Vehicles

#: (vehicle, day, road) -> the sum of its tolls
History = Mapping[tuple[int, int, int], int]

FREE_CARS = 50
FREE_SPEED = 40


class Reference:
    """Answers a stream that is ordered by time; several calls continue one stream."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._minutes = Minutes()
        self._stops = Stops()
        self._vehicles = Vehicles()
        self._now = 0
        self._asked: list[Row] = []

    def answers(self, rows: Iterable[Row]) -> Iterator[Answer]:
        """Give the right answers to *rows*, which must be whole seconds."""
        for row in rows:
            if row[1] != self._now:
                yield from self._balances()
                self._now = row[1]
            if row[0] == 0:
                yield from self._position(Report.of(row))
            elif row[0] == 2:
                self._asked.append(row)
            elif row[0] == 3:
                yield self._expenditure(row)
        yield from self._balances()

    def _position(self, report: Report) -> Iterator[Answer]:
        """Count the report, and answer it if it is the first one from a segment and not from the exit lane."""
        if self._vehicles.is_stray(report):
            return  # rule 13: counted nowhere
        self._minutes.add(report)
        self._stops.add(report)
        if self._vehicles.move(report):
            yield from self._entered(report)

    def _entered(self, report: Report) -> Iterator[Answer]:
        """A toll notice is due on every entry, also when the toll is 0; an alert comes in addition."""
        minute, segment = minute_of(report.time), report.segment
        cars = self._minutes.cars(minute - 1, segment)
        lav = self._minutes.lav(minute, segment)
        accident = self._stops.accident_ahead(minute, segment)
        # rule 2: the exact LAV is compared, neither rounded nor truncated
        charged = lav is not None and lav < FREE_SPEED and cars > FREE_CARS and accident is None
        toll = 2 * (cars - FREE_CARS) ** 2 if charged else 0
        self._vehicles.told(report.vid, toll)
        yield TollNotice(report.time, report.vid, lav, toll, cars, accident)
        if accident is not None:
            yield AccidentAlert(report.time, report.vid, report.xway, accident, report.direction)

    def _balances(self) -> Iterator[Answer]:
        """Rule 11: the latest balance is that after all reports of the second; so answer when the second is over."""
        for row in self._asked:
            time, vid, qid = row[1], row[2], row[9]
            yield Balance(time, vid, qid, self._vehicles.balance(vid), self._vehicles.balances_until(vid, time))
        self._asked.clear()

    def _expenditure(self, row: Row) -> Answer:
        time, vid, xway, qid, day = row[1], row[2], row[4], row[9], row[14]
        total = self._history.get((vid, day, xway))
        return Expenditure(time, vid, qid, total or 0, known=total is not None)

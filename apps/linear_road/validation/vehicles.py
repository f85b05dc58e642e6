"""Trips, the tolls told and charged, and the balances (section 4; rules 7, 8, 11 and 13 of section 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from apps.linear_road.validation.values import ENTRY_LANE, EXIT_LANE, Report, Segment

#: A balance may be as of any moment of the last so many seconds (rule 11).
OLDEST_BALANCE = 60


@dataclass(slots=True)
class Vehicle:
    """The state of one vehicle."""

    lane: int
    segment: Segment
    pending: int = 0
    balance: int = 0
    #: (time, balance before, balance after) of every charge that was not zero
    charges: list[tuple[int, int, int]] = field(default_factory=list)


class Vehicles:
    """All vehicles there have been; a vehicle keeps its balance from trip to trip and from road to road."""

    def __init__(self) -> None:
        self._known: dict[int, Vehicle] = {}

    def is_stray(self, report: Report) -> bool:
        """Rule 13: a first report in lane 4, and what follows lane 4 without starting in lane 0, is ignored wholly."""
        vehicle = self._known.get(report.vid)
        if vehicle is None:
            return report.lane == EXIT_LANE
        return vehicle.lane == EXIT_LANE and report.lane != ENTRY_LANE

    def move(self, report: Report) -> bool:
        """Charge what is due, remember where the vehicle is; true if it is entitled to a toll notice.

        The toll told on entering a segment is charged by the report that shows the vehicle in another one, also when
        that report is from the exit ramp there (rule 8). Leaving by the ramp of the segment itself is free. The first
        report of a trip charges nothing, and is answered even from the segment that the last trip ended in (rule 7).
        Only lane 4 ends a trip: a vehicle that fell silent on a travel lane and comes back is on the same one.
        """
        vehicle = self._known.get(report.vid)
        if vehicle is None:
            self._known[report.vid] = Vehicle(report.lane, report.segment)
            return True
        starts = vehicle.lane == EXIT_LANE  # and report.lane is 0, or it were a stray
        entered = starts or report.segment != vehicle.segment
        if entered and not starts:
            _charge(vehicle, report.time)
        if entered:
            vehicle.pending = 0
        vehicle.lane, vehicle.segment = report.lane, report.segment
        return entered and report.lane != EXIT_LANE

    def told(self, vid: int, toll: int) -> None:
        """Remember the toll told: the same number is charged later, nothing is worked out again."""
        self._known[vid].pending = toll

    def balance(self, vid: int) -> int:
        """The sum of the charges so far."""
        return self._known[vid].balance if vid in self._known else 0

    def balances_until(self, vid: int, time: int) -> tuple[int, ...]:
        """Every balance that was the right one after some second from *time* - 60 to *time*."""
        if vid not in self._known:
            return (0,)
        vehicle = self._known[vid]
        recent = [charge for charge in vehicle.charges if charge[0] > time - OLDEST_BALANCE]
        return tuple(sorted({vehicle.balance, *(charge[1] for charge in recent), *(charge[2] for charge in recent)}))


def _charge(vehicle: Vehicle, time: int) -> None:
    if vehicle.pending:
        before = vehicle.balance
        vehicle.balance += vehicle.pending
        vehicle.charges.append((time, before, vehicle.balance))

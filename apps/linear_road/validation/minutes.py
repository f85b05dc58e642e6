"""Cars and LAV of every segment, minute by minute (section 4; rules 1, 2, 9 and 10 of section 8)."""

from __future__ import annotations

from fractions import Fraction

from apps.linear_road.validation.values import Report, Segment, minute_of

#: LAV looks back this many minutes.
LOOK_BACK = 5


class Minutes:
    """The speeds of the last minutes, exact: sums of integers and fractions, never a floating point number."""

    def __init__(self) -> None:
        # minute -> segment -> vehicle -> (sum of its speeds, number of its reports)
        self._speeds: dict[int, dict[Segment, dict[int, tuple[int, int]]]] = {}
        self._means: dict[tuple[int, Segment], Fraction | None] = {}
        self._lav: dict[tuple[int, Segment], Fraction | None] = {}

    def add(self, report: Report) -> None:
        """Count a report: every lane counts, the entry and exit lanes too (rule 10)."""
        minute = minute_of(report.time)
        if minute not in self._speeds:
            self._forget_before(minute - LOOK_BACK)
            self._speeds[minute] = {}
        vehicles = self._speeds[minute].setdefault(report.segment, {})
        total, number = vehicles.get(report.vid, (0, 0))
        vehicles[report.vid] = (total + report.speed, number + 1)

    def cars(self, minute: int, segment: Segment) -> int:
        """The different vehicles with at least one report from *segment* in *minute*."""
        return len(self._speeds.get(minute, {}).get(segment, {}))

    def lav(self, minute: int, segment: Segment) -> Fraction | None:
        """The mean of the minute means of the five minutes before *minute* (rule 1); None without any (rule 9).

        Minutes without a report are left out. It is asked for only when the minutes before *minute* are complete,
        which the order of the input promises; so it is worked out once.
        """
        key = (minute, segment)
        if key not in self._lav:
            means = [self._mean(earlier, segment) for earlier in range(minute - LOOK_BACK, minute)]
            present = [mean for mean in means if mean is not None]
            self._lav[key] = sum(present, Fraction(0)) / len(present) if present else None
        return self._lav[key]

    def _mean(self, minute: int, segment: Segment) -> Fraction | None:
        """Per vehicle the mean of its reports, then the mean over the vehicles."""
        key = (minute, segment)
        if key not in self._means:
            vehicles = self._speeds.get(minute, {}).get(segment, {})
            own_means = [Fraction(total, number) for total, number in vehicles.values()]
            self._means[key] = sum(own_means, Fraction(0)) / len(own_means) if own_means else None
        return self._means[key]

    def _forget_before(self, oldest: int) -> None:
        """Drop what nobody can ask for any more, so that three hours fit into memory."""
        self._speeds = {minute: kept for minute, kept in self._speeds.items() if minute >= oldest}
        self._means = {key: mean for key, mean in self._means.items() if key[0] >= oldest}
        self._lav = {key: lav for key, lav in self._lav.items() if key[0] >= oldest}

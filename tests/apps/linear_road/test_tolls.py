"""The tariff of a minute."""

import pytest

from apps.linear_road.tolls import Figures, Tolls
from exop import Punctuation
from tests.apps.linear_road.batches import marks, rows, statistics


def tariff(*figures, minute=2, incidents=()):
    """The (segment, lav, toll) rows of one minute."""
    tolls = Tolls(figures=Figures())
    out = [*tolls.statistics(statistics(*figures)), *tolls.statistics(Punctuation(minute))]
    out += [one for item in (*incidents, Punctuation(minute - 1)) for one in tolls.accidents(item)]
    return [(row[3], row[4], row[5]) for row in rows(out)]


@pytest.mark.parametrize(("cars", "lav"), [(50, 20.0), (60, 40.0), (60, 55.5), (0, 0.0)])
def test_free_when_fast_or_empty(cars, lav):
    """Exactly 40 is not below 40, exactly 50 cars are not more than 50."""
    assert tariff({"cars": cars, "lav": lav}) == [(10, int(lav), 0)]


def test_lav_is_tested_exactly_and_told_as_an_integer():
    """39.99 is below 40 and is told as 39; 39.5 is not rounded up."""
    assert tariff({"lav": 39.99}) == [(10, 39, 200)]
    assert tariff({"lav": 39.5}) == [(10, 39, 200)]


def test_rounding_of_sums_does_not_make_a_toll():
    """A mean that is 40 as a fraction is 40, even when its sum in floating point falls just short."""
    assert tariff({"lav": 40 - 1e-13}) == [(10, 40, 0)]


def test_a_minute_waits_for_both_sides():
    """Minute M needs the statistics through M and the accidents through M-1, in whatever order they come."""
    tolls = Tolls(figures=Figures())
    assert list(tolls.statistics(statistics({"minute": 2}))) == []
    assert marks(tolls.accidents(Punctuation(0))) == []
    assert marks(tolls.statistics(Punctuation(2))) == [1]
    out = list(tolls.accidents(Punctuation(1)))
    assert marks(out) == [2]
    assert len(rows(out)) == 1


def test_rows_of_several_minutes_in_one_batch_leave_minute_by_minute():
    """However an engine batches its rows, a tariff holds one minute."""
    tolls = Tolls(figures=Figures())
    out = [*tolls.statistics(statistics({"minute": 2}, {"minute": 3}, {"minute": 2, "seg": 11}))]
    out += [*tolls.statistics(Punctuation(3)), *tolls.accidents(Punctuation(2))]
    assert [row[0] for row in rows(out)] == [2, 2, 3]
    assert marks(out) == [1, 3]

"""Accident detection."""

import itertools

from apps.linear_road.accidents import Standing, accidents
from exop import Punctuation
from tests.apps.linear_road.batches import cuts, in_order, marks, reports, rows, stopped

ELSEWHERE = {"seg": 11, "pos": 60_000}
PLACE = {"seg": 10, "lane": 1, "pos": 52_800}


def events(*reported):
    """(time, segment, cleared) of the events, the input as one batch, cut at random and row by row giving the same."""
    ordered = in_order(*reported)
    found = []
    for pieces in (1, 3, len(ordered)):
        standing = Standing()
        parts = [ordered[cut] for cut in cuts(len(ordered), pieces, seed=pieces)]
        if pieces == len(ordered):
            parts = [[row] for row in ordered]
        out = itertools.chain.from_iterable(accidents(reports(*part), standing) for part in parts if part)
        found.append([(row[1], row[4], row[7]) for row in rows(out)])
    assert found[0] == found[1] == found[2]
    return found[0]


def test_an_accident_is_detected_at_the_second_cars_fourth_report():
    """Two cars with four consecutive reports each from one place are an accident."""
    assert events(*stopped(1, 0), *stopped(2, 20)) == [(110, 10, 0)]


def test_an_accident_is_cleared_when_one_car_moves_on():
    """The first report from elsewhere clears it; the other car's moving changes nothing."""
    found = events(*stopped(1, 0), *stopped(2, 20), {"vid": 2, "time": 140, **ELSEWHERE}, {"vid": 1, "time": 150})
    assert found == [(110, 10, 0), (140, 10, 1)]


def test_events_carry_minute_and_place():
    """An event names the minute of its second and the whole place."""
    standing = Standing()
    out = list(accidents(reports(*in_order(*stopped(1, 0, **PLACE), *stopped(2, 20, **PLACE))), standing))
    assert rows(out) == [(2, 110, 0, 0, 10, 1, 52_800, 0)]


def test_minutes_are_announced_when_they_are_over():
    """Punctuation(m) says that all events of minutes through m are out, once per minute."""
    standing = Standing()
    out = [one for second in (0, 58, 59, 60, 61, 240) for one in accidents(Punctuation(second), standing)]
    assert marks(out) == [1, 4]

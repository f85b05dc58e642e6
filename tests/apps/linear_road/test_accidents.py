"""Accident detection."""

import itertools

import pytest

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


def test_one_stopped_car_is_no_accident():
    """It takes two."""
    assert events(*stopped(1, 0, 9)) == []


def test_three_reports_are_not_stopped():
    """The fourth report makes a car stopped, not the third."""
    assert events(*stopped(1, 0), *stopped(2, 20, 3)) == []


@pytest.mark.parametrize("other", [{"lane": 2}, {"pos": 52_801}, {"dir": 1}, {"xway": 1}])
def test_a_place_is_road_lane_position_and_direction(other):
    """Cars that differ in any of the four stand at two places."""
    assert events(*stopped(1, 0), *stopped(2, 20, **other)) == []


def test_speed_does_not_matter():
    """A car is stopped by its place, whatever speed it reports."""
    assert events(*stopped(1, 0), *({**row, "spd": 30} for row in stopped(2, 20))) == [(110, 10, 0)]


def test_an_accident_is_cleared_when_one_car_moves_on():
    """The first report from elsewhere clears it; the other car's moving changes nothing."""
    found = events(*stopped(1, 0), *stopped(2, 20), {"vid": 2, "time": 140, **ELSEWHERE}, {"vid": 1, "time": 150})
    assert found == [(110, 10, 0), (140, 10, 1)]


def test_changing_the_lane_is_moving():
    """A report from another lane at the same position clears the accident."""
    assert events(*stopped(1, 0), *stopped(2, 20), {"vid": 1, "time": 120, "lane": 2})[-1] == (120, 10, 1)


def test_a_third_car_keeps_the_accident():
    """While two stopped cars are left the accident goes on."""
    moving = [{"vid": 1, "time": 200, **ELSEWHERE}, {"vid": 2, "time": 230, **ELSEWHERE}]
    assert events(*stopped(1, 0), *stopped(2, 20), *stopped(3, 40), *moving) == [(110, 10, 0), (230, 10, 1)]


def test_a_second_accident_at_the_same_place_is_a_new_one():
    """After clearing, two cars can have an accident there again."""
    again = [*stopped(3, 300), *stopped(4, 310)]
    moved = [{"vid": vid, "time": 140, **ELSEWHERE} for vid in (1, 2)]
    assert events(*stopped(1, 0), *stopped(2, 20), *moved, *again) == [(110, 10, 0), (140, 10, 1), (400, 10, 0)]


def test_an_interruption_starts_the_count_anew():
    """Four reports have to be consecutive."""
    interrupted = [*stopped(2, 0, 2), {"vid": 2, "time": 60, "pos": 1}, *stopped(2, 90, 3)]
    assert events(*stopped(1, 0), *interrupted) == []


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

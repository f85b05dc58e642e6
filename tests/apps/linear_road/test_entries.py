"""Which reports enter a segment."""

from apps.linear_road.entries import Whereabouts, entries
from tests.apps.linear_road.batches import reports, rows


def entered(*reported):
    """(time, segment, lane, first), the input as one batch and report by report giving the same."""
    at_once = rows(entries(reports(*reported), Whereabouts()))
    whereabouts = Whereabouts()
    singly = [row for report in reported for row in rows(entries(reports(report), whereabouts))]
    assert singly == at_once
    return [(row[0], row[4], row[5], row[6]) for row in at_once]


def test_the_first_report_from_each_segment_enters_it():
    """Reports from a segment that the vehicle is in already are not answered."""
    found = entered({"time": 0, "lane": 0}, {"time": 30}, {"time": 60, "seg": 11}, {"time": 90, "seg": 11})
    assert found == [(0, 10, 0, 1), (60, 11, 1, 0)]


def test_coming_back_to_a_segment_enters_it_again():
    """A segment is new when the report before was from another one."""
    assert [row[1] for row in entered({}, {"time": 30, "seg": 11}, {"time": 60, "seg": 10})] == [10, 11, 10]


def test_a_trip_ends_in_the_exit_lane():
    """On the next trip the same segment is entered again, as the first of a trip."""
    found = entered({"lane": 0}, {"time": 30, "lane": 4}, {"time": 400, "lane": 0})
    assert found == [(0, 10, 0, 1), (400, 10, 0, 1)]


def test_crossing_straight_into_an_exit_lane_is_passed_on():
    """The vehicle has left the segment before, though it is told nothing in the new one."""
    assert entered({"lane": 0}, {"time": 30, "seg": 11, "lane": 4})[1] == (30, 11, 4, 0)


def test_vehicles_directions_and_roads_are_kept_apart():
    """Each vehicle has its own whereabouts, and a segment is one of a road and direction."""
    assert len(entered({}, {"vid": 2}, {"dir": 1, "time": 30}, {"xway": 1, "dir": 1, "time": 60})) == 4


def test_nothing_entered_sends_nothing():
    """A batch without an entry, or without a row, sends no empty batch."""
    whereabouts = Whereabouts()
    entries(reports({}), whereabouts)
    assert entries(reports({"time": 30}), whereabouts) is None
    assert entries(reports(), whereabouts) is None

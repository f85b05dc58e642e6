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


def test_nothing_entered_sends_nothing():
    """A batch without an entry, or without a row, sends no empty batch."""
    whereabouts = Whereabouts()
    entries(reports({}), whereabouts)
    assert entries(reports({"time": 30}), whereabouts) is None
    assert entries(reports(), whereabouts) is None

"""Reports outside of trips are ignored wholly."""

from apps.linear_road.trips import Phases, Trips
from tests.apps.linear_road.batches import rows, tuples


def kept(*reports):
    """The lanes that pass, the whole input as one batch and report by report giving the same."""
    at_once = rows(Trips(phases=Phases()).tuples(tuples(*reports)))
    singly = Trips(phases=Phases())
    assert [row for report in reports for row in rows(singly.tuples(tuples(report)))] == at_once
    return [row[5] for row in at_once]


def test_a_trip_passes_untouched():
    """A batch without a stray report is passed on as it is."""
    batch = tuples({"lane": 0}, {"lane": 2, "time": 30}, {"lane": 4, "time": 60}, {"type": 2, "vid": 9, "qid": 1})
    assert Trips(phases=Phases()).tuples(batch) is batch


def test_a_first_report_in_the_exit_lane_is_ignored():
    """A vehicle that is first seen leaving was never on the road; what comes after is a first report again."""
    assert kept({"lane": 4}, {"lane": 4, "time": 30}, {"lane": 2, "time": 60}, {"lane": 4, "time": 90}) == [2, 4]


def test_after_an_exit_only_an_entry_lane_begins_a_trip():
    """Reports after lane 4 are ignored until one from lane 0."""
    lanes = [0, 4, 4, 1, 3, 0, 2]
    assert kept(*({"lane": lane, "time": 30 * turn} for turn, lane in enumerate(lanes))) == [0, 4, 0, 2]


def test_questions_pass_whatever_the_vehicle_does():
    """Only position reports belong to trips."""
    trips = Trips(phases=Phases())
    assert [row[0] for row in rows(trips.tuples(tuples({"lane": 4}, {"type": 2, "vid": 1, "lane": 4, "qid": 5})))] == [
        2
    ]
    assert trips.metrics() == {"ignored": 1}


def test_nothing_is_sent_when_nothing_is_left():
    """A batch of ignored reports sends no empty batch."""
    assert Trips(phases=Phases()).tuples(tuples({"lane": 4})) is None

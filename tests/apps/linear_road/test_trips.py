"""Reports outside of trips are ignored wholly."""

from apps.linear_road.trips import Phases, Trips
from tests.apps.linear_road.batches import rows, tuples


def test_a_trip_passes_untouched():
    """A batch without a stray report is passed on as it is."""
    batch = tuples({"lane": 0}, {"lane": 2, "time": 30}, {"lane": 4, "time": 60}, {"type": 2, "vid": 9, "qid": 1})
    assert Trips(phases=Phases()).tuples(batch) is batch


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

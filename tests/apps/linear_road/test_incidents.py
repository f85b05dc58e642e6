"""Which accidents count in which minute."""

from apps.linear_road.incidents import Incidents
from tests.apps.linear_road.batches import accidents


def felt(incidents, minute, direction=0):
    """The segments of road 0 that feel an accident in this minute, with where it is."""
    ahead = incidents.seen_from(minute).tolist()[direction * 100 : direction * 100 + 100]
    return {segment: where for segment, where in enumerate(ahead) if where >= 0}


def test_an_accident_of_a_single_minute_never_counts():
    """Detected and cleared in the same minute: there is no minute in between."""
    incidents = Incidents()
    incidents.learn(accidents({"time": 70}, {"time": 100, "cleared": 1}))
    assert not any(felt(incidents, minute) for minute in range(1, 6))


def test_the_road_ends_what_is_felt():
    """An accident near the end of a road is not felt on the next road or direction."""
    incidents = Incidents()
    incidents.learn(accidents({"seg": 2}, {"seg": 98, "dir": 1}))
    ahead = incidents.seen_from(2).tolist()
    assert [number for number, where in enumerate(ahead) if where >= 0] == [0, 1, 2, 198, 199]


def test_the_order_of_one_seconds_events_does_not_matter():
    """An engine may put out a clearing before the detection of the same second."""
    incidents = Incidents()
    incidents.learn(accidents({"time": 50, "cleared": 1}))
    incidents.learn(accidents({"time": 50}))
    assert not felt(incidents, 2)


def test_events_told_early_wait_for_their_minute():
    """What is told of a later minute does not change an earlier one."""
    incidents = Incidents()
    incidents.learn(accidents({"time": 0}, {"time": 130, "cleared": 1}, {"time": 130, "seg": 50}))
    assert 10 in felt(incidents, 2)
    assert {10} == set(felt(incidents, 3).values())
    assert {50} == set(felt(incidents, 4).values())

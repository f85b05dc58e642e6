"""Which accidents count in which minute."""

from apps.linear_road.incidents import Incidents
from tests.apps.linear_road.batches import accidents


def felt(incidents, minute, direction=0):
    """The segments of road 0 that feel an accident in this minute, with where it is."""
    ahead = incidents.seen_from(minute).tolist()[direction * 100 : direction * 100 + 100]
    return {segment: where for segment, where in enumerate(ahead) if where >= 0}


def test_an_accident_counts_from_the_minute_after_detection_through_that_of_clearing():
    """Detected in minute 2 and cleared in minute 4: it counts in minutes 3 and 4."""
    incidents = Incidents()
    incidents.learn(accidents({"time": 70}, {"time": 190, "cleared": 1}))
    assert [bool(felt(incidents, minute)) for minute in range(1, 7)] == [False, False, True, True, False, False]


def test_an_accident_of_a_single_minute_never_counts():
    """Detected and cleared in the same minute: there is no minute in between."""
    incidents = Incidents()
    incidents.learn(accidents({"time": 70}, {"time": 100, "cleared": 1}))
    assert not any(felt(incidents, minute) for minute in range(1, 6))


def test_it_is_felt_four_segments_upstream():
    """Eastbound upstream is below the accident's segment, westbound above it; it is felt in its own segment too."""
    incidents = Incidents()
    incidents.learn(accidents({"seg": 10}, {"seg": 10, "dir": 1}))
    assert set(felt(incidents, 2)) == {6, 7, 8, 9, 10}
    assert set(felt(incidents, 2, direction=1)) == {10, 11, 12, 13, 14}


def test_the_road_ends_what_is_felt():
    """An accident near the end of a road is not felt on the next road or direction."""
    incidents = Incidents()
    incidents.learn(accidents({"seg": 2}, {"seg": 98, "dir": 1}))
    ahead = incidents.seen_from(2).tolist()
    assert [number for number, where in enumerate(ahead) if where >= 0] == [0, 1, 2, 198, 199]


def test_the_nearest_accident_wins():
    """With two accidents ahead the nearer one is told."""
    incidents = Incidents()
    incidents.learn(accidents({"seg": 10}, {"seg": 12}))
    assert felt(incidents, 2) == {6: 10, 7: 10, 8: 10, 9: 10, 10: 10, 11: 12, 12: 12}


def test_two_accidents_in_one_segment_end_one_by_one():
    """A segment is free when the last of its accidents is cleared."""
    incidents = Incidents()
    incidents.learn(accidents({"pos": 1}, {"pos": 2}, {"pos": 1, "time": 60, "cleared": 1}))
    assert felt(incidents, 3)
    incidents.learn(accidents({"pos": 2, "time": 130, "cleared": 1}))
    assert felt(incidents, 3)
    assert not felt(incidents, 4)


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

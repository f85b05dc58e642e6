"""Entries wait for what decides their minute."""

from apps.linear_road.waiting import Waiting
from tests.apps.linear_road.batches import entries


def released(found):
    """The minutes and times that were released."""
    return [(minute, rows.column("time").to_pylist()) for minute, rows in found]


def test_minute_one_waits_for_nothing():
    """Nothing comes before minute 1 that could decide it."""
    assert released(Waiting().arrived(entries({"time": 0}, {"time": 59}))) == [(1, [0, 59])]


def test_a_batch_is_divided_by_minute():
    """Only what is decided leaves; the rest of the batch waits, minute by minute."""
    waiting = Waiting()
    assert released(waiting.arrived(entries({"time": 59}, {"time": 60}, {"time": 119}, {"time": 120}))) == [(1, [59])]
    assert released(waiting.decided(2)) == [(2, [60, 119])]
    assert released(waiting.decided(5)) == [(3, [120])]


def test_nothing_overtakes_what_waits():
    """While rows wait, later ones queue behind them."""
    waiting = Waiting()
    assert released(waiting.arrived(entries({"time": 60}))) == []
    assert released(waiting.arrived(entries({"time": 61}, {"time": 120}))) == []
    assert released(waiting.decided(3)) == [(2, [60]), (2, [61]), (3, [120])]


def test_what_is_decided_stays_decided():
    """An older or repeated announcement changes nothing."""
    waiting = Waiting(known=4)
    assert released(waiting.decided(3)) == []
    assert waiting.known == 4


def test_seconds_are_settled_when_both_sides_are_complete():
    """Everything is released through the earlier of: the rows' own punctuation, the end of the last decided minute."""
    assert Waiting(known=2, through=70).settled() == 70
    assert Waiting(known=2, through=150).settled() == 119
    assert Waiting().settled() == -1

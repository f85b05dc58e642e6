"""Toll and accident notifications, and charges."""

from apps.linear_road.notifications import AccidentNotification, Owed, TollNotification, Warned
from exop import Punctuation
from tests.apps.linear_road.batches import Collected, accidents, entries, marks, rows, tariffs


def notification():
    """A toll notification and what leaves by its port `charges`."""
    charges = Collected()
    return TollNotification(owed=Owed(), charges=charges), charges


def test_an_entry_is_told_the_tariff_of_its_minute():
    """LAV and toll of the segment entered; both 0 where the tariff has no row."""
    slet, _ = notification()
    told = [*slet.tariffs(tariffs({"seg": 10})), *slet.tariffs(Punctuation(2))]
    told += slet.entries(entries({"vid": 1}, {"vid": 2, "seg": 11}, {"vid": 3, "seg": 9}))
    assert rows(told) == [(60, 1, 20, 200), (60, 2, 0, 0), (60, 3, 0, 0)]


def test_entries_wait_for_their_tariff():
    """Nothing is told of minute 2 before its tariff is complete; minute 1 has none and waits for nothing."""
    slet, _ = notification()
    assert rows(slet.entries(entries({"time": 59}, {"time": 60}))) == [(59, 1, 0, 0)]
    assert rows(slet.tariffs(tariffs({"toll": 2}))) == []
    assert rows(slet.tariffs(Punctuation(2))) == [(60, 1, 20, 2)]


def test_the_toll_told_is_charged_in_the_next_segment():
    """Told and charged are the same number, whatever the tariff is by then; a trip's first report charges nothing."""
    slet, charges = notification()
    list(slet.tariffs(tariffs({"minute": 2, "toll": 2}, {"minute": 3, "toll": 8, "seg": 11})))
    list(slet.tariffs(Punctuation(3)))
    list(slet.entries(entries({"time": 60, "first": 1}, {"time": 120, "seg": 11}, {"time": 130, "seg": 12})))
    assert rows(charges.items) == [(120, 1, 2), (130, 1, 8)]


def test_leaving_by_the_ramp_is_free():
    """The next trip's first report does not charge what the last segment of the one before had told."""
    slet, charges = notification()
    list(slet.tariffs(tariffs({})))
    list(slet.tariffs(Punctuation(9)))
    list(slet.entries(entries({"time": 60}, {"time": 300, "seg": 40, "first": 1})))
    assert rows(charges.items) == []


def test_crossing_straight_into_the_exit_lane_charges_and_is_told_nothing():
    """The segment before has been left; the new one is neither told nor charged later."""
    slet, charges = notification()
    list(slet.tariffs(tariffs({"seg": 10}, {"seg": 11})))
    list(slet.tariffs(Punctuation(2)))
    told = rows(slet.entries(entries({"time": 60}, {"time": 90, "seg": 11, "lane": 4}, {"time": 95, "seg": 12})))
    assert [row[0] for row in told] == [60, 95]
    assert rows(charges.items) == [(90, 1, 200)]


def test_charges_are_complete_when_nothing_waits_before_that_second():
    """Punctuation leaves by `charges` through the second of the entries, but not beyond the last decided minute."""
    slet, charges = notification()
    list(slet.entries(Punctuation(59)))
    list(slet.entries(Punctuation(75)))
    assert marks(charges.items) == [59]
    list(slet.tariffs(Punctuation(2)))
    assert marks(charges.items) == [59, 75]


def test_old_tariffs_are_forgotten():
    """A tariff is dropped when its minute has passed."""
    slet, _ = notification()
    list(slet.tariffs(tariffs({"minute": 2}, {"minute": 3})))
    list(slet.tariffs(Punctuation(3)))
    list(slet.entries(Punctuation(119)))
    assert list(slet.owed.tolls) == list(slet.owed.lavs) == [3]


def test_an_entry_is_warned_of_the_nearest_accident_ahead():
    """The alert names the accident's segment; segments past it are not warned, nor is the exit lane."""
    slet = AccidentNotification(warned=Warned())
    list(slet.accidents(accidents({"time": 30, "seg": 12}, {"time": 30, "seg": 10})))
    list(slet.accidents(Punctuation(1)))
    entered = [{"vid": 1, "seg": 6}, {"vid": 2, "seg": 11}, {"vid": 3, "seg": 13}, {"vid": 4, "seg": 5}]
    alerts = rows(slet.entries(entries(*entered, {"vid": 5, "seg": 10, "lane": 4})))
    assert alerts == [(60, 0, 10, 0, 1), (60, 0, 12, 0, 2)]


def test_alerts_wait_until_the_minute_before_is_known():
    """An entry of minute 2 waits for the events of minute 1."""
    slet = AccidentNotification(warned=Warned())
    list(slet.accidents(Punctuation(0)))
    assert rows(slet.entries(entries({"time": 65}))) == []
    assert rows(slet.accidents(accidents({"time": 30}))) == []
    assert rows(slet.accidents(Punctuation(1))) == [(65, 0, 10, 0, 1)]


def test_the_minute_of_clearing_is_still_warned():
    """An accident cleared in minute 3 is told through minute 3 and not in minute 4."""
    slet = AccidentNotification(warned=Warned())
    list(slet.accidents(accidents({"time": 30}, {"time": 125, "cleared": 1})))
    list(slet.accidents(Punctuation(3)))
    assert [row[0] for row in rows(slet.entries(entries({"time": 60}, {"time": 170}, {"time": 180})))] == [60, 170]

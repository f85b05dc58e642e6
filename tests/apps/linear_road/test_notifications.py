"""Toll and accident notifications, and charges."""

from apps.linear_road.notifications import AccidentNotification, Owed, TollNotification, Warned
from exop import Punctuation
from tests.apps.linear_road.batches import Collected, accidents, entries, marks, rows, tariffs


def notification():
    """A toll notification and what leaves by its port `charges`."""
    charges = Collected()
    return TollNotification(owed=Owed(), charges=charges), charges


def test_entries_wait_for_their_tariff():
    """Nothing is told of minute 2 before its tariff is complete; minute 1 has none and waits for nothing."""
    slet, _ = notification()
    assert rows(slet.entries(entries({"time": 59}, {"time": 60}))) == [(59, 1, 0, 0)]
    assert rows(slet.tariffs(tariffs({"toll": 2}))) == []
    assert rows(slet.tariffs(Punctuation(2))) == [(60, 1, 20, 2)]


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


def test_alerts_wait_until_the_minute_before_is_known():
    """An entry of minute 2 waits for the events of minute 1."""
    slet = AccidentNotification(warned=Warned())
    list(slet.accidents(Punctuation(0)))
    assert rows(slet.entries(entries({"time": 65}))) == []
    assert rows(slet.accidents(accidents({"time": 30}))) == []
    assert rows(slet.accidents(Punctuation(1))) == [(65, 0, 10, 0, 1)]

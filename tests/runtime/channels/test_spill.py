"""The mode `offline` of an outbox: beyond the capacity, events are on disk, and are sent in order."""

import pytest

from exop import EndOfStream, Punctuation
from exop.errors import StateError, StoredStateError
from exop.model.slets.ports import PortType
from exop.runtime.channels.frame_body import event_of
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.spill import Spill
from exop.runtime.drivers.base import Driver
from exop.runtime.log.memory import Retention
from tests.rig import eventually
from tests.runtime.channels.test_outbox import delivered
from tests.runtime.channels.wires import PairedWires, inbox, payloads
from tests.runtime.log.breaking import BreakingFiles
from tests.runtime.rig import Log, driven, finished, joined


@pytest.fixture
def wires():
    """A connection that a test moves; it is lost at first."""
    found = PairedWires()
    found.lose()
    return found


def offline(wires, folder=None, files=None, durable=False):
    """An outbox in the mode `offline`, with room for three items in memory."""
    made = Outbox("c.to.b", peer="b", key="app/c/a>b", mode="offline", capacity=3)
    made.wires, made.home = {"b": wires.a}, folder
    made.open()
    if files is not None:
        made._disk.close()
        made._disk = Spill(folder, files)
    made.take_part(on=durable)
    made.attach()
    return made


def receiver(wires):
    """An inbox, and what it delivers."""
    made, log = inbox(wires, capacity=3), Log()
    made.typed([PortType()])
    joined(made, log)
    return made, log


def test_a_driver_never_waits_for_the_peer_also_when_events_are_on_disk(wires):
    """A driver that a restart lets check for room, since more waits than the capacity, goes on at once."""
    sender = offline(wires)
    entry = sender.entry(())
    for number in range(9):
        entry.push(number)
    driver = Driver("producer")
    driver.overfill(sender)
    assert (sender.depth, sender.keeps_out(driver), driver.waits_at) == (9, False, None)


def drained(wires, inbox, log, expected):
    """Heal the connection, and see that everything arrives."""
    wires.heal()
    for _ in range(100):
        wires.pump()
        delivered(inbox, log)
    assert log.seen == expected


def test_a_lost_peer_keeps_no_producer_waiting_and_misses_nothing(wires):
    """Items, lists and control items catch up in order, and those that come meanwhile follow them."""
    sender = offline(wires)
    entry, (there, log) = sender.entry(()), receiver(wires)
    for number in range(20):
        entry.push(number)
    entry.control(Punctuation(20))
    entry.push_batch(["x", "y"])
    assert sender.metrics()["spilled"] == 20
    assert sender.unacknowledged == 23
    wires.heal()
    wires.pump()
    entry.push("late")
    entry.control(EndOfStream())
    drained(wires, there, log, [*range(20), Punctuation(20), "x", "y", "late", EndOfStream()])
    assert (sender.depth, sender.metrics()["spilled"]) == (0, 0)
    sender.close()


def test_a_full_disk_makes_producers_wait_until_there_is_room(wires, tmp_path):
    """The status shows the trouble; when there is room again, it passes by itself, and nothing is lost."""
    files = BreakingFiles()
    sender = offline(wires, tmp_path, files)
    entry, (there, log) = sender.entry(()), receiver(wires)
    for number in range(4):
        entry.push(number)
    files.room = 10
    driver = driven(lambda driver: [_pushed(driver, entry, number) for number in range(4, 6)])
    eventually(lambda: sender.trouble)
    assert "No space left" in sender.trouble
    files.room = None
    finished(driver)
    assert sender.trouble is None
    drained(wires, there, log, [*range(6)])
    sender.close()


def _pushed(driver, entry, item):
    """Push as a source driver does: what could not be passed on is tried again at the safe point."""
    try:
        entry.push(item)
    except BaseException as error:  # noqa: BLE001 (the driver handles every one)
        driver.unwound(error)


def test_an_item_in_flight_waits_in_memory_while_the_disk_is_full(wires, tmp_path):
    """A change posts items that cannot wait; they keep their place behind those on disk."""
    files = BreakingFiles()
    sender = offline(wires, tmp_path, files)
    entry, (there, log) = sender.entry(()), receiver(wires)
    for number in range(4):
        entry.push(number)
    files.room = 10
    entry.store("push", 4)
    files.room = None
    entry.push(5)
    entry.store("push", 6)
    drained(wires, there, log, [*range(7)])
    sender.close()


def test_items_in_memory_are_handed_over_with_those_on_disk(wires, tmp_path):
    """The disk is full when the connector moves: nothing is left out."""
    files = BreakingFiles()
    sender = offline(wires, tmp_path / "spill", files)
    entry = sender.entry(())
    for number in range(6):
        entry.push(number)
    files.room = 10
    for number in range(6, 9):
        sender.store("push", number)
    first, events = sender.stored()
    assert (first, sum(event.events for event in events)) == (0, 9)
    sender.close()


def test_events_on_disk_survive_a_restart_of_a_durable_application(wires, tmp_path, monkeypatch):
    """The checkpoint counts them; later ones are pushed again by the source, and older ones are dropped after it.

    They are taken many at a time, as before.
    """
    take, takes = Spill.take, list[float]()
    monkeypatch.setattr(Spill, "take", lambda self, now: takes.append(now) or take(self, now))
    sender = offline(wires, tmp_path, durable=True)
    entry = sender.entry(())
    for number in range(10):
        entry.push(number)
    held = sender.capture()
    sender.sync()
    sender.committed()
    (path,) = tmp_path.glob("*.log")
    begin = path.stat().st_size
    entry.push("not counted")
    end = path.stat().st_size
    entry.push("not counted")
    sender.close()
    data = path.read_bytes()
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])  # as a power failure may leave it
    again = offline(wires, tmp_path, durable=True)
    again.restore(held)
    entry, (there, log) = again.entry(()), receiver(wires)
    entry.push(10)
    drained(wires, there, log, [*range(11)])
    assert 0 < len(takes) < 4
    again.close()


def test_a_checkpoint_makes_room_on_a_full_disk(wires, tmp_path):
    """The events that were acknowledged go before anything is written, and those in the checkpoint may be sent."""
    files = BreakingFiles()
    sender = offline(wires, tmp_path, files, durable=True)
    sender.after_checkpoint = True
    spill = sender._disk
    spill._log._retention = Retention(segment=200)
    for number in range(20):
        spill.append(event_of("push", "x" * 100, number))
    while spill.events:
        spill.take(0.0)
    sender.capture()
    files.room, before = 0, spill._log.size
    with pytest.raises(StateError, match="No space left on device"):
        sender.committed()
    assert spill._log.size < before / 10
    assert sender._covered == sender._captured
    files.room = None
    sender.committed()
    sender.close()


def test_events_on_disk_of_an_earlier_run_are_not_sent(wires, tmp_path):
    """Without checkpoints, an application begins with an empty outbox."""
    sender = offline(wires, tmp_path)
    entry = sender.entry(())
    for number in range(10):
        entry.push(number)
    sender.close()
    again = offline(wires, tmp_path)
    assert again.depth == 0
    again.close()


def test_a_folder_that_lacks_the_counted_rows_is_refused(wires, tmp_path):
    """Events that are gone must not be left out silently."""
    sender = offline(wires, tmp_path, durable=True)
    with pytest.raises(StoredStateError, match="put its files back"):
        sender.restore(
            {"events": [], "first": 0, "done": 0, "inbox": None, "spilled": {"start": 0, "end": 5, "events": 5}}
        )
    sender.close()


def test_everything_that_is_stored_is_handed_over(wires):
    """A change that removes the outbox takes the events on disk, too."""
    sender = offline(wires)
    entry = sender.entry(())
    for number in range(6):
        entry.push(number)
    assert payloads(sender) == [("push", number) for number in range(6)]
    sender.close()

"""The sending half of a remote connector: numbers, credit, what it stores until it is acknowledged."""

from unittest import mock

import pyarrow as pa
import pytest

from exop import Batch, EndOfStream, Punctuation
from exop.errors import NotStorable, PlanError, UnknownName
from exop.model.slets.ports import PortType
from exop.runtime.channels.base import RETRACTED
from exop.runtime.channels.connector import CONNECTED, LOST
from exop.runtime.channels.outbox import SEPARATE, Outbox
from exop.runtime.channels.wire import Progress
from exop.runtime.drivers.base import Driver
from tests.rig import eventually
from tests.runtime.channels.wires import PairedWires, inbox, outbox, payloads
from tests.runtime.rig import Log, driven, finished, joined


@pytest.fixture
def wires():
    """A connection that a test moves."""
    return PairedWires()


def pair(wires, **settings):
    """Both halves, the way in, and what arrives when the worker is asked."""
    sender, receiver = outbox(wires, **settings), inbox(wires, **settings)
    receiver.typed([PortType()])
    log = Log()
    joined(receiver, log)
    return sender, receiver, sender.entry(()), log


def delivered(receiver, log):
    """Deliver what waits in the inbox, as its worker does."""
    worker = receiver.worker or _worker(receiver)
    while receiver.entries:
        receiver.drain(worker, 64)
    receiver.drain(worker, 64)
    return log.seen


def _worker(receiver):
    from exop.runtime.drivers.worker import Worker

    worker = Worker("test")
    worker.serve((receiver,))
    return worker


def test_what_is_pushed_arrives_once_in_order_and_in_its_form(wires):
    """Items, lists, record batches, punctuations and the end keep their order, and lists stay whole."""
    sender, receiver, entry, log = pair(wires)
    entry.push(1)
    entry.push({"n": 2})
    entry.push_batch([3, 4])
    entry.control(Punctuation(4))
    entry.push_batch(pa.record_batch({"n": [5, 6]}))
    entry.push_batch(Batch([]))
    entry.control(EndOfStream())
    wires.pump()
    assert delivered(receiver, log) == [1, {"n": 2}, 3, 4, Punctuation(4), {"n": 5}, {"n": 6}, EndOfStream()]
    assert log.calls == ["push", "push", "push_batch", "control", "push_batch", "control"]
    wires.pump()
    assert (sender.depth, sender.metrics()["acknowledged"]) == (0, 8)


def test_single_items_share_a_frame_and_lists_have_their_own(wires):
    """Consecutive items of one kind travel together, up to the size that the wire asks for."""
    _, receiver, entry, log = pair(wires)
    for number in range(100):
        entry.push(number)
    entry.push_batch([100, 101])
    wires.pump()
    assert [frame.events for frame in wires.frames] == [100, 2]
    assert delivered(receiver, log) == list(range(102))


@pytest.mark.parametrize("ack", ["received", "done", "stable"])
def test_an_outbox_tells_when_a_slow_peer_has_passed_on_nearly_all(wires, ack):
    """Up to a quarter of the capacity may be under way, whatever an acknowledgement means."""
    sender, receiver, entry, log = pair(wires, capacity=8, ack=ack)
    told = list[int]()
    assert not sender.passed_on(lambda: told.append(0))  # it is not connected yet
    sender.check_again(waits := mock.Mock(spec=Driver))
    assert (waits.wake.call_count, told) == (1, [])  # who asked would make others look again, and so on without an end
    wires.pump()
    assert told == [0]
    for number in range(3):
        assert sender.passed_on(lambda: None)
        entry.push(number)
        wires.pump()
    assert not sender.passed_on(lambda: told.append(1))
    assert delivered(receiver, log) == [0, 1, 2]
    wires.pump()
    assert told == [0, 1]
    assert sender.passed_on(lambda: None)


def test_nothing_is_sent_beyond_the_credit(wires):
    """The inbox accepts as many as it has room for; the others wait in the outbox until it has delivered."""
    sender, receiver, entry, log = pair(wires, capacity=4)
    for number in range(4):
        entry.push(number)
    wires.pump()
    receiver._done = 4  # acknowledged by an inbox that still holds them
    wires.pump(1)
    for number in range(4, 8):
        entry.push(number)
    wires.pump()
    assert (receiver.depth, sender.cursor) == (4, 4)
    assert delivered(receiver, log) == [0, 1, 2, 3]
    wires.pump()
    assert delivered(receiver, log) == list(range(8))


def test_a_full_outbox_keeps_its_pusher_waiting_until_items_are_acknowledged(wires):
    """The capacity counts what is not acknowledged, sent or not."""
    sender, receiver, entry, log = pair(wires, capacity=3)
    driver = driven(lambda _: [entry.push(number) for number in range(5)])
    eventually(lambda: driver.waits_at is sender)
    wires.pump()
    assert driver.waits_at is sender
    assert delivered(receiver, log) == [0, 1, 2]
    wires.pump()
    finished(driver)
    wires.pump()
    assert delivered(receiver, log) == [0, 1, 2, 3, 4]


def test_a_synchronous_pusher_waits_for_each_acknowledgement(wires):
    """In the mode `sync`, the next item is pushed when the slet behind the connector has returned."""
    sender, receiver, entry, log = pair(wires, mode="sync")
    driver = driven(lambda _: [entry.push(number) for number in range(3)])
    for number in range(3):
        eventually(lambda: sender.depth == 1 and driver.waits_at is sender)
        wires.pump()
        assert delivered(receiver, log) == list(range(number + 1))
        wires.pump()
    finished(driver)


@pytest.mark.parametrize("ack", ["received", "done"])
def test_events_are_sent_again_after_a_lost_connection(wires, ack):
    """What was sent and not received is sent again, before all that was not sent yet; what came twice is dropped."""
    sender, receiver, entry, log = pair(wires, ack=ack)
    entry.push(0)
    wires.pump()
    entry.push(1)
    entry.push_batch([2, 3])
    sent = sender.frames(1000)
    assert [frame.first for frame in sent] == [1, 2]
    wires.lose()
    assert not sender.frames(1000)
    entry.push(5)
    sender.resumed(receiver.progress())
    sender.put_first([("push", 4)])
    wires.heal()
    wires.pump()
    assert delivered(receiver, log) == [0, 1, 2, 3, 4, 5]
    wires.pump()
    assert sender.depth == 0


def test_an_inbox_that_returns_without_its_content_is_shown_as_lost(wires):
    """Events that were acknowledged are gone on both sides: the connector waits, and its trouble says so."""
    sender, receiver, entry, log = pair(wires)
    entry.push(0)
    wires.pump()
    delivered(receiver, log)
    wires.pump()
    assert sender.depth == 0
    receiver.close()
    inbox(wires)
    entry.push(1)
    wires.pump()
    assert sender.metrics()["state"] == LOST
    assert "app/c/a>b has lost its state: b has returned without the events 0 to 0; start b again" in sender.trouble
    assert sender.depth == 1
    sender.take_part(on=False)
    sender.resumed(sender._reported)
    assert "events 0 to 0; go on without them by `exop accept" in sender.trouble, "nothing is stored"


def test_an_inbox_that_returns_with_its_content_goes_on(wires):
    """With the captured number, the outbox sends what followed."""
    sender, receiver, entry, log = pair(wires, ack="stable")
    entry.push(0)
    wires.pump()
    held = receiver.capture()
    receiver.committed()
    entry.push(1)
    wires.pump()
    assert sender.metrics()["acknowledged"] == 1
    receiver.close()
    wires.lose()
    other = inbox(wires, ack="stable")
    other.restore(held)
    other.typed([PortType()])
    log = Log()
    joined(other, log)
    wires.heal()
    wires.pump()
    assert sender.state == CONNECTED
    assert delivered(other, log) == [0, 1]


def test_an_outbox_that_returns_empty_is_shown_as_lost(wires):
    """New events would have the numbers of old ones, and the inbox would drop them."""
    sender, receiver, entry, log = pair(wires)
    entry.push(0)
    wires.pump()
    delivered(receiver, log)
    sender.close()
    other = outbox(wires)
    other.entry(()).push("new")
    wires.pump()
    assert other.state == LOST
    assert "this platform has returned without the events before 1" in other.trouble
    assert delivered(receiver, log) == [0]


@pytest.mark.parametrize("ack", ["received", "done"])
def test_an_inbox_that_was_full_reports_its_credit(wires, ack):
    """At each level: also if all that it has received is acknowledged, since nothing more comes without credit."""
    _, receiver, entry, log = pair(wires, ack=ack, capacity=4)
    for item in range(4):
        entry.push(item)
    wires.pump()
    assert (receiver.depth, receiver.progress().credit) == (4, 4)
    wires.woken.clear()
    assert delivered(receiver, log) == [0, 1, 2, 3]
    assert receiver.key in wires.woken
    assert receiver.progress().credit == 8


def test_an_operator_accepts_what_an_inbox_has_lost(wires):
    """The outbox goes on with the oldest event that it stores."""
    sender, receiver, entry, log = pair(wires)
    with pytest.raises(PlanError, match="is known when it is connected; repeat this then"):
        sender.accept_loss()
    entry.push_batch([0, 1])
    wires.pump()
    with pytest.raises(PlanError, match="there is nothing to accept"):
        sender.accept_loss()
    delivered(receiver, log)
    wires.pump()
    receiver.close()
    other, fresh = inbox(wires), Log()
    other.typed([PortType()])
    joined(other, fresh)
    entry.push(2)
    wires.pump()
    assert sender.state == LOST
    sender.accept_loss()
    entry.push(3)
    wires.pump()
    assert delivered(other, fresh) == [2, 3]
    wires.pump()
    assert (sender.trouble, sender.depth) == (None, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_acknowledged_last_comes_again_after_a_loss(wires, restarted):
    """The last punctuation, or the end, and a retraction before it: what begins anew behind them waits for these."""
    sender, receiver, entry, log = pair(wires)

    def lose():
        nonlocal sender, receiver, entry
        wires.pump()
        delivered(receiver, log)
        wires.pump()
        assert sender.depth == 0
        receiver.close()
        if restarted:
            held = sender.capture()
            sender.close()
            sender = outbox(wires)
            sender.restore(held)
            entry = sender.entry(())
        receiver, fresh = inbox(wires), Log()
        receiver.typed([PortType()])
        joined(receiver, fresh)
        wires.pump()
        return fresh

    for mark in (Punctuation(1), RETRACTED, Punctuation(2), Punctuation(3)):
        entry.control(mark)
        entry.push(0)
    log = lose()
    entry.push(4)
    sender.accept_loss()
    wires.pump()
    assert delivered(receiver, log) == [RETRACTED, Punctuation(3), 4]
    entry.control(EndOfStream())
    for _ in range(2):  # also what has come again comes again
        log = lose()
        sender.accept_loss()
        wires.pump()
        assert delivered(receiver, log) == [RETRACTED, EndOfStream()]


def test_an_operator_accepts_what_an_outbox_has_lost(wires):
    """New events get numbers behind those that the inbox has received; the wire is asked to take them."""
    sender, receiver, entry, log = pair(wires)
    entry.push_batch([0, 1])
    wires.pump()
    sender.close()
    other = outbox(wires)
    wires.pump()
    assert other.state == LOST
    wires.woken.clear()
    other.accept_loss()
    assert wires.woken == [other.key]
    other.entry(()).push("new")
    wires.lose()
    wires.heal()
    wires.pump()
    assert delivered(receiver, log) == [0, 1, "new"]
    wires.pump()
    assert other.depth == 0


def test_an_outbox_that_returns_with_its_content_goes_on(wires):
    """It numbers as before: events that the inbox has already are not sent again."""
    sender, receiver, entry, log = pair(wires)
    entry.push_batch([0, 1])
    held = sender.capture()
    entry.push(2)
    wires.pump()
    assert delivered(receiver, log) == [0, 1, 2]
    sender.close()
    other = outbox(wires)
    other.restore(held)
    entry = other.entry(())
    for number in (2, 3):  # the source sends again what followed the checkpoint
        entry.push(number)
    wires.pump()
    assert delivered(receiver, log) == [0, 1, 2, 3]
    wires.pump()
    assert other.depth == 0


def test_items_are_sent_when_a_checkpoint_contains_them(wires):
    """With `after_checkpoint`: when it is committed. After a restart, the inbox has none that is pushed again."""
    sender, receiver, entry, log = pair(wires)
    sender.after_checkpoint = True
    entry.push_batch([0, 1])
    held = sender.capture()
    entry.push(2)
    wires.pump()
    assert delivered(receiver, log) == []  # the checkpoint may still fail
    sender.committed()
    wires.pump()
    assert delivered(receiver, log) == [0, 1]
    sender.close()
    other = outbox(wires, after_checkpoint=True)
    other.restore(held)
    entry = other.entry(())
    entry.push(3)  # other items than before the restart, since streams meet in another order
    wires.pump()
    other.capture()
    other.committed()
    wires.pump()
    assert delivered(receiver, log) == [0, 1, 3]
    wires.pump()
    receiver.close()
    receiver, log = inbox(wires), Log()
    receiver.typed([PortType()])
    joined(receiver, log)
    entry.push(4)
    wires.pump()
    other.accept_loss()  # the numbers begin anew, below those that the last checkpoint contained
    wires.pump()
    assert delivered(receiver, log) == []
    other.capture()
    other.committed()
    wires.pump()
    assert delivered(receiver, log) == [4]


def test_what_is_not_acknowledged_can_be_taken_out_from_any_number(wires):
    """A change hands over the payloads from the number on that the consuming host has processed."""
    sender, _, entry, _ = pair(wires)
    entry.push_batch([0, 1, 2])
    entry.push(3)
    entry.control(Punctuation(3))
    assert payloads(sender) == [("push_batch", [0, 1, 2]), ("push", 3), ("control", Punctuation(3))]
    assert payloads(sender, 2) == [("push_batch", [2]), ("push", 3), ("control", Punctuation(3))]
    assert payloads(sender, 4) == [("control", Punctuation(3))]


def test_a_connector_of_another_epoch_is_not_resumed(wires):
    """Frames of another epoch reach no inbox."""
    sender, receiver = outbox(wires, epoch=1), inbox(wires, epoch=2)
    sender.entry(()).push(0)
    wires.pump()
    assert sender.metrics()["state"] == "disconnected (another epoch)"
    assert not receiver.entries


def test_a_new_epoch_that_is_undone_leaves_what_the_wire_has_done_until_then(wires, monkeypatch):
    """Frames that have come since the cut began, and a report that is taken while the outbox detaches."""
    sender, receiver, entry, log = pair(wires)
    receiver.bound_back()
    entry.push_batch([0, 1])
    wires.pump()
    back = receiver.reconfigure({"peer": "a", "key": receiver.key, "epoch": 1}, close=False)
    receiver.typed([PortType()])
    back()
    receiver.typed([PortType()])
    delivered(receiver, log)
    detach = wires.a._detach

    def late(there, key):
        there[key][1].acknowledged(receiver.progress())
        detach(there, key)

    monkeypatch.setattr(wires.a, "_detach", late)
    sender.reconfigure({"peer": "b", "key": sender.key, "epoch": 1}, close=False)()
    entry.push(2)
    wires.pump()
    assert delivered(receiver, log) == [0, 1, 2]
    wires.pump()
    assert (sender.depth, receiver.depth) == (0, 0)


@pytest.mark.parametrize("made", [True, False])
def test_new_settings_hold_for_the_peer_when_the_change_is_made(wires, made):
    """Until then nothing is sent that waits for a checkpoint, and nothing acknowledged that no checkpoint has."""
    sender, receiver, entry, log = pair(wires, ack="stable")
    sender.after_checkpoint = True
    entry.push(0)
    sender.capture()
    sender.committed()
    wires.pump()
    assert delivered(receiver, log) == [0]
    entry.push(1)
    halves = [(sender, {"peer": "b", "key": sender.key}), (receiver, {"peer": "a", "key": receiver.key})]
    back = [half.reconfigure({**settings, "epoch": 0, "ack": "done"}, close=False) for half, settings in halves]
    wires.pump()
    assert (sender.cursor, sender.depth) == (1, 2)
    for (half, _), undo in zip(halves, back, strict=True):
        (half.attach if made else undo)()
        half.attach()  # once more is nothing
    wires.pump()
    assert delivered(receiver, log) == [0, 1][: 1 + made]
    wires.pump()
    assert sender.depth == (0 if made else 2)


@pytest.mark.parametrize("durable", [True, False])
def test_what_comes_of_a_change_is_sent_when_a_checkpoint_has_it(wires, durable):
    """One that is captured since then; without any, at once."""
    sender, receiver, entry, log = pair(wires, ack="stable")
    entry.push(0)
    sender.capture()  # before the change, and committed after it: it lacks the next one
    sender.await_checkpoint()
    entry.push(1)
    sender.committed()
    wires.pump()
    assert delivered(receiver, log) == [0]
    if durable:
        sender.capture()
        sender.committed()
    else:
        sender.take_part(on=False)
    entry.push(2)
    wires.pump()
    assert delivered(receiver, log) == [0, 1, 2]


def test_an_item_without_a_form_as_bytes_is_refused_when_it_is_pushed(wires):
    """The producer fails at that item; nothing of a batch that contains one is stored."""
    sender = outbox(wires)
    entry = sender.entry(())
    with pytest.raises(NotStorable):
        entry.push(object())
    with pytest.raises(NotStorable):
        entry.push_batch([1, object()])
    assert sender.depth == 0


def test_a_peer_that_the_platform_does_not_know_is_refused():
    """Without a wire to the peer, the channel does not open."""

    class Unknown(dict):
        def __missing__(self, name):
            raise UnknownName(place="the platform 'a'", kind="peer", name=name, known=self)

    sender = Outbox("c.to.b", peer="b", key="k")
    sender.wires = Unknown()
    with pytest.raises(UnknownName, match="peer 'b'"):
        sender.open()


def test_a_report_that_claims_too_much_drops_nothing_that_was_not_sent(wires):
    """A peer harms only itself."""
    sender = outbox(wires)
    entry = sender.entry(())
    entry.push(0)
    sender.acknowledged(Progress("x", 10, 10, 20))
    assert sender.depth == 1


def test_classes_change_their_version_where_they_wait(wires):
    """An exchange reaches every item, sent or not; a large one may be small afterwards."""
    sender, receiver, entry, log = pair(wires)
    entry.push("1" * 5000)
    sender.resumed(receiver.progress())
    sender.frames(100)
    entry.push_batch([2, 3])
    sender.exchange(lambda one: [10 * each for each in one] if isinstance(one, list) else 10)
    assert payloads(sender) == [("push", 10), ("push_batch", [20, 30])]
    wires.lose()
    wires.heal()
    wires.pump()
    assert delivered(receiver, log) == [10, 20, 30]
    wires.pump()
    assert (sender.depth, sender._bytes) == (0, 0)


def test_a_separate_item_is_sent_by_its_pusher_and_others_by_the_sender_thread(wires, monkeypatch):
    """An item that follows shortly after such a one, and a list, wake the sender thread, which sends in batches."""
    clock = [1000.0]
    monkeypatch.setattr("exop.runtime.channels.outbox.time.monotonic", lambda: clock[0])
    _, _, entry, _ = pair(wires)
    for pause, push, item, here in (
        (1.0, entry.push, 1, True),
        (SEPARATE / 2, entry.push, 2, False),
        (SEPARATE, entry.push, 3, True),
        (1.0, entry.push_batch, [4, 5], False),
    ):
        wires.pump()  # everything is sent: the next push wakes the wire
        wires.sent_now.clear()
        wires.woken.clear()
        clock[0] += pause
        push(item)
        assert (len(wires.woken), bool(wires.sent_now)) == (1, here)


def test_no_call_of_a_wire_reaches_a_detached_half(wires):
    """A wire that still calls, in another thread, gets and changes nothing."""
    sender, receiver, entry, _ = pair(wires)
    ((_, sending),), ((_, receiving),) = wires.a.senders.values(), wires.b.receivers.values()
    entry.push(1)
    sending.resumed(receiving.progress())
    (frame,) = sending.frames(100)
    sender.detach()
    receiver.detach()
    receiving.received(frame)
    sending.acknowledged(Progress(receiver.incarnation, 1, 1, 10))
    sending.disconnected("late")
    assert not sending.frames(100)
    assert (receiver.depth, sender.depth, sender.state) == (0, 1, CONNECTED)

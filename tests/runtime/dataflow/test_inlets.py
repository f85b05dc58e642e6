"""Inlets: unfinished work in front of the place where it goes on."""

import sys
import threading

import pytest

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.runtime.channels.base import Outlet
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.dataflow.entry import Entry, InFlight, Wait, fan_out
from exop.runtime.dataflow.inlets import Inlets
from exop.runtime.drivers.base import Driver
from tests.rig import PATIENCE
from tests.runtime.rig import Log

ONE, OTHER = Driver("one"), Driver("other")


def ignore(_):
    """Take whatever comes."""


def at(place, **more):
    """A way in that stands at a place."""
    return Entry(ignore, ignore, ignore, endpoint=place, **more)


def bound(*places, runner=ONE):
    """Inlets of an application with these places, all run by one driver."""
    inlets = Inlets()
    inlets.entries = {place: at(place) for place in places}
    inlets.runner = lambda place: runner if place in inlets.entries else None
    return inlets


def pushes(*calls):
    """Work: a payload for each place."""
    return [InFlight(at(place), "push", payload) for place, payload in calls]


def left(inlets, driver=ONE):
    """The items that wait for a driver, in order."""
    return [(work.entry.endpoint, work.payload) for runner, work in inlets.waiting() if runner is driver]


def finished(inlets, driver=ONE):
    """Take everything out in the order in which the driver does it."""
    found = []
    while (inlet := inlets.first(driver)) is not None:
        work = inlet.popleft()
        found.append((work.entry.endpoint, work.payload))
    return found


def test_two_places_that_are_called_in_turns_are_called_so_again():
    """The order of the calls is kept across places: the stamps tell it, not the places."""
    inlets, calls = bound("a.x", "b.x"), [("a.x", 1), ("b.x", 1), ("b.x", 2), ("a.x", 2)]
    inlets.keep(ONE, pushes(*calls))
    assert finished(inlets) == calls


def test_what_is_left_of_the_first_comes_before_the_rest():
    """A call that is made again, and unwinds again, leaves its work in front: it is older."""
    inlets = bound("a.x", "b.x", "c.x")
    inlets.keep(ONE, pushes(("a.x", 1), ("b.x", 1)))
    inlets.first(ONE).popleft()
    inlets.keep(ONE, pushes(("c.x", 1), ("a.x", 1)))
    assert finished(inlets) == [("c.x", 1), ("a.x", 1), ("b.x", 1)]


def test_a_fan_out_is_no_place():
    """Several drivers may run a channel that keeps nothing: its readers wait one by one, a queue stores its share."""
    queue = QueueChannel("q", capacity=1)
    into = queue.entry([Outlet("far", at("far.x"))])
    into.endpoint = "queue q -> far.x"
    inlets, targets = bound("a.x", "b.x", "far.x"), [at("a.x"), into, at("b.x")]
    spread = fan_out(targets)
    spread.endpoint = "channel c"
    inlets.keep(ONE, [InFlight(spread, "push", number) for number in (1, 2)])
    assert left(inlets) == [("a.x", 1), ("b.x", 1), ("a.x", 2), ("b.x", 2)]
    assert list(queue.entries) == [1, 2], "beyond its capacity: a driver that unwinds does not wait"


def test_a_look_at_what_comes_in_front_of_a_fan_out_is_not_passed_by():
    """It is a place of its own, with its name."""
    inlets = bound("channel c")
    inlets.keep(ONE, pushes(("channel c", 1)))
    assert left(inlets) == [("channel c", 1)]


def test_a_fan_out_that_waits_stays_whole_until_then():
    """Nothing goes on to a queue before what it waits for has come about."""
    queue = QueueChannel("q")
    spread = fan_out([at("a.x"), queue.entry([])])
    inlets = Inlets()
    inlets.keep(ONE, [InFlight(spread, "push", 1, Wait("held", lambda: False))])
    assert len(inlets.waiting()) == 1
    assert not queue.entries


def test_two_drivers_in_one_place():
    """Each place has one runner: it is an error of the wiring if not."""
    inlets = bound("a.x")
    inlets.keep(ONE, pushes(("a.x", 1)))
    with pytest.raises(RuntimeError, match="'one' and by 'other'"):
        inlets.keep(OTHER, pushes(("a.x", 2)))


def test_what_comes_together_from_two_drivers_is_done_downstream_first():
    """Their stamps cannot be compared; what is nearer to the end is older."""
    inlets = bound("up.x", "down.x")
    inlets.keep(ONE, pushes(("up.x", 1), ("up.x", 2)))
    inlets.keep(OTHER, pushes(("down.x", 3)))
    inlets.assign({"up.x": 1, "down.x": 2}.__getitem__)
    assert left(inlets, OTHER) == []
    assert finished(inlets) == [("down.x", 3), ("up.x", 1), ("up.x", 2)]


def test_what_comes_from_one_driver_alone_keeps_its_order():
    """That one would have gone on in just this order."""
    inlets = bound("up.x", "down.x", runner=OTHER)
    inlets.keep(ONE, pushes(("up.x", 1), ("down.x", 2)))
    inlets.assign({"up.x": 1, "down.x": 2}.__getitem__)
    assert finished(inlets, OTHER) == [("up.x", 1), ("down.x", 2)]


def test_a_place_that_is_gone():
    """Its items go to the entries behind it, except for control items: another stream comes there now."""
    inlets = bound("a.x", "b.x")
    channel = fan_out([at("a.x"), at("b.x")])
    channel.endpoint = "channel gone"
    out = at("gone.out", behind=(channel,))
    inlets.post([InFlight(out, "push", 1), InFlight(out, "control", Punctuation(1)), InFlight(at("gone.x"), "push", 2)])
    assert finished(inlets) == [("a.x", 1), ("b.x", 1)]


def test_a_queue_that_is_gone():
    """Its items go to its reader, if there is one."""
    inlets, queue = bound("a.x"), QueueChannel("q")
    into = queue.entry([Outlet("a", at("a.x"))])
    into.endpoint = "queue q -> a.x"
    inlets.post([InFlight(into, "push", 1)])
    assert finished(inlets) == [("a.x", 1)]
    assert not queue.entries


def test_what_is_posted_goes_behind_or_before_all():
    """Younger than all that waits with the driver; or older, as what an engine had not put out."""
    inlets = bound("a.x", "b.x")
    inlets.keep(ONE, pushes(("a.x", 3)))
    inlets.post(pushes(("b.x", 4), ("a.x", 5)))
    inlets.post(pushes(("b.x", 1), ("a.x", 2)), first=True)
    assert finished(inlets) == [("b.x", 1), ("a.x", 2), ("a.x", 3), ("b.x", 4), ("a.x", 5)]


def test_work_that_leads_nowhere_stays_with_its_driver():
    """It has no place; a driver that leaves drops it."""
    inlets, log = bound("a.x"), Log()
    inlets.keep(ONE, [InFlight(log.entry, "push", 1)])
    inlets.keep(OTHER, [InFlight(log.entry, "push", 2)])
    inlets.assign(lambda place: 0, [OTHER])
    assert finished(inlets) == [("", 1)]
    assert not inlets.filled(OTHER)


def test_another_stream_comes_to_a_port():
    """The control items of the one before are dropped, and the items stay."""
    inlets = bound("a.x", "b.x")
    inlets.keep(
        ONE, [*pushes(("a.x", 1)), *(InFlight(at(place), "control", EndOfStream()) for place in ("a.x", "b.x"))]
    )
    inlets.drop({"a.x"}.__contains__, CONTROL)
    assert finished(inlets) == [("a.x", 1), ("b.x", EndOfStream())]


def test_payloads_are_exchanged_where_the_driver_is_parked():
    """Others go on meanwhile, and may have work kept at new places."""
    inlets = bound("a.x", "b.x")
    inlets.keep(ONE, pushes(("a.x", 1)))
    inlets.keep(OTHER, pushes(("b.x", 1)))

    def change(payload):
        inlets.keep(OTHER, pushes(("c.x", 1)))
        return payload + 1

    inlets.exchange(lambda place: True, {ONE}, change)
    assert left(inlets) == [("a.x", 2)]
    assert left(inlets, OTHER) == [("c.x", 1), ("b.x", 1)]


@pytest.mark.parametrize("how", ["drop", "exchange"])
def test_what_is_posted_while_payloads_are_exchanged_or_dropped_is_not_lost(how):
    """Only the drivers of these places are parked: another one may post a dead letter there."""
    inlets, posted = bound("a.x"), list[threading.Thread]()
    inlets.post(pushes(("a.x", 1)))

    def meanwhile(_):
        posted.append(threading.Thread(target=inlets.post, args=[pushes(("a.x", 2))]))
        posted[0].start()
        posted[0].join(0.05)  # it waits for its turn
        return 1

    found = inlets.drop(meanwhile) if how == "drop" else inlets.exchange(lambda place: True, {ONE}, meanwhile)
    posted[0].join(PATIENCE)
    if how == "drop":
        assert [one.payload for one in found] == [1]
    assert left(inlets) == [("a.x", 2)] if how == "drop" else [("a.x", 1), ("a.x", 2)]


def test_posting_costs_the_same_however_much_waits_already():
    """An engine with many undelivered results, among many drivers that have unfinished work: counted in calls."""
    inlets, counts = bound("a.x"), []
    for number in range(100):
        inlets.keep(Driver(f"beside {number}"), [InFlight(at(f"beside.{number}"), "push", None)])
    events: list[str] = []
    for _ in range(20):
        events.clear()
        sys.setprofile(lambda *call: events.append(call[1]))
        try:
            for number in range(20):
                inlets.post(pushes(("a.x", number)))
                inlets.filled(ONE)
                inlets.first(ONE)
        finally:
            sys.setprofile(None)
        counts.append(events.count("call"))
    assert len(left(inlets)) == 400
    assert min(counts[10:]) <= counts[0], "calls for 20 items"  # the garbage collector may call something, too
    assert counts[0] < 20 * 60, "the inlets of other drivers are not looked at"

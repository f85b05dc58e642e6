"""Fan-out: everybody gets everything, in order, whatever happens to one of them."""

import pytest

from exop.model.items import Punctuation
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Unwind, fan_out, in_turn
from tests.runtime.rig import Log


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_everybody_gets_everything_in_order(number):
    """Items, batches and control items reach each target by their own callable."""
    logs = [Log() for _ in range(number)]
    entry = fan_out([log.entry for log in logs])
    entry.push(1)
    entry.push_batch([2, 3])
    entry.control(Punctuation(3))
    for log in logs:
        assert log.seen == [1, 2, 3, Punctuation(3)]
        assert log.calls == ["push", "push_batch", "control"]


def test_the_first_target_is_done_before_the_next():
    """One driver: an item runs to completion in one target before it enters the next."""
    order = []
    targets = [Entry(lambda item, name=name: order.append((name, item)), print, print) for name in "abc"]
    fan_out(targets).push(1)
    assert order == [("a", 1), ("b", 1), ("c", 1)]


def test_items_of_an_output_without_readers_are_dropped():
    """No target: items are let go without a trace; the common NOWHERE has no place of its own."""
    entry = fan_out([])
    entry.push(1)
    entry.push_batch([1])
    entry.control(Punctuation(1))
    assert entry is NOWHERE
    assert NOWHERE.endpoint == ""


def test_a_measured_item_takes_the_measured_way_of_every_target():
    """The probe of a fan-out fans out to the probes."""
    plain, measured = Log(), Log()
    target = Entry(plain.push, plain.push_batch, plain.control)
    target.probe = measured.entry
    entry = fan_out([target, target, target])
    entry.probe.push(1)
    entry.probe.push_batch([2])
    assert (plain.seen, measured.seen) == ([], [1, 1, 1, 2, 2, 2])


def refusing(log):
    """A target that sends its driver back once."""
    left = [1]

    def push(item):
        if left:
            left.pop()
            raise Unwind("refused", lambda: True, InFlight(log.entry, "push", item))
        log.push(item)

    return Entry(push, push, push)


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
@pytest.mark.parametrize("method", ["push", "push_batch", "control"])
def test_targets_behind_one_that_sends_the_driver_back_are_not_forgotten(number, at, method):
    """Whichever target refuses, whatever the callable: the others get the payload exactly once."""
    at %= number
    logs = [Log() for _ in range(number)]
    targets = [log.entry for log in logs]
    targets[at] = refusing(logs[at])
    payload = {"push": 1, "push_batch": [1], "control": Punctuation(1)}[method]
    with pytest.raises(Unwind) as unwound:
        getattr(fan_out(targets), method)(payload)
    for work in unwound.value.in_flight:
        work.do({})
    assert all(len(log.calls) == 1 for log in logs)


def test_what_is_left_of_several_payloads_is_kept_in_order():
    """The one that was refused comes first, then those behind it; an iterator is run to its end."""
    log = Log()
    with pytest.raises(Unwind) as unwound:
        in_turn(refusing(log), iter([1, 2, 3]))
    for work in unwound.value.in_flight:
        work.do({})
    assert log.seen == [1, 2, 3]


def test_work_goes_to_what_stands_at_its_place_by_then():
    """An in-flight item enters the entry that is compiled at its endpoint now; without an endpoint, its own entry."""
    before, after = Log(), Log()
    before.entry.endpoint = "node.port"
    InFlight(before.entry, "push", 1).do({"node.port": after.entry})
    InFlight(before.entry, "push", 2).do({})
    assert (before.seen, after.seen) == ([2], [1])

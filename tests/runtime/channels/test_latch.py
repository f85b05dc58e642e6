"""The latch: the last item per key."""

import pytest

from exop import EndOfStream, Punctuation
from exop.runtime.channels.partitioned import key_reader
from exop.runtime.channels.table import LatchChannel
from tests.runtime.rig import Log, joined


def test_every_item_passes_and_the_last_one_per_key_stays():
    """Consumers get the whole stream; what is kept is the last item of each key."""
    channel, log = LatchChannel("l", key="k"), Log()
    entry = joined(channel, log)
    entry.push({"k": 1, "v": "a"})
    entry.push_batch([{"k": 2, "v": "b"}, {"k": 1, "v": "c"}])
    assert [item["v"] for item in log.seen] == ["a", "b", "c"]
    assert channel.items() == [{"k": 1, "v": "c"}, {"k": 2, "v": "b"}]
    assert channel.get(2) == {"k": 2, "v": "b"}
    assert channel.get(3, "nothing") == "nothing"
    assert channel.metrics() == {"keys": 2, "taken": 3, "overwritten": 1}


def test_without_a_key_there_is_one_value():
    """The latch of one value: the last item of all."""
    channel = LatchChannel("l")
    entry = joined(channel, Log())
    entry.push(1)
    entry.push(2)
    assert channel.items() == [2]
    assert channel.get() == 2


def test_what_is_stored_can_be_read_by_the_consumer_of_the_item():
    """An item is stored before it is handed on."""
    channel = LatchChannel("l")
    seen = []
    joined(channel, Log(lambda item: seen.append((item, channel.get())))).push(7)
    assert seen == [(7, 7)]


def test_newcomers_are_given_what_is_kept_unless_they_are_not_to_be():
    """The wiring asks for this when a port is connected to a running application."""
    channel = LatchChannel("l")
    joined(channel, Log()).push(1)
    assert channel.kept_for("new.item") == [1]
    silent = LatchChannel("l", replay=False)
    joined(silent, Log()).push(1)
    assert silent.kept_for("new.item") == []


@pytest.mark.parametrize(
    ("fields", "item", "key"),
    [
        (None, {"a": 1}, None),
        ("a", {"a": 1}, 1),
        ("1", (5, 6), 6),
        ("real", 3 + 0j, 3.0),
        (["0", "1"], (5, 6), (5, 6)),
    ],
)
def test_keys_are_read_from_fields_of_any_item(fields, item, key):
    """A key is a field of a mapping, an attribute, or a position; several make a tuple, none is one key for all."""
    assert key_reader(fields)(item) == key


@pytest.mark.parametrize("mark", [Punctuation(1), EndOfStream()])
def test_a_channel_that_fills_first_is_filled_by_a_control_item(mark):
    """It wakes who waits, once; a checkpoint has that, and one of an earlier release has not."""
    channel, woken = LatchChannel("last", fill_first=True), []
    channel.awaited["reader.port"] = lambda: woken.append(1)
    entry = joined(channel, Log())
    entry.push("item")
    assert not channel.filled
    before = channel.capture()
    entry.control(mark)
    entry.control(mark)
    assert (channel.filled, woken) == (True, [1])
    for held, filled in ((before, False), (channel.capture(), True), ({"items": ["item"]}, False)):
        restored = LatchChannel("last", fill_first=True)
        restored.restore(held)
        assert (restored.filled, restored.items()) == (filled, ["item"])

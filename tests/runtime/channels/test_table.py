"""The latch and the table: the last item per key; indexes, scans and filters."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from exop import EndOfStream, Punctuation
from exop.errors import MeshError
from exop.runtime.channels.partitioned import key_reader
from exop.runtime.channels.table import LatchChannel, TableChannel
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
    channel.awaited["reader.port"] = SimpleNamespace(wake=lambda: woken.append(1))
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


@dataclass
class Price:
    """A row with fields."""

    article: str
    euros: int


ROWS = [
    {"id": 1, "color": "red", "size": 3},
    {"id": 2, "color": "blue", "size": 3},
    {"id": 3, "color": "red", "size": 5},
]


@pytest.fixture(params=[None, ["color"], ["color", "size"]])
def table(request):
    """A table with three rows, with and without indexes."""
    channel = TableChannel("t", key="id", index=request.param)
    joined(channel, Log()).push_batch(list(ROWS))
    return channel


def test_a_table_needs_a_key():
    """Without one it could not tell which row a change is of."""
    with pytest.raises(MeshError, match="needs a key"):
        TableChannel("t", key="")


@pytest.mark.parametrize(
    ("item", "known"),
    [({"id": 1}, "id"), ((5, 6), "0, 1"), (Price("pen", 2), "article, euros"), ("text", "none")],
)
def test_an_item_without_a_field_is_told_by_the_fields_that_it_has(item, known):
    """The reader serves keys, indexes and times; items of several classes may alternate."""
    read = key_reader("9")
    for _ in range(2):
        assert read(tuple(range(10))) == 9
        with pytest.raises(LookupError, match=f"the item has no field '9'; it has {known}$"):
            read(item)


def test_rows_are_found_by_key(table):
    """One row per key."""
    assert len(table) == 3
    assert table.get(2) == ROWS[1]
    assert table.get(9) is None


def test_rows_are_found_by_fields_with_and_without_an_index(table):
    """An index changes what a look-up costs, not what it finds."""
    assert table.find(color="red") == [ROWS[0], ROWS[2]]
    assert table.find(color="red", size=3) == [ROWS[0]]
    assert table.find(size=3) == [ROWS[0], ROWS[1]]
    assert table.find(color="green") == []


def test_a_row_of_the_same_key_replaces_the_one_before(table):
    """An update is found under its new values, and under the old ones no more."""
    joined(table, Log()).push({"id": 1, "color": "green", "size": 3})
    assert len(table) == 3
    assert table.find(color="green") == [{"id": 1, "color": "green", "size": 3}]
    assert table.find(color="red") == [ROWS[2]]


def test_a_deleted_row_is_gone_from_the_indexes_too(table):
    """Deleting tells whether there was such a row."""
    assert table.delete(1)
    assert not table.delete(1)
    assert table.find(color="red") == [ROWS[2]]
    assert table.metrics() == {"rows": 2, "taken": 3, "overwritten": 0, "deleted": 1}


def test_a_scan_takes_all_rows_or_those_that_fit(table):
    """A filter is any function of a row."""
    assert table.scan() == ROWS
    assert table.scan(lambda row: row["size"] > 3) == [ROWS[2]]
    assert table.read("anyone.item") == ROWS


def test_rows_are_captured_and_restored_with_their_indexes(table):
    """A restored table finds what the captured one did."""
    other = TableChannel("t", key="id", index=["color"])
    other.restore(table.capture())
    assert other.find(color="red") == [ROWS[0], ROWS[2]]

"""The table: rows by key, with indexes, scans and filters."""

import threading
from dataclasses import dataclass

import pytest

from exop.errors import MeshError
from exop.runtime.channels.partitioned import key_reader
from exop.runtime.channels.table import TableChannel
from tests.runtime.rig import Log, joined


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


def test_it_can_be_read_while_it_is_written():
    """A reader in another thread sees whole rows and never breaks."""
    channel = TableChannel("t", key="id", index=["color"])
    entry = joined(channel, Log())
    stop, broken = threading.Event(), []

    def read():
        while not stop.is_set():
            try:
                assert all(row["color"] == "red" for row in channel.find(color="red"))
                channel.scan()
            except Exception as error:  # noqa: BLE001 (shown below)
                broken.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(3000):
        entry.push({"id": number % 50, "color": ("red", "blue")[number % 3 % 2]})
        if number % 7 == 0:
            channel.delete(number % 50)
    stop.set()
    reader.join(60)
    assert not broken

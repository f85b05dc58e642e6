"""Failed items as values: written, read, bounded; what cannot be written is told in words."""

from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

import pytest

from exop.errors import NotStorable, StoredStateError
from exop.model.values.encoding import encode
from exop.runtime.supervision.failure_state import DeadLetters, FailedItem


@dataclass
class Report:
    """An item of a class of its own."""

    speed: float


def letter(item: object) -> FailedItem:
    """A failed item."""
    return FailedItem(application="app", node="b", port="x", item=item, settings={"poison": 3}, error="ValueError: no")


@pytest.mark.parametrize("item", [Report(3.5), [Report(1.0)], {"a": (1, None)}, b"\0"])
def test_what_is_written_is_read(item):
    """The item, settings and all facts come back as they were."""
    assert FailedItem.from_bytes(letter(item).to_bytes()) == letter(item)


def test_an_item_that_cannot_be_written():
    """The error says that it is the item of this node, and what could be written."""
    with pytest.raises(NotStorable, match=r"the item of app\.b: .*object.* cannot be stored.*use plain values"):
        letter(object()).to_bytes()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "cannot be taken over"),
        (b"\xc1 garbage", "cannot be taken over"),
        (encode([1, 2]), "it is no file of a failed item"),
        (
            encode({"exop failed item": 99}),
            "written in the form 99, this release reads 1; nothing was changed; use the",
        ),
        (letter(1).to_bytes()[:-3], "cannot be taken over"),
        (encode({"exop failed item": 1, "item": encode(1)}), "its parts do not fit"),
        (encode({"exop failed item": 1, "item": encode(1), "settings": encode({}), "more": 1}), "its parts do not fit"),
    ],
    ids=["empty", "garbage", "something else", "newer", "cut off", "less", "more"],
)
def test_a_file_that_cannot_be_read(data, told):
    """The error says why, and how to get another one."""
    with pytest.raises(StoredStateError, match=told):
        FailedItem.from_bytes(data)


def test_the_oldest_dead_letter_goes():
    """No more than so many are kept; those that went are counted."""
    dead = DeadLetters()
    for number in range(5):
        dead.add(letter(number), 3)
    assert ([one.item for one in dead], dead.dropped, len(dead)) == ([2, 3, 4], 2, 3)
    again = DeadLetters()
    again.restore(dead.capture())
    assert ([one.item for one in again], again.dropped) == ([2, 3, 4], 2)


def test_a_setting_that_cannot_be_stored_is_stored_as_its_text():
    """It is converted again when the item is replayed; a checkpoint is not refused because of it."""
    zoned = replace(letter(1), settings={"zone": ZoneInfo("Europe/Vienna"), "size": 3})
    assert FailedItem.from_bytes(zoned.to_bytes()).settings == {"zone": "Europe/Vienna", "size": 3}
    dead = DeadLetters()
    dead.add(zoned, 1)
    encode(dead.capture())

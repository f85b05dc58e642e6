"""Slets that alter an item which others get, too, are found and named, whatever lies between."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from exop import Application, Batch, InputPort, Slet, input_port, slet
from exop.testing import check_sharing
from exop.wiring.sharing import values_of


@dataclass
class Reading:
    """An item with parts."""

    value: int
    tags: dict[str, list[int]] = field(default_factory=lambda: {"a": [1]})


@slet
def readings() -> Iterator[Reading]:
    """The source."""
    for number in range(4):
        yield Reading(number)


@slet
def same(item: Reading) -> Reading:
    """Pass the object itself on."""
    return item


@slet
def look(item: Reading) -> None:
    """Another reader."""


@slet
def alter(item: Reading) -> Reading:
    """Alter a field."""
    item.value += 100
    return item


@slet
def alter_deeply(item: Reading) -> None:
    """Alter a part of a part."""
    item.tags["a"].append(2)


@slet
def alter_lazily(item: Reading) -> Iterator[int]:
    """Alter between two outputs."""
    yield 1
    item.value = -1
    yield 2


@slet
def alter_batch(item: Batch[Reading]) -> None:
    """Alter the items of a batch."""
    for one in item:
        one.value = -1


@slet
def alter_and_raise(item: Reading) -> None:
    """Alter, and fail."""
    item.value = -1
    raise ValueError("no")


@slet
def pull(item: InputPort[Reading]) -> Iterator[int]:
    """Alter what was pulled."""
    for one in item:
        one.value = -1
        yield one.value


class Altering(Slet):
    """A class."""

    @input_port
    def item(self, item: Reading) -> None:
        """Alter it."""
        item.tags["b"] = []


@slet
def correct(item: Reading) -> Reading:
    """Alter a copy."""
    return replace(item, value=-1)


ALTERING = {
    "function": (alter, r"\.value was 0, is 100"),
    "part": (alter_deeply, r"\.tags\['a'\]\[1\] was nothing, is 2"),
    "generator": (alter_lazily, r"\.value was 0, is -1"),
    "batch": (alter_batch, r"\.value was 0, is -1"),
    "class": (Altering, r"\.tags\['b'\] was nothing"),
    "pulling": (pull, r"\.value was \d, is -1"),
    "raising": (alter_and_raise, r"\.value was 0, is -1"),
}


def application(slet: Any, between: str = "", reader: Any = look) -> Application:
    """The source, a slet that gets its items (behind a slet, or a queue), and another reader."""
    app = Application("app")
    source = came = app.add("source", readings)
    app.add("other", reader, item=source)
    if between == "slet":
        came = app.add("between", same, item=came)
    elif between == "queue":
        queue = app.channel("queue", "queue")
        app.add("between", same, item=came, out=queue)
        came = queue
    app.add("slet", slet, item=came, **({"on_error": "skip"} if slet is alter_and_raise else {}))
    return app


@pytest.mark.parametrize(("slet", "change"), ALTERING.values(), ids=ALTERING)
def test_a_slet_that_alters_a_shared_item(slet, change):
    """It is named with its port, the channel, the other reader, the change, and the cure."""
    told = rf"app: slet\.item alters an item of the channel 'source', which it shares with other\.item: {change}"
    with pytest.raises(AssertionError, match=told):
        check_sharing(application(slet))


@pytest.mark.parametrize("between", ["slet", "queue"])
def test_one_that_gets_it_by_others(between):
    """A slet that passes its item on shares it still: the one that alters it is named, also in another thread."""
    with pytest.raises(AssertionError, match=r"^app: slet\.item alters an item of the channel 'source'"):
        check_sharing(application(alter, between))


def test_several_are_told_apart():
    """Each is one finding, however many items it alters."""
    app = application(alter, "slet", alter_deeply)
    with pytest.raises(AssertionError) as found:
        check_sharing(app)
    assert sorted(line.split(" alters ")[0] for line in str(found.value).splitlines()) == [
        "app: other.item",
        "app: slet.item",
    ]


def test_what_is_not_shared_may_be_altered():
    """A slet that alters a copy, or an item that it alone gets, is not found."""
    report = check_sharing(application(correct))
    assert report["outcome"] == "finished"
    alone = Application("alone")
    alone.add("end", look, item=alone.add("alter", alter, item=alone.add("source", readings)))
    check_sharing(alone)


def test_a_channel_that_keeps_items_shares_them():
    """A single reader of a latch alters what the latch keeps."""
    app = Application("app")
    kept = app.channel("kept", "latch", key="value")
    app.add("source", readings, out=kept)
    app.add("slet", alter_deeply, item=kept)
    with pytest.raises(
        AssertionError, match=r"slet\.item alters .* 'kept', which it shares with the items that the channel keeps"
    ):
        check_sharing(app)


def test_values_of_any_object():
    """Dataclasses, slots, containers and circles are looked into."""

    class Slotted:
        __slots__ = ("me", "x")

    slotted = Slotted()
    slotted.x, slotted.me = {1, 2}, slotted
    before = values_of(slotted)
    slotted.x.add(3)
    assert before != values_of(slotted)
    slotted.x.remove(3)
    assert before == values_of(slotted)

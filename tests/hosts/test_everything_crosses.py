"""What a mesh can have besides streams of items, with its ends on two hosts: reads of a table, and dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from exop import Application, DeadLetter, InputPort, Platform, Slet, hookimpl, input_port, slet
from exop.errors import PlanError
from exop.hooks import Plugins
from exop.runtime.channels.reader import RemoteChannel
from tests.change.tools import endless
from tests.rig import PATIENCE, eventually

SEEN: list[Any] = []


@slet
def rows(*, upto: int = 5) -> Iterator[dict[str, int]]:
    """Fill a table."""
    yield from ({"key": number, "square": number * number} for number in range(upto))


@slet
def numbers(*, upto: int = 5) -> Iterator[int]:
    """Count."""
    yield from range(upto)


@slet
def refuse_three(item: int) -> int:
    """Raise for one item."""
    if item == 3:
        raise ValueError("it is three")
    return item


class Enrich(Slet):
    """Looks each item up in a table."""

    table: InputPort[dict[str, int]]

    @input_port
    def item(self, item: int) -> int:
        """Write down what the table has for the item."""
        SEEN.append((item, self.table.get(item)["square"]))
        return item


@slet
def letters(item: DeadLetter) -> None:
    """Write down items that failed."""
    SEEN.append(("dead", item.item))


class Offered:
    """The slets, as a plugin offers them."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """All of them."""
        return [rows, numbers, refuse_three, Enrich, letters]


def platform(name: str, **given: Any) -> Platform:
    """A platform with these slets."""
    plugins = Plugins()
    plugins.register("everything", Offered())
    return Platform(name=name, control=False, plugins=plugins, listen=f"inproc:everything-{name}", **given)


def test_a_table_is_read_and_dead_letters_are_sent_across_hosts():
    """A slet waits until the table on the other host is filled, and an item that fails arrives there as a letter."""
    SEEN.clear()
    with platform("b"), platform("a", peers={"b": "inproc:everything-b"}) as a:
        app = Application("everything")
        there = app.on("b")
        table = there.channel("table", "table", key="key", fill_first=True)
        dead = there.channel("dead")
        app.add("rows", rows, out=table)
        passed = app.add("refuse", refuse_three, item=there.add("numbers", numbers), dead_letters=dead)
        app.add("enrich", Enrich, item=passed, table=table)
        there.add("letters", letters, item=dead)
        a.apply(app.build())
        assert a.wait("everything", PATIENCE)
        assert sorted(SEEN, key=str) == sorted([(0, 0), (1, 1), (2, 4), ("dead", 3), (4, 16)], key=str)
        a.remove("everything")


def test_a_channel_that_leaves_is_read_until_the_change_is_committed():
    """A driver on another host, which parks later, reads it to the end; nothing is written that would not move."""
    with platform("a") as a:
        app = Application("leaving")
        app.add("rows", rows, out=app.channel("table", "table", key="key"))
        app.add("numbers", endless)
        a.apply(app.build())
        table = RemoteChannel(partial(a.call_channel, "leaving", "table"), dict)
        eventually(lambda: len(table.items()) == 5, "the table is filled")
        numbers = {"numbers": a.mesh("leaving").channels["numbers"]}
        change = a._applications.changes.change(a.plan(replace(a.mesh("leaving").remove("rows"), channels=numbers)))
        assert change is not None
        change.prepare()
        for step in (change.stage, change.cut):  # what is in the queues that go is processed in between
            step()
            assert table.get(3) == {"key": 3, "square": 9}
            with pytest.raises(PlanError, match="a change of leaving removes or moves the channel 'table'"):
                table.delete(3)
        change.abort()
        assert table.delete(3) is True
        a.remove("leaving")

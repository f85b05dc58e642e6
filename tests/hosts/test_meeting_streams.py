"""Producers of one channel on several hosts: a move of one to the host of another, whose connector it then uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, EndOfStream, Punctuation, slet
from tests.change.tools import PACE, Position, suspended
from tests.hosts.moving import APP, hosts, named
from tests.rig import eventually


def given(name: str, items: list[Any]) -> Any:
    """A source that emits what a test adds, up to its end."""

    def source(position: Position) -> Iterator[int | Punctuation | None]:
        while True:
            if position.number == len(items):
                PACE.wait(0.001)
                yield None
            elif isinstance(items[position.number], EndOfStream):
                return
            else:
                position.number += 1
                yield items[position.number - 1]

    return named(name, source)


def spread(there: Any, tell: Any, *producers: tuple[Any, str]) -> None:
    """Deploy these sources at these hosts, and the slet that tells what comes to their channel, on h3."""
    app = Application(APP)
    both = app.channel("both", host="h3")
    for source, host in producers:
        app.on(host).add(source.__name__, source, out=both)
    app.on("h3").add("tell", tell, x=both)
    there.home.apply(app.build())


@pytest.mark.parametrize("again", ["", "h1", "h3", "the channel"])
@pytest.mark.parametrize(("host", "waits"), [("h1", False), ("h3", False), ("h1", True), ("h3", True)])
def test_a_producer_that_comes_to_the_host_of_another_is_waited_for(host: str, waits: bool, again: str):
    """What the other one has said does not hold for this one, whose items are older, also if it moves on."""
    old, new, seen, bad = list[Any](), list[Any](), list[Any](), list[bool]()

    @slet
    def tell(x: int | Punctuation) -> None:
        if x == 502 and bad:
            raise ValueError("not now")
        seen.append(x)

    slets = one, other = given("old", old), given("new", new)
    with hosts("h1", "h2", "h3", slets=(*slets, tell)) as there:
        spread(there, tell, (one, host), (other, "h2"))
        new += [Punctuation(500), 501]
        old += [300, Punctuation(300)]
        eventually(lambda: 501 in seen and Punctuation(300) in seen)
        if waits:
            bad.append(True)
            new += [502, Punctuation(502), 503]
            suspended(there.platforms["h3"], APP, "tell")
        there.move("h2", "old")
        if again:
            there.move("h2", "both") if again == "the channel" else there.move(again, "old")
        old += [310, Punctuation(310)]
        new += [504, Punctuation(504)]
        bad.clear()
        if waits:
            there.home.resume(APP, "tell")
        eventually(lambda: Punctuation(310) in seen)
        assert [one for one in seen if isinstance(one, Punctuation)] == [Punctuation(300), Punctuation(310)]
        there.move("h1", "old")
        old += [Punctuation(600)]
        new += [Punctuation(505)]
        eventually(lambda: Punctuation(505) in seen)


def test_the_ends_of_producers_that_move_to_each_other_are_known():
    """The channel ends when the last of its producers does, which is on another host."""
    items, seen = [[Punctuation(n), n, EndOfStream()] for n in (1, 2)] + [list[Any]()], list[Any]()

    @slet
    def tell(x: int | Punctuation | EndOfStream) -> None:
        seen.append(x)

    slets = [given(name, mine) for name, mine in zip(("old", "new", "third"), items, strict=True)]
    with hosts("h1", "h2", "h3", slets=(*slets, tell)) as there:
        spread(there, tell, *zip(slets, ("h1", "h2", "h3"), strict=True))
        eventually(lambda: {1, 2} <= {*seen})
        eventually(lambda: there.component("h1", "old").has_ended and there.component("h2", "new").has_ended)
        merge = there.platforms["h3"].deployment(APP).merges["both"]
        eventually(lambda: len(merge.capture()["ended"]) == 2, "the ends are known there")
        there.move("h2", "old")
        items[-1] += [3, EndOfStream()]
        eventually(lambda: EndOfStream() in seen)

"""Two producers of one channel: a move of one to the host of the other, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, Punctuation, slet
from tests.change.tools import Position, suspended
from tests.hosts.moving import APP, hosts, named
from tests.rig import eventually


def given(name: str, items: list[Any]) -> Any:
    """A source that emits what a test adds."""

    def source(position: Position) -> Iterator[int | Punctuation | None]:
        while True:
            if position.number < len(items):
                position.number += 1
                yield items[position.number - 1]
            else:
                yield None

    return named(name, source)


@pytest.mark.parametrize("waits", [False, True], ids=["", "items wait"])
@pytest.mark.parametrize("host", ["h1", "h3"], ids=["from a third host", "from that of the channel"])
def test_a_producer_that_comes_to_the_host_of_another_is_waited_for(host: str, waits: bool):
    """What the other one has said of its stream does not hold for this one, whose items are older."""
    old, new, seen, bad = list[Any](), list[Any](), list[Any](), list[bool]()

    @slet
    def tell(x: int | Punctuation) -> None:
        if x == 502 and bad:
            raise ValueError("not now")
        seen.append(x)

    slets = one, other = given("old", old), given("new", new)
    with hosts("h1", "h2", "h3", slets=(*slets, tell)) as there:
        app = Application(APP)
        both = app.channel("both", host="h3")
        app.on(host).add("old", one, out=both)
        app.on("h2").add("new", other, out=both)
        app.on("h3").add("tell", tell, x=both)
        there.home.apply(app.build())
        new += [Punctuation(500), 501]
        old += [300, Punctuation(300)]
        eventually(lambda: 501 in seen and Punctuation(300) in seen)
        if waits:
            bad.append(True)
            new += [502, Punctuation(502), 503]
            suspended(there.platforms["h3"], APP, "tell")
        there.move("h2", "old")
        old += [310, Punctuation(310)]
        new += [504, Punctuation(504)]
        bad.clear()
        if waits:
            there.home.resume(APP, "tell")
        eventually(lambda: Punctuation(310) in seen)
        assert [one for one in seen if isinstance(one, Punctuation)] == [Punctuation(300), Punctuation(310)]
        there.move(host, "old")
        old += [Punctuation(600)]
        new += [Punctuation(505)]
        eventually(lambda: Punctuation(505) in seen)

"""What a plan says of openings, before anything was opened and after."""

from collections.abc import Iterator
from typing import Self

import pytest

from exop import Application, InputPort
from exop.model.diff import difference
from exop.model.slet import Slet, input_port, slet
from exop.runtime.budget import Opened
from exop.wiring.notes import _of_new
from exop.wiring.plan import Step
from tests.runtime.test_opening import Importing


class Opens(Slet):
    """Has something to open."""

    def __enter__(self) -> Self:
        return self

    @input_port
    def item(self, item: int) -> None:
        """Take one."""


class Heavy(Opens):
    """Says that it is heavy to open."""

    heavy_opening = True


@slet
def function(item: int) -> None:
    """Opens nothing."""


class Node:
    """A node with this slet."""

    def __init__(self, thing):
        self.slet = thing.__slet__


def said(thing, last=None):
    """What a plan says of opening this slet, after such a last opening."""
    known = {} if last is None else {thing.__slet__.identity: last}
    return " ".join(_of_new(Step("replace", "node", "", after=Node(thing)), known))


def test_nothing_is_said_of_what_opens_nothing():
    """A function has nothing to open."""
    assert said(function) == ""


@pytest.mark.parametrize(
    ("thing", "last", "expected"),
    [
        (Opens, None, "node opens beside the running stream: time that it waits costs the stream nothing"),
        (Opens, Opened(5.0, 0.001), "which took 5 s the last time and cost the stream nothing"),
        (Opens, Opened(6.0, 5.0), "which took 6 s the last time: 5 s of that it computed, sharing the interpreter"),
        (Heavy, None, "it says of itself that this is heavy"),
        (Heavy, Opened(6.0, 0.0), "and cost the stream nothing"),
        (Importing, None, "it imports another_that_is_not_there"),
    ],
)
def test_a_plan_says_what_an_opening_takes(thing, last, expected):
    """What was measured counts; before that, what the slet says of itself and what its code will import."""
    assert expected in said(thing, last)
    assert said(thing, last).startswith("warning: ") == ("sharing the interpreter" in said(thing, last))


@slet
def numbers() -> Iterator[int]:
    """Emit one."""
    yield 1


@slet
def doubled(item: int, *, by: int = 2) -> int:
    """Multiply."""
    return item * by


@slet
def tripled(item: int) -> int:
    """Multiply by more."""
    return item * 3


@slet
def drawn(item: InputPort[int]) -> Iterator[int]:
    """Pull what is to be multiplied."""
    yield from (one * 4 for one in item)


def test_queues_are_looked_for_only_where_connections_may_differ():
    """Another function of the same shape, or settings, need none; one that pulls does, and is told of."""
    app = Application("shapes")
    app.add("end", function, item=app.add("middle", doubled, item=app.add("numbers", numbers)))
    mesh = app.build()
    assert not difference(mesh, mesh.replace("middle", tripled)).reconnects
    assert not difference(mesh, mesh.configure("middle", by=3)).reconnects
    assert difference(mesh, mesh.replace("middle", drawn)).reconnects
    assert difference(mesh, mesh.remove("end")).reconnects

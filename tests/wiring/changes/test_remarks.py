"""What a plan says of openings, before anything was opened and after."""

from collections.abc import Iterator
from typing import Self

import pytest

from exop import Application, InputPort
from exop.model.meshes.diff import difference
from exop.model.slets.slet import Slet, input_port, slet
from exop.runtime.lifecycle import opens
from exop.runtime.supervision.budget import Opened
from exop.wiring.changes.plan import _of_opening, imports_to_open


class Importing(Slet):
    """Imports in many ways when it is opened."""

    def __enter__(self) -> Self:
        import json  # noqa: F401

        import this_module_is_not_there.at_all  # noqa: F401
        from another_that_is_not_there import something  # noqa: F401

        from .siblings_not_there import anything  # noqa: F401

        return self

    @input_port
    def item(self, item: int) -> None:
        """Import what is no business of the opening."""
        import not_for_the_opening  # noqa: F401


class Opens(Slet):
    """Has something to open."""

    def __enter__(self) -> Self:
        return self

    @input_port
    def item(self, item: int) -> None:
        """Take one."""


class Empty(Slet):
    """Opens nothing."""

    @input_port
    def item(self, item: int) -> None:
        """Take one."""


class Heavy(Opens):
    """Says that it is heavy to open."""

    heavy_opening = True


@slet
def function(item: int) -> None:
    """Opens nothing."""


def test_nothing_is_said_of_what_opens_nothing():
    """A function has nothing to open."""
    assert not opens(function.__slet__)
    assert opens(Opens.__slet__)


@pytest.mark.parametrize(
    ("thing", "last", "expected"),
    [
        (Opens, None, "node opens beside the running stream: time that it waits costs the stream nothing"),
        (Opens, Opened(5.0, 0.001), "which took 5 s the last time and cost the stream nothing"),
        (Opens, Opened(6.0, 5.0), "which took 6 s the last time: 5 s of that it computed, sharing the interpreter"),
        (Heavy, None, "it declares a heavy opening"),
        (Heavy, Opened(6.0, 0.0), "and cost the stream nothing"),
        (Importing, None, "it imports this_module_is_not_there.at_all, another_that_is_not_there"),
    ],
)
def test_a_plan_says_what_an_opening_takes(thing, last, expected):
    """What was measured counts; before that, the declaration of the slet and the imports in its code."""
    said = _of_opening("node", thing.__slet__, last)
    assert expected in said
    assert said.startswith("warning: ") == ("sharing the interpreter" in said)


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


def test_what_opening_will_import_is_read_from_its_code():
    """Imports of `__enter__`, in full, unless they are there already."""
    assert sorted(imports_to_open(Importing.__slet__)) == [
        "another_that_is_not_there",
        "tests.wiring.changes.siblings_not_there",
        "this_module_is_not_there.at_all",
    ]
    assert imports_to_open(Empty.__slet__) == []

"""`exop.testing.open`: an instance of a class slet with all that the platform would inject, and its ports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Self

import pytest

from exop import (
    Batch,
    EndOfStream,
    InputPort,
    InputPorts,
    Memento,
    OutputPort,
    OutputPorts,
    Punctuation,
    Slet,
    input_port,
    slet,
)
from exop.errors import SettingError, SletError, UnknownName
from exop.runtime.channels.table import TableChannel
from exop.testing import CollectingOutput, GivenInput, collected, feed
from exop.testing import open as open_slet


class Book(Memento):
    """A state."""

    orders: list[int] = field(default_factory=list)


class Match(Slet):
    """A slet with everything."""

    book: Book
    refused: OutputPort[int]
    rates: InputPort[float]
    path: Path
    depth: int = 10
    opened: list[str] = field(init=False, default_factory=list)

    def __enter__(self) -> Self:
        """Open."""
        self.opened.append("entered")
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.opened.append("exited")

    @input_port
    def bid(self, order: int) -> Iterator[int]:
        """A bid."""
        self.book.orders.append(order)
        if order > self.depth:
            self.refused.push(order)
            return
        yield from (int(order * rate) for rate in self.rates)


@slet
def plain(item: int) -> int:
    """A function."""
    return item


def test_everything_is_injected():
    """Ports, memento and converted settings are there; a method is called as the platform calls it."""
    with open_slet(Match, path="out.csv", depth="5", rates=[2.0, 3.0]) as match:
        assert (match.path, match.depth) == (Path("out.csv"), 5)
        assert list(match.bid(3)) == [6, 9]
        assert list(match.bid(7)) == []
        assert collected(match.refused) == [7]
        assert match.book.orders == [3, 7]


class Share(Slet):
    """A slet with families of ports."""

    to: OutputPorts[float]
    rates: InputPorts[float]

    @input_port
    def side(self, side: str, item: float) -> None:
        """Take one."""
        for name, port in self.rates.items():
            for rate in port:
                self.to[f"{side}-{name}"].push(item * rate)


def test_families_of_ports():
    """Inputs are given by name; outputs are there when they are named, and come when they are asked for."""
    with open_slet(Share, to=["l-b"], rates={"a": [0.5], "b": [2.0]}) as share:
        assert list(share.to) == ["l-b"]
        share.side("l", 3.0)
        assert {name: collected(port) for name, port in share.to.items()} == {"l-a": [1.5], "l-b": [6.0]}
    with pytest.raises(SletError, match=r"it has several inputs \(rates\.\*, side\.\*\)"):
        feed(Share, [1.0])


def test_it_is_entered_and_exited():
    """The block runs between `__enter__` and `__exit__`, also when it raises."""
    with pytest.raises(RuntimeError), open_slet(Match, path="x") as match:  # noqa: PT012
        assert match.opened == ["entered"]
        raise RuntimeError
    assert match.opened == ["entered", "exited"]


def test_a_memento_can_be_given():
    """A test may begin in any state, and look at it afterwards."""
    book = Book(orders=[1])
    with open_slet(Match, path="x", book=book) as match:
        list(match.bid(2))
    assert book.orders == [1, 2]


def test_two_instances_share_nothing():
    """Each instance has its own memento and ports."""
    with open_slet(Match, path="x") as one, open_slet(Match, path="x") as other:
        list(one.bid(99))
        assert (other.book.orders, collected(other.refused)) == ([], [])


def test_mistakes_are_told_as_in_an_application():
    """A wrong setting, a missing one, a function instead of a class."""
    with (
        pytest.raises(UnknownName, match="match has no setting 'dept'; did you mean 'depth'"),
        open_slet(Match, dept=1),
    ):
        pass
    with (
        pytest.raises(SettingError, match="match: the setting 'path' does not fit: it has no default"),
        open_slet(Match),
    ):
        pass
    with (
        pytest.raises(SletError, match=r"plain is no class slet: it is a function; call it, or use feed\(\)"),
        open_slet(
            plain  # type: ignore[type-var]
        ),
    ):
        pass


def test_an_output_collects_in_order():
    """Items, those of batches one by one, and punctuations in their place; the end is no item."""
    port = CollectingOutput()
    port.push(1)
    port.push_batch(Batch([2, 3]))
    port.push(Punctuation(5))
    assert not port.ended
    port.push(EndOfStream())
    assert (port.items, port.ended, port.wait(0)) == ([1, 2, 3, Punctuation(5)], True, True)
    assert collected(port) is port.items


def test_a_failure_is_kept():
    """`fail` is noted, and nobody waits any longer."""
    port, error = CollectingOutput(), RuntimeError("broken")
    port.fail(error)
    assert (port.error, port.wait(0)) == (error, True)


def test_an_input_gives_what_it_was_given():
    """A pull takes at most so many; iterating takes the rest."""
    port = GivenInput("items", [1, 2, 3])
    assert port.pull(most=2) == [1, 2]
    assert list(port) == [3]
    assert port.pull() == []


def test_an_input_may_show_a_channel():
    """With a channel a pull reads it, and its extended interface is there; without one an error tells how."""
    table = TableChannel("rows", key="id")
    table.entry([]).push({"id": 1})
    port = GivenInput("rows", table)
    assert port.pull() == [{"id": 1}]
    assert port.get(1) == {"id": 1}
    with pytest.raises(AttributeError, match="get: give the port a channel that has it"):
        GivenInput("rows").get(1)

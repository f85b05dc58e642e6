"""Test tools: `open` with ports that collect, `feed` and `replay`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import pyarrow as pa
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
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.channels.table import TableChannel
from exop.testing import CollectingOutput, GivenInput, collected, feed
from exop.testing import open as open_slet

SCHEMA = pa.schema([("vid", pa.int64())])


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


@dataclass
class Car:
    """An item with fields."""

    vid: int


class Total(Memento):
    """A state."""

    value: int = 0


@slet
def running(item: int, total: Total, *, factor: int = 1) -> int:
    """Add up."""
    total.value += item * factor
    return total.value


@slet
def odd(item: int) -> int | None:
    """Keep the odd ones."""
    return item if item % 2 else None


@slet
def twice(item: int) -> Iterator[int]:
    """Everything twice."""
    yield item
    yield item


@slet
def minute(item: int | Punctuation | EndOfStream, total: Total) -> int | Punctuation | None:
    """A sum per punctuation, and at the end."""
    if isinstance(item, int):
        total.value += item
        return None
    return total.value


@slet
def in_lists(items: Batch[int]) -> Batch[int]:
    """Lists in, lists out."""
    return Batch([len(items), *items])


@slet
def in_columns(rows: Annotated[pa.RecordBatch, SCHEMA]) -> pa.RecordBatch:
    """Columns in, columns out."""
    return rows


@slet
def fails(item: int) -> int:
    """Raise for 3."""
    return 1 // (item - 3)


@slet
def source(total: Total, *, to: int) -> Iterator[int | None]:
    """Count, with pauses."""
    while total.value < to:
        total.value += 1
        yield None
        yield total.value


@slet
def pulled(items: InputPort[int]) -> Iterator[int]:
    """Pull pairs."""
    while pair := items.pull(most=2):
        yield sum(pair)


class Splitter(Slet):
    """A class slet with one input."""

    big: OutputPort[int]
    limit: int = 10

    @input_port
    def item(self, item: int) -> int | None:
        """Take."""
        if item > self.limit:
            self.big.push(item)
            return None
        return item


class Pushing(Slet):
    """A class slet that pushes by `out` beside what it returns."""

    out: OutputPort[int | str]

    @input_port
    def item(self, item: int) -> Iterator[int]:
        """Take."""
        self.out.push("before")
        yield item


class Pair(Slet):
    """A class slet with two inputs."""

    @input_port
    def left(self, item: int) -> int:
        """Take."""
        return item

    @input_port
    def right(self, item: int) -> int:
        """Take."""
        return item


class Engine(Slet, own_driver=True):
    """An engine that doubles in a thread of its own, once everything has arrived."""

    out: OutputPort[int]
    broken: bool = False

    def __enter__(self) -> Engine:
        """Begin."""
        self._items: list[int] = []
        return self

    @input_port
    def item(self, item: int | EndOfStream) -> None:
        """Hand over."""
        if isinstance(item, int):
            self._items.append(item)
        else:
            threading.Thread(target=self._run).start()

    def _run(self) -> None:
        if self.broken:
            self.out.fail(RuntimeError("the engine broke"))
            return
        self.out.push_batch([item * 2 for item in self._items])
        self.out.end()


def test_items_in_items_out():
    """One, optional and many results, in order."""
    assert feed(running, [1, 2, 3], factor="2") == [2, 6, 12]
    assert feed(odd, range(5)) == [1, 3]
    assert feed(twice, [1, 2]) == [1, 1, 2, 2]
    assert feed(Splitter, [5, 50, 6], limit=10) == [5, 6]
    assert feed(Pushing, [1, 2]) == ["before", 1, "before", 2]


def test_a_memento_can_be_given_and_looked_at():
    """The state is an argument like in a call."""
    total = Total(value=100)
    assert feed(running, [1], total=total) == [101]
    assert total.value == 101


def test_control_items_are_seen_by_those_who_name_them():
    """A port that names them gets punctuations, and the end last; past others punctuations are passed on."""
    assert feed(minute, [1, 2, Punctuation(60), 3]) == [3, 6]
    assert feed(minute, [1, EndOfStream()]) == [1]
    assert feed(running, [1, Punctuation(60), 2, EndOfStream()]) == [1, Punctuation(60), 3]


def test_lists_and_columns():
    """Single items become a list or a record batch where the port wants one."""
    assert feed(in_lists, [[1, 2], 3]) == [2, 1, 2, 1, 3]
    (batch,) = feed(in_columns, [[Car(1), Car(2)]])
    assert batch.to_pylist() == [{"vid": 1}, {"vid": 2}]
    assert feed(in_columns, [batch]) == [batch]


def test_sources_and_slets_that_pull():
    """A source is run to its end, pauses are no items; a slet that pulls gets the items by its port."""
    assert feed(source, to=3) == [1, 2, 3]
    assert feed(pulled, [1, 2, 3]) == [3, 3]


def test_an_engine_is_waited_for():
    """What a slet with a driver of its own pushes until it ends its output; a failure is raised."""
    assert feed(Engine, [1, 2]) == [2, 4]
    with pytest.raises(RuntimeError, match="the engine broke"):
        feed(Engine, [1], broken=True)


def test_an_exception_says_for_which_item():
    """The slet's own exception comes out, with item and number noted."""
    with pytest.raises(ZeroDivisionError) as caught:
        feed(fails, [1, 2, 3])
    assert caught.value.__notes__ == ["in the slet 'fails', for item 3: 3"]


def test_mistakes_are_told():
    """Several inputs, an unknown setting, something that is no slet."""
    with pytest.raises(SletError, match=r"it has several inputs \(left, right\); use exop.testing.open\(\)"):
        feed(Pair, [1])
    with pytest.raises(UnknownName, match="running has no setting 'factr'"):
        feed(running, [1], factr=2)
    with pytest.raises(SletError, match="it is not marked"):
        feed(QueueChannel, [1])

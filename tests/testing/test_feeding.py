"""`exop.testing.feed`: a slet sees what it would see in a mesh."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import pytest

from exop import Batch, EndOfStream, InputPort, Memento, OutputPort, Punctuation, Slet, input_port, slet
from exop.errors import SletError, UnknownName
from exop.runtime.channels.queue import QueueChannel
from exop.testing import feed

SCHEMA = pa.schema([("vid", pa.int64())])


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

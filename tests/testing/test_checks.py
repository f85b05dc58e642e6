"""`exop.testing.check_source`: a source that would lose or double an item at some cut is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import Batch, Memento, OutputPort, Punctuation, Slet, slet
from exop.errors import SletError
from exop.stock.slets import count_up, read_lines
from exop.testing import check_source


class Position(Memento):
    """How far a source has come."""

    number: int = 0
    seen: list[int] = field(default_factory=list)


@slet
def sound(position: Position, *, to: int = 5) -> Iterator[int]:
    """Update, then yield."""
    while position.number < to:
        position.number += 1
        yield position.number * 10


@slet
def doubles(position: Position, *, to: int = 5) -> Iterator[int]:
    """Yield, then update: the item in hand is yielded again."""
    while position.number < to:
        yield position.number
        position.number += 1


@slet
def loses(position: Position, *, to: int = 6) -> Iterator[int]:
    """Update twice and yield twice: the second of a pair is lost."""
    while position.number < to:
        position.number += 2
        yield position.number - 1
        yield position.number


@slet
def forgets(*, to: int = 3) -> Iterator[int]:
    """No memento at all."""
    yield from range(to)


@slet
def hides(position: Position) -> Iterator[int]:
    """Something that the items depend on stands in no memento."""
    total = 0
    while position.number < 4:
        position.number += 1
        total += position.number
        yield total


@slet
def pauses(position: Position) -> Iterator[int | Punctuation | None]:
    """Pauses and punctuations are cut too."""
    while position.number < 3:
        yield None
        position.number += 1
        yield Punctuation(position.number)


@slet
def lists(position: Position) -> Iterator[Batch[int]]:
    """Batches are what is yielded at once."""
    while position.number < 3:
        position.number += 1
        yield Batch([position.number] * 2)


@slet
def columns(position: Position) -> Iterator[pa.RecordBatch]:
    """Columns compare as a whole."""
    while position.number < 2:
        position.number += 1
        yield pa.RecordBatch.from_pydict({"a": [position.number]})


class Source(Slet):
    """A source as a class."""

    position: Position
    to: int = 4

    def __iter__(self) -> Iterator[int]:
        while self.position.number < self.to:
            self.position.number += 1
            yield self.position.number


class Replaces(Source):
    """It puts another memento in the place of its own."""

    def __iter__(self) -> Iterator[int]:
        while self.position.number < self.to:
            self.position = Position(number=self.position.number + 1)
            yield self.position.number


class Engine(Slet, own_driver=True):
    """A source that drives itself."""

    out: OutputPort[int]


@slet
def sink(item: int) -> None:
    """No source."""


def test_sound_sources_pass():
    """Functions and classes, pauses, punctuations, batches and columns; the items come back."""
    assert check_source(sound, to="3") == [10, 20, 30]
    assert check_source(Source) == [1, 2, 3, 4]
    assert check_source(pauses) == [Punctuation(1), Punctuation(2), Punctuation(3)]
    assert check_source(lists) == [[1, 1], [2, 2], [3, 3]]
    assert len(check_source(columns)) == 2


def test_a_source_without_end_is_looked_at_for_a_while():
    """`items=n` takes the first n."""
    assert check_source(count_up, items=4, start=7) == [7, 8, 9, 10]


def test_the_items_can_be_given():
    """`items=[…]` also compares what the source gives, no item less or more."""
    assert check_source(sound, items=[10, 20], to=2) == [10, 20]
    for wrong in ([10], [10, 20, 30], [10, 21]):
        with pytest.raises(AssertionError, match=r"sound gave \[10, 20\], not"):
            check_source(sound, items=wrong, to=2)


def test_a_source_may_start_anywhere():
    """The memento to start from can be given; it is not changed."""
    start = Position(number=3)
    assert check_source(sound, position=start) == [40, 50]
    assert start.number == 3


WRONG = [
    (
        doubles,
        "doubles, cut after item 1 (0): the successor gives [0, 1, 2], what follows is [1, 2, 3]; the item is doubled",
    ),
    (loses, "loses, cut after item 1 (1): the successor gives [3, 4, 5], what follows is [2, 3, 4]; an item is lost"),
    (
        forgets,
        "forgets, cut after item 1 (0): the successor gives [0, 1, 2], what follows is [1, 2]; it has no memento",
    ),
    (
        hides,
        "hides, cut after item 1 (1): the successor gives [2, 5, 9], what follows is [3, 6, 10]; the memento does not",
    ),
    (Replaces, "replaces has replaced its memento 'position'; change the fields of the one it has"),
]


@pytest.mark.parametrize(("source", "message"), WRONG, ids=lambda v: getattr(v, "__name__", ""))
def test_a_wrong_source_is_told_with_the_reason(source, message):
    """The message says at which cut, what came instead of what, and what that usually means."""
    with pytest.raises(AssertionError) as caught:
        check_source(source)
    assert str(caught.value).startswith(message)


def test_only_sources_are_checked():
    """A slet with an input, and one that drives itself, are refused."""
    with pytest.raises(SletError, match="sink is no source to check: it has an input"):
        check_source(sink)
    with pytest.raises(SletError, match="engine is no source to check: it drives itself"):
        check_source(Engine)


@given(st.lists(st.text("ab ", max_size=3), max_size=6))
@settings(max_examples=25)
def test_the_stock_sources_pass_at_every_cut(tmp_path_factory, lines):
    """`read_lines` goes on exactly after the line that was emitted last, whatever the file holds."""
    path: Path = tmp_path_factory.mktemp("lines") / "in.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    assert check_source(read_lines, items=lines, path=path) == lines

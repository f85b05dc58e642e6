"""Slets with a large state for the bench `replace`: handed over by reference, or through `upgrade`."""

from __future__ import annotations

import sys
from dataclasses import field
from typing import Any, Self

from bench.replaced import MODULUS, Hashed
from exop import Memento, slet

#: So many values belong to each key.
VALUES = 8


class Book(Memento):
    """The running hash, and values by key."""

    running: int = 0
    values: dict[int, list[float]] = field(default_factory=dict)

    @classmethod
    def upgrade(cls, old: Any) -> Self:
        """Take over what a ledger, or the stream's first slet, has kept."""
        return cls(running=old.running, values=getattr(old, "rows", {}))


class Ledger(Memento):
    """The same under other names."""

    running: int = 0
    rows: dict[int, list[float]] = field(default_factory=dict)

    @classmethod
    def upgrade(cls, old: Any) -> Self:
        """Take over what a book has kept."""
        return cls(running=old.running, rows=old.values)


@slet
def booked(number: int, book: Book) -> Hashed:
    """Hash the numbers, with a book beside it."""
    book.running = (book.running * 31 + number) % MODULUS
    return number, book.running


@slet
def booked_again(number: int, book: Book) -> Hashed:
    """The same, as a successor that takes the book by reference."""
    book.running = running = (book.running * 31 + number) % MODULUS
    return number, running


@slet
def entered(number: int, ledger: Ledger) -> Hashed:
    """The same, with a ledger."""
    ledger.running = (ledger.running * 31 + number) % MODULUS
    return number, ledger.running


def fill(values: dict[int, list[float]], megabytes: float) -> None:
    """Put so much into a book: keys, lists and numbers as Python counts them."""
    number = 0
    size = 0.0
    while size < megabytes * 1e6:
        row = [number + share / VALUES for share in range(VALUES)]
        values[number] = row
        size += sys.getsizeof(number) + sys.getsizeof(row) + sum(map(sys.getsizeof, row)) + 100  # its place in the dict
        number += 1

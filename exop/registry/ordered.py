"""A set of numbers that is always in order, whatever its size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain
from typing import Final


class OrderedSet:
    """Numbers in ascending order, kept in short sorted lists.

    One long sorted list would move megabytes when a number leaves its middle; lists of at most `LONGEST` numbers make
    adding and removing cost about the same, a microsecond, with ten numbers and with a million.
    """

    LONGEST: Final = 1024

    __slots__ = ("_chunks", "_size", "_starts")

    def __init__(self, *numbers: int) -> None:
        self._chunks: list[list[int]] = [sorted(numbers)]
        #: The bounds at which the second and later lists begin: above all numbers before, not above any within.
        self._starts: list[int] = []
        self._size = len(numbers)

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        chunk = self._chunks[-1]
        if chunk and number > chunk[-1] and len(chunk) < self.LONGEST:  # the usual case: numbers arrive in order
            chunk.append(number)
            self._size += 1
            return
        place = bisect_right(self._starts, number)
        chunk = self._chunks[place]
        if not chunk or number > chunk[-1]:
            chunk.append(number)
        else:
            insort(chunk, number)
        self._size += 1
        if len(chunk) > self.LONGEST:
            # numbers mostly arrive in order: leave the left part nearly full and let the right one grow
            cut = self.LONGEST * 7 // 8
            self._chunks[place : place + 1] = [chunk[:cut], chunk[cut:]]
            self._starts.insert(place, chunk[cut])

    def remove(self, number: int) -> int:
        """Remove a number that is in the set; return how many are left."""
        chunk = self._chunks[-1]
        self._size -= 1
        if len(chunk) > 1 and number == chunk[-1]:  # the newest leaves first
            chunk.pop()
            return self._size
        place = bisect_right(self._starts, number)
        chunk = self._chunks[place]
        if number == chunk[-1]:
            chunk.pop()
        else:
            del chunk[bisect_left(chunk, number)]
        if not chunk and len(self._chunks) > 1:
            del self._chunks[place]
            del self._starts[max(place - 1, 0)]
        return self._size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._chunks)

"""A set of numbers that is always in order, whatever its size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import Final

_first = itemgetter(0)


class OrderedSet:
    """Numbers in ascending order, kept in short sorted lists.

    One long sorted list would move megabytes when a number leaves its middle; lists of at most `LONGEST` numbers make
    adding and removing cost about the same, a microsecond, with ten numbers and with a million.
    """

    LONGEST: Final = 1024

    __slots__ = ("_chunks", "_size")

    def __init__(self, *numbers: int) -> None:
        self._chunks: list[list[int]] = [sorted(numbers)]
        self._size = len(numbers)

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        place = self._place(number)
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

    def remove(self, number: int) -> None:
        """Remove a number that is in the set."""
        place = self._place(number)
        chunk = self._chunks[place]
        if number == chunk[-1]:
            chunk.pop()
        else:
            del chunk[bisect_left(chunk, number)]
        self._size -= 1
        if not chunk and len(self._chunks) > 1:
            del self._chunks[place]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._chunks)

    def _place(self, number: int) -> int:
        """Which list has, or should have, the number: the last one that does not begin above it."""
        chunks = self._chunks
        last = len(chunks) - 1
        if last == 0 or number >= chunks[last][0]:
            return last
        return max(bisect_right(chunks, number, key=_first) - 1, 0)

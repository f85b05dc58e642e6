"""The stream of the bench `replace`: numbers, a running hash of them as the state that is handed over, and a sink.

The sink knows what has to come: each number once and in order, with the hash of all numbers before it. What is missing,
comes twice or late is counted, and so are items whose hash tells that the slet in the middle has not had the state of
its predecessor. The sink also notes when nothing came to it for a while.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from exop import Memento, slet

#: A number, and the hash of all numbers until it.
Hashed: TypeAlias = tuple[int, int]
MODULUS: Final = (1 << 61) - 1
#: Shorter pauses between two items are not noted, in nanoseconds.
SHORT: Final = 20_000


def mixed(running: int, number: int) -> int:
    """The running hash, one number later."""
    return (running * 31 + number) % MODULUS


class Position(Memento):
    """How far the source has come."""

    number: int = 0


class Hash(Memento):
    """The hash of all numbers so far: what a successor takes over."""

    running: int = 0


@slet
def numbers(position: Position) -> Iterator[int]:
    """Emit 1, 2, … as fast as they are taken."""
    while True:
        position.number += 1
        yield position.number


@slet
def first(number: int, state: Hash) -> Hashed:
    """Add a number to the running hash."""
    state.running = running = (state.running * 31 + number) % MODULUS
    return number, running


@slet
def second(number: int, state: Hash) -> Hashed:
    """The same in other words: what `first` is replaced by, and back."""
    state.running = mixed(state.running, number)
    return number, state.running


class Seen(Memento):
    """What has come to the sink: how far the numbers are, and what was wrong with them.

    Attributes:
        lost: Numbers that were passed over and have not come since.
        doubled: Numbers that have come again.
        reordered: Numbers that have come behind a greater one.
        differing: Numbers that came in their turn with the hash of something else.
    """

    next: int = 1
    hash: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    differing: int = 0
    missing: list[range] = field(default_factory=list)

    def see(self, item: Hashed) -> None:
        """Take note of one item."""
        number, found = item
        expected = (self.hash * 31 + number) % MODULUS
        if number == self.next and found == expected:
            self.next, self.hash = number + 1, found
        else:
            self._astray(number, found)

    def ended(self, last: int) -> None:
        """The stream is over and its last number was *last*: what has not come until now is lost."""
        if last >= self.next:
            self._astray(last + 1, self.hash)

    def _astray(self, number: int, found: int) -> None:
        if number < self.next:
            hole = next((hole for hole in self.missing if number in hole), None)
            if hole is None:
                self.doubled += 1
            else:
                self.missing.remove(hole)
                self.missing += [range(hole.start, number), range(number + 1, hole.stop)]
                self.lost -= 1
                self.reordered += 1
            return
        if number == self.next:
            self.differing += 1
        else:
            self.missing.append(range(self.next, number))
            self.lost += number - self.next
        self.next, self.hash = number + 1, found  # what comes is judged by this one, so that one fault counts once


@dataclass
class Gaps:
    """When nothing came to a sink: begin and end of each pause that was not quite short, in nanoseconds."""

    found: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=100_000))
    last: int = 0

    def longest(self, begin: int, end: int) -> float:
        """The longest pause that overlaps this time, in milliseconds; one that lasts still counts."""
        return self.slices(begin, end, end - begin)[0]

    def slices(self, begin: int, end: int, width: int) -> list[float]:
        """The longest pause in each slice of this time, *width* nanoseconds each."""
        longest = [0.0] * max(1, -((begin - end) // width))
        for since, until in [*self.found, (self.last, end)]:
            if until > begin and since < end:
                for place in range(max(since - begin, 0) // width, min((until - begin - 1) // width + 1, len(longest))):
                    longest[place] = max(longest[place], (until - since) / 1e6)
        return longest


def watching(gaps: Gaps) -> Any:
    """The sink: it checks what comes, and notes when nothing did."""
    clock, note = time.perf_counter_ns, gaps.found.append

    @slet
    def sink(item: Hashed, seen: Seen) -> None:
        now, last = clock(), gaps.last
        if now - last > SHORT:
            note((last, now))
        gaps.last = now
        seen.see(item)

    return sink

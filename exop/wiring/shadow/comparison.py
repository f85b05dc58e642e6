"""The comparison of the old and the new slet: their output, their errors, and the time they take."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from exop.model.items import CONTROL
from exop.model.shadow import TRIFLE
from exop.runtime.convert import PLAIN
from exop.runtime.metrics import quantiles
from exop.shown import class_of, described
from exop.wiring.shadow.calls import Leaving
from exop.wiring.shadow.streams import MOST, Difference, PortStreams, Side

#: So many items may one of them be ahead of the other with what it puts out.
FARTHEST = 200_000
#: So many calls have to be timed before anything is said of their times.
ENOUGH = 50


class Comparison:
    """The findings so far. The drivers of the old and the new slet add to it; one thread at a time matches.

    Attributes:
        differences: The first ones.
        found: How many there were.
        waiting: One of them has put out something that the other has not, so far.
    """

    def __init__(self, ports: Iterable[str], compare: Callable[[Any, Any], bool] | None, *, in_step: bool) -> None:
        self.ports = {port: PortStreams(port, compare, in_step=in_step) for port in ports}
        self.differences: list[Difference] = []
        self.found = 0
        self.errors: dict[Side, int] = {"old": 0, "new": 0}
        self.times: dict[Side, deque[float]] = {"old": deque(maxlen=4096), "new": deque(maxlen=4096)}
        self.waiting = False
        self._given = compare
        self._turn = threading.Lock()

    def put_out(self, side: Side, item: int, leaving: Leaving) -> None:
        """Note what has left by a port, behind item number *item*."""
        if leaving.port in self.ports:
            self.ports[leaving.port].add(side, item, leaving.payload, whole=leaving.whole)

    def at_once(self, old: Sequence[Leaving], new: Sequence[Leaving]) -> bool:
        """Compare what left because of one item where it need not be kept: nothing waits, and it is equal.

        `False` says nothing: it is to be noted, and matched.
        """
        if self.waiting or self._given is not None or len(old) != len(new):
            return False
        for mine, other in zip(old, new, strict=True):
            value = mine.payload
            alike = type(value) in PLAIN and type(value) is type(other.payload) and mine.port == other.port
            if not alike or value != other.payload:
                return False
        for mine in old:
            if mine.port in self.ports:
                self.ports[mine.port].matched += 1
                self.ports[mine.port].compared += not isinstance(mine.payload, CONTROL)
        return True

    @property
    def compared(self) -> int:
        """The number of items, put out by both, that were compared and found equal; control items do not count."""
        return sum(streams.compared for streams in self.ports.values())

    def called(self, side: Side, took: float) -> None:
        """Note how long a call took."""
        self.times[side].append(took)

    def raised(self, item: int, port: str, old: BaseException | None, new: BaseException | None) -> None:
        """Compare how an item has ended: with the same error, or with none."""
        self.errors["old"] += old is not None
        self.errors["new"] += new is not None
        if _kind(old) != _kind(new):
            self.note(Difference("error", item, port, _said(old), _said(new)))

    def match(self, *, last: bool = False) -> None:
        """Compare what both have put out; at the *last* time nothing may be left over on either side."""
        with self._turn:
            for streams in self.ports.values():
                for one in streams.match():
                    self.note(one)
                for one in streams.rest() if last else ():
                    self.note(one)
            self.waiting = any(any(streams.sides.values()) for streams in self.ports.values())

    def note(self, difference: Difference) -> None:
        """Take a difference into the report."""
        self.found += 1
        if len(self.differences) < MOST:
            self.differences.append(difference)

    def broken(self) -> str | None:
        """The comparison that was given raised: what, and for which item."""
        return next((streams.broken for streams in self.ports.values() if streams.broken is not None), None)

    def too_far(self) -> str | None:
        """Whether one of them is so far behind the other that nothing more can be kept."""
        for port, streams in self.ports.items():
            pairs: tuple[tuple[Side, str], ...] = (("old", "new"), ("new", "old"))
            for side, other in pairs:
                if streams.ahead(side) > FARTHEST:
                    return f"too slow: at {port} the {other} one is {FARTHEST} items behind"
        return None

    def slow(self, slower: float) -> str | None:
        """The new one takes too long for an item, in the median."""
        old, new = sorted(self.times["old"]), sorted(self.times["new"])
        if min(len(old), len(new)) < ENOUGH:
            return None
        before, now = old[len(old) // 2], new[len(new) // 2]
        if now <= before * slower + TRIFLE:
            return None
        return (
            f"too slow: {now * 1000:.3g} ms an item in the median, the old one {before * 1000:.3g} ms "
            f"(allowed: {slower:g} times as long)"
        )

    def plain(self) -> dict[str, Any]:
        """Return the findings as plain data."""
        return {
            "compared": self.compared,
            "matched": {port: streams.matched for port, streams in self.ports.items()},
            "found": self.found,
            "differences": [one.plain() for one in self.differences],
            "errors": dict(self.errors),
            "busy_ms": {side: quantiles(list(times)) for side, times in self.times.items()},
        }


def _kind(error: BaseException | None) -> str | None:
    return None if error is None else class_of(error)


def _said(error: BaseException | None) -> str:
    return "no error" if error is None else described(error)[:200]

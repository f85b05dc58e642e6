"""`SessionGroups`: keyed aggregates of items over windows by inactivity."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import groupby
from math import floor, inf, nextafter
from operator import itemgetter
from typing import Any, Final, NoReturn

from exop.engine.aggregation import Aggregation
from exop.stock.groups import RowGroups, ordered
from exop.stock.panes import Groups

#: The times of the first and of the last row, and their group.
Session = list[Any]
_first: Final = itemgetter(0)


class SessionGroups(RowGroups):
    """Groups rows one by one: the rows of a key that are nearer to each other than the gap are a window.

    It ends at its last row plus the gap. A row between two windows connects them.
    """

    def __init__(self, aggregation: Aggregation, leave: Callable[[Any], object]) -> None:
        super().__init__(aggregation, leave)
        self.complete = -inf
        #: By key, the open windows, in the order of their times.
        self._sessions: dict[Any, list[Session]] = {}
        #: An end that a window had, a number, its key and the window, of each of them.
        self._ends: list[tuple[float, int, Any, Session]] = []
        self._count = 0

    def place(self, key: Any, time: Any, row: Any) -> Session | None:
        """Return the window for a row, which is a new one if it begins one or connects two; `None`: it is late."""
        gap = self._of.gap
        held = self._sessions.get(key, ())
        behind = bisect_right(held, time, key=_first)
        near = [one for one in held[max(behind - 1, 0) : behind + 1] if one[0] - gap < time < one[1] + gap]
        if len(near) == 1:
            return near[0]
        if near:
            (first, last, group), (other, end, more) = near
            self._merge(merged := self._copied(group), more)
            return [min(first, other), max(last, end), merged]
        if time + gap <= self.complete:
            self._late += 1
            self._leave(row)
            return None
        return [time, time, [*self.empty]]

    def keep(self, key: Any, session: Session, time: Any) -> None:
        """Keep the window of a row, which is accumulated, instead of those that it connects."""
        session[:2] = min(session[0], time), max(session[1], time)
        held = self._sessions.setdefault(key, [])
        place = bisect_left(held, session[0], key=_first)
        if place == len(held) or held[place] is not session:
            held[place : bisect_right(held, session[1], key=_first)] = [session]  # instead of those that it connects
            self._count += 1
            heappush(self._ends, (session[1] + self._of.gap, self._count, key, session))

    def checked(self, first: int, key: Any, place: int, total: int) -> NoReturn:
        """Fail: the sum of a window is too large."""
        self.overflow(place)

    def advance(self, time: float) -> list[Any]:
        """Return the results of the windows that are complete, as one batch, and drop them."""
        gap, done = self._of.gap, list[tuple[Any, Any, Any]]()
        complete = time if abs(time) == inf else floor(time) + 1 if self._of.exact else nextafter(time, inf)
        while self._ends and self._ends[0][0] <= complete:
            _, number, key, session = heappop(self._ends)
            held = self._sessions.get(key, [])
            place = bisect_left(held, session[0], key=_first)
            if place == len(held) or held[place] is not session:  # another one connects it
                continue
            if (end := session[1] + gap) > complete:
                heappush(self._ends, (end, number, key, session))
                continue
            done.append((end, key, session[2]))
            del held[place]
            if not held:
                del self._sessions[key]
        self.complete = complete
        results = list[Any]()
        for end, each in groupby(sorted(done, key=lambda one: one[0]), lambda one: one[0]):
            groups: Groups = {key: group for _, key, group in each}
            results += [self._result(end, key, groups[key]) for key in ordered(groups)]
        return [results] if results else []

    def snapshot(self) -> bytes:
        """Return the open windows."""
        held = [(key, one) for key, sessions in self._sessions.items() for one in sessions]
        return self._write([((first, last), key, group) for key, (first, last, group) in held])

    def restore(self, state: bytes, version: int) -> None:
        """Continue with the open windows of another instance."""
        self._sessions.clear()
        self._ends.clear()
        for (first, last), key, group in self._read(state):
            self.keep(key, [first, last, group], first)

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of open windows and of late rows."""
        return {"groups": sum(map(len, self._sessions.values())), "late_rows": self._late}

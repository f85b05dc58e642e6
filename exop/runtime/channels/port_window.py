"""The windows of one port: their content, the time at which they are due, and the change to other sizes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from copy import copy
from math import floor, inf
from operator import itemgetter
from typing import Any, Final

from exop.model.items import Window

#: The attributes of a `PortWindow` that a checkpoint holds as they are.
_STATE: Final = ("now", "latest", "since", "late", "skip", "left")


class Panes:
    """The items in open windows by time: one pane holds all items with the same last window.

    Window *i* spans `[i * slide, i * slide + size)`, and pane *i* is removed with it. The cost of closing a window does
    not depend on the number of items in later ones. Where the size is a multiple of the slide, a window ends exactly
    where a later one begins, without rounding.

    Attributes:
        last: The last window that begins, since other sizes apply after it; `None` without such a limit.
    """

    def __init__(self, size: float, slide: float) -> None:
        self.size, self.slide = _whole(size), _whole(slide)
        spans = round(size / slide)
        self._spans = spans if abs(size / slide - spans) < 1e-9 else 0
        self.last: int | None = None
        self._order: list[int] = []
        self._panes: dict[int, list[tuple[int, float, Any]]] = {}  # (number of arrival, time, item)
        self._earliest: dict[int, float] = {}
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._order)

    def __len__(self) -> int:
        return sum(map(len, list(self._panes.values())))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the items in the order of their arrival; other threads may look, too."""
        rows = sorted((row for pane in list(self._panes.values()) for row in pane), key=itemgetter(0))
        return (item for _, _, item in rows)

    def last_of(self, moment: float) -> int:
        """Return the last window that begins at or before *moment*."""
        last = self._number_of(moment)
        return last if self.last is None else min(last, self.last)

    def end_of(self, index: int) -> float:
        """Return the end of a window."""
        return (index + self._spans) * self.slide if self._spans else index * self.slide + self.size

    def add(self, index: int, moment: float, item: Any) -> None:
        """Add an item whose last window is *index*."""
        if index not in self._panes:
            insort(self._order, index)
            self._panes[index], self._earliest[index] = [], moment
        self._panes[index].append((self._number, moment, item))
        self._earliest[index] = min(self._earliest[index], moment)
        self._number += 1

    def due(self, since: float | None, end: float) -> Iterator[Window[Any]]:
        """Yield the windows that contain an item and end after *since* and not after *end*, the oldest first."""
        start = self._first(since) if since is not None and self._order else None
        while self._order:
            pane = self._order[0]
            first = self._first(self._earliest[pane])  # never step through an idle hour
            index = min(first if start is None else max(first, start), pane)
            if self.end_of(index) > end:
                return
            found = self._content(index)
            if index == pane:
                del self._order[0], self._panes[pane], self._earliest[pane]
            start = index + 1
            if found:
                yield Window(found)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item, in the order of their arrival."""
        places = [(rows, at) for rows in self._panes.values() for at in range(len(rows))]
        for rows, at in sorted(places, key=lambda place: place[0][place[1]][0]):
            number, moment, item = rows[at]
            rows[at] = number, moment, replace(item)

    def copied(self) -> Panes:
        """Return a copy with the same items, from which windows can be taken independently."""
        twin = copy(self)
        twin._order, twin._panes, twin._earliest = [*self._order], dict(self._panes), dict(self._earliest)
        return twin

    def _first(self, moment: float) -> int:
        """Return the earliest window that ends after *moment*."""
        if self._spans:
            return self._number_of(moment) - self._spans + 1
        first = self._number_of(moment - self.size)  # or one beside it, as the bounds are rounded
        return next((index for index in (first, first + 1) if self.end_of(index) > moment), first + 2)

    def _number_of(self, moment: float) -> int:
        """Return the last window that begins at or before *moment*, without regard to `last`."""
        if isinstance(self.slide, int):
            return floor(moment) // self.slide
        number = int(moment // self.slide)
        return number + ((number + 1) * self.slide <= moment)  # the quotient may have been rounded down

    def _content(self, index: int) -> list[Any]:
        """Return the items of a window in the order of their arrival."""
        end, order = self.end_of(index), self._order
        if self.size <= self.slide:
            return [item for _, _, item in self._panes.get(index, ())]
        rows = []
        for at in range(bisect_left(order, index), len(order)):
            if order[at] * self.slide >= end:
                break
            rows += [row for row in self._panes[order[at]] if row[1] < end]
        return [item for _, _, item in sorted(rows, key=itemgetter(0))]


def _whole(size: float) -> float:
    """Return a whole number as an integer, so that limits are exact, also for times in nanoseconds."""
    return int(size) if float(size).is_integer() else size


class PortWindow:
    """The windows of one port: takes items and yields the windows that are due.

    A window by time begins at a multiple of `slide`, and is due when a punctuation excludes items before its end, or at
    the end of the stream; an item never closes a window. Every window that contains an item becomes due once. An item
    is late if all its windows were due before it arrived.

    When the sizes change, a `PortWindow` of the new sizes replaces the one of the old sizes. Unless they are closed,
    the open windows continue to their end, and the new windows take every item from the point at which the next old
    window would have begun: by time from that moment on, by count after that number of items. Thus every item is in a
    window, and if windows do not overlap, in exactly one. The first new window by time may be shorter.

    Attributes:
        sizes: The sizes as the channel's settings have them.
        before: The windows of former sizes that are still open.
        closed: The content of windows that were closed, which is due with the next item.
        now: By time: the moment up to which the stream is complete; later windows contain no older item.
        latest: By time: the latest moment that an item or punctuation has named.
        skip: By count: the number of further items that belong only to windows of former sizes.
        left: By count: the number of further items that belong to these windows, since other sizes apply after them.
    """

    def __init__(self, sizes: Mapping[str, Any], size: float, slide: float, time: Callable[[Any], Any] | None) -> None:
        self.sizes, self.size, self.slide, self.time = dict(sizes), size, slide, time
        self.evict = bool(sizes["evict"])
        self.items: Window[Any] = Window()
        self.panes = Panes(size, slide or 1)
        self.now: float | None = None
        self.latest: float | None = None
        self.since = self.late = self.skip = 0
        self.left: int | None = None
        self.before: PortWindow | None = None
        self.closed: deque[Window[Any]] = deque()

    def check(self, items: Iterable[Any]) -> None:
        """Raise for an item without a valid time, before any item of its batch is taken."""
        if self.before is not None:
            self.before.check(items)
        if self.time is not None:
            for item in items:
                self.time(item)

    def add(self, item: Any) -> Iterator[Window[Any]]:
        """Add one item when the result is iterated, and yield the windows that it completes, the oldest first."""
        if (before := self.before) is not None and before._over and self.skip <= 0 and not self.closed:
            self.late, self.before = self.all_late(), None
        if self.before is not None or self.closed:
            self.check((item,))
            return self._behind(item)
        if self.time is None:
            return self._count(item)
        self._timed(item, self.time(item))
        return iter(())

    def advance(self, moment: float) -> Iterator[Window[Any]]:
        """Record that the stream is complete up to *moment*; yield the windows that end at or before this moment."""
        yield from self.take_closed()
        if self.before is not None:
            yield from self.before.advance(moment)
        if self.time is None or moment <= (-inf if self.now is None else self.now):
            return
        since, self.now = self.now, moment
        self.latest = moment if self.latest is None else max(moment, self.latest)
        yield from self.panes.due(since, moment)

    def rest(self) -> Iterator[Window[Any]]:
        """Yield the closed windows, and the time windows that are open at the end of the stream."""
        yield from self.take_closed()
        if self.before is not None:
            yield from self.before.rest()
        yield from self.panes.due(self.now, inf)

    @property
    def timed_by(self) -> str | None:
        """The field that holds the time of an item, here or in windows of former sizes that are still open."""
        field: str | None = self.sizes["time"] if self.time is not None else None
        return field or (self.before.timed_by if self.before is not None else None)

    def take_closed(self) -> Iterator[Window[Any]]:
        """Yield the closed windows, once."""
        if self.before is not None:
            yield from self.before.take_closed()
        while self.closed:
            yield self.closed.popleft()

    def held(self) -> list[Any]:
        """Return the items in the windows, each once, the oldest first."""
        own = self.items if self.time is None else [*self.panes]
        if self.before is None:
            return own
        found = self.before.held()
        known = set(map(id, found))
        return [*found, *(item for item in own if id(item) not in known)]

    def count(self) -> int:
        """Return the number of items in the windows."""
        own: Sized = self.items if self.time is None else self.panes
        return len(own if self.before is None else self.held())

    def all_late(self) -> int:
        """Return the number of items that arrived after their last window was due."""
        return self.late + (self.before.all_late() if self.before is not None else 0)

    def succeeded(self, new: PortWindow, *, close: bool) -> PortWindow:
        """Return windows of other sizes that replace these, which remain unchanged."""
        if self.time is not None and self.sizes["time"] == new.sizes["time"]:
            new.now, new.latest = self.now, self.latest
        if close:
            new.late, new.closed = self.all_late(), deque(self._opened())
        elif not (self.items or self.panes):  # no window of these sizes is open: the new ones take their place
            new.late, new.skip = self.late, self.skip
            new.before, new.closed = self.before, self.closed
        else:
            new.before = before = copy(self)
            if self.time is None:
                new.skip = self._ahead
                before.left = new.skip - int(self.slide) + int(self.size)
            elif self.latest is not None:  # where the next window begins
                before.panes = self.panes.copied()
                before.panes.last = self.panes.last_of(self.latest)
        return new

    def capture(self) -> dict[str, Any]:
        """Return the content as plain data, with that of former sizes nested, for `restore`."""
        return {
            **{name: getattr(self, name) for name in _STATE},
            "last": self.panes.last,
            "items": [*self.items, *self.panes],
            "closed": [list(one) for one in self.closed],
            "before": None if self.before is None else [self.before.sizes, self.before.capture()],
        }

    def restore(self, held: Mapping[str, Any], make: Callable[[Mapping[str, Any]], PortWindow]) -> None:
        """Restore the result of `capture`; *make* makes windows of other sizes."""
        for name in _STATE:
            setattr(self, name, held[name])
        self.panes.last = held["last"]
        self.closed = deque(map(Window, held["closed"]))
        if self.time is None:
            self.items = Window(held["items"])
        else:
            for item in held["items"]:
                self._timed(item, self.time(item))
        if held["before"] is not None:
            sizes, content = held["before"]
            self.before = make(sizes)
            self.before.restore(content, make)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item."""
        if self.before is not None:
            self.before.exchange(replace)
        for piece in (*self.closed, self.items):
            piece[:] = map(replace, piece)
        self.panes.exchange(replace)

    def _behind(self, item: Any) -> Iterator[Window[Any]]:
        """Add an item after it was added to windows of former sizes."""
        yield from self.take_closed()
        enters = self._enters(item)
        if self.before is not None:
            yield from self.before.add(item)
        if enters and self.time is not None:
            self._timed(item, self.time(item))
        elif enters:
            yield from self._count(item)

    def _enters(self, item: Any) -> bool:
        """Whether an item also belongs to windows of these sizes; its time is read as for the former sizes."""
        if (before := self.before) is not None and self.skip > 0:
            self.skip -= 1
            return False
        if before is None or before.time is None or before.panes.last is None:
            return True
        return bool(before.time(item) >= (before.panes.last + 1) * before.panes.slide)

    @property
    def _over(self) -> bool:
        """Whether no window will become due or take another item."""
        last, now = self.panes.last, self.now
        passed = last is not None and now is not None and now >= self.panes.end_of(last)
        over = passed if self.left is None else self.left <= 0
        return over and not self.closed and (self.before is None or self.before._over)

    def _opened(self) -> list[Window[Any]]:
        """Return the items in the windows that are open now, in the order in which the windows began."""
        found = [*self.closed, *(self.before._opened() if self.before is not None else ())]
        if self.time is not None:
            found += self.panes.copied().due(self.now, inf)
        elif self.items and not self.evict:
            counts = range(int(self.slide) - self._ahead, int(self.size), int(self.slide))
            begun = [n for n in counts if n <= len(self.items) and (self.left is None or self.size - n <= self.left)]
            found += [Window(self.items[-number:]) for number in reversed(begun)]
        return found

    @property
    def _ahead(self) -> int:
        """By count: the number of items until the next window begins."""
        whole = self.since if self.since == len(self.items) else int(self.size) + self.since
        return -whole % int(self.slide)

    def _count(self, item: Any) -> Iterator[Window[Any]]:
        if self.evict:
            self.items.append(item)
            yield self.items
            return
        if self.left is not None:
            if self.left <= 0:
                return
            self.left -= 1
        self.items.append(item)
        del self.items[: max(0, len(self.items) - int(self.size))]
        self.since += 1
        if len(self.items) == self.size and self.since >= self.slide:
            self.since = 0
            yield Window(self.items)

    def _timed(self, item: Any, moment: float) -> None:
        self.latest = moment if self.latest is None else max(moment, self.latest)
        last = self.panes.last_of(moment)
        if moment >= (end := self.panes.end_of(last)):
            return  # in the gap between two windows, or after the last one
        if self.now is not None and end <= self.now:
            self.late += 1
        else:
            self.panes.add(last, moment, item)

"""The windows of one port: their content, when they are due, and the succession of sizes when those change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Any

from exop.model.items import Window


class PortWindow:
    """The windows of one port: takes items and yields the windows that are due.

    A window by time begins at a multiple of `slide`, and is due when time has reached its end; time is the latest of
    the moments that items and punctuations name. Every window that holds an item becomes due once.

    When the sizes change, a `PortWindow` of the new sizes succeeds the one of the old sizes. Unless they are closed,
    the open windows run to their end, and the new ones take every item from where the next old one would have begun:
    by time from that moment on, by count behind so many items. So every item is in a window, and where windows do not
    overlap, in one. The first new window by time may hold less.

    Attributes:
        sizes: The sizes as the channel's settings have them.
        before: The windows of former sizes that are still open.
        closed: The content of windows that were closed: due with the next item.
        begin: By time: items before this moment are for windows of former sizes alone.
        skip: By count: the number of further items that are for those.
        until: By time: no window begins there or later, since other sizes apply.
        left: By count: the number of further items, for the same reason.
    """

    def __init__(self, sizes: Mapping[str, Any], size: float, slide: float, time: Callable[[Any], Any] | None) -> None:
        self.sizes, self.size, self.slide, self.time = dict(sizes), size, slide, time
        self.evict = bool(sizes["evict"])
        self.items: Window[Any] = Window()
        self.now: float | None = None
        self.since = self.late = self.skip = 0
        self.begin: float | None = None
        self.until: float | None = None
        self.left: int | None = None
        self.before: PortWindow | None = None
        self.closed: deque[Window[Any]] = deque()

    def check(self, items: Iterable[Any]) -> None:
        """Raise for an item without a proper time, before any item of its batch is taken."""
        if self.before is not None:
            self.before.check(items)
        if self.time is not None:
            for moment in map(self.time, items):
                self._first(moment)

    def add(self, item: Any) -> Iterator[Window[Any]]:
        """Take one item when the result is iterated; yields the windows that it completes, the older first."""
        before = self.before
        if before is not None and before._over and self.skip <= 0 and not self.closed:
            self.late, self.before = self.all_late(), None
        if self.before is not None or self.closed:
            self.check((item,))
            return self._behind(item)
        return self._count(item) if self.time is None else self._timed(item, self.time(item))

    def advance(self, moment: float) -> Iterator[Window[Any]]:
        """Set the time; yields the windows that end at or before it."""
        yield from self.take_closed()
        if self.before is not None:
            yield from self.before.advance(moment)
        yield from self._advance(moment)

    def rest(self) -> Iterator[Window[Any]]:
        """Yield the closed windows, and the time windows that are open at the end of the stream."""
        yield from self.take_closed()
        if self.before is not None:
            yield from self.before.rest()
        if self.time is not None and self.now is not None:
            yield from self._due(self._first(self.now), float("inf"))

    def take_closed(self) -> Iterator[Window[Any]]:
        """Yield the closed windows, once."""
        if self.before is not None:
            yield from self.before.take_closed()
        while self.closed:
            yield self.closed.popleft()

    def held(self) -> list[Any]:
        """Return the items in the windows, each once, the older first."""
        if self.before is None:
            return self.items
        found = self.before.held()
        known = set(map(id, found))
        return [*found, *(item for item in self.items if id(item) not in known)]

    def all_late(self) -> int:
        """Return the number of items that came after their last window was due."""
        return self.late + (self.before.all_late() if self.before is not None else 0)

    def succeeded(self, new: PortWindow, *, close: bool) -> PortWindow:
        """Return windows of other sizes that succeed these, which stay as they are."""
        if self.time is not None and self.sizes["time"] == new.sizes["time"]:
            new.now = self.now
        if close:
            new.late, new.closed = self.all_late(), deque(self._opened())
        elif not self.items:  # no window of these sizes is open: the new ones take their place
            new.late, new.begin, new.skip = self.late, self.begin, self.skip
            new.before, new.closed = self.before, self.closed
        else:
            new.before = before = copy(self)
            if self.time is None:
                new.skip = self._ahead
                before.left = new.skip - int(self.slide) + int(self.size)
            else:  # where the next window begins
                new.begin = before.until = None if self.now is None else (self.now // self.slide + 1) * self.slide
        return new

    def capture(self) -> dict[str, Any]:
        """Return the content as plain data, that of former sizes inside; `restore` takes it back."""
        found: dict[str, Any] = {"items": list(self.items), "now": self.now, "since": self.since, "late": self.late}
        if (self.until, self.left) != (None, None):
            found |= {"until": self.until, "left": self.left}
        if self.before is not None or self.closed:
            found["closed"] = [list(one) for one in self.closed]
        if self.before is not None:
            found |= {"old": self.before.capture(), "old_sizes": self.before.sizes}
            found |= {"begin": self.begin, "skip": self.skip}
        return found

    def restore(self, held: Mapping[str, Any], make: Callable[[Mapping[str, Any]], PortWindow]) -> None:
        """Take back the result of `capture`; *make* makes windows of other sizes."""
        self.items, self.closed = Window(held["items"]), deque(map(Window, held.get("closed", ())))
        self.now, self.since, self.late = held["now"], held["since"], held["late"]
        self.until, self.left = held.get("until"), held.get("left")
        if "old" in held:
            self.begin, self.skip = held.get("begin"), held.get("skip", 0)
            self.before = make(held["old_sizes"])
            self.before.restore(held["old"], make)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item."""
        if self.before is not None:
            self.before.exchange(replace)
        for piece in (*self.closed, self.items):
            piece[:] = map(replace, piece)

    def _behind(self, item: Any) -> Iterator[Window[Any]]:
        """Take an item behind windows of former sizes, which take it first."""
        yield from self.take_closed()
        enters = self._enters(item)
        if self.before is not None:
            yield from self.before.add(item)
        if enters:
            yield from self._count(item) if self.time is None else self._timed(item, self.time(item))
        elif self.time is not None:
            yield from self._advance(self.time(item))

    def _enters(self, item: Any) -> bool:
        """Whether an item is for windows of these sizes, too; by time, those of the former sizes read it."""
        before = self.before
        if before is not None and self.skip > 0:
            self.skip -= 1
            return False
        return before is None or before.time is None or self.begin is None or before.time(item) >= self.begin

    @property
    def _over(self) -> bool:
        """Whether none of the windows becomes due any more, and they take no item."""
        if self.left is not None:
            over = self.left <= 0
        else:
            over = self.until is not None and self.now is not None and self.now >= self.until - self.slide + self.size
        return over and not self.closed and (self.before is None or self.before._over)

    def _opened(self) -> list[Window[Any]]:
        """Return the items in the windows that are open now, in the order in which the windows began."""
        found = [*self.closed, *(self.before._opened() if self.before is not None else ())]
        if self.time is not None and self.now is not None:
            items = self.items
            found += self._due(self._first(self.now), float("inf"))
            self.items = items
        elif self.time is None and self.items and not self.evict:
            counts = range(int(self.slide) - self._ahead, int(self.size), int(self.slide))
            begun = [n for n in counts if n <= len(self.items) and (self.left is None or self.size - n <= self.left)]
            found += [Window(self.items[-number:]) for number in reversed(begun)]
        return found

    @property
    def _ahead(self) -> int:
        """By count: the number of items until the next window begins."""
        whole = self.since if self.since == len(self.items) else int(self.size) + self.since
        return -whole % int(self.slide)

    def _advance(self, moment: float) -> Iterator[Window[Any]]:
        if self.time is None or (self.now is not None and moment <= self.now):
            return
        before, self.now = self.now, moment
        if before is not None:
            yield from self._due(self._first(before), moment)

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

    def _timed(self, item: Any, moment: float) -> Iterator[Window[Any]]:
        due = [*self._advance(moment)]
        last = moment // self.slide * self.slide  # the beginning of the last window for the item
        if self.until is not None and last >= self.until:
            last = self.until - self.slide
        if moment < last + self.size:  # else it is in the gap between two windows, or behind the last one
            if self.now is not None and last + self.size <= self.now:
                self.late += 1
            else:
                self.items.append(item)
        yield from due

    def _first(self, moment: float) -> float:
        """Return the beginning of the earliest window that ends after *moment*."""
        return ((moment - self.size) // self.slide + 1) * self.slide

    def _due(self, start: float, end: float) -> Iterator[Window[Any]]:
        """Yield the windows that begin at *start* or later, end at *end* or before, and are not empty."""
        time = self.time
        while time is not None and self.items:
            start = max(start, self._first(min(map(time, self.items))))  # never step through an idle hour
            if start + self.size > end or (self.until is not None and start >= self.until):
                break
            due = Window(item for item in self.items if start <= time(item) < start + self.size)
            start += self.slide
            self.items = Window(item for item in self.items if time(item) >= start)
            if due:
                yield due

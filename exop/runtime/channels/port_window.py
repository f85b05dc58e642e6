"""The windows of one port: their content, when they are due, and the succession of sizes when those change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

from exop.model.items import Window


class PortWindow:
    """The windows of one port that have the same sizes: takes items and yields the windows that are due.

    A window by time begins at a multiple of `slide`, and is due when time has reached its end; time is the latest of
    the moments that items and punctuations name. Every window that holds an item becomes due once.

    Attributes:
        sizes: The sizes as the channel's settings have them.
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
        self.since = self.late = 0
        self.begin: float | None = None
        self.skip = 0
        self.until: float | None = None
        self.left: int | None = None

    def check(self, items: Iterable[Any]) -> None:
        """Raise for an item without a proper time, before any item of its batch is taken."""
        if self.time is not None:
            for moment in map(self.time, items):
                self._first(moment)

    def add(self, item: Any) -> Iterator[Window[Any]]:
        """Take one item when the result is iterated; yields the windows that it completes."""
        if self.evict:
            self.items.append(item)
            return iter((self.items,))
        return self._count(item) if self.time is None else self._timed(item, self.time(item))

    def advance(self, moment: float) -> Iterator[Window[Any]]:
        """Set the time; yields the windows that end at or before it."""
        if self.time is None or (self.now is not None and moment <= self.now):
            return
        before, self.now = self.now, moment
        if before is not None:
            yield from self._due(self._first(before), moment)

    def rest(self) -> Iterator[Window[Any]]:
        """Yield the time windows that are open at the end of the stream."""
        if self.time is not None and self.now is not None:
            yield from self._due(self._first(self.now), float("inf"))

    def opened(self) -> list[Window[Any]]:
        """Return the items in the windows that are open now, in the order in which the windows began."""
        if self.evict:
            return []
        if self.time is not None:
            copy = PortWindow(self.sizes, self.size, self.slide, self.time)
            copy.items, copy.now, copy.until = Window(self.items), self.now, self.until
            return list(copy.rest())
        held = range(int(self.slide) - self.ahead, int(self.size), int(self.slide)) if self.items else ()
        begun = [n for n in held if n <= len(self.items) and (self.left is None or self.size - n <= self.left)]
        return [Window(self.items[-number:]) for number in reversed(begun)]

    @property
    def ahead(self) -> int:
        """By count: the number of items until the next window begins."""
        whole = self.since if self.since == len(self.items) else int(self.size) + self.since
        return -whole % int(self.slide)

    @property
    def next_start(self) -> float | None:
        """By time: where the next window begins; `None` while time is not known."""
        return None if self.now is None else (self.now // self.slide + 1) * self.slide

    @property
    def over(self) -> bool:
        """No window becomes due any more, and no item is taken."""
        if self.left is not None:
            return self.left <= 0
        last = None if self.until is None else self.until - self.slide + self.size
        return last is not None and self.now is not None and self.now >= last

    def capture(self) -> dict[str, Any]:
        """Return the content as plain data; `restore` takes it back."""
        found: dict[str, Any] = {"items": list(self.items), "now": self.now, "since": self.since, "late": self.late}
        return found | ({"until": self.until, "left": self.left} if (self.until, self.left) != (None, None) else {})

    def restore(self, held: Mapping[str, Any]) -> None:
        """Take back the result of `capture`."""
        self.items = Window(held["items"])
        self.now, self.since, self.late = held["now"], held["since"], held["late"]
        self.until, self.left = held.get("until"), held.get("left")

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item."""
        self.items[:] = map(replace, self.items)

    def _count(self, item: Any) -> Iterator[Window[Any]]:
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
        due = [*self.advance(moment)]
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


#: The windows of a port, whether their sizes have changed or not.
Windows: TypeAlias = "PortWindow | Succession"


class Succession:
    """Windows of other sizes behind those that are still open. Its methods are those of `PortWindow`.

    Unless they are closed, the open windows run to their end, and the new ones take every item from where the next old
    one would have begun: by time from that moment on, by count behind so many items. So every item is in a window, and
    where windows do not overlap, in one. New windows by time begin at multiples of their own `slide`; the first may
    hold less.

    Attributes:
        windows: The windows by their sizes, the oldest first; the last have the current sizes.
        closed: The content of windows that were closed: due with the next item.
    """

    def __init__(self, windows: list[PortWindow], closed: Iterable[Window[Any]] = ()) -> None:
        self.windows = windows
        self.closed = deque(closed)

    def check(self, items: Iterable[Any]) -> None:
        """Raise for an item that one of them cannot take."""
        for window in self.windows:
            window.check(items)

    def add(self, item: Any) -> Iterator[Window[Any]]:
        """Take one item; yields the windows that it completes, the older first."""
        yield from self.take_closed()
        entered = [self._enters(place, item) for place in range(len(self.windows))]
        for window, enters in zip(self.windows, entered, strict=True):
            if enters:
                yield from window.add(item)
            elif window.time is not None:
                yield from window.advance(window.time(item))

    def advance(self, moment: float) -> Iterator[Window[Any]]:
        """Set the time."""
        yield from self.take_closed()
        for window in self.windows:
            yield from window.advance(moment)

    def rest(self) -> Iterator[Window[Any]]:
        """Yield what is open at the end of the stream."""
        yield from self.take_closed()
        for window in self.windows:
            yield from window.rest()

    def opened(self) -> list[Window[Any]]:
        """Return the items in all windows that are open now."""
        return [*self.closed, *(one for window in self.windows for one in window.opened())]

    @property
    def items(self) -> Window[Any]:
        """The items in the windows, each once, the older first."""
        found: Window[Any] = Window()
        for window in self.windows:
            known = set(map(id, found))
            found += [item for item in window.items if id(item) not in known]
        return found

    @property
    def late(self) -> int:
        """The number of late items."""
        return sum(window.late for window in self.windows)

    @property
    def over(self) -> bool:
        """Only the windows of the current sizes are left."""
        *older, last = self.windows
        return not self.closed and last.skip <= 0 and all(window.over for window in older)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item."""
        for piece in (*self.closed, *(window.items for window in self.windows)):
            piece[:] = map(replace, piece)

    def capture(self) -> dict[str, Any]:
        """Return the content as plain data, older windows inside that of newer ones; `restored` takes it back."""
        held = self.windows[0].capture()
        for older, window in pairwise(self.windows):
            bounds = {"begin": window.begin, "skip": window.skip}
            held = window.capture() | {"closed": [], "old": held, "old_sizes": older.sizes} | bounds
        return held | {"closed": [list(one) for one in self.closed]}

    def take_closed(self) -> Iterator[Window[Any]]:
        """Yield the closed windows, once."""
        while self.closed:
            yield self.closed.popleft()

    def _enters(self, place: int, item: Any) -> bool:
        """Whether an item is for the windows at *place*; by time, the ones before them read it."""
        if place == 0:
            return True
        before, window = self.windows[place - 1 : place + 1]
        if window.skip > 0:
            window.skip -= 1
            return False
        return window.begin is None or before.time is None or before.time(item) >= window.begin


def last_of(windows: Windows) -> PortWindow:
    """Return the windows of the current sizes."""
    return windows.windows[-1] if isinstance(windows, Succession) else windows


def succeed(windows: Windows, new: PortWindow, *, close: bool) -> Windows:
    """Put windows of other sizes behind those of a port; of *windows*, only `until` and `left` change."""
    last = last_of(windows)
    older, closed = (windows.windows, windows.closed) if isinstance(windows, Succession) else ([windows], deque())
    if last.time is not None and last.sizes["time"] == new.sizes["time"]:
        new.now = last.now
    if close:
        new.late = windows.late
        return Succession([new], windows.opened())
    if not last.items:  # no window of these sizes is open: the new ones take their place
        new.late, new.begin, new.skip = last.late, last.begin, last.skip
        return Succession([*older[:-1], new], closed) if isinstance(windows, Succession) else new
    if last.time is not None:
        new.begin = last.until = last.next_start
    else:
        new.skip = last.ahead
        last.left = last.ahead - int(last.slide) + int(last.size)
    return Succession([*older, new], closed)


def restored(held: Mapping[str, Any], new: PortWindow, made: Callable[[Mapping[str, Any]], PortWindow]) -> Windows:
    """Return captured windows: *new* has the current sizes, *made* makes windows of other sizes."""
    new.restore(held)
    if "closed" not in held:
        return new
    found = Succession([new], map(Window, held["closed"]))
    if "old" in held:
        new.begin, new.skip = held.get("begin"), held.get("skip", 0)
        old = restored(held["old"], made(held["old_sizes"]), made)
        found.windows[:0] = old.windows if isinstance(old, Succession) else [old]
        found.closed.extend(old.closed if isinstance(old, Succession) else ())
    return found

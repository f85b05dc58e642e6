"""The window of one port: what is in it, and when it is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from exop.model.items import Window


class PortWindow:
    """The window of one port: takes items and says which windows are due.

    A window by time begins at a multiple of `slide`, and is due when time has come to its end; time is the latest of
    the moments that items and punctuations name. Every window that holds an item becomes due once.

    Attributes:
        sizes: What it was made of, as the channel's settings have it.
        until: By time: no window begins there or later, since other sizes hold from there on.
        left: By count: so many items more, for the same reason.
    """

    def __init__(self, sizes: Mapping[str, Any], size: float, slide: float, time: Callable[[Any], Any] | None) -> None:
        self.sizes, self.size, self.slide, self.time = dict(sizes), size, slide, time
        self.evict = bool(sizes["evict"])
        self.items: Window[Any] = Window()
        self.now: float | None = None
        self.since = 0
        self.late = 0
        self.until: float | None = None
        self.left: int | None = None

    def check(self, items: Iterable[Any]) -> None:
        """Raise for an item without a proper time, before any item of its batch is taken."""
        if self.time is not None:
            for moment in map(self.time, items):
                self._first(moment)

    def add(self, item: Any) -> Iterator[Window[Any]]:
        """Take one item; what is returned takes it, and gives the windows that this completes."""
        if self.evict:
            self.items.append(item)
            return iter((self.items,))
        return self._count(item) if self.time is None else self._timed(item, self.time(item))

    def advance(self, moment: float) -> Iterator[Window[Any]]:
        """Time has come to *moment*: yields the windows that end at or before it."""
        if self.time is None or (self.now is not None and moment <= self.now):
            return
        before, self.now = self.now, moment
        if before is not None:
            yield from self._due(self._first(before), moment)

    def rest(self) -> Iterator[Window[Any]]:
        """The stream has ended: yields the time windows that are still open."""
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
        """By count: so many items more, and the next window begins."""
        whole = self.since if self.since == len(self.items) else int(self.size) + self.since
        return -whole % int(self.slide)

    @property
    def next_start(self) -> float | None:
        """By time: where the next window begins; `None` while time is not known."""
        return None if self.now is None else (self.now // self.slide + 1) * self.slide

    @property
    def over(self) -> bool:
        """Nothing is due any more, and nothing is taken."""
        if self.left is not None:
            return self.left <= 0
        last = None if self.until is None else self.until - self.slide + self.size
        return last is not None and self.now is not None and self.now >= last

    def capture(self) -> dict[str, Any]:
        """Return the content of the window as plain data; `restore` takes it back."""
        found: dict[str, Any] = {"items": list(self.items), "now": self.now, "since": self.since, "late": self.late}
        return found | ({"until": self.until, "left": self.left} if (self.until, self.left) != (None, None) else {})

    def restore(self, held: Mapping[str, Any]) -> None:
        """Take back what `capture` returned."""
        self.items = Window(held["items"])
        self.now, self.since, self.late = held["now"], held["since"], held["late"]
        self.until, self.left = held.get("until"), held.get("left")

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every item."""
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
        self._keep(item, moment)
        yield from due

    def _first(self, moment: float) -> float:
        """The beginning of the earliest window that ends after *moment*."""
        return ((moment - self.size) // self.slide + 1) * self.slide

    def _keep(self, item: Any, moment: float) -> None:
        """Keep an item for the windows that are not due yet; late is one for which there is none any more."""
        last = moment // self.slide * self.slide
        if self.until is not None and last >= self.until:
            last = self.until - self.slide
        if moment >= last + self.size:  # it stands in the gap between two windows, or behind the last one
            return
        if self.now is not None and last + self.size <= self.now:
            self.late += 1
        else:
            self.items.append(item)

    def _due(self, start: float, end: float) -> Iterator[Window[Any]]:
        """The windows that begin at *start* or later, end at *end* or before, and hold something."""
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

"""The windows of one port while its sizes change: those that are open come to their end, and new ones begin behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from exop.model.items import Window
from exop.runtime.channels.port_window import PortWindow

#: The windows of a port, whatever their sizes.
Windows: TypeAlias = "PortWindow | Succession"


class Succession:
    """Windows of other sizes behind those that are open still.

    Without closing, the open windows run to their end as they are, and the new ones take every item from where the next
    old one would have begun: by time from that moment on, by count behind so many items. So every item is in a window,
    and where windows do not overlap, in one. New windows by time begin at multiples of their own `slide`; the first may
    hold less.

    Attributes:
        closed: What was in windows that were closed: due with whatever comes next.
        old: The windows that are open still.
        new: Those behind them.
        begin: By time: from this moment on, as `old` reads it, items are for the new ones.
        skip: By count: so many items more are for the old ones alone.
    """

    def __init__(self, old: Windows | None, new: PortWindow) -> None:
        self.closed: deque[Window[Any]] = deque()
        self.old, self.new = old, new
        self.begin: float | None = None
        self.skip = 0
        self._time: Callable[[Any], Any] | None = last_of(old).time if old is not None else None

    def check(self, items: Iterable[Any]) -> None:
        """Raise for an item that one of them could not take."""
        for windows in self._both():
            windows.check(items)

    def add(self, item: Any) -> Iterator[Window[Any]]:
        """Take one item; yields what this completes, the older first."""
        yield from self.take_closed()
        enters = self._enters(item)
        if self.old is not None:
            yield from self.old.add(item)
        if enters:
            yield from self.new.add(item)
        elif self.new.time is not None:
            yield from self.new.advance(self.new.time(item))

    def advance(self, moment: float) -> Iterator[Window[Any]]:
        """Time has come to *moment*."""
        yield from self.take_closed()
        for window in self._both():
            yield from window.advance(moment)

    def rest(self) -> Iterator[Window[Any]]:
        """The stream has ended."""
        yield from self.take_closed()
        for window in self._both():
            yield from window.rest()

    def opened(self) -> list[Window[Any]]:
        """Return the items in all the windows that are open now."""
        return [*self.closed, *(one for window in self._both() for one in window.opened())]

    @property
    def items(self) -> Window[Any]:
        """Return the items in the windows: the older first."""
        older = self.old.items if self.old is not None else ()
        known = set(map(id, older))
        return Window([*older, *(item for item in self.new.items if id(item) not in known)])

    @property
    def late(self) -> int:
        """How many items came late; the new ones count on."""
        return self.new.late + (self.old.late if self.old is not None else 0)

    @property
    def over(self) -> bool:
        """Only the new ones are left."""
        return not self.closed and self.skip <= 0 and (self.old is None or self.old.over)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every item."""
        for piece in self.closed:
            piece[:] = map(replace, piece)
        for window in self._both():
            window.exchange(replace)

    def capture(self) -> dict[str, Any]:
        """Return the content of the windows as plain data; `restored` takes it back."""
        held = self.new.capture() | {"closed": [list(one) for one in self.closed]}
        if self.old is not None:
            last = last_of(self.old)
            held |= {"old": self.old.capture(), "old_sizes": last.sizes, "begin": self.begin, "skip": self.skip}
        return held

    def take_closed(self) -> Iterator[Window[Any]]:
        """Take the items of the windows that were closed, once."""
        while self.closed:
            yield self.closed.popleft()

    def _both(self) -> list[Windows]:
        return [self.new] if self.old is None else [self.old, self.new]

    def _enters(self, item: Any) -> bool:
        if self.skip > 0:
            self.skip -= 1
            return False
        return self.begin is None or self._time is None or self._time(item) >= self.begin


def last_of(windows: Windows) -> PortWindow:
    """The window of the sizes that hold for what comes."""
    return windows.new if isinstance(windows, Succession) else windows


def succeed(windows: Windows, new: PortWindow, *, close: bool) -> Windows:
    """Put windows of other sizes behind those of a port; *windows* are not changed, but for `until` and `left`."""
    last = last_of(windows)
    if last.time is not None and last.sizes["time"] == new.sizes["time"]:
        new.now = last.now
    if close:
        found = Succession(None, new)
        found.closed.extend(windows.opened())
        new.late = windows.late
        return found
    if not last.items:  # nothing is open that has these sizes: the new ones stand in their place
        return _instead(windows, new)
    found = Succession(windows, new)
    if last.time is not None:
        found.begin = last.until = last.next_start
    else:
        found.skip = last.ahead
        last.left = last.ahead - int(last.slide) + int(last.size)
    return found


def _instead(windows: Windows, new: PortWindow) -> Windows:
    if isinstance(windows, PortWindow):
        new.late = windows.late
        return new
    found = Succession(windows.old, new)
    found.closed, found.begin, found.skip = windows.closed, windows.begin, windows.skip
    new.late = windows.new.late
    return found


def restored(held: Mapping[str, Any], new: PortWindow, made: Callable[[Mapping[str, Any]], PortWindow]) -> Windows:
    """Windows as they were captured: *new* has the sizes that hold now, *made* makes one of other sizes."""
    new.restore(held)
    if "closed" not in held:
        return new
    old = restored(held["old"], made(held["old_sizes"]), made) if "old" in held else None
    found = Succession(old, new)
    found.closed.extend(map(Window, held["closed"]))
    found.begin, found.skip = held.get("begin"), held.get("skip", 0)
    return found

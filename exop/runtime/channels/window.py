"""`window`: finite pieces of an infinite stream, an own window for each connected port (paper §2.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import GenericAlias
from typing import Any, ClassVar, TypeVar

from exop.errors import MeshError, UnknownName
from exop.model.items import EndOfStream, Punctuation
from exop.model.ports import PortType
from exop.runtime.channel import Channel, Outlet, PullMode
from exop.runtime.channels.latch import key_reader
from exop.runtime.convert import to_items
from exop.runtime.entry import NOWHERE, Entry, fan_out, in_turn
from exop.runtime.unwind import Unwind

T = TypeVar("T")


class Window(list[T]):
    """The items that one port has in its window; a slet of a semantic window evicts them itself."""

    def evict(self, number: int) -> None:
        """Let go of the oldest *number* items."""
        del self[:number]


class PortWindow:
    """The window of one port: takes items and says which windows are due.

    A window by time begins at a multiple of `slide`, and is due when time has come to its end; time is the latest of
    the moments that items and punctuations name. Every window that holds an item becomes due once.
    """

    def __init__(self, size: float, slide: float, time: Callable[[Any], Any] | None, evict: bool) -> None:
        self.size, self.slide, self.time, self.evict = size, slide, time, evict
        self.items: Window[Any] = Window()
        self.now: float | None = None
        self.since = 0
        self.late = 0
        self.target: Entry = NOWHERE

    def add(self, item: Any) -> Iterator[Window[Any]]:
        """Take one item; yields the windows that this completes."""
        if self.evict:
            self.items.append(item)
            yield self.items
        elif self.time is None:
            yield from self._count(item)
        else:
            moment = self.time(item)
            due = [*self.advance(moment)]
            self._keep(item, moment)
            yield from due

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

    def _count(self, item: Any) -> Iterator[Window[Any]]:
        self.items.append(item)
        del self.items[: max(0, len(self.items) - int(self.size))]
        self.since += 1
        if len(self.items) == self.size and self.since >= self.slide:
            self.since = 0
            yield Window(self.items)

    def _first(self, moment: float) -> float:
        """The beginning of the earliest window that ends after *moment*."""
        return ((moment - self.size) // self.slide + 1) * self.slide

    def _keep(self, item: Any, moment: float) -> None:
        """Keep an item for the windows that are not due yet; late is one for which there is none any more."""
        last = moment // self.slide * self.slide
        if moment >= last + self.size:  # it stands in the gap between two windows
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
            if start + self.size > end:
                break
            due = Window(item for item in self.items if start <= time(item) < start + self.size)
            start += self.slide
            self.items = Window(item for item in self.items if time(item) >= start)
            if due:
                yield due


class WindowChannel(Channel):
    """Gives each connected port a window of its own; the port receives `list[T]`.

    By count (`count=10, slide=5`), by event time (`seconds=60, slide=10, time="field"`; a window that holds an item is
    due when an item or punctuation says that its end has come, and at the end of the stream), or by explicit eviction
    (`evict=True`: with every item the slet receives its whole `Window` and calls `evict(n)` on it).
    `ports={"node.port": {...}}` gives one port other sizes. Items that come after their last window was due are
    counted (`late`). A pull reads the items in the port's window.
    """

    kind: ClassVar[str] = "window"
    pull_mode: ClassVar[PullMode] = "read"

    def __init__(
        self,
        name: str,
        *,
        count: int | None = None,
        seconds: float | None = None,
        slide: float | None = None,
        time: str | None = None,
        evict: bool = False,
        ports: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(name)
        self._sizes = {"count": count, "seconds": seconds, "slide": slide, "time": time, "evict": evict}
        self._per_port = ports or {}
        self._windows: dict[str, PortWindow] = {}
        self._readers: tuple[str, ...] = ()
        self._make("", self._sizes)
        for port in self._per_port:
            self._window(port)
        self.live = evict or any(sizes.get("evict") for sizes in self._per_port.values())

    @classmethod
    def carries(cls, pushed: PortType) -> PortType:
        """Lists of what is pushed; rows of columns are dictionaries."""
        item = dict if pushed.form == "columns" else pushed.item
        return dataclasses.replace(pushed, item=GenericAlias(list, (item,)), form="item", schema=None)

    def readers(self, ports: Sequence[str]) -> None:
        """A port that pulls has a window of its own too."""
        self._readers = tuple(ports)

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Each port behind its own window; a port that stays connected keeps its items."""
        known, ports = self._windows, (*self._readers, *(outlet.port for outlet in outlets))
        self._windows = {port: known.get(port) or self._window(port) for port in ports}
        for window in self._windows.values():
            window.target = NOWHERE
        for outlet in outlets:
            self._windows[outlet.port].target = outlet.entry
        return fan_out([self._way(window) for window in self._windows.values()])

    def read(self, port: str) -> list[Any]:
        """What a pull sees: the items in the port's window."""
        window = self._windows.get(port)
        return list(window.items) if window else []

    def metrics(self) -> dict[str, int | float | str]:
        """Items held over all ports, and how many came late."""
        windows = self._windows.values()
        return {"items": sum(len(window.items) for window in windows), "late": sum(window.late for window in windows)}

    def capture(self) -> Mapping[str, Any]:
        """The open windows by port."""
        return {
            port: {"items": list(w.items), "now": w.now, "since": w.since, "late": w.late}
            for port, w in self._windows.items()
        }

    def restore(self, held: Mapping[str, Any]) -> None:
        """Open the windows again."""
        for port, state in held.items():
            window = self._windows.setdefault(port, self._window(port))
            window.items = Window(state["items"])
            window.now, window.since, window.late = state["now"], state["since"], state["late"]

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every item of the open windows."""
        for window in self._windows.values():
            window.items[:] = map(replace, window.items)

    def _window(self, port: str) -> PortWindow:
        own = self._per_port.get(port, {})
        for name in own:
            if name not in self._sizes:
                place = f"the window {self.name!r} of {port}"
                raise UnknownName(place=place, kind="setting", name=name, known=self._sizes)
        return self._make(port, {**self._sizes, **own})

    def _make(self, port: str, sizes: Mapping[str, Any]) -> PortWindow:
        count, seconds, time = sizes["count"], sizes["seconds"], sizes["time"]
        given = [option for option in ("count", "seconds", "evict") if sizes[option]]
        place = f"the window {self.name!r}" + (f" of {port}" if port else "")
        if len(given) != 1:
            raise MeshError(f"{place} needs one of count=, seconds= or evict=True; given: {', '.join(given) or 'none'}")
        if seconds and not time:
            raise MeshError(f"{place} is by time: name the field of the items that holds it, time='…'")
        size = float(count or seconds or 0)
        slide = float(sizes["slide"] or size)
        if size < 0 or slide < 0 or (size and slide > size and not seconds):
            raise MeshError(f"{place}: size {size} and slide {slide} do not fit; both are positive, slide <= count")
        return PortWindow(size, slide, key_reader(time) if seconds else None, bool(sizes["evict"]))

    @staticmethod
    def _way(window: PortWindow, *, probing: bool = False) -> Entry:
        def into() -> Entry:  # read each time: work that is left behind may come back after the port was bound anew
            return window.target.probe if probing else window.target

        def push(item: Any) -> None:
            in_turn(into(), window.add(item))

        def push_batch(batch: Any) -> None:
            in_turn(entry, to_items(batch))

        def control(mark: Punctuation | EndOfStream) -> None:
            due = window.advance(mark.time) if isinstance(mark, Punctuation) else window.rest()
            try:
                in_turn(into(), due)
            except Unwind as unwound:
                unwound.then(into(), "control", [mark])
                raise
            into().control(mark)

        entry = Entry(push, push_batch, control)
        entry.probe = WindowChannel._way(window, probing=True) if not probing else entry
        return entry

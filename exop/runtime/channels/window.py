"""`window`: divides an infinite stream into finite windows, separately for each connected port (paper §2.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, ClassVar

from exop.errors import MeshError, UnknownName
from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.ports import WINDOW, PortType
from exop.runtime.channels.base import Channel, Outlet, PullMode
from exop.runtime.channels.partitioned import time_reader
from exop.runtime.channels.port_window import PortWindow
from exop.runtime.dataflow.batches import to_items
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Method, Push, Unwind, fan_out, in_front, in_turn
from exop.runtime.drivers.base import current_driver


class WindowChannel(Channel):
    """Gives each connected port its own window; the port receives `list[T]`.

    By count (`count=10, slide=5`), by event time (`seconds=60, slide=10, time="field"`; a window that has an item is
    due when a punctuation excludes items before its end, and at the end of the stream), or by explicit eviction
    (`evict=True`: with every item the slet receives its whole `Window` and calls `evict(n)` on it).
    `ports={"node.port": {...}}` gives one port other sizes. Items after their last window was due are counted (`late`).
    A pull reads the items in the port's window.

    Attributes:
        windows: The windows of each port.
        upstream: The channels through which punctuations arrive.
        warned: The producers about which a warning was logged.
        unpunctuated: The producers (`node.port`) that send no punctuations. Each of their items is followed by a
            punctuation for the time of the item, as by `stock:watermark` without delay.
    """

    kind: ClassVar[str] = WINDOW
    reconfigurable: ClassVar[bool] = True
    pull_mode: ClassVar[PullMode] = "read"
    refuses_whole: ClassVar[bool] = True

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
        self.windows: dict[str, PortWindow] = {}
        self._taken: defaultdict[str, int] = defaultdict(int)
        self._targets: dict[str, Entry] = {}
        self._readers: tuple[str, ...] = ()
        self.unpunctuated = self.upstream = self.warned = frozenset[str]()
        self._told: dict[str, float] = {}
        self._make("", self._sizes)
        for port in self._per_port:
            self._window(port)
        self.live = evict or any(sizes.get("evict") for sizes in self._per_port.values())

    @classmethod
    def carries(cls, pushed: PortType) -> PortType:
        """Return lists of the pushed type; rows of columns are dictionaries."""
        return pushed.windowed

    @classmethod
    def fields(cls, settings: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """Return the settings, of the channel and of single ports, that name the field with the time of an item."""
        given = {"time": settings}
        given |= {f"ports[{port!r}].time": own for port, own in (settings.get("ports") or {}).items()}
        return [(setting, name) for setting, sizes in given.items() if (name := sizes.get("time"))]

    def readers(self, ports: Sequence[str]) -> None:
        """Give each pulled port its own window."""
        self._readers = tuple(ports)

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Bind each port to its window; that of a port that remains connected retains its items."""
        known, ports = dict(self.windows), (*self._readers, *(outlet.port for outlet in outlets))
        # Changed in place, since in-flight items may return by entries that were compiled before.
        self.windows.clear()
        self.windows.update({port: known.get(port) or self._window(port) for port in ports})
        self._targets.update(dict.fromkeys(ports, NOWHERE) | {outlet.port: outlet.entry for outlet in outlets})
        self.port_entries = [self._way(port) for port in self.windows]
        return fan_out(self.port_entries)

    def bound_back(self) -> Callable[[], None]:
        """Return a function that restores the windows of disconnected ports."""
        return partial(self.windows.update, dict(self.windows))

    def reconfigure(self, settings: Mapping[str, Any], *, close: bool) -> Callable[[], None]:
        """Let the open windows of changed ports continue to their end, or close and emit them with the next item."""
        fresh = WindowChannel(self.name, **settings)
        before, kept = (self._sizes, self._per_port), dict(self.windows)
        self._sizes, self._per_port = fresh._sizes, fresh._per_port
        for port, windows in kept.items():
            new = self._window(port)
            if close or windows.sizes != new.sizes:
                self.windows[port] = windows.succeeded(new, close=close)

        def undo() -> None:
            self._sizes, self._per_port = before
            self.windows.update(kept)

        return undo

    def send_closed(self) -> None:
        """Send the closed windows."""
        for port, windows in self.windows.items():
            _deliver(self._targets[port], windows.take_closed())

    def read(self, port: str) -> list[Any]:
        """Return the items in the port's window."""
        return list(window.held()) if (window := self.windows.get(port)) else []

    def metrics(self) -> dict[str, int | float | str]:
        """Return the numbers of items stored, late, accepted and evicted (delivered a last time) over all ports."""
        windows = dict(self.windows)
        held, late = (sum(map(count, windows.values())) for count in (PortWindow.count, PortWindow.all_late))
        taken = sum(self._taken[port] for port in windows)
        return {"items": held, "late": late, "taken": taken, "evicted": taken - late - held}

    def capture(self) -> Mapping[str, Any]:
        """Return the open windows by port."""
        return {port: {**windows.capture(), "taken": self._taken[port]} for port, windows in self.windows.items()}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Restore the open windows."""
        for port, state in held.items():
            self._taken[port] = state["taken"]
            self.windows[port] = windows = self._window(port)
            windows.restore(state, partial(self._make, port))

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item of the open windows."""
        done: dict[int, tuple[Any, Any]] = {}  # an item in windows of several sizes remains one object

        def replaced(item: Any) -> Any:
            return done.setdefault(id(item), (item, None if id(item) in done else replace(item)))[1]

        for windows in self.windows.values():
            windows.exchange(replaced)
            done.clear()

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
        if not (0 <= size < inf and 0 <= slide < inf) or (size and slide > size and not seconds):
            raise MeshError(f"{place}: size {size} and slide {slide} do not fit; both are positive, slide <= count")
        return PortWindow(sizes, size, slide, time_reader(time) if seconds else None)

    def _way(self, port: str, *, probing: bool = False) -> Entry:
        all_windows, targets, taken = self.windows, self._targets, self._taken
        # No port takes an item that another one refuses, since its producer then has it again, or sets it aside.
        all_check = len({(one.timed_by, one.before) for one in all_windows.values()}) > 1

        def into() -> Entry:  # read each time, since in-flight items may return after the port was bound anew
            return targets[port].probe if probing else targets[port]

        def push(item: Any) -> None:
            due = all_windows[port].add(item)
            taken[port] += 1
            _deliver(into(), due)

        def check(items: Sequence[Any]) -> None:
            for one in all_windows.values() if all_check else (all_windows[port],):
                one.check(items)

        def check_and_push(item: Any) -> None:
            check((item,))
            push(item)

        def push_batch(batch: Any) -> None:
            check(items := to_items(batch))
            in_turn(entry, items)

        def control(mark: Punctuation | EndOfStream) -> None:
            windows = all_windows[port]
            due = windows.advance(mark.following) if isinstance(mark, Punctuation) else windows.rest()
            try:
                _deliver(into(), due)
            except Unwind as unwound:
                unwound.then(into(), "control", [mark])
                raise
            _deliver(into(), [mark], "control")

        entry = Entry(check_and_push if all_check else push, push_batch, control)
        if not probing:
            entry.probe = self._way(port, probing=True)
            entry.name_endpoint(f"window {self.name} | {port}")
        return entry


def _deliver(entry: Entry, due: Iterable[Any], method: Method = "push") -> None:
    """Push the windows that are due, one after the other; after an error, the others remain due.

    A due window was removed from the channel, and cannot be made again from the item that completed it. Therefore an
    error of `entry` becomes an `Unwind`: otherwise it would count as a refusal of this item by the channel, as an error
    of *due* does.
    """
    rest, push = iter(due), getattr(entry, method)
    for payload in rest:
        try:
            push(payload)
        except BaseException as error:
            if (driver := current_driver()) is None:  # pushed without a driver: the caller gets the error
                raise
            unwound = driver.unwinding(error, InFlight(entry, method, payload))
            unwound.then(entry, method, rest)
            raise unwound  # noqa: B904 (it may be the error itself)


def timed_by(channel: WindowChannel) -> str | None:
    """Return the field with the time of an item; `None` if no window is by time."""
    for windows in channel.windows.values():
        if (field := windows.timed_by) is not None:
            return field
    given = (channel._sizes, *channel._per_port.values())
    return next((sizes["time"] for sizes in given if sizes.get("seconds")), None)


def followed(channel: WindowChannel, producer: str, entry: Entry) -> Entry:
    """Return the entry of one producer into windows; if the producer sends no punctuations, its items imply them."""

    def around(inner: Entry, method: Method) -> Push:
        push, items = getattr(inner, method), to_items if method == "push_batch" else lambda item: [item]

        def push_and_tell(payload: Any) -> None:
            if producer not in channel.unpunctuated:
                push(payload)
                return
            try:
                push(payload)
            except Unwind as unwound:
                unwound.then(here, "control", _told(channel, producer, items(payload)))
                raise
            for mark in _told(channel, producer, items(payload)):
                inner.control(mark)

        return push_and_tell

    here = in_front(entry, around)
    here.behind = (entry,)
    return here


def _told(channel: WindowChannel, producer: str, items: Sequence[Any]) -> list[Punctuation]:
    """Return a punctuation at the time of the latest of these items, if later than every earlier punctuation."""
    if (field := timed_by(channel)) is None:
        return []
    times = [windows.now for windows in channel.windows.values() if windows.now is not None]
    before = channel._told.get(producer, max(times, default=-inf))
    with suppress(LookupError, ValueError):  # the window itself refuses such an item
        if before < (moment := max(map(time_reader(field), items))):
            channel._told[producer] = moment
            return [Punctuation.before(moment)]
    return []

"""The boundary between drivers: a channel in which entries wait until another driver takes them."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from exop.errors import MeshError
from exop.runtime.channel import Channel
from exop.runtime.drivers.base import Driver, Signal, current_driver
from exop.runtime.entry import NOWHERE, Entry

#: So many entries beyond its capacity may such a channel hold because a driver would wait for itself.
SPILL = 1_000_000
#: Held while a driver checks whether drivers would wait for room in a circle, and notes that it waits.
_WAITING = threading.Lock()


class Buffered(Channel):
    """The base of kinds that are filled by some drivers and drained by one: what the wiring knows of such a boundary.

    Nothing is dropped: where `capacity` is reached, pushers wait (back-pressure). A worker puts one entry into a full
    channel, and waits for room at its next safe point, without a thread; it waits inside the call for the second one.
    The capacity may be exceeded by that, by in-flight items when a pusher has to reach its safe point, and where a
    driver would wait for itself: it drains the channel, or one for which, in the end, the driver that drains it waits.

    The suite in `tests/contract` states what a kind has to keep.

    Attributes:
        capacity: So many items wait at most.
        entries: What waits, in order.
        worker: The driver that takes the entries; the channel wakes it when it sleeps.
        deliver: The way into the consumers, for a driver that drains the channel.
        left: The only consumer has ended: no item is kept any more.
        dropped: Items that came when, or waited until, the only consumer had ended.
        waits: For how many seconds measured items have waited.
        alarm: Called when the channel is in trouble.
    """

    serial: ClassVar[bool] = False
    buffered: ClassVar[bool] = True
    entries: Collection[Any]

    def __init__(self, name: str, *, capacity: int) -> None:
        super().__init__(name)
        if capacity < 1:
            raise MeshError(f"the channel {name!r} has a capacity of {capacity}: a queue holds at least 1 item")
        self.capacity = capacity
        self.worker: Driver | None = None
        self.deliver: Entry = NOWHERE
        self.left = False
        self.dropped = 0
        self.waits: deque[float] = deque(maxlen=512)
        self.alarm: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._pushers: list[Callable[[], None]] = []

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many items wait."""

    @property
    @abstractmethod
    def cursor(self) -> int:
        """How many items and control items were taken, or delivered, since the channel was made."""

    @abstractmethod
    def drain(self, driver: Driver, most: int) -> int:
        """Deliver up to *most* entries, each one behind a safe point of *driver*; returns how many.

        Stops when the channel was given to another driver meanwhile.
        """

    @abstractmethod
    def take(self, most: int) -> list[Any]:
        """Take entries that hold up to *most* items without delivering them; a control item is taken alone."""

    @abstractmethod
    def put_first(self, entries: list[tuple[str, Any]]) -> None:
        """Put entries, as `capture` gives them, before those that wait; called while nothing is in flight."""

    @abstractmethod
    def clear(self) -> int:
        """Forget what waits; return how many items that were."""

    @property
    def overfull(self) -> bool:
        """More waits than the capacity."""
        return self.depth > self.capacity

    def leave(self) -> None:
        """Drop the items that wait, and those that come: the consumer has ended."""
        self.left = True
        self.dropped += self.clear()
        self._let_in()

    def keeps_out(self, driver: Driver, size: int = 1) -> bool:
        """Whether *driver* has to wait for room; it is woken when there may be some. It never waits for itself."""
        driver.waits_at = None
        if self._has_room(size) or driver.hurried:
            return False
        with _WAITING:
            circle = self._waits_for(driver)
            if not circle:
                driver.waits_at = self
        if circle:
            self._spill(driver)
            return False
        self._line_up(driver.wake)
        if self._has_room(size):
            driver.waits_at = None
        return driver.waits_at is not None

    def _waits_for(self, driver: Driver) -> bool:
        """Whether the driver that drains this channel waits, in the end, for *driver*."""
        seen: set[Driver] = set()
        owner = self.worker
        while owner is not None and owner not in seen:
            seen.add(owner)
            owner = owner.partner or owner
            if owner is driver:
                return True
            owner = owner.waits_at.worker if owner.waits_at is not None else None
        return False

    def _wait_for_room(self, size: int = 1) -> None:
        """Make the pusher wait until there is room: here, or at its next safe point, if it is a worker."""
        driver = current_driver()
        if self.left:
            self.dropped += self.clear()
        elif driver is None:
            self._wait_outside(size)
        elif driver is self.worker:
            self._spill(driver)
        elif not driver.defer(self):
            while self.keeps_out(driver, size):
                driver.wait_for(lambda: self._has_room(size) or driver.hurried or driver.wake not in self._pushers)

    def _wait_outside(self, size: int) -> None:
        """A thread that is no driver (a test, an embedding program) waits on a signal of its own."""
        signal = Signal()
        while not self._has_room(size):
            self._line_up(signal.set)
            if not self._has_room(size):
                signal.wait()

    def _has_room(self, size: int) -> bool:
        return self.left or not self.entries or self.depth + size <= self.capacity

    def _line_up(self, wake: Callable[[], None]) -> None:
        with self._lock:
            if wake not in self._pushers:
                self._pushers.append(wake)

    def _let_in(self) -> None:
        """Wake the pushers that wait, if there is room; called when something was taken."""
        if self.depth < self.capacity:
            with self._lock:
                waiting, self._pushers = self._pushers, []
            for wake in waiting:
                wake()

    def _spill(self, driver: Driver) -> None:
        """Let *driver*, which would wait for itself, exceed the capacity, up to a bound."""
        if len(self.entries) > SPILL + self.capacity:
            self.trouble = f"the cycle through the queue {self.name!r} makes more items than it takes"
            self.alarm()
            driver.hold(self.trouble, until=lambda: driver.ending)

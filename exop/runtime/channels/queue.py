"""`queue`: a bounded buffer drained by a worker; the one channel that changes threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, ClassVar

from exop.errors import MeshError
from exop.model.items import EndOfStream, Punctuation
from exop.runtime.channel import Channel, Outlet
from exop.runtime.convert import weight
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.entry import NOWHERE, Entry, fan_out
from exop.runtime.packet import Kind, Packet

#: A queue that its own worker fills (a cycle) may hold so many times its capacity before the worker gives up.
SPILL = 1000


class QueueChannel(Channel):
    """Keeps up to `capacity` items; a full queue parks its pusher (back-pressure), nothing is dropped.

    The capacity may be exceeded by the items in hand when a pusher has to reach its safe point, and by what a worker
    pushes into a queue that it drains itself; a batch counts as its items, and a batch larger than the queue enters
    an empty one.
    """

    kind: ClassVar[str] = "queue"
    serial: ClassVar[bool] = False
    buffered: ClassVar[bool] = True

    def __init__(self, name: str, *, capacity: int = 1024) -> None:
        super().__init__(name)
        if capacity < 1:
            raise MeshError(f"the channel {name!r} has a capacity of {capacity}: a queue holds at least 1 item")
        self.capacity = capacity
        self.entries: deque[Any] = deque()
        self.worker: Driver | None = None
        self.deliver: Entry = NOWHERE
        self.taken = 0
        self.batches = 0
        self.waits: deque[float] = deque(maxlen=512)
        self.trouble: str | None = None
        self._extra = 0
        self._lock = threading.Lock()
        self._pushers: list[Callable[[], None]] = []

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Producers are bound to the buffer; the worker delivers to *outlets*."""
        self.deliver = fan_out([outlet.entry for outlet in outlets])
        entries, append, capacity = self.entries, self.entries.append, self.capacity

        def push(item: Any) -> None:
            if len(entries) + self._extra >= capacity:
                self._wait_for_room()
            append(item)
            worker = self.worker
            if worker is not None and worker.sleeping:
                worker.wake()

        def push_probe(item: Any) -> None:
            driver = current_driver()
            push(Packet(Kind.PROBE, item, driver.origin if driver else 0.0, time.perf_counter()))

        def push_batch(batch: Any) -> None:
            size = weight(batch)
            if not size:
                return
            if entries and len(entries) + self._extra + size > capacity:
                self._wait_for_room(size)
            with self._lock:
                self._extra += size - 1
            push_now(Packet(Kind.BATCH, batch))

        def push_now(packet: Packet) -> None:
            append(packet)
            worker = self.worker
            if worker is not None and worker.sleeping:
                worker.wake()

        def control(mark: Punctuation | EndOfStream) -> None:
            push_now(Packet(Kind.CONTROL, mark))

        return Entry(push, push_batch, control, probe=Entry(push_probe, push_batch, control))

    @property
    def depth(self) -> int:
        """How many items wait."""
        return max(0, len(self.entries) + self._extra)

    @property
    def overfull(self) -> bool:
        """More waits than the capacity: its worker has pushed into it."""
        return len(self.entries) + self._extra > self.capacity

    def drain(self, driver: Driver, most: int) -> int:
        """Deliver up to *most* entries; each one begins with a safe point. Returns how many."""
        popleft, push = self.entries.popleft, self.deliver.push
        for moved in range(most):
            probe = False
            driver.busy = True
            if driver.attention:
                probe = driver.attend()
                popleft, push = self.entries.popleft, self.deliver.push
            try:
                item = popleft()
            except IndexError:
                driver.rest()
                return moved
            if type(item) is Packet:
                self._unpack(driver, item)
            else:
                if self._pushers:
                    self._let_in()
                self.taken += 1
                driver.count += 1
                if probe:
                    self._measure(driver, item, time.perf_counter())
                else:
                    push(item)
            driver.busy = False
        driver.rest()
        return most

    def take(self, most: int) -> list[Any]:
        """Take up to *most* entries without delivering them: what a pulling port does."""
        found: list[Any] = []
        while len(found) < most and self.entries:
            found.append(self.entries.popleft())
            if type(found[-1]) is Packet and found[-1].kind is Kind.BATCH:
                self._lighten(weight(found[-1].payload))
        if self._pushers:
            self._let_in()
        return found

    def metrics(self) -> dict[str, int | float | str]:
        """Depth and capacity; what entered is what was taken and what waits."""
        return {"depth": self.depth, "capacity": self.capacity, "items": self.taken + self.depth}

    def capture(self) -> Mapping[str, Any]:
        """The entries that wait."""
        return {"entries": list(self.entries), "extra": self._extra}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Put back the entries that waited."""
        self.entries.extend(held["entries"])
        self._extra = held["extra"]

    def _unpack(self, driver: Driver, packet: Packet) -> None:
        if packet.kind is Kind.BATCH:
            size = weight(packet.payload)
            self._lighten(size)
            self._let_in()
            self.taken += size
            self.batches += 1
            driver.rows += size
            self.deliver.push_batch(packet.payload)
        elif packet.kind is Kind.CONTROL:
            self._let_in()
            self.deliver.control(packet.payload)
        else:
            self._let_in()
            self.waits.append(time.perf_counter() - packet.stored)
            self.taken += 1
            driver.count += 1
            self._measure(driver, packet.payload, packet.origin)

    def _measure(self, driver: Driver, item: Any, origin: float) -> None:
        driver.origin = origin
        driver.probes += 1
        self.deliver.probe.push(item)

    def _lighten(self, size: int) -> None:
        with self._lock:
            self._extra -= size - 1

    def _let_in(self) -> None:
        if len(self.entries) + self._extra < self.capacity:
            with self._lock:
                waiting, self._pushers = self._pushers, []
            for wake in waiting:
                wake()

    def _line_up(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._pushers.append(wake)

    def _wait_for_room(self, size: int = 1) -> None:
        """Park the pusher until there is room, or its driver has to reach a safe point."""
        driver = current_driver()
        if driver is None:
            self._wait_outside(size)
        elif driver is self.worker:
            self._spill(driver)
        else:
            while not (self._has_room(size) or driver.closed):
                self._line_up(driver.wake)
                driver.wait_for(lambda: self._has_room(size) or driver.closed or driver.wake not in self._pushers)

    def _has_room(self, size: int) -> bool:
        return not self.entries or len(self.entries) + self._extra + size <= self.capacity

    def _wait_outside(self, size: int) -> None:
        """A thread that is no driver (a test, an embedding program) waits on a signal of its own."""
        signal: SimpleQueue[None] = SimpleQueue()
        while not self._has_room(size):
            self._line_up(lambda: signal.put(None))
            if not self._has_room(size):
                signal.get()

    def _spill(self, driver: Driver) -> None:
        """A worker never waits for a queue that it drains itself: it exceeds the capacity, up to a bound."""
        if len(self.entries) > SPILL * max(self.capacity, 1024):
            self.trouble = f"the cycle through the queue {self.name!r} makes more items than it takes"
            driver.hold(self.trouble, until=lambda: driver.ending)

"""`queue`: a bounded buffer drained by a worker; the one channel that changes threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from exop.errors import MeshError
from exop.model.items import EndOfStream, Punctuation
from exop.runtime.channel import Channel, Outlet
from exop.runtime.convert import cut, weight
from exop.runtime.drivers.base import Driver, Signal, current_driver
from exop.runtime.entry import NOWHERE, Entry, fan_out
from exop.runtime.packet import Kind, Packet
from exop.runtime.unwind import Unwind, Work

#: So many entries beyond its capacity may a queue hold that its own worker fills (a cycle), before the worker gives up.
SPILL = 1_000_000
#: Held while it is found out whether drivers would wait for room in a circle.
_WAITING = threading.Lock()


class QueueChannel(Channel):
    """Keeps up to `capacity` items; a full queue parks its pusher (back-pressure), nothing is dropped.

    A worker puts one entry into a full queue, and waits for room at its next safe point, without a thread; it waits
    inside the call for the second one. The capacity may be exceeded by that, by in-flight items when a pusher has to
    reach its safe point, and by what a driver would have to wait for itself for: it drains the queue, or one for which
    those who drain it wait. A batch counts as its items, and a batch larger than the queue enters an empty one; a
    punctuation counts as an item.

    Attributes:
        alarm: Called when it has.
        left: The only one who took items has ended: nothing is kept any more.
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
        self.alarm: Callable[[], None] = lambda: None
        self.marks = 0
        self.left = False
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
            store(batch, 0.0, 0.0)

        def probe_batch(batch: Any) -> None:
            driver = current_driver()
            store(batch, driver.origin if driver else 0.0, time.perf_counter())

        def store(batch: Any, origin: float, stored: float) -> None:
            size = weight(batch)
            if not size:
                return
            if entries and len(entries) + self._extra + size > capacity:
                self._wait_for_room(size)
            with self._lock:
                self._extra += size - 1
            append_now(Packet(Kind.BATCH, batch, origin, stored))

        def append_now(packet: Packet) -> None:
            append(packet)
            worker = self.worker
            if worker is not None and worker.sleeping:
                worker.wake()

        def control(mark: Punctuation | EndOfStream) -> None:
            if isinstance(mark, Punctuation) and len(entries) + self._extra >= capacity:
                self._wait_for_room()
            append_now(Packet(Kind.CONTROL, mark))

        return Entry(push, push_batch, control, probe=Entry(push_probe, probe_batch, control))

    @property
    def depth(self) -> int:
        """How many items wait."""
        return max(0, len(self.entries) + self._extra)

    @property
    def overfull(self) -> bool:
        """More waits than the capacity: its worker has pushed into it."""
        return len(self.entries) + self._extra > self.capacity

    def drain(self, driver: Driver, most: int) -> int:
        """Deliver up to *most* entries; each one begins with a safe point. Returns how many.

        Stops when the queue was given to another driver meanwhile.
        """
        if self.worker is not driver or (driver.only is not None and self not in driver.only):
            return 0
        popleft, push = self.entries.popleft, self.deliver.push
        for moved in range(most):
            probe = False
            driver.busy = True
            if driver.attention:
                probe = driver.attend()
                if self.worker is not driver or (driver.only is not None and self not in driver.only):
                    driver.rest()
                    return moved
                popleft, push = self.entries.popleft, self.deliver.push
            try:
                item = popleft()
            except IndexError:
                driver.rest()
                return moved
            try:
                if type(item) is Packet:
                    self._unpack(driver, item, probe=probe)
                else:
                    if self._pushers:
                        self._let_in()
                    self.taken += 1
                    driver.count += 1
                    if probe:
                        self._measure(driver, item, 0.0)
                    else:
                        push(item)
            except Unwind:
                raise
            except BaseException as error:
                raise self._back(driver, item, error) from error
            driver.busy = False
        driver.rest()
        return most

    def _back(self, driver: Driver, entry: Any, error: BaseException) -> Unwind:
        """Put back an entry that a defect has kept from being delivered."""
        payload = entry.payload if type(entry) is Packet else entry
        unwound = driver.unwinding(error, Work(NOWHERE, "push", payload))
        if type(entry) is Packet and entry.kind is Kind.BATCH:
            self._lighten(1 - weight(payload))
        self.entries.appendleft(entry)
        return unwound

    def take(self, most: int) -> list[Any]:
        """Take entries that hold up to *most* items without delivering them: what a pulling port does.

        A control item is taken alone: what came before it is to be dealt with first.
        """
        found: list[Any] = []
        while most > 0 and self.entries:
            entry = self.entries.popleft()
            packed = type(entry) is Packet
            if packed and entry.kind is Kind.CONTROL:
                if found:
                    self.entries.appendleft(entry)
                else:
                    self.marks += 1
                    found.append(entry)
                break
            size = 1
            if packed and entry.kind is Kind.BATCH:
                size = self._cut(entry, most)
            most -= size
            self.taken += size
            found.append(entry)
        if self._pushers:
            self._let_in()
        return found

    def leave(self) -> None:
        """Drop the items that wait, and those that come: the consumer has ended."""
        self.left = True
        self.clear()
        self._let_in()

    def metrics(self) -> dict[str, int | float | str]:
        """Depth and capacity; the items that entered are those that were taken and those that wait."""
        marks = sum(type(entry) is Packet and entry.kind is Kind.CONTROL for entry in list(self.entries))
        return {"depth": self.depth, "capacity": self.capacity, "items": self.taken + self.depth - marks}

    def capture(self) -> Mapping[str, Any]:
        """The entries that wait, each with its kind (`item`, `batch`, `control`), and whether anybody takes them."""
        return {"entries": [_plain(entry) for entry in list(self.entries)], "left": self.left}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Put back the entries that waited, behind those that wait."""
        self.left = self.left or bool(held.get("left"))
        self.entries.extend(map(self._packed, held["entries"]))
        if self.worker is not None:
            self.worker.wake()

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every item that waits."""
        for place, entry in enumerate(self.entries):
            if type(entry) is not Packet:
                self.entries[place] = replace(entry)
            elif entry.kind is not Kind.CONTROL:
                entry.payload = replace(entry.payload)

    def put_first(self, entries: list[tuple[str, Any]]) -> None:
        """Put entries, as `capture` gives them, before those that wait; called while nothing is in flight."""
        self.entries.extendleft(map(self._packed, reversed(entries)))
        if self.worker is not None:
            self.worker.wake()

    def _packed(self, entry: tuple[str, Any]) -> Any:
        kind, payload = entry
        if kind == "item":
            return payload
        if kind == "batch":
            self._lighten(1 - weight(payload))
        return Packet(Kind.BATCH if kind == "batch" else Kind.CONTROL, payload)

    def _unpack(self, driver: Driver, packet: Packet, *, probe: bool) -> None:
        if packet.kind is Kind.BATCH:
            self._deliver_batch(driver, packet, probe=probe)
        elif packet.kind is Kind.CONTROL:
            self.marks += 1
            self._let_in()
            self.deliver.control(packet.payload)
        else:
            self._let_in()
            self.waits.append(time.perf_counter() - packet.stored)
            self.taken += 1
            driver.count += 1
            self._measure(driver, packet.payload, packet.origin)

    def _deliver_batch(self, driver: Driver, packet: Packet, *, probe: bool) -> None:
        size = weight(packet.payload)
        self._lighten(size - 1)
        self._let_in()
        self.taken += size
        self.batches += 1
        driver.rows += size
        if packet.stored:
            self.waits.append(time.perf_counter() - packet.stored)
        if packet.stored or probe:
            driver.origin = packet.origin
            self.deliver.probe.push_batch(packet.payload)
        else:
            self.deliver.push_batch(packet.payload)

    def _cut(self, packet: Packet, most: int) -> int:
        """Leave what is beyond *most* items of a batch in the queue; returns how many are taken."""
        batch, size = packet.payload, weight(packet.payload)
        if size <= most:
            self._lighten(size - 1)
            return size
        first, rest = cut(batch, 0, most), cut(batch, most, size)
        packet.payload = first
        self._lighten(most)
        self.entries.appendleft(Packet(Kind.BATCH, rest, packet.origin, packet.stored))
        return most

    def _measure(self, driver: Driver, item: Any, origin: float) -> None:
        driver.origin = origin
        driver.probes += 1
        self.deliver.probe.push(item)

    def _lighten(self, items: int) -> None:
        with self._lock:
            self._extra -= items

    def clear(self) -> None:
        """Forget what waits."""
        try:
            while True:
                entry = self.entries.popleft()
                if type(entry) is Packet and entry.kind is Kind.BATCH:
                    self._lighten(weight(entry.payload) - 1)
        except IndexError:
            return

    def _let_in(self) -> None:
        if len(self.entries) + self._extra < self.capacity:
            with self._lock:
                waiting, self._pushers = self._pushers, []
            for wake in waiting:
                wake()

    def keeps_out(self, driver: Driver, size: int = 1) -> bool:
        """Whether *driver* has to wait for room; it is woken when there may be some.

        It must not wait for itself: for a queue whose driver waits, in the end, for one that *driver* drains.
        """
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
        """Whether the one who drains this queue waits, in the end, for *driver*."""
        seen: set[Driver] = set()
        owner = self.worker
        while owner is not None and owner not in seen:
            seen.add(owner)
            owner = owner.partner or owner
            if owner is driver:
                return True
            owner = owner.waits_at.worker if owner.waits_at is not None else None
        return False

    def _line_up(self, wake: Callable[[], None]) -> None:
        with self._lock:
            if wake not in self._pushers:
                self._pushers.append(wake)

    def _wait_for_room(self, size: int = 1) -> None:
        """Make the pusher wait until there is room: here, or at its next safe point, if it is a worker."""
        driver = current_driver()
        if self.left:
            self.clear()
        elif driver is None:
            self._wait_outside(size)
        elif driver is self.worker:
            self._spill(driver)
        elif not driver.defer(self):
            while self.keeps_out(driver, size):
                driver.wait_for(lambda: self._has_room(size) or driver.hurried or driver.wake not in self._pushers)

    def _has_room(self, size: int) -> bool:
        return self.left or not self.entries or len(self.entries) + self._extra + size <= self.capacity

    def _wait_outside(self, size: int) -> None:
        """A thread that is no driver (a test, an embedding program) waits on a signal of its own."""
        signal = Signal()
        while not self._has_room(size):
            self._line_up(signal.set)
            if not self._has_room(size):
                signal.wait()

    def _spill(self, driver: Driver) -> None:
        """A driver never waits for itself: it exceeds the capacity, up to a bound."""
        if len(self.entries) > SPILL + self.capacity:
            self.trouble = f"the cycle through the queue {self.name!r} makes more items than it takes"
            self.alarm()
            driver.hold(self.trouble, until=lambda: driver.ending)


def _plain(entry: Any) -> tuple[str, Any]:
    """An entry as plain data; that it was to be measured is forgotten."""
    if type(entry) is not Packet:
        return "item", entry
    return {Kind.BATCH: "batch", Kind.CONTROL: "control"}.get(entry.kind, "item"), entry.payload

"""`queue`: a bounded buffer drained by a worker; the one channel that changes threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from exop.model.items import EndOfStream, Punctuation
from exop.runtime.channel import Outlet
from exop.runtime.channels.buffered import Buffered
from exop.runtime.convert import Kind, Packet, cut, items_of, plain, weight
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.entry import NOWHERE, Entry, Unwind, Way, Work, fan_out
from exop.runtime.metrics import Flow


class QueueChannel(Buffered):
    """Keeps up to `capacity` items in memory.

    A batch counts as its items, and a batch larger than the queue enters an empty one; a punctuation counts as an item.

    Attributes:
        taken: Items that were delivered, or taken by a port that pulls.
    """

    kind: ClassVar[str] = "queue"

    def __init__(self, name: str, *, capacity: int = 1024) -> None:
        super().__init__(name, capacity=capacity)
        self.entries: deque[Any] = deque()
        self.taken = self.marks = 0
        self.flow = Flow(lambda: self.taken - self._apart)
        self._apart = 0  # of those taken, the ones that the next place counts: in batches; or before a recovery
        self._extra = 0
        self._behind: list[Entry] = [NOWHERE]

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Producers are bound to the buffer; the worker delivers to *outlets*."""
        self._behind[0] = self.deliver = fan_out([outlet.entry for outlet in outlets])
        self.flow.lead_into(self.deliver.tally)
        entries, append, capacity = self.entries, self.entries.append, self.capacity

        def push(item: Any) -> None:
            if len(entries) + self._extra >= capacity:
                self._wait_for_room()
            append(item)
            worker = self.worker
            if worker is not None and worker.sleeping:
                worker.wake()

        def push_probe(item: Any) -> None:
            push(Packet(Kind.PROBE, item, *_moments()))

        def probe_batch(batch: Any) -> None:
            push_batch(batch, _moments())

        def push_batch(batch: Any, moments: tuple[float, float] = (0.0, 0.0)) -> None:
            size = weight(batch)
            if not size:
                return
            if entries and len(entries) + self._extra + size > capacity:
                self._wait_for_room(size)
            self._lighten(1 - size)
            append_now(Packet(Kind.BATCH, batch, *moments))

        def append_now(packet: Packet) -> None:
            append(packet)
            worker = self.worker
            if worker is not None and worker.sleeping:
                worker.wake()

        def control(mark: Punctuation | EndOfStream) -> None:
            if isinstance(mark, Punctuation) and len(entries) + self._extra >= capacity:
                self._wait_for_room()
            append_now(Packet(Kind.CONTROL, mark))

        probe = Entry(push_probe, probe_batch, control, store=self._store, behind=self._behind)
        return Entry(push, push_batch, control, probe=probe, store=self._store, behind=self._behind)

    def _store(self, way: Way, payload: Any) -> None:
        self.restore({"entries": [({"push": "item", "push_batch": "batch"}.get(way, "control"), payload)]})

    @property
    def depth(self) -> int:
        """How many items wait."""
        return max(0, len(self.entries) + self._extra)

    @property
    def cursor(self) -> int:
        """How many items and control items were taken, or delivered."""
        return self.taken + self.marks

    def drain(self, driver: Driver, most: int) -> int:
        """Deliver up to *most* entries; each one begins with a safe point. Returns how many.

        Stops when the queue was given to another driver meanwhile.
        """
        if self.worker is not driver or (driver.only is not None and self not in driver.only):
            return 0
        popleft, push = self.entries.popleft, self.deliver.uncounted
        for moved in range(most):
            probe = False
            driver.busy = True
            if driver.attention:
                probe = driver.attend()
                if self.worker is not driver or (driver.only is not None and self not in driver.only):
                    driver.rest()
                    return moved
                popleft, push = self.entries.popleft, self.deliver.uncounted
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
        (kind, payload), size = plain(entry), items_of(entry)
        unwound = driver.unwinding(error, Work(NOWHERE, "push", payload))
        self.taken -= size
        self.marks -= kind == "control"
        if kind == "batch":
            self._lighten(1 - size)
            self._apart -= size
            if self.deliver.tally is not None:
                self.deliver.tally.give_back(size)
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

    def metrics(self) -> dict[str, int | float | str]:
        """Depth and capacity; the items that entered are those that were taken and those that wait."""
        items = self.taken + self.dropped + sum(map(items_of, list(self.entries)))
        return {"depth": self.depth, "capacity": self.capacity, "items": items, "dropped": self.dropped}

    def capture(self) -> Mapping[str, Any]:
        """Return the entries, each with its kind (`item`, `batch`, `control`), the counts, and whether it is left."""
        entries = [plain(entry) for entry in list(self.entries)]
        return {"entries": entries, "left": self.left, "taken": self.taken, "dropped": self.dropped}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Put back the entries that waited, behind those that wait."""
        self.left = self.left or bool(held.get("left"))
        taken = held.get("taken", 0)
        self.taken, self._apart = self.taken + taken, self._apart + taken
        self.dropped += held.get("dropped", 0)
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
        self.taken, self._apart = self.taken + size, self._apart + size
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
        self.deliver.probe.uncounted(item)

    def _lighten(self, items: int) -> None:
        with self._lock:
            self._extra -= items

    def clear(self) -> int:
        """Forget what waits; return how many items that were."""
        cleared = 0
        try:
            while True:
                size = items_of(self.entries.popleft())
                self._lighten(max(size, 1) - 1)
                cleared += size
        except IndexError:
            return cleared


def _moments() -> tuple[float, float]:
    """When the item under way has left its source, and now."""
    driver = current_driver()
    return driver.origin if driver else 0.0, time.perf_counter()

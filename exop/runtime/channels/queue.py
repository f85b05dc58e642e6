"""`queue`, and the base of the kinds in which items wait for another driver; a full queue makes its pusher wait."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeAlias

from exop.errors import MeshError
from exop.model.items import EndOfStream, Punctuation
from exop.model.meshes.partitions import PARTITIONS
from exop.runtime.channels.base import Channel, Outlet
from exop.runtime.channels.partitioned import Partitioning
from exop.runtime.dataflow.batches import cut, weight
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Method, Packet, Unwind, count_items, fan_out, unpacked
from exop.runtime.dataflow.metrics import Flow
from exop.runtime.drivers.base import Driver, Signal, current_driver

#: The number of entries beyond its capacity that a channel accepts if a driver would otherwise wait for itself.
SPILL = 1_000_000
#: An entry in the form of `capture`: `push`, `push_batch` or `control`, and the payload.
Waiting: TypeAlias = tuple[Method, Any]


class Buffered(Channel):
    """The base of kinds that some drivers fill and one drains. `tests/contract` has the rules for a kind.

    No item is dropped: at `capacity`, pushers wait (back-pressure). A worker may push one entry into a full channel
    and then waits for room at its next safe point, without a thread; for a second entry it waits inside the call. The
    capacity is also exceeded by in-flight items of a pusher that has to reach its safe point, and if a driver would
    wait for itself, because it drains this channel, or one for which the worker of this channel waits in the end.

    Attributes:
        capacity: The number of items that may wait.
        entries: The waiting entries, in order.
        worker: The driver that drains the channel; the channel wakes it when it sleeps.
        taker: Without a worker, the driver that calls the slet which pulls from the channel.
        deliver: The entry of the consumers, for the worker.
        unread: Whether only a channel without consumers follows, which stores the items.
        left, dropped: Whether the only consumer has ended, and the number of items dropped for that reason.
        waits: The seconds for which measured items have waited.
        alarm: Called when the channel is in trouble.
        feeders: The names of the outboxes on this host from which items come back to this channel, an inbox.
    """

    serial: ClassVar[bool] = False
    buffered: ClassVar[bool] = True
    feeders: Sequence[str] = ()
    entries: Collection[Any]

    def __init__(self, name: str, *, capacity: int) -> None:
        super().__init__(name)
        if capacity < 1:
            raise MeshError(f"the channel {name!r} has a capacity of {capacity}: a queue holds at least 1 item")
        self.capacity = capacity
        self.worker: Driver | None = None
        self.taker: Driver | None = None
        self.deliver: Entry = NOWHERE
        self.unread = False
        self.left, self.dropped = False, 0
        self.waits: deque[float] = deque(maxlen=512)
        self.alarm: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._pushers: list[Callable[[], None]] = []

    @property
    def trouble(self) -> str | None:
        """The problem of the channel; what its reader did wrong is none any more when that has been replaced."""
        text, reader = self._trouble
        return text if reader in (None, self.worker or self.taker) else None

    @trouble.setter
    def trouble(self, text: str | None) -> None:
        """Note a problem, whoever reads; `None`: there is none any more."""
        self._trouble: tuple[str | None, Driver | None] = text, None

    @property
    @abstractmethod
    def depth(self) -> int:
        """The number of waiting items."""

    @property
    @abstractmethod
    def cursor(self) -> int:
        """The number of items and control items taken or delivered so far."""

    def drain(self, driver: Driver, most: int) -> int:
        """Deliver up to *most* entries, each after a safe point, while *driver* drains the channel; return how many."""
        return 0

    def holds(self) -> float:
        """For how many seconds the waiting entries still wait for further ones; 0: they are to be delivered."""
        return 0.0

    def take(self, most: int) -> list[Any]:
        """Remove and return entries with up to *most* items, for a pulled port; a control item is returned alone."""
        return []

    @abstractmethod
    def store(self, method: Method, payload: Any) -> None:
        """Store an in-flight item without waiting for room."""

    @abstractmethod
    def put_first(self, entries: list[Waiting]) -> None:
        """Insert entries, in the form of `capture`, before those that wait. Called while no item is in flight."""

    @abstractmethod
    def clear(self) -> int:
        """Drop the waiting entries; return the number of their items."""

    def leave(self) -> None:
        """Drop the waiting items and all later ones, since the consumer has ended."""
        self.left = True
        self.dropped += self.clear()
        self._let_in()

    def keeps_out(self, driver: Driver, size: int = 1) -> bool:
        """Whether *driver* has to wait for room; if so, the channel wakes it later. A driver never waits for itself."""
        if not (self._has_room(size) or driver.ignores_capacity):
            # Told first, then checked: of drivers that come to wait for each other at the same time, one sees that.
            driver.waits_at = self
            driver.inlets.kept_out.add(driver)
            self._line_up(driver.wake)
            if driver in driver.waiting():
                self._spill(driver)
            elif not self._has_room(size):
                return True
        driver.waits_at = None
        driver.inlets.kept_out.discard(driver)
        return False

    def _wait_for_room(self, size: int = 1) -> None:
        """Make the pusher wait for room: here, or, if it is a worker, at its next safe point."""
        driver = current_driver()
        if self.left:
            self.dropped += self.clear()
        elif driver is None:  # pushed by a test, or an embedding program
            signal = Signal()
            while not self._has_room(size):
                self._line_up(signal.set)
                if not self._has_room(size):
                    signal.wait()
        elif driver is self.worker:
            self._spill(driver)
        elif not driver.defer(self):
            while self.keeps_out(driver, size):
                driver.wait_for(
                    lambda: self._has_room(size) or driver.ignores_capacity or driver.wake not in self._pushers
                )
            if driver.ignores_capacity:
                driver.overfill(self)

    def _has_room(self, size: int) -> bool:
        return self.left or not self.entries or self.depth + size <= self.capacity

    def _line_up(self, wake: Callable[[], None]) -> None:
        with self._lock:
            if wake not in self._pushers:
                self._pushers.append(wake)
        if self.worker is not None and self in self.worker.queues:  # it may wait for more items, or at another queue
            self._wake_worker()

    def _wake_worker(self) -> None:
        if (worker := self.worker) is not None and worker.sleeping:
            worker.wake()

    def _let_in(self) -> None:
        """Wake all that wait for room if there is some. Called when an entry was removed."""
        if self.depth < self.capacity:
            with self._lock:
                waiting, self._pushers = self._pushers, []
            for wake in waiting:
                wake()

    def check_again(self, driver: Driver) -> None:
        """Make a waiting pusher check whether it still has to wait: it alone, as others may make this one check."""
        with self._lock:
            self._pushers = [wake for wake in self._pushers if wake != driver.wake]
        driver.wake()

    def _spill(self, driver: Driver) -> None:
        """Let *driver*, which would wait for itself, exceed the capacity up to a limit."""
        if len(self.entries) > SPILL + self.capacity:
            where, reader = f"the queue {self.name!r}", self.worker or self.taker
            text = f"the cycle through {where} produces more items than it consumes"
            if reader is not None and reader.sleeping:
                names = ", ".join(sorted(repr(queue.name) for queue in reader.queues))
                text = (
                    f"{reader.name} takes nothing from {where} until something arrives in {names}, and {driver.name} "
                    f"fills both; replace it by a slet that pulls in turn, or begin again with room for all in {where}"
                )
            self._trouble = text, reader
            self.alarm()
            driver.hold(text, until=lambda: driver.ending or (self.worker or self.taker) is not reader)
            self.trouble = None


class QueueChannel(Buffered):
    """Stores up to `capacity` items in memory.

    A batch counts as its items, and a batch larger than the queue enters an empty one; a punctuation counts as an item.
    Consumers in a group share the partitions of a channel: the field `by` of an item assigns it to one.

    Attributes:
        taken, marks: The numbers of items, and of control items, that were delivered or pulled.
    """

    kind: ClassVar[str] = "queue"
    passes_references: ClassVar[bool] = True

    def __init__(self, name: str, *, capacity: int = 1024, by: str | None = None, partitions: int = PARTITIONS) -> None:
        super().__init__(name, capacity=capacity)
        self.partitioning = None if by is None else Partitioning(name, by, partitions)
        self.entries: deque[Any] = deque()
        self.taken = self.marks = 0
        self.flow = Flow(lambda: self.taken - self._apart)
        self._apart = 0  # the part of `taken` that the next place counts (in batches), or that a recovery has added
        self._extra = 0  # items in batches beyond the first of each
        self._behind: list[Entry] = [NOWHERE]
        self._held_since = 0.0  # the time from which items wait for a batch of the useful size

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Bind producers to the buffer; the worker delivers to *outlets*."""
        self._behind[0] = self.deliver = fan_out([outlet.entry for outlet in outlets])
        self.flow.lead_into(self.deliver.tally)
        entries, append, capacity = self.entries, self.entries.append, self.capacity

        def push(item: Any) -> None:
            if len(entries) + self._extra >= capacity:
                self._wait_for_room()
            append(item)
            if (worker := self.worker) is not None and worker.sleeping and (not self._held_since or self._suffices()):
                worker.wake()

        def push_probe(item: Any) -> None:
            push(Packet("push", item, *_moments()))

        def push_batch(batch: Any, moments: tuple[float, float] = (0.0, 0.0)) -> None:
            if not (size := weight(batch)):
                return
            if entries and len(entries) + self._extra + size > capacity:
                self._wait_for_room(size)
            self._lighten(1 - size)
            append_now(Packet("push_batch", batch, *moments))

        def append_now(packet: Packet) -> None:
            append(packet)
            self._wake_worker()

        def control(mark: Punctuation | EndOfStream) -> None:
            if isinstance(mark, Punctuation) and len(entries) + self._extra >= capacity:
                self._wait_for_room()
            append_now(Packet("control", mark))

        leading = partial(Entry, control=control, store=self.store, behind=self._behind)
        entry = leading(push, push_batch)
        entry.probe = leading(push_probe, lambda batch: push_batch(batch, _moments()))
        return entry

    def close(self) -> None:
        """Let the next place no longer count from this one, which would keep the queue in memory."""
        self.flow.lead_into(None)

    def store(self, method: Method, payload: Any) -> None:
        """Store an in-flight item without waiting for room."""
        self._put(self.entries.extend, [(method if method in ("push", "push_batch") else "control", payload)])

    @property
    def depth(self) -> int:
        """The number of waiting items."""
        return max(0, len(self.entries) + self._extra)

    @property
    def cursor(self) -> int:
        """The number of items and control items taken or delivered."""
        return self.taken + self.marks

    def drain(self, driver: Driver, most: int) -> int:
        """Deliver up to *most* entries, each after a safe point."""
        if not self._is_drained_by(driver):
            return 0
        next_entry, push = self._source()
        for moved in range(most):
            probe = False
            driver.busy = True
            if driver.attention:
                probe = driver.attend()
                if not self._is_drained_by(driver):
                    driver.rest()
                    return moved
                next_entry, push = self._source()
            try:
                item = next_entry()
            except IndexError:
                driver.rest()
                return moved
            try:
                if probe and type(item) is not Packet:
                    item = Packet("push", item)
                if type(item) is Packet:
                    self._deliver_packet(driver, item, probe=probe)
                else:
                    if self._pushers:
                        self._let_in()
                    self.taken += 1
                    driver.count += 1
                    push(item)
            except Unwind:
                raise
            except BaseException as error:
                raise self._back(driver, item, error) from error
            driver.busy = False
        driver.rest()
        return most

    def _source(self) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """Return the function that removes the next entry, or raises `IndexError`, and the one that takes an item."""
        return self._gathered if self.deliver.gathers else self.entries.popleft, self.deliver.uncounted

    def _gathered(self) -> Packet:
        """Remove waiting single items as one batch, or, if the first entry is none, this entry.

        Raises:
            IndexError: no entry waits, or the items wait for further ones.
        """
        if (entries := self.entries) and self.holds():
            raise IndexError
        self._held_since = 0.0
        batch, moments = list[Any](), (0.0, 0.0)
        while len(batch) < self.deliver.gathers and entries:
            if type(item := entries[0]) is Packet:
                if item.method != "push":
                    break
                moments = moments if moments[1] else (item.origin, item.stored)
                item = item.payload
            batch.append(item)
            entries.popleft()
        if not batch:
            first: Packet = entries.popleft()
            return first
        self._lighten(1 - len(batch))
        return Packet("push_batch", batch, *moments)

    def holds(self) -> float:
        """For how many seconds the waiting items still wait for a batch of the useful size; 0: they are delivered.

        They do not wait if they are enough, if a pusher waits for room, if a batch or a control item has arrived, or if
        the worker is to empty the queue.
        """
        longest, worker = self.deliver.max_wait, self.worker
        if longest <= 0 or worker is None or worker.ignores_capacity or worker.ending or worker.retired:
            return 0.0
        if self._suffices() or any(type(one) is Packet and one.method != "push" for one in list(self.entries)):
            return 0.0
        now = time.monotonic()
        self._held_since = self._held_since or now
        return max(0.0, self._held_since + longest - now)

    def _suffices(self) -> bool:
        """Whether single items need not wait for more."""
        return bool(self._pushers) or self.depth >= min(self.deliver.gathers, self.capacity)

    def _is_drained_by(self, driver: Driver) -> bool:
        return self.worker is driver and (driver.only is None or self in driver.only)

    def _deliver_packet(self, driver: Driver, packet: Packet, *, probe: bool) -> None:
        if packet.method == "control":
            self.marks += 1
            self._let_in()
            self.deliver.control(packet.payload)
            return
        size = count_items(packet.method, packet.payload)
        self._lighten(size - 1)
        self._let_in()
        self.taken += size
        if packet.stored:
            self.waits.append(time.perf_counter() - packet.stored)
        entry = self.deliver
        if probe or packet.stored:
            driver.origin, entry = packet.origin, entry.probe
        if packet.method == "push_batch":
            self._apart += size
            driver.rows += size
            entry.push_batch(packet.payload)
        else:
            driver.count += 1
            entry.uncounted(packet.payload)

    def _back(self, driver: Driver, entry: Any, error: BaseException) -> Unwind:
        """Put back an entry that was not delivered because of a defect."""
        method, payload = unpacked(entry)
        size = count_items(method, payload)
        unwound = driver.unwinding(error, InFlight(NOWHERE, "push", payload))
        self.taken -= size
        self.marks -= method == "control"
        if method == "push_batch":
            self._lighten(1 - size)
            self._apart -= size
            if self.deliver.tally is not None:
                self.deliver.tally.give_back(size)
        self.entries.appendleft(entry)
        return unwound

    def take(self, most: int) -> list[Any]:
        """Remove entries with up to *most* items; a control item alone, after the items before it are processed."""
        found: list[Any] = []
        while most > 0 and self.entries:
            entry = self.entries.popleft()
            method, payload = unpacked(entry)
            if method == "control":
                if found:
                    self.entries.appendleft(entry)
                else:
                    self.marks += 1
                    found.append(entry)
                break
            if (size := count_items(method, payload)) > most:  # the rest remains in the queue
                entry.payload, rest = cut(payload, 0, most), cut(payload, most, size)
                self.entries.appendleft(Packet("push_batch", rest, entry.origin, entry.stored))
                self._lighten(most)
                size = most
            elif method == "push_batch":
                self._lighten(size - 1)
            most -= size
            self.taken += size
            found.append(entry)
        if self._pushers:
            self._let_in()
        return found

    def metrics(self) -> dict[str, int | float | str]:
        """Return depth, capacity, and the numbers of items that have entered, and of those dropped."""
        items = self.taken + self.dropped + sum(count_items(*unpacked(entry)) for entry in list(self.entries))
        return {"depth": self.depth, "capacity": self.capacity, "items": items, "dropped": self.dropped}

    def capture(self) -> Mapping[str, Any]:
        """Return the entries, each with the method that takes it, the counts, and `left`."""
        counts = {"taken": self.taken, "dropped": self.dropped}
        return {"entries": [*map(unpacked, list(self.entries))], "left": self.left, **counts}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Append captured entries, and add the counts."""
        self.left = self.left or bool(held.get("left"))
        taken = held.get("taken", 0)
        self.taken, self._apart = self.taken + taken, self._apart + taken
        self.dropped += held.get("dropped", 0)
        self._put(self.entries.extend, held["entries"])

    def put_first(self, entries: list[Waiting]) -> None:
        """Insert captured entries before those that wait."""
        self._put(self.entries.extendleft, reversed(entries))

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every waiting item and batch; no entry is removed meanwhile, but others may arrive."""
        for place, entry in enumerate(list(self.entries)):
            if type(entry) is not Packet:
                self.entries[place] = replace(entry)
            elif entry.method != "control":
                entry.payload = replace(entry.payload)

    def clear(self) -> int:
        """Drop the waiting entries; return the number of their items."""
        cleared = 0
        with suppress(IndexError):
            while True:
                cleared += self._removed(self.entries.popleft())
        return cleared

    def _removed(self, entry: Any) -> int:
        """Count an entry that was removed, and not delivered, no longer; return the number of its items."""
        method, payload = unpacked(entry)
        size = count_items(method, payload)
        if method == "push_batch":
            self._lighten(size - 1)
        return size

    def _put(self, add: Callable[[Iterable[Any]], None], entries: Iterable[Waiting]) -> None:
        add(map(self._packed, entries))
        if self.worker is not None:
            self.worker.wake()

    def _packed(self, entry: Waiting) -> Any:
        method, payload = entry
        if method == "push_batch":
            self._lighten(1 - weight(payload))
        return payload if method == "push" else Packet(method, payload)

    def _lighten(self, items: int) -> None:
        with self._lock:
            self._extra -= items


def _moments() -> tuple[float, float]:
    """Return the time at which the in-flight item left its source, and the current time."""
    return getattr(current_driver(), "origin", 0.0), time.perf_counter()

"""The ports of a running slet, injected as `OutputPort` and `InputPort`: bound outputs, and pulled inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import get_ident
from typing import Any, Final, TypeAlias

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.ports import InputPort, OutputPort, PortSpec
from exop.runtime.channels.base import Channel
from exop.runtime.channels.queue import Buffered
from exop.runtime.channels.wire import Undecoded
from exop.runtime.dataflow.batches import to_items
from exop.runtime.dataflow.entry import NOWHERE, Entry, InFlight, Method, Packet, count_items, method_for, unpacked
from exop.runtime.drivers.base import Driver, Halted
from exop.runtime.drivers.source import EngineDriver, Puller

#: An increasing number, and a copy of the memento at that time.
Before: TypeAlias = tuple[int, Memento]


class BufferedOutput(OutputPort[Any]):
    """A further output port of a slet that the platform drives: items are *pushed* until the method has returned.

    The list *pushed* is the same one always: for most items, it is only tested whether it is empty.
    """

    def __init__(self, spec: PortSpec, fail: Callable[[BaseException], None]) -> None:
        self.spec = spec
        self.entry: Entry = NOWHERE
        self.rows = 0
        self._fail = fail
        self.pushed: Final[list[tuple[Method, Any]]] = []

    def push(self, item: Any) -> None:
        """Store one item until the method has returned."""
        self.pushed.append((method_for(item, whole=self.spec.type.form != "item"), item))

    def push_batch(self, batch: Any) -> None:
        """Store a batch until the method has returned."""
        self.pushed.append(("push_batch", batch))

    def end(self) -> None:
        """Do nothing: the platform ends the ports of the slets that it drives."""

    def fail(self, error: BaseException) -> None:
        """Report a failure downstream of this port."""
        self._fail(error)

    def unsent(self) -> list[tuple[Entry, Method, Any]]:
        """Take out and count the stored items."""
        pushed = self.pushed.copy()
        self.pushed.clear()
        for method, payload in pushed:
            self.rows += count_items(method, payload)
        return [(self.entry, method, payload) for method, payload in pushed]


class DrivenOutput(OutputPort[Any]):
    """An output port of an engine: every push is sent at once, and is a safe point."""

    def __init__(
        self, spec: PortSpec, driver: EngineDriver, fail: Callable[[BaseException], None], ended: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self.entry: Entry = NOWHERE
        self.rows = 0
        self._driver = driver
        self._fail = fail
        self._ended = ended
        self._over = False

    def push(self, item: Any) -> None:
        """Send one item, or a control item, waiting while there is no room."""
        if isinstance(item, EndOfStream):
            self.end()
        else:
            self._drive(method_for(item, whole=self.spec.type.form != "item"), item)

    def push_batch(self, batch: Any) -> None:
        """Send a batch, waiting while there is no room."""
        self._drive("push_batch", batch)

    def _drive(self, method: Method, payload: Any) -> None:
        self._driver.drive(partial(self._send, method, payload), partial(self.pending, method, payload))

    def pending(self, method: Method, payload: Any, begun: bool = False) -> InFlight:
        """Return a push as an in-flight item for another driver; it is counted now, unless the push was *begun*."""
        self.rows += 0 if begun else count_items(method, payload)
        return InFlight(self.entry, method, payload)

    def end(self) -> None:
        """Send the end of the stream, once."""
        if not self._over:
            self._over = True
            self._driver.drive(self._send_end)

    def fail(self, error: BaseException) -> None:
        """Report that the engine has failed."""
        self._fail(error)

    def _send_end(self, probe: bool) -> None:
        # The port counts as ended when the end was sent, since a suspended slet may delay it, and ports that are
        # connected meanwhile also have to get it.
        try:
            self._send("control", EndOfStream(), probe)
        finally:
            self._ended(self.spec.name)

    # The entry is read after the safe point, since the port may have been bound anew while the driver was parked.
    def _send(self, method: Method, payload: Any, probe: bool) -> None:
        # Counted here, where one thread at a time runs, since an engine may push from several threads.
        self.rows += count_items(method, payload)
        getattr(self.entry.probe if probe else self.entry, method)(payload)


class PulledInput(InputPort[Any]):
    """An input port from which the slet pulls: takes items from a queue, or reads the content of the channel.

    Args:
        name: The name of the port, preceded by the name of the node.
        driver: The driver that waits at this port, a `Puller` for an engine; `None` if the slet pulls inside of a
            method, which does not wait.
        seen: Called with a control item, when all items before it are processed.

    Attributes:
        before: For an atomic slet, copies the memento before a pull; else `None`.
        earlier: The queues that were connected before and still hold items.
        decoded: Decodes for the port what an inbox could not decode.
    """

    def __init__(self, spec: PortSpec, name: str, driver: Driver | None, seen: Callable[[str, Any], None]) -> None:
        self.spec = spec
        self.name = name
        self.channel: Channel | None = None
        self.queue: Buffered | None = None
        self.ended = False
        self.taken: deque[Any] = deque()
        self.driver = driver
        self.rows = 0
        self._seen = seen
        self.earlier: list[Buffered] = []
        self.before: Callable[[], Before | None] | None = None
        self.decoded: Callable[[Undecoded], Any | None] = lambda batch: None
        #: The items taken last, with the number of results sent and the memento before they were taken.
        self._last: tuple[list[Any], int, Before | None] = [], 0, None

    def pull(self, most: int = 1024, wait: bool = True) -> list[Any]:
        """Return the items that wait, at most *most*; if *wait*, at least one item unless the stream has ended."""
        if self.queue is None:
            self._await_content()
            return self.channel.read(self.name) if self.channel is not None else []
        if isinstance(self.driver, Puller):
            self.driver.thread = get_ident()
        try:
            found = self._pull(most, wait=wait)
            self._last = found, self._sent(), self.before() if self.before is not None else None
            return found
        finally:
            if isinstance(self.driver, Puller):
                self.driver.rest()

    def __iter__(self) -> Iterator[Any]:
        if self.queue is None:  # the content of the channel is read once
            yield from self.pull()
            return
        # The port stores items until the slet takes each of them, so that a replacement can continue there.
        while items := self.pull():
            self.taken.extend(items)
            while self.taken:
                item = self.taken.popleft()
                self._last = [item], self._sent(), self.before() if self.before is not None else None
                yield item

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.channel is None:
            raise AttributeError(name)
        self._await_content()
        try:
            return getattr(self.channel, name)
        except AttributeError:
            found = f"the {self.channel.kind} channel {self.channel.name!r}, which has no {name!r}"
            cure = "connect it to a table, a latch or another kind that has it"
            raise AttributeError(f"{self.name} reads {found}; {cure}") from None

    def _await_content(self) -> None:
        """Make an engine wait until the channel is filled; other slets are not called before that."""
        channel, driver = self.channel, self.driver
        if isinstance(driver, Puller) and channel is not None and not channel.filled:
            driver.hold(f"{self.name} waits for {channel.name!r} to be filled", lambda: channel.filled)
            driver.rest()

    def connect(self, channel: Channel, queue: Buffered | None) -> None:
        """Take items from *queue* (or read the channel) from now on, after the items in earlier queues of the port."""
        own = [self.queue] if self.queue is not None and self.queue is not self.channel else []
        self.earlier = [one for one in [*self.earlier, *own] if one.entries and one is not queue]
        self.channel, self.queue = channel, queue
        if queue is not None:
            queue.worker = self.driver

    def capture(self) -> dict[str, Any]:
        """Return the items that were taken and not processed yet as plain data, for `restore`."""
        earlier = [entry for queue in self.earlier for entry in queue.capture()["entries"]]
        return {"taken": list(self.taken), "ended": self.ended, "earlier": earlier}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Restore the result of `capture`. Called when the port is connected, and its queue is restored."""
        self.taken, self.ended = deque(held["taken"]), held["ended"]
        if self.queue is not None:
            self.queue.put_first(held["earlier"])

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Apply *replace* to every item that was taken and not processed yet."""
        self.taken.extend([replace(self.taken.popleft()) for _ in range(len(self.taken))])
        for queue in self.earlier:
            queue.exchange(replace)

    def put_back(self) -> tuple[list[Any], Before | None]:
        """Put back the last items, unless the slet has yielded results for them; return them and the memento before."""
        (items, sent, before), self._last = self._last, ([], 0, None)
        if sent != self._sent():
            return [], None
        self.taken.extendleft(reversed(items))
        return items, before

    def _sent(self) -> int:
        return self.driver.count + self.driver.rows if self.driver is not None else 0

    def succeed(self, before: PulledInput) -> None:
        """Continue in place of the replaced slet's port: with the items that it had taken, and its queues."""
        self.taken, self.ended, self.earlier = before.taken, before.ended, before.earlier
        self.channel, self.queue = before.channel, before.queue

    def open_anew(self, dropped: type | tuple[type, ...]) -> None:
        """Begin another stream behind the items in earlier queues; drop these control items of the former one there."""
        self.ended = False
        for queue in self.earlier:
            kept = [entry for entry in queue.capture()["entries"] if not isinstance(entry[1], dropped)]
            queue.clear()
            queue.put_first(kept)

    @property
    def unfinished(self) -> bool:
        """Whether the port has items that the slet has not taken, other than those in its queue."""
        return bool(self.taken) or any(queue.entries for queue in self.earlier)

    def take_in_flight(self) -> list[tuple[Method, Any]]:
        """Take out, in order, the items that the slet has not taken, also from queues that no other driver drains."""
        found: list[tuple[Method, Any]] = [(method_for(one, whole=False), one) for one in self.taken]
        own = [self.queue] if self.queue is not None and self.queue is not self.channel else []
        for queue in (*self.earlier, *(one for one in own if one.worker is self.driver)):
            while queue.entries:
                found += map(unpacked, queue.take(max(1, queue.depth)))
        self.taken.clear()
        return found

    def _pull(self, most: int, *, wait: bool) -> list[Any]:
        while True:
            self._safe_point()
            if self.taken:
                return [self.taken.popleft() for _ in range(min(most, len(self.taken)))]
            if self.ended or self.queue is None:
                return []
            entries = next((one for one in self.earlier if one.entries), self.queue).take(most)
            items = self._unpack(entries)
            self.rows += sum(not isinstance(item, CONTROL) for item in items)
            if items:
                return items
            if entries:  # a control item that the slet does not get
                continue
            if not wait or self.driver is None or self.driver.ending:
                return []
            self._wait(self.driver, self.queue)

    def _safe_point(self) -> None:
        """Park or stop, since the slet has processed the items that it took."""
        if (driver := self.driver) is None:
            return
        driver.busy = True
        if driver.closed or driver.halting or driver.retired or driver.restarting or driver.filled:
            driver.stand_by()
            if driver.retired or driver.restarting:
                raise Halted

    @staticmethod
    def _wait(driver: Driver, queue: Buffered) -> None:
        if not queue.entries:
            driver.rest_idly()
        driver.queues = (queue,)
        driver.doze(lambda: not queue.entries)

    def _unpack(self, entries: list[Any]) -> list[Any]:
        items: list[Any] = []
        for entry in entries:
            if type(entry) is not Packet:
                items.append(entry)
            elif entry.method == "control":
                self._control(entry.payload, items)
            elif type(entry.payload) is Undecoded:
                items += to_items(self.decoded(entry.payload) or [], self.spec.type.item)
            else:
                batched = entry.method == "push_batch"
                items += to_items(entry.payload, self.spec.type.item) if batched else [entry.payload]
        return items

    def _control(self, mark: Punctuation | EndOfStream, items: list[Any]) -> None:
        shown = self.spec.type.punctuation if isinstance(mark, Punctuation) else self.spec.type.end
        if shown:
            items.append(mark)
        self.ended = self.ended or isinstance(mark, EndOfStream)
        self._seen(self.spec.name, mark)

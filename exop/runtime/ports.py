"""Live ports: what the platform injects for `OutputPort` and `InputPort`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.ports import InputPort, OutputPort, PortSpec
from exop.runtime.channel import Channel
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.drivers.base import Driver, Halted
from exop.runtime.drivers.engine import EngineDriver
from exop.runtime.entry import NOWHERE, Entry
from exop.runtime.packet import Kind, Packet
from exop.runtime.unwind import Unwind, Way


class BufferedOutput(OutputPort[Any]):
    """A further output of a slet that is driven by the platform: what is pushed leaves after the method returned."""

    def __init__(self, spec: PortSpec, fail: Callable[[BaseException], None]) -> None:
        self.spec = spec
        self.entry: Entry = NOWHERE
        self._fail = fail
        self._pending: list[tuple[Way, Any]] = []

    def push(self, item: Any) -> None:
        """Keep one item until the method has returned."""
        self._pending.append((_way(item), item))

    def push_batch(self, batch: Any) -> None:
        """Keep a batch until the method has returned."""
        self._pending.append(("push_batch", batch))

    def end(self) -> None:
        """Nothing to do: the platform ends the ports of the slets that it drives."""

    def fail(self, error: BaseException) -> None:
        """Report a failure of what stands behind this port."""
        self._fail(error)

    def flush(self) -> None:
        """Send what was kept."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        rest = iter(pending)
        try:
            for way, payload in rest:
                getattr(self.entry, way)(payload)
        except Unwind as unwound:
            for way, payload in rest:
                unwound.then(self.entry, way, [payload])
            raise

    def leave(self, unwound: Unwind) -> None:
        """Let the driver send later what was kept."""
        for way, payload in self._pending:
            unwound.then(self.entry, way, [payload])
        self._pending = []

    def forget(self) -> None:
        """The slet raised: nothing of this item leaves."""
        self._pending.clear()


class DrivenOutput(OutputPort[Any]):
    """An output of a slet with a driver of its own: every push goes through at once, and is a safe point."""

    def __init__(
        self, spec: PortSpec, driver: EngineDriver, fail: Callable[[BaseException], None], ended: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self.entry: Entry = NOWHERE
        self.rows = 0
        self._driver = driver
        self._fail = fail
        self._ended = ended

    def push(self, item: Any) -> None:
        """Send one item, or a control item, waiting while there is no room."""
        if self.spec.type.form != "item" and not isinstance(item, CONTROL):
            self.push_batch(item)
            return
        self.rows += 1
        self._driver.drive(self._send, item)

    def push_batch(self, batch: Any) -> None:
        """Send a batch, waiting while there is no room."""
        self.rows += len(batch) if isinstance(batch, list) else batch.num_rows
        self._driver.drive(self._send_batch, batch)

    def end(self) -> None:
        """Send the end of the stream, once."""
        self._driver.drive(self._send, EndOfStream())
        self._ended(self.spec.name)

    def fail(self, error: BaseException) -> None:
        """Report that the engine broke."""
        self._fail(error)

    # The entry is read only after the safe point: the port may have been bound anew while its driver was parked.
    def _send(self, payload: Any) -> None:
        getattr(self.entry, _way(payload))(payload)

    def _send_batch(self, batch: Any) -> None:
        self.entry.push_batch(batch)


class PulledInput(InputPort[Any]):
    """An input that its slet pulls: takes from a queue, or reads what the channel keeps."""

    def __init__(self, spec: PortSpec, name: str, driver: Driver | None, seen: Callable[[str, Any], None]) -> None:
        self.spec = spec
        self.name = name
        self.channel: Channel | None = None
        self.queue: QueueChannel | None = None
        self.ended = False
        self.taken: deque[Any] = deque()
        self._driver = driver
        self._seen = seen

    def pull(self, most: int = 1024, wait: bool = True) -> list[Any]:
        """Return what there is; with *wait*, at least one item unless the stream has ended."""
        if self.queue is None:
            return self.channel.read(self.name) if self.channel is not None else []
        if self.taken:
            return [self.taken.popleft() for _ in range(min(most, len(self.taken)))]
        while not self.ended:
            found = self._unpack(self.queue.take(most))
            if found or not wait or self._driver is None:
                return found
            if self._driver.halting or self._driver.retired:
                raise Halted
            if self._driver.ending:
                break
            if not self.ended:
                self._wait(self._driver, self.queue)
        return []

    def __iter__(self) -> Iterator[Any]:
        # What was taken stays with the port until the slet asks for it: a successor of the slet goes on there.
        while items := self.pull():
            self.taken.extend(items)
            while self.taken:
                yield self.taken.popleft()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.channel is None:
            raise AttributeError(name)
        return getattr(self.channel, name)

    @staticmethod
    def _wait(driver: Driver, queue: QueueChannel) -> None:
        driver.doze(lambda: not queue.entries)
        if driver.closed:
            driver.stand_by()
            driver.rest()

    def _unpack(self, entries: list[Any]) -> list[Any]:
        items: list[Any] = []
        for entry in entries:
            if type(entry) is not Packet:
                items.append(entry)
            elif entry.kind is Kind.BATCH:
                items.extend(entry.payload if isinstance(entry.payload, list) else entry.payload.to_pylist())
            elif entry.kind is Kind.PROBE:
                items.append(entry.payload)
            else:
                self._control(entry.payload, items)
        return items

    def _control(self, mark: Punctuation | EndOfStream, items: list[Any]) -> None:
        shown = self.spec.type.punctuation if isinstance(mark, Punctuation) else self.spec.type.end
        if shown:
            items.append(mark)
        self.ended = self.ended or isinstance(mark, EndOfStream)
        self._seen(self.spec.name, mark)


def _way(payload: Any) -> Way:
    return "control" if isinstance(payload, CONTROL) else "push"

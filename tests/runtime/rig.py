"""What the tests of the runtime share: ways in and out that write down what passes, and drivers under control."""

from collections.abc import Callable
from typing import Any

from exop.runtime.channels.base import Channel, Outlet
from exop.runtime.dataflow.entry import Entry
from exop.runtime.drivers.source import ThreadDriver
from tests.rig import PATIENCE


class Log:
    """The end of a way: writes down what arrives, and by which of its three callables."""

    def __init__(self, then: Callable[[Any], None] | None = None) -> None:
        self.seen: list[Any] = []
        self.calls: list[str] = []
        self._then = then
        self.entry = Entry(self.push, self.push_batch, self.control)

    def push(self, item: Any) -> None:
        """Take one item."""
        self.calls.append("push")
        self.seen.append(item)
        if self._then:
            self._then(item)

    def push_batch(self, batch: Any) -> None:
        """Take a batch."""
        self.calls.append("push_batch")
        self.seen += batch if isinstance(batch, list) else batch.to_pylist()
        if self._then:
            self._then(batch)

    def control(self, mark: Any) -> None:
        """Take a control item."""
        self.calls.append("control")
        self.seen.append(mark)


class Runs(ThreadDriver):
    """A driver that runs a function."""

    def __init__(self, work: Callable[["Runs"], None], name: str = "test") -> None:
        super().__init__(name)
        self._work = work

    def run(self) -> None:
        """Run it."""
        self._work(self)


def driven(work: Callable[[Runs], None]) -> Runs:
    """Start a driver that runs *work*."""
    driver = Runs(work)
    driver.start()
    return driver


def finished(driver: ThreadDriver) -> None:
    """Wait until a driver has left, and see that it has not crashed."""
    assert driver.join(PATIENCE), f"{driver.name} does not leave"
    if driver.crash is not None:
        raise driver.crash


def joined(channel: Channel, *logs: Log) -> Entry:
    """The way into a channel that feeds some logs."""
    return channel.entry([Outlet(f"log{number}.item", log.entry) for number, log in enumerate(logs)])

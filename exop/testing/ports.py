"""The ports of a slet under test: outputs that collect, inputs that hold what they are given."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from exop.model.items import EndOfStream
from exop.model.slets.ports import InputPort, OutputPort, OutputPorts
from exop.runtime.channels.base import Channel

T = TypeVar("T")

#: How long to wait for a slet with a driver of its own, in seconds.
PATIENCE: Final = 30.0


class CollectingOutput(OutputPort[Any]):
    """An output port that keeps what is pushed.

    Attributes:
        items: The items, those of batches one by one; record batches whole; punctuations in their place.
        ended: The slet has said that nothing follows.
        error: What the slet has reported by `fail`.
    """

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ended = False
        self.error: BaseException | None = None
        self._done = threading.Event()

    def push(self, item: Any) -> None:
        """Keep one item, or a control item."""
        if isinstance(item, EndOfStream):
            self.end()
        else:
            self.items.append(item)

    def push_batch(self, batch: Any) -> None:
        """Keep the items of a list, or a record batch."""
        self.items.extend(batch if isinstance(batch, list) else [batch])

    def end(self) -> None:
        """Note the end of the stream."""
        self.ended = True
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Note that the slet broke."""
        self.error = error
        self._done.set()

    def taken(self) -> list[Any]:
        """Take out what was collected so far."""
        taken, self.items = self.items, []
        return taken

    def wait(self, timeout: float = PATIENCE) -> bool:
        """Wait until a slet with a driver of its own has ended its output, or failed; tells whether it has in time."""
        return self._done.wait(timeout)


class CollectingOutputs(OutputPorts[Any]):
    """A family of outputs, each of which keeps what is pushed; one comes where it is asked for."""

    def __missing__(self, name: str) -> OutputPort[Any]:
        return self.setdefault(name, CollectingOutput())


class GivenInput(InputPort[Any]):
    """An input port for slets that pull: it holds the given items, or shows a channel."""

    def __init__(self, name: str, given: Iterable[Any] | Channel = ()) -> None:
        self._name = name
        self._channel = given if isinstance(given, Channel) else None
        self._rest: Iterator[Any] = iter(()) if isinstance(given, Channel) else iter(given)

    def pull(self, most: int = 1024, wait: bool = True) -> list[Any]:
        """The next items, or what the channel keeps."""
        return self._channel.read(self._name) if self._channel is not None else list(islice(self._rest, most))

    def __iter__(self) -> Iterator[Any]:
        return self._rest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._channel is None:
            raise AttributeError(
                f"{name}: give the port a channel that has it: open(…, port=TableChannel('rows', key='id'))"
            )
        return getattr(self._channel, name)


def collected(port: OutputPort[T]) -> list[T]:
    """The items that a slet from `open` has pushed by one of its output ports: `collected(match.refused)`."""
    assert isinstance(port, CollectingOutput), "collected() takes a port of an instance that exop.testing.open has made"
    return port.items

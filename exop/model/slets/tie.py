"""`Tie`: the connection of an engine with its own threads to the platform: its journal of inputs and results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from exop.model.items import EndOfStream
from exop.model.slets.ports import OutputPort

#: An output port, and a payload for it (an item, a batch, a control item).
Leaving = tuple[OutputPort[Any], Any]
#: By port, the offset of each partition of its channel.
Positions = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Committed:
    """The progress of an engine.

    Attributes:
        batch: The last batch whose results were sent; -1 for none.
        inputs: For each input port, the number of events in this and all earlier batches. An event is an item, a row of
            a batch, or a control item.
        note: Further plain data of the engine.
        positions: For each port whose channel the engine reads by itself, the offset of each partition.
    """

    batch: int = -1
    inputs: Mapping[str, int] = field(default_factory=dict)
    note: Any = None
    positions: Positions = field(default_factory=dict)

    def after(self, batch: Committed) -> Committed:
        """Return the progress after one more batch; that one has no number if its results belong to no batch."""
        number = self.batch if batch.batch < 0 else batch.batch
        return Committed(number, {**self.inputs, **batch.inputs}, batch.note, {**self.positions, **batch.positions})


class NativeChannel(Protocol):
    """A channel whose rows an engine reads by itself, by offsets in its partitions; control items arrive as usual."""

    def native(self, engine: str) -> Mapping[str, Any] | None:
        """Return the reference by which the engine reads."""

    def oldest(self) -> Mapping[str, int]:
        """Return where a new reader begins."""

    def written(self) -> Mapping[str, int]:
        """Return the offset behind the last row of each partition."""

    def readable(self) -> Mapping[str, int]:
        """Return the offset up to which the engine may read: what is before it stays, whatever happens."""

    def rows(self, since: Mapping[str, int]) -> list[Any]:
        """Return the rows from these offsets on, for a slet that reads through the platform."""


class Tie:
    """Reconciles the progress of an engine with the checkpoints; injected into a field of this type of an engine slet.

    Input methods record the arriving events by `take`, and the engine sends the results of each batch by `put_out`.
    Events and results are counted and logged, so that at any moment the events are known whose results have not been
    sent: a new slet receives these events once more. In a durable application the logs are on disk, and events and
    results that were recorded before a crash are neither taken nor sent twice.

    The platform and `exop.testing` provide such a tie. A tie that is created directly records nothing.

    Attributes:
        directory: The folder for the engine's own commits in a durable application; otherwise `None`.
        committed: The progress of the engine.
        checkpointed: The progress in the checkpoint from which the application was restarted.
        inherits: The old slet whose internal state the slet takes over when `inherit` is called; `b""` if that slet is
            on another host.
        native: The channels that the engine reads by itself, by port: only control items arrive there.
        failure: The error that has ended the engine; a slet without an engine cannot be resumed.
        omit: Applies the policy of the slet to items that the engine has read at a port by itself, each with its error,
            after their batch was sent; returns whether the policy omits items. Without items, it only returns this.
    """

    directory: Path | None = None

    def __init__(self) -> None:
        self.committed = self.checkpointed = Committed()
        self.inherits: Any = None
        self.native: dict[str, NativeChannel] = {}
        self.failure: Exception | None = None
        self.omit: Callable[[str, Iterable[tuple[Any, Exception]]], bool] = lambda _port, _failed: False

    def take(self, port: str, payload: Any) -> Any | None:
        """Record a payload that has arrived at *port*; return the part that was not taken before a crash.

        Return `None` if the whole payload was taken before.
        """
        return payload

    def events(self, port: str, start: int | None = None) -> Iterator[tuple[int, Any]]:
        """Return the payloads that arrived at *port*, from event *start* on, each with the number of its first event.

        A payload is an item, a list or record batch of items, or a control item. If *start* is omitted, return the
        payloads that have not been sent in any batch. Payloads that the engine no longer needs are not stored.
        """
        return iter(())

    def put_out(
        self,
        batch: int | None,
        leaving: Iterable[Leaving],
        inputs: Mapping[str, int],
        note: Any = None,
        positions: Positions | None = None,
    ) -> bool:
        """Send the results of a batch; *inputs* is the number of events of each port in this and all earlier batches.

        *positions* are the offsets behind the batch at ports whose channels the engine reads by itself.

        Call this method before the engine commits the batch. If *batch* is `None`, the results belong to no batch, and
        are sent once.
        Return `False` if the batch was sent before a crash, or if a new slet sends the batch.
        """
        return self._send(leaving, Committed(-1 if batch is None else batch, inputs, note, positions or {}))

    @property
    def held(self) -> bool:
        """Whether results are held back, because a new slet replaces this one."""
        return False

    def forget(self, port: str, event: int) -> None:
        """Drop the events before *event*. Call this method when the engine has committed and no longer needs them."""

    def arrived(self, port: str) -> int:
        """Return the number of events that have arrived at *port*."""
        return 0

    def hurried(self) -> bool:
        """Return whether the calling driver must reach its safe point, and must therefore not wait."""
        return False

    def begin_reading(self, port: str, positions: Mapping[str, int]) -> None:
        """Record where the engine begins to read the channel of *port* by itself."""
        self.committed = replace(self.committed, positions={**self.committed.positions, port: positions})

    def _send(self, leaving: Iterable[Leaving], batch: Committed) -> bool:
        """Send the results of a batch; see `put_out`."""
        self.committed = self.committed.after(batch)
        for one in leaving:
            send(*one)
        return True


def send(port: OutputPort[Any], payload: Any) -> None:
    """Send a payload by the method for its kind."""
    if isinstance(payload, EndOfStream):
        port.end()
    elif isinstance(payload, list) or hasattr(payload, "num_rows"):
        port.push_batch(payload)
    else:
        port.push(payload)

"""`Tie`: the connection of an engine with its own threads to the platform: its journal of inputs and results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exop.model.items import CONTROL, EndOfStream
from exop.model.slets.ports import OutputPort

#: An output port, and a payload for it (an item, a batch, a control item).
Leaving = tuple[OutputPort[Any], Any]


@dataclass(frozen=True)
class Committed:
    """The progress of an engine.

    Attributes:
        batch: The last batch whose results were sent; -1 for none.
        inputs: For each input port, the number of events in this batch and all before it. An event is an item, a row of
            a batch, or a control item.
        note: Further plain data of the engine.
    """

    batch: int = -1
    inputs: Mapping[str, int] = field(default_factory=dict)
    note: Any = None


class Tie:
    """Ties an engine to the platform: injected into a slet with `own_driver=True` that has a field of this type.

    Input methods record what arrives by `take`, and the engine sends its results by `put_out`, batch by batch. Both are
    counted and logged, so that the platform knows at any moment what the engine has received without sending its
    results: a successor receives that again. In a durable application the logs are on disk, and what was recorded
    before a crash is neither taken nor sent again.

    The platform, and `exop.testing`, provide a tie that does all this. A tie created by hand records nothing.

    Attributes:
        directory: The folder for the engine's own commits in a durable application; otherwise `None`.
        committed: The progress of the engine.
        inherits: The predecessor with whose inner state the slet is to continue, once `inherit` is called.
    """

    directory: Path | None = None

    def __init__(self) -> None:
        self.committed = Committed()
        self.inherits: Any = None

    def take(self, port: str, payload: Any) -> Any | None:
        """Record what has arrived at *port*; returns the new part: the rest was taken before a crash already.

        `None` if nothing is new.
        """
        return payload

    def events(self, port: str, start: int | None = None) -> Iterator[tuple[int, Any]]:
        """Return the payloads taken at *port* from event number *start* on, each with the number of its first event.

        Without *start*, those in no batch that was sent. Payloads that the engine no longer needs are not kept.
        """
        return iter(())

    def put_out(
        self, batch: int | None, leaving: Iterable[Leaving], inputs: Mapping[str, int], note: Any = None
    ) -> bool:
        """Send the results of a batch; *inputs* is the number of events of each port in it and all before it.

        Call it before the engine commits the batch. A batch of `None` is none: payloads that are sent once, in between.
        Returns `False` if the batch was sent already, before a crash, or if a successor sends it.
        """
        self._commit(batch, inputs, note)
        for one in leaving:
            send(*one)
        return True

    def forget(self, port: str, event: int) -> None:
        """Call it when the engine has committed: it will not need events before *event* again."""

    def arrived(self, port: str) -> int:
        """Return the number of events that have arrived at *port*."""
        return 0

    def hurried(self) -> bool:
        """Whether the calling driver is required at its safe point, and must not wait."""
        return False

    def _commit(self, batch: int | None, inputs: Mapping[str, int], note: Any) -> None:
        known = self.committed.batch if batch is None else batch
        self.committed = Committed(known, {**self.committed.inputs, **inputs}, note)


def send(port: OutputPort[Any], payload: Any) -> None:
    """Send a payload by the method for its kind."""
    if isinstance(payload, EndOfStream):
        port.end()
    elif isinstance(payload, CONTROL):
        port.push(payload)
    elif isinstance(payload, list) or hasattr(payload, "num_rows"):
        port.push_batch(payload)
    else:
        port.push(payload)

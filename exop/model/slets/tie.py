"""`Tie`: what ties an engine with threads of its own to the platform: what it was given, and what it has put out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exop.model.items import CONTROL, EndOfStream
from exop.model.slets.ports import OutputPort

#: What leaves: the port, and a payload for it (an item, a batch, a control item).
Leaving = tuple[OutputPort[Any], Any]


@dataclass(frozen=True)
class Committed:
    """How far an engine has come.

    Attributes:
        batch: The last batch that it has put out; -1: none.
        inputs: For each input port, how many events are in that and in the batches before it. An event is an item, a
            row of a batch, or a control item.
        note: What else the engine wants to know of it: plain data.
    """

    batch: int = -1
    inputs: Mapping[str, int] = field(default_factory=dict)
    note: Any = None


class Tie:
    """Ties an engine to the platform; a slet with `own_driver=True` that has a field of this type is given one.

    Input methods hand over by `take`, results leave by `put_out`, batch by batch. Both are counted and logged, so that
    the platform knows at any moment what the engine was given and has not put out: a successor takes that. In a durable
    application the logs are on disk, and what was there before a crash is not taken, or put out, again.

    A platform, and `exop.testing`, give a tie that does all this. One that is made by hand keeps nothing.

    Attributes:
        directory: The folder for what the engine commits, in a durable application; otherwise `None`.
        committed: How far the engine has come.
        inherits: The predecessor with whose inner state the slet is to go on, as soon as `inherit` is called.
    """

    directory: Path | None = None

    def __init__(self) -> None:
        self.committed = Committed()
        self.inherits: Any = None

    def take(self, port: str, payload: Any) -> Any | None:
        """Note what has arrived at *port*; returns the new part of it: the rest was taken before a crash already.

        `None` when nothing is new.
        """
        return payload

    def events(self, port: str, start: int | None = None) -> Iterator[tuple[int, Any]]:
        """Return the payloads given to *port* from event number *start* on, each with the number of its first event.

        Without *start*, those in no batch that was put out. Payloads that the engine needs no more are not kept.
        """
        return iter(())

    def put_out(
        self, batch: int | None, leaving: Iterable[Leaving], inputs: Mapping[str, int], note: Any = None
    ) -> bool:
        """Put out a batch: *inputs* tells how many events of each port are in it and those before it.

        Call it before the engine commits the batch. `None` is no batch: something that is said in between, once.
        Returns `False` when the batch was put out already, before a crash, or when a successor does it.
        """
        self._commit(batch, inputs, note)
        for one in leaving:
            send(*one)
        return True

    def forget(self, port: str, event: int) -> None:
        """The engine has committed: it will not ask for what stands before *event* again."""

    def arrived(self, port: str) -> int:
        """Return how many events have come to *port*."""
        return 0

    def hurried(self) -> bool:
        """Whether the driver that hands over is wanted at its safe point, and must not wait."""
        return False

    def _commit(self, batch: int | None, inputs: Mapping[str, int], note: Any) -> None:
        known = self.committed.batch if batch is None else batch
        self.committed = Committed(known, {**self.committed.inputs, **inputs}, note)


def send(port: OutputPort[Any], payload: Any) -> None:
    """Push a payload in the way that its kind asks for."""
    if isinstance(payload, EndOfStream):
        port.end()
    elif isinstance(payload, CONTROL):
        port.push(payload)
    elif isinstance(payload, list) or hasattr(payload, "num_rows"):
        port.push_batch(payload)
    else:
        port.push(payload)

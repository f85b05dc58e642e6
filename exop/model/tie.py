"""`Tie`: what ties an engine with threads of its own to the platform: what it was given, and what it has put out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exop.model.columns import is_columns
from exop.model.items import CONTROL, EndOfStream
from exop.model.ports import OutputPort

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

    Input methods hand over by `take`, results leave by `put_out`, batch by batch. Both are counted, so that the
    platform knows at any moment what the engine was given and has not put out: a successor takes that. In a durable
    application both are in logs on disk as well, and what was there before a crash is not taken, or put out, again.

    This one keeps in memory what was not put out yet.

    Attributes:
        directory: Where the engine keeps what it commits, in a durable application; otherwise `None`.
        committed: How far it has come.
        inherits: The predecessor with whose inner state the slet is to go on, as soon as `inherit` is called.
    """

    directory: Path | None = None

    def __init__(self, forms: Mapping[str, str] | None = None) -> None:
        self.committed = Committed()
        self.inherits: Any = None
        self._forms = dict(forms or {})
        self._kept: dict[str, deque[tuple[int, Any]]] = {}
        self._arrived: dict[str, int] = {}
        self._leaving: deque[Leaving] = deque()
        self._turn = threading.Condition()
        self._retired = self._held = False
        self._under_way = 0

    def take(self, port: str, payload: Any) -> Any | None:
        """Note what has arrived at *port*; returns what of it is new: the rest was taken before a crash already.

        `None` when nothing is new.
        """
        self._note(port, payload)
        return payload

    def events(self, port: str, start: int | None = None) -> Iterator[tuple[int, Any]]:
        """Return the payloads given to *port* from event number *start* on, each with the number of its first event.

        Without *start*, those in no batch that was put out. Payloads that the engine needs no more are not kept.
        """
        start = self.committed.inputs.get(port, 0) if start is None else start
        for first, payload in list(self._kept.get(port, ())):
            size = self.size(port, payload)
            if first >= start:
                yield first, payload
            elif first + size > start:
                yield start, rest_of(payload, start - first)

    def put_out(
        self, batch: int | None, leaving: Iterable[Leaving], inputs: Mapping[str, int], note: Any = None
    ) -> bool:
        """Put out a batch: *inputs* tells how many events of each port are in it and those before it.

        Call it before the engine commits the batch. `None` is no batch: something that is said in between, once.
        Returns `False` when the batch was put out already, before a crash, or when a successor does it.
        """
        with self._putting(batch) as wanted:
            if not wanted:
                return False
            # From here on it is the platform's, which takes over what is still leaving if the engine is stopped now.
            self._leaving.extend(leaving)
            self._commit(batch, inputs, note)
            while self._leaving:  # only the engine's thread puts in, and takes out
                send(*self._leaving.popleft())
        return True

    def forget(self, port: str, event: int) -> None:
        """The engine has committed: it will not ask for what stands before *event* again."""

    def arrived(self, port: str) -> int:
        """How many events have come to *port*."""
        return self._arrived.get(port, 0)

    def hurried(self) -> bool:
        """The driver that hands over is wanted at its safe point: it is not to be kept waiting."""
        return False

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was put out has left; `False` after *timeout* seconds."""
        return True

    def hold(self, timeout: float | None = None) -> bool:
        """Put out nothing more for the time being; `False` if something is still on its way after *timeout* seconds."""
        with self._turn:
            self._held = True
            return self._turn.wait_for(lambda: not self._under_way, timeout)

    def release(self) -> None:
        """Put out again: what waited for that goes on."""
        with self._turn:
            self._held = False
            self._turn.notify_all()

    def retire(self) -> None:
        """Put out nothing more: a successor takes what was given and not put out."""
        with self._turn:
            self._retired = True
            self._turn.notify_all()

    def surrender(self) -> list[Leaving]:
        """Give away what was put out and has not left; the tie is retired."""
        found = list(self._leaving)
        self._leaving.clear()
        return found

    def size(self, port: str, payload: Any) -> int:
        """How many events a payload is."""
        if isinstance(payload, CONTROL) or self._forms.get(port) == "item":
            return 1
        return int(payload.num_rows) if is_columns(payload) else len(payload)

    @contextmanager
    def _putting(self, batch: int | None) -> Iterator[bool]:
        """Put out while the block runs; tells whether it is wanted, and waits while it is held."""
        with self._turn:
            self._turn.wait_for(lambda: not self._held or self._retired)
            wanted = not (self._retired or (batch is not None and batch <= self.committed.batch))
            self._under_way += wanted
        try:
            yield wanted
        finally:
            with self._turn:
                self._under_way -= wanted
                self._turn.notify_all()

    def _note(self, port: str, payload: Any) -> None:
        first = self._arrived.get(port, 0)
        self._kept.setdefault(port, deque()).append((first, payload))
        self._arrived[port] = first + self.size(port, payload)

    def _commit(self, batch: int | None, inputs: Mapping[str, int], note: Any) -> None:
        known = self.committed.batch if batch is None else batch
        self.committed = Committed(known, {**self.committed.inputs, **inputs}, note)
        for port, events in self.committed.inputs.items():
            kept = self._kept.get(port)
            while kept and kept[0][0] + self.size(port, kept[0][1]) <= events:
                kept.popleft()


def send(port: OutputPort[Any], payload: Any) -> None:
    """Push a payload in the way that its kind asks for."""
    if isinstance(payload, EndOfStream):
        port.end()
    elif isinstance(payload, CONTROL):
        port.push(payload)
    elif isinstance(payload, list) or is_columns(payload):
        port.push_batch(payload)
    else:
        port.push(payload)


def rest_of(payload: Any, done: int) -> Any:
    """Return the rows of a batch from number *done* on; of a record batch without a copy."""
    return payload[done:] if isinstance(payload, list) else payload.slice(done)

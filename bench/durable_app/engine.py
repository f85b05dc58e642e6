"""An engine with a thread of its own that commits by itself, to a file: a model of Spark in a hundred lines."""

from __future__ import annotations

import json
import shutil
import threading
import zlib
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Self

from exop import EndOfStream, OutputPort, Punctuation, Slet, Tie, input_port, slet
from exop.errors import StoredStateError
from exop.model.slets.tie import Leaving

Event = int | Punctuation | EndOfStream


class Engine(Slet, own_driver=True):
    """Takes events in batches; after each it commits batch number, position and state to a file of its own."""

    out: OutputPort[int | Punctuation]
    tie: Tie
    #: Most events of a batch.
    most: int = 40

    def __enter__(self) -> Self:
        """Find out what was committed; a batch that was put out and not committed is done again, the same events."""
        self._news = threading.Condition()
        self._stopping = self._working = False
        self._file = self.tie.directory / "committed" if self.tie.directory is not None else None
        self._batch, self._at, self._state = -1, 0, {"sum": 0}
        if self.tie.inherits is None:
            self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop between two batches."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        if hasattr(self, "_thread"):
            self._thread.join(timeout=5)

    @input_port
    def number(self, number: int | Punctuation | EndOfStream) -> None:
        """Hand over what is new."""
        fresh = self.tie.take("number", number)
        with self._news:
            if fresh is not None:
                self._waiting.append(fresh)
            self._news.notify_all()

    def quiesce(self) -> None:
        """Return when everything that was handed over has been put out."""
        with self._news:
            self._news.wait_for(lambda: not (self._waiting or self._working))

    def work(self, event: int, state: dict[str, int]) -> int:
        """Return the result for a number."""
        raise NotImplementedError

    def _start(self) -> None:
        if self._file is not None and self._file.exists():
            self._batch, self._at, self._state = _read(self._file)
        self._waiting: deque[Event] = deque(event for _, event in self.tie.events("number", self._at))
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while events := self._next():
            results: list[Leaving] = [
                (self.out, self.work(one, self._state) if isinstance(one, int) else one) for one in events
            ]
            # Events that were put out before a crash are one batch now, under the number of the last one of then.
            self._batch, self._at = max(self._batch + 1, self.tie.committed.batch), self._at + len(events)
            self.tie.put_out(self._batch, results, {"number": self._at})
            if self._file is not None:
                _replaced(self._file, [self._batch, self._at, self._state])
            self.tie.forget("number", self._at)

    def _next(self) -> list[Event]:
        with self._news:
            self._working = False
            self._news.notify_all()
            self._news.wait_for(lambda: self._waiting or self._stopping)
            if self._stopping:
                return []
            self._working = True
            again = self.tie.committed.batch > self._batch
            most = self.tie.committed.inputs["number"] - self._at if again else self.most
            return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]


class Doubled(Engine, own_driver=True, name="doubled"):
    """Double every number."""

    def work(self, event: int, state: dict[str, int]) -> int:
        """Without any state."""
        return 2 * event


@slet
def doubled_here(number: int) -> int:
    """The same without an engine."""
    return 2 * number


class Summed(Engine, own_driver=True, name="summed"):
    """Put out the sum of all numbers until now, which is inside of the engine."""

    keeps_own_state: ClassVar[bool] = True
    packs: ClassVar[bool] = True
    reopens: ClassVar[bool] = True

    def work(self, event: int, state: dict[str, int]) -> int:
        """Add."""
        state["sum"] += event
        return state["sum"]

    @classmethod
    def inherits(cls, before: Any, after: Any) -> str | None:
        """From an engine of the same kind."""
        same = before.slet.factory is after.slet.factory
        return None if same else f"{before.slet.name} sums otherwise"

    def pack(self) -> bytes:
        """Return the sum."""
        return json.dumps(self._state).encode()

    def inherit(self, predecessor: Summed | bytes) -> None:
        """Go on with its state; the positions are those of the own logs."""
        self._state = json.loads(predecessor if isinstance(predecessor, bytes) else predecessor.pack())
        if self._file is not None:
            _replaced(self._file, [-1, 0, self._state])
        self._start()


def _replaced(file: Path, held: list[Any]) -> None:
    """Put values in a file, with their checksum."""
    text, fresh = json.dumps(held), file.with_suffix(".new")
    fresh.write_text(f"{zlib.crc32(text.encode()):08x} {text}")
    shutil.move(fresh, file)


def _read(file: Path) -> list[Any]:
    """Read the content of a file.

    Raises:
        StoredStateError: it is damaged.
    """
    known, _, text = file.read_text(errors="replace").partition(" ")
    if known != f"{zlib.crc32(text.encode()):08x}":
        raise StoredStateError(what=str(file), problem="it is damaged", cure="restore the state directory from a copy")
    found: list[Any] = json.loads(text)
    return found

"""The base of sinks that write with checkpoints: they hold rows until the checkpoint that covers them is committed."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from dataclasses import field
from typing import Any, Self

from exop.errors import StoredStateError
from exop.model.items import EndOfStream
from exop.model.memento import Memento
from exop.model.slet import Slet
from exop.runtime.convert import as_row


class Held(Memento):
    """The rows that are not yet written.

    Attributes:
        run: Identifies this stream among others that write to the same place.
        number: The number of the last lot; each lot is written as a whole, once.
        rows: The rows that have arrived since.
        sealed: The rows of the last lot, until they are written.
    """

    run: str = ""
    number: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    sealed: list[dict[str, Any]] = field(default_factory=list)


class HoldingSink(Slet, ABC):
    """Writes rows in lots, each exactly once: with every checkpoint, or after `lot` rows if none are taken.

    A lot is part of the memento until it is written. After a crash the sink has the lot of the last checkpoint, and
    determines by its number whether it was written.
    """

    held: Held
    lot: int = 1000

    def __enter__(self) -> Self:
        self._turn = threading.Lock()
        self._mine = False
        return self

    def __exit__(self, *exc: object) -> None:
        # After a replacement the memento is the successor's, and flush() has put out what was ours.
        if self._mine and not self.checkpointed:
            self._settle()

    @abstractmethod
    def put_out(self, run: str, number: int, rows: list[dict[str, Any]]) -> None:
        """Write a lot together with its number, atomically."""

    @abstractmethod
    def last_out(self, run: str) -> int:
        """Return the number of the last lot written of a stream, or 0."""

    def is_out(self, run: str, number: int) -> bool:
        """Whether a lot has been written."""
        return self.last_out(run) >= number

    def check_place(self, place: object) -> None:
        """Refuse a checkpoint that is older than the last lot written; called at the end of `__enter__`.

        Raises:
            StoredStateError: *place* holds a lot of a later checkpoint: its rows would be written a second time.
        """
        out = self.last_out(self.held.run) if self.held.run else 0
        if out > self.held.number:
            raise StoredStateError(
                what=f"the checkpoint with the lot {self.held.number} of the rows for {place}",
                problem=f"the lot {out} is already written, so the checkpoint is not the newest",
                cure=f"restore the state directory and {place} from copies of the same time, or remove the application",
            )

    def check(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row to write; raise for a row that cannot be written, so that its item fails."""
        return row

    def take(self, item: Any) -> None:
        """Process one item, or the end of the stream."""
        if isinstance(item, EndOfStream):
            self.flush()
            return
        rows = self.held.rows
        rows.append(self.check(row_of(item)))
        self._mine = True
        if not self.checkpointed and len(rows) >= self.lot:
            self._settle()

    def flush(self) -> None:
        """Write the remaining rows if no checkpoints are taken."""
        if not self.checkpointed:
            self._settle()
            self._mine = False

    def prepare_checkpoint(self, number: int) -> None:
        """Make the rows received so far the lot of this checkpoint."""
        self._seal()

    def commit_checkpoint(self, number: int) -> None:
        """Write the lot of the committed checkpoint."""
        self._put()

    def _settle(self) -> None:
        self._seal()
        self._put()

    def _seal(self) -> None:
        held = self.held
        with self._turn:
            if held.sealed and self.is_out(held.run, held.number):
                held.sealed = []  # it went out before the crash
            # Already with the first checkpoint, before the first row: so the lots of this stream are known as such.
            held.run = held.run or uuid.uuid4().hex
            if held.rows:
                held.number += 1
                held.sealed, held.rows = held.sealed + held.rows, []

    def _put(self) -> None:
        held = self.held
        with self._turn:
            if held.sealed:
                if not self.is_out(held.run, held.number):
                    self.put_out(held.run, held.number, held.sealed)
                held.sealed = []


def row_of(item: Any) -> dict[str, Any]:
    """Return an item as a row: its fields, or one field named `value`."""
    try:
        return as_row(item)
    except TypeError:
        return {"value": item}

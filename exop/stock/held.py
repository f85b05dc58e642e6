"""The common part of sinks that write with checkpoints: rows are held until the checkpoint with them is there."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from dataclasses import field
from typing import Any, Self

from exop.errors import StoredStateError
from exop.model.items import EndOfStream
from exop.model.slets.memento import Memento
from exop.model.slets.slet import Slet
from exop.runtime.dataflow.batches import as_row


class Held(Memento):
    """The rows that are not written yet.

    Attributes:
        run: Tells this stream from others that use the same place.
        number: Of the last lot; lots are put out whole, once.
        rows: What has come since.
        sealed: The rows of that lot, until they are out.
    """

    run: str = ""
    number: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    sealed: list[dict[str, Any]] = field(default_factory=list)


class HoldingSink(Slet, ABC):
    """Puts rows out in lots, each exactly once: with every checkpoint, or after `lot` rows where none are taken.

    A lot is part of the memento until it is out. After a crash the sink has the lot of the last checkpoint, and sees by
    its number whether that is out already.
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
        """Put a lot out, with its number, at once."""

    @abstractmethod
    def last_out(self, run: str) -> int:
        """The number of the last lot of a stream that has been put out; 0: none was."""

    def is_out(self, run: str, number: int) -> bool:
        """Whether a lot has been put out."""
        return self.last_out(run) >= number

    def check_place(self, place: object) -> None:
        """Refuse to go on from a checkpoint that is older than what has been put out; called at the end of `__enter__`.

        Raises:
            StoredStateError: *place* holds a lot of a later checkpoint: its rows would come a second time.
        """
        out = self.last_out(self.held.run) if self.held.run else 0
        if out > self.held.number:
            raise StoredStateError(
                what=f"the checkpoint with the lot {self.held.number} of the rows for {place}",
                problem=f"the lot {out} is there already, so the checkpoint is not the newest",
                cure=f"restore the state directory and {place} from copies of the same time, or remove the application",
            )

    def check(self, row: dict[str, Any]) -> dict[str, Any]:
        """Refuse a row that could not be written, while its item is being handled; returns the row to write."""
        return row

    def take(self, item: Any) -> None:
        """Take one item, or the end of the stream."""
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
        """Make the rows so far the lot of this checkpoint."""
        self._seal()

    def commit_checkpoint(self, number: int) -> None:
        """The checkpoint is there: put the lot out."""
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
    """An item as a row: its fields, or one field called `value`."""
    try:
        return as_row(item)
    except TypeError:
        return {"value": item}

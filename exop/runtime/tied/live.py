"""The tie of an engine in an application that is not durable: in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from exop.model.tie import Leaving, Tie
from exop.runtime.drivers.base import Halted, current_driver


class LiveTie(Tie):
    """A tie that knows the drivers of this platform.

    Attributes:
        place: Its folder in the state directory, in a durable application.
        durable: What it is given and puts out is in logs on disk.
    """

    durable: ClassVar[bool] = False
    place: Path | None = None

    def put_out(
        self, batch: int | None, leaving: Iterable[Leaving], inputs: Mapping[str, int], note: Any = None
    ) -> bool:
        """Put out a batch; `False` also when everything is being closed, and nobody wants it any more."""
        try:
            return super().put_out(batch, leaving, inputs, note)
        except Halted:
            return False

    def open(self) -> None:
        """Called before the slet is opened."""

    def caught_up(self, timeout: float) -> bool:
        """Wait until what is before the engine has come to where the engine was before a crash; `False` if it does not.

        Until then the engine is ahead of what is before it: what is sent again is not for a successor.
        """
        return True

    def begin(self) -> None:
        """Called when everything is open."""

    def sync(self) -> None:
        """Bring to the disk what a checkpoint counts as there."""

    def confirmed(self, held: Mapping[str, Any]) -> None:
        """A checkpoint that has *held* of it is committed."""

    def close(self) -> None:
        """Called after the slet was closed."""

    def hurried(self) -> bool:
        """The driver that hands over is wanted at its safe point."""
        driver = current_driver()
        return driver is not None and (driver.closed or driver.halting)

"""The tie of an engine in an application that is not durable: in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exop.model.tie import Tie
from exop.runtime.drivers.base import current_driver


class LiveTie(Tie):
    """A tie that knows the drivers of this platform.

    Attributes:
        place: Its folder in the state directory, in a durable application.
    """

    place: Path | None = None

    def open(self) -> None:
        """Called before the slet is opened."""

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

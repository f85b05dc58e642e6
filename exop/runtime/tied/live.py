"""Engines in the platform: the tie of one in memory, and the folders of those that commit to the state directory."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from exop.model.tie import Leaving, Tie
from exop.runtime.drivers.base import Halted, current_driver


class LiveTie(Tie):
    """A tie that knows the drivers of this platform; it keeps everything in memory.

    Attributes:
        place: Its folder in the state directory, in a durable application.
        durable: Its input and output are in logs on disk.
    """

    durable: ClassVar[bool] = False
    place: Path | None = None

    def put_out(
        self, batch: int | None, leaving: Iterable[Leaving], inputs: Mapping[str, int], note: Any = None
    ) -> bool:
        """Put out a batch; `False` also when everything is being closed."""
        try:
            return super().put_out(batch, leaving, inputs, note)
        except Halted:
            return False

    def open(self) -> None:
        """Called before the slet is opened."""

    def begin(self) -> None:
        """Called when everything is open."""

    def close(self) -> None:
        """Called after the slet was closed."""

    def caught_up(self, timeout: float) -> bool:
        """Wait until the upstream has come to where the engine was before a crash; `False` if it does not.

        Until then the engine is ahead: events that are sent again are not meant for a successor.
        """
        return True

    def hurried(self) -> bool:
        """Whether the driver that hands over is wanted at its safe point."""
        driver = current_driver()
        return driver is not None and (driver.closed or driver.halting)


class EnginePlaces:
    """The folders `APPLICATION/NODE/NUMBER` in which the instances of engines commit.

    A successor gets a folder of its own, so that the last checkpoint stays valid until the next one is committed. A
    checkpoint names the folders that count; the others are removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self, application: str, node: str, name: str | None = None) -> Path:
        """Return the folder of an instance of *node* that a checkpoint calls *name*, or a new, empty one."""
        above = self._folder / _safe(application) / _safe(node)
        if name is not None:
            return above / name
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = max((int(one.name) for one in above.iterdir() if one.name.isdecimal()), default=0) + 1
        made = above / str(number)
        made.mkdir(mode=0o700)
        return made

    def keep(self, application: str, folders: Collection[Path]) -> None:
        """Remove all folders of an application but these."""
        for found in (self._folder / _safe(application)).glob("*/*"):
            if found not in folders:
                shutil.rmtree(found, ignore_errors=True)

    def discard(self, application: str) -> None:
        """Remove all folders of an application."""
        shutil.rmtree(self._folder / _safe(application), ignore_errors=True)


def _safe(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")

"""Where tied engines keep what they commit: a folder for each instance, in the state directory."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote


class EnginePlaces:
    """The folders `APPLICATION/NODE/NUMBER` below one of the state directory.

    A successor gets a folder of its own, so that the last checkpoint is true until the next one is committed: it names
    the folders that count. Those that no checkpoint names any more are removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self, application: str, node: str, name: str | None = None) -> Path:
        """The folder of an instance of *node* that a checkpoint calls *name*, or a new, empty one."""
        if name is not None:
            return self._folder / _safe(application) / _safe(node) / name
        above = self._folder / _safe(application) / _safe(node)
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
        """Remove what an application has there."""
        shutil.rmtree(self._folder / _safe(application), ignore_errors=True)


def _safe(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")

"""Noticing that a folder was saved: its files are looked at a few times a second, and taken when they rest."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

#: Of each file: when it was written, how long it is, and which file it is (editors write a new one and rename it).
Look: TypeAlias = dict[str, tuple[int, int, int]]

_SUFFIXES = (".py", ".toml")


class Folder:
    """The sources of a folder, looked at now and then.

    A change counts when two looks in a row see the same: an editor that writes several files, or one in several steps,
    has finished then. Looking costs nothing worth a library: some dozens of files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken = self._last = self.look()

    def changed(self) -> bool:
        """Look; tell whether there is something new, and nothing has moved since the last look."""
        now = self.look()
        rests, self._last = now == self._last, now
        if not rests or now == self._taken:
            return False
        self._taken = now
        return True

    def look(self) -> Look:
        """What is there now; files that come and go meanwhile are seen by the next look."""
        found: Look = {}
        for path in sorted(self._folder.rglob("*")):
            parts = path.relative_to(self._folder).parts
            if path.suffix not in _SUFFIXES or any(part.startswith(".") or part == "__pycache__" for part in parts):
                continue
            try:
                state = path.stat()
            except OSError:
                continue
            found[str(path)] = state.st_mtime_ns, state.st_size, state.st_ino
        return found

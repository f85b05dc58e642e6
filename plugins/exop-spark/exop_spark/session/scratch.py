"""Directories that last as long as the process: made for it alone, removed with it, swept up if it was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

PREFIX: Final = "exop-spark-"
_LOCK: Final = "lock"
#: Memory as a directory: what is written to disk in every micro-batch costs nothing there.
MEMORY: Final = Path("/dev/shm")


class Scratch:
    """A directory of this process's own under *place*.

    It is locked while the process lives. A process that is killed leaves it behind, unlocked: the next one that makes
    such a directory at the same place removes it.
    """

    def __init__(self, place: Path) -> None:
        sweep(place)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        # Locked before it has the name that others look for: nobody sees it unlocked.
        self._lock: IO[bytes] | None = (self.path / "locking").open("wb")
        _locked(self._lock)
        (self.path / "locking").rename(self.path / _LOCK)

    def new(self, name: str) -> Path:
        """Return a new directory in it, named after *name*."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.path))

    def close(self) -> None:
        """Remove it and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def memory() -> Path:
    """Where scratch files are fastest: in memory, or where temporary files go."""
    return MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def sweep(place: Path) -> None:
    """Remove the directories at *place* whose processes are gone; those of others, or in use, are left alone."""
    for left in place.glob(f"{PREFIX}*/{_LOCK}"):
        try:
            with left.open("rb+") as lock:
                if _locked(lock):
                    shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:
            continue  # somebody else's, or swept up by somebody else just now


def _locked(lock: IO[bytes]) -> bool:
    """Lock an open file; `False` if another process has it, or where files cannot be locked."""
    try:
        import fcntl  # not everywhere; without it nothing is swept
    except ImportError:  # pragma: no cover
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""`Scratch`: a directory for the lifetime of the process; the next process removes that of a killed one."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

PREFIX: Final = "exop-spark-"
_LOCK: Final = "lock"
#: A file system in memory, where the many small writes of each micro-batch are cheap.
MEMORY: Final = Path("/dev/shm")
#: The directory that `shared` has made.
_SHARED: Final[list[Scratch]] = []


class Scratch:
    """A directory of this process in *place*.

    The process holds a lock on it. When the process was killed, the directory remains without a lock; the next process
    that makes such a directory in *place* removes it.
    """

    def __init__(self, place: Path) -> None:
        sweep(place)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        # The lock file gets the name for which `sweep` looks only when it is locked.
        self._lock: IO[bytes] | None = (self.path / "locking").open("wb")
        _locked(self._lock)
        (self.path / "locking").rename(self.path / _LOCK)

    def new(self, name: str) -> Path:
        """Return a new directory in this one, whose name begins with *name*."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.path))

    def close(self) -> None:
        """Remove the directory and its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def shared() -> Scratch:
    """Return the directory of this process in memory, until the process ends.

    It outlives a Spark that is lost: the checkpoints of its queries are those with which their successors begin.
    """
    if not _SHARED:
        _SHARED.append(Scratch(memory()))
    return _SHARED[0]


@atexit.register
def _close() -> None:
    for one in _SHARED:
        one.close()


def memory() -> Path:
    """Return the fastest place for scratch files: a file system in memory, or the folder of temporary files."""
    return MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def sweep(place: Path) -> None:
    """Remove the directories in *place* whose processes have ended, except those of other users."""
    for left in place.glob(f"{PREFIX}*/{_LOCK}"):
        try:
            with left.open("rb+") as lock:
                if _locked(lock):
                    shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:
            continue  # it belongs to another user, or another process has just removed it


def _locked(lock: IO[bytes]) -> bool:
    """Lock an open file; return `False` if another process holds the lock, or the system has no such locks."""
    try:
        import fcntl  # not on all systems; without it, `sweep` removes nothing
    except ImportError:  # pragma: no cover
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

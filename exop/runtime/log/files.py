"""The operations of the file system that a log needs: tests replace them by ones that break down or run full."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final


class File:
    """One open file, read and written at given positions."""

    def __init__(self, path: Path, how: int = os.O_RDWR | os.O_CREAT) -> None:
        self._number = os.open(path, how | os.O_CLOEXEC, 0o600)

    def size(self) -> int:
        """How many bytes it has."""
        return os.fstat(self._number).st_size

    def read(self, position: int, length: int) -> bytes:
        """The bytes from *position* on: fewer where it ends."""
        found = os.pread(self._number, length, position)
        while len(found) < length and (more := os.pread(self._number, length - len(found), position + len(found))):
            found += more
        return found

    def write(self, position: int, data: bytes | memoryview) -> int:
        """Write at *position*; returns how many bytes were taken."""
        return os.pwrite(self._number, data, position)

    def truncate(self, size: int) -> None:
        """Cut it off."""
        os.ftruncate(self._number, size)

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fdatasync(self._number)

    def close(self) -> None:
        """Let it go."""
        os.close(self._number)

    def locked(self) -> bool:
        """Lock it, unless somebody else has."""
        try:
            fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Files:
    """The file system of the host."""

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, which is made if it is not there."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.listdir(folder)

    def open(self, path: Path) -> File:
        """Open a file for reading and writing; it is made if it is not there."""
        return File(path)

    def rename(self, path: Path, to: Path) -> None:
        """Put a file in the place of another, at once."""
        os.replace(path, to)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def sync(self, folder: Path) -> None:
        """Wait until the disk knows which files are in a folder."""
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def lock(self, path: Path) -> File | None:
        """Lock a file until it is closed, or the process ends; `None` if somebody else has it locked."""
        file = File(path)
        if file.locked():
            return file
        file.close()
        return None


DISK: Final = Files()

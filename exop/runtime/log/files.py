"""The operations of the file system that a log needs. Tests replace them by a file system that breaks or runs full."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final


class File:
    """One open file, read and written at given positions."""

    def __init__(self, path: Path, how: int = os.O_RDWR | os.O_CREAT) -> None:
        self.number = os.open(path, how | os.O_CLOEXEC, 0o600)

    def size(self) -> int:
        """Return the length in bytes."""
        return os.fstat(self.number).st_size

    def read(self, position: int, length: int) -> bytes:
        """Read *length* bytes, or up to the end of the file."""
        found = os.pread(self.number, length, position)
        while len(found) < length and (more := os.pread(self.number, length - len(found), position + len(found))):
            found += more
        return found

    def write(self, position: int, data: bytes) -> None:
        """Write all of *data*, in as many calls as it takes; an error may leave a part of it."""
        done = 0
        while done < len(data):
            done += os.pwrite(self.number, memoryview(data)[done:], position + done)

    def truncate(self, size: int) -> None:
        """Cut the file off at *size*."""
        os.ftruncate(self.number, size)

    def sync(self) -> None:
        """Force the content to the disk."""
        os.fdatasync(self.number)

    def is_at(self, path: Path) -> bool:
        """Whether *path* is this file, and not one that has replaced it."""
        return os.path.samestat(os.fstat(self.number), os.stat(path))

    def close(self) -> None:
        """Close the file; a lock on it ends."""
        os.close(self.number)


class Files:
    """The file system of the host."""

    def names(self, folder: Path) -> list[str]:
        """List a folder; create it if needed."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.listdir(folder)

    def open(self, path: Path) -> File:
        """Open a file for reading and writing; create it if needed."""
        return File(path)

    def rename(self, path: Path, to: Path) -> None:
        """Replace the file *to* atomically."""
        os.replace(path, to)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def sync(self, folder: Path) -> None:
        """Force the names in a folder to the disk."""
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def lock(self, path: Path) -> File | None:
        """Lock a file until it is closed or the process ends; `None` if another holder has it locked."""
        file = File(path)
        try:
            fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file


DISK: Final = Files()

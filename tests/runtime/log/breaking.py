"""A file system in memory that breaks down after a number of bytes, forgets what was not forced to it, or is full."""

# ruff: noqa: D101, D102 (the protocols of exop.runtime.log.segment say what each does)

from __future__ import annotations

import errno
from pathlib import Path


class Crash(BaseException):
    """The process, or the machine, has died here; nobody catches it."""


class BreakingFiles:
    """Files in memory. Every byte written, and every other step, is one unit of `left`; without units left it crashes.

    Attributes:
        left: How many units there are until the crash; `None`: there is none.
        room: How many bytes the disk has left; `None`: as many as one likes.
        stuck: Whether forcing to the disk fails.
    """

    def __init__(self):
        self.left, self.room, self.stuck, self.steps = None, None, False, 0
        self.files: dict[Path, bytearray] = {}
        self.forced: dict[Path, bytes] = {}
        self.locks: set[Path] = set()

    def names(self, folder):
        return [path.name for path in self.files if path.parent == folder]

    def open(self, path):
        if path not in self.files:
            self.spend()
            self.files[path] = bytearray()
        return BreakingFile(self, path)

    def rename(self, path, to):
        self.spend()
        self.files[to] = self.files.pop(path)
        self.forced[to] = self.forced.pop(path, b"")

    def remove(self, path):
        self.spend()
        del self.files[path]
        self.forced.pop(path, None)

    def sync(self, folder):
        self.spend()

    def lock(self, path):
        if path in self.locks:
            return None
        self.locks.add(path)
        return Lock(self.locks, path)

    def spend(self, wanted=1):
        """Use up units; returns how many there were."""
        self.steps += wanted
        if self.left is None:
            return wanted
        given = min(wanted, self.left)
        self.left -= given
        if given < wanted and wanted == 1:
            raise Crash
        return given

    def restart(self):
        """The process is gone, what it wrote is there."""
        self.left = None
        self.locks.clear()

    def lose_power(self, kept=0.0):
        """The machine was gone: of what was not forced to the disk a part is there, or zeros."""
        self.restart()
        for path, data in self.files.items():
            there = len(self.forced.get(path, b""))
            more = data[there : there + int((len(data) - there) * kept)]
            self.files[path] = bytearray(self.forced.get(path, b"")) + more + bytes(len(data) - there - len(more))


class Lock:
    def __init__(self, locks, path):
        self.locks, self.path = locks, path

    def close(self):
        self.locks.discard(self.path)


class BreakingFile:
    def __init__(self, files, path):
        self.system, self.path = files, path

    @property
    def data(self):
        return self.system.files[self.path]

    def size(self):
        return len(self.data)

    def read(self, position, length):
        return bytes(self.data[position : position + length])

    def write(self, position, data):
        room = self.system.room
        fits = data if room is None else data[:room]
        given = self.system.spend(len(fits)) if fits else 0
        self.data[position : position + given] = fits[:given]
        if room is not None:
            self.system.room = room - len(fits)
        if given < len(fits):
            raise Crash
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def truncate(self, size):
        self.system.spend()
        if self.system.room is not None:
            self.system.room += max(0, len(self.data) - size)
        del self.data[size:]

    def sync(self):
        self.system.spend()
        if self.system.stuck:
            raise OSError(errno.EIO, "Input/output error")
        self.system.forced[self.path] = bytes(self.data)

    def close(self):
        pass

"""The generation file of a state directory: the number and digest of the newest transaction, on the disk before it."""

from __future__ import annotations

import errno
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from exop.errors import StateError
from exop.runtime.log.files import DISK, File
from exop.runtime.log.segment import replace_file

NAME: Final = "generation"
_WRITTEN, _COMMITTED = "written", "committed"


class Generation(NamedTuple):
    """A transaction of the database.

    Attributes:
        number: Transactions are numbered from 1.
        digest: Over everything that the database holds after it.
        committed: It is known to have been committed. Otherwise the process may have died before.
    """

    number: int
    digest: str
    committed: bool

    def as_line(self) -> bytes:
        """The content of the file: always of the same length, so that it is overwritten in place."""
        state = _COMMITTED if self.committed else _WRITTEN
        text = f"ExoP generation {self.number:020d} {state:9} {self.digest:32}"
        return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()


class GenerationFile:
    """The file. It tells a database that has lost its last transactions, or is gone, from a new one."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._file: File | None = None

    def read(self) -> Generation | None:
        """Read the file; `None` if there is none.

        Raises:
            StateError: it is damaged.
        """
        try:
            line = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise self._damaged(str(problem.strerror)) from problem
        try:
            _, _, number, state, digest, _ = line.decode("ascii").split()
            found = Generation(int(number), digest, state == _COMMITTED)
        except ValueError as problem:
            raise self._damaged(f"{len(line)} bytes that are no generation") from problem
        if found.as_line() != line:
            raise self._damaged("its checksum does not fit")
        return found

    def write(self, generation: Generation) -> None:
        """Replace what it says; it is on the disk when this returns.

        Raises:
            OSError: it cannot be written.
        """
        if self._file is None:
            if not self.path.exists():
                replace_file(DISK, self.path, generation.as_line())
                return
            self._file = DISK.open(self.path)
            self._file.truncate(len(generation.as_line()))
        line = generation.as_line()
        if self._file.write(0, line) != len(line):
            raise OSError(errno.ENOSPC, "it was written in part")
        self._file.sync()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _damaged(self, problem: str) -> StateError:
        return StateError(
            f"{self.path} is damaged ({problem}): it tells whether the database beside it is the newest; nothing was "
            f"changed; restore the whole state directory from one copy, or accept the database as it is by "
            f"`exop state accept {self.path.parent}`"
        )

"""A few slets that every application may want."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exop.model.memento import Memento
from exop.model.slet import Slet, input_port, slet


class Position(Memento):
    """How far a source has come."""

    number: int = 0


@slet
def count_up(position: Position, *, to: int | None = None, start: int = 0, step: int = 1) -> Iterator[int]:
    """Emit *start*, *start* + *step*, …: *to* numbers, or without end."""
    while to is None or position.number < to:
        position.number += 1
        yield start + (position.number - 1) * step


@slet
def read_lines(position: Position, *, path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Emit the lines of a text file, without their ends; goes on after the lines that were emitted before."""
    with path.open(encoding=encoding) as lines:
        for _ in range(position.number):
            next(lines, None)
        for line in lines:
            position.number += 1
            yield line.rstrip("\n")


@slet
def pass_on(item: Any) -> Any:
    """Pass every item on as it is: joins what comes from several channels."""
    return item


@slet
def show(item: Any) -> None:
    """Print every item on a line of its own."""
    print(item)  # noqa: T201 (that is what it is for)


class WriteLines(Slet, name="write_lines"):
    """Write every item as a line of a text file."""

    path: Path
    encoding: str = "utf-8"

    def __enter__(self) -> WriteLines:
        self._file = self.path.open("w", encoding=self.encoding)
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    @input_port
    def item(self, item: Any) -> None:
        """Take one item."""
        self._file.write(f"{item}\n")


STOCK = (count_up, read_lines, pass_on, show, WriteLines)

"""Sources that read files from a position on: they begin again where their memento says."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from exop.model.slets.memento import Memento
from exop.model.slets.slet import slet


class Position(Memento):
    """How far a source has come."""

    number: int = 0


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
def read_csv(
    position: Position, *, path: Path, encoding: str = "utf-8", delimiter: str = ",", columns: list[str] | None = None
) -> Iterator[dict[str, str]]:
    """Emit the rows of a CSV file as dictionaries of texts; goes on after the rows that were emitted before.

    The names of the columns are *columns*, or else the first row.
    """
    with path.open(encoding=encoding, newline="") as lines:
        rows = csv.DictReader(lines, fieldnames=columns, delimiter=delimiter)
        for _ in range(position.number):
            next(rows, None)
        for row in rows:
            if None in row or None in row.values():
                raise ValueError(f"{path}, line {rows.line_num}: it has not as many fields as there are columns")
            position.number += 1
            yield row

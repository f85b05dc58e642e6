"""The stock sources: `count_up`, `read_lines`, `read_csv`, `read_log`; each goes on where its memento says."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exop.model.items import CONTROL, Batch, EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.slet import slet
from exop.runtime.dataflow.batches import to_items
from exop.runtime.log.memory import Position as LogPosition

#: The number of events to read at a time.
LOT = 1000
#: Single items are emitted in batches of at most so many: a change waits for the end of a batch.
TOGETHER = 32
#: Seconds between two reads while a followed log has nothing new.
PAUSE = 0.02


class Position(Memento):
    """The number of rows that a source has emitted."""

    number: int = 0


@slet
def count_up(position: Position, *, to: int | None = None, start: int = 0, step: int = 1) -> Iterator[int]:
    """Emit integers: *start*, *start* + *step*, …

    Args:
        position: The state.
        to: How many numbers to emit; `None`: without end.
        start: The first number.
        step: The difference of two numbers.
    """
    while to is None or position.number < to:
        position.number += 1
        yield start + (position.number - 1) * step


@slet
def read_lines(position: Position, *, path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Emit the lines of a text file, without line ends.

    Args:
        position: The state.
        path: The file.
        encoding: Its encoding.
    """
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
    """Emit the rows of a CSV file as dictionaries of strings, by column name.

    A row with more or fewer fields than there are columns is an error.

    Args:
        position: The state.
        path: The file.
        encoding: Its encoding.
        delimiter: The character between two fields.
        columns: The names of the columns; `None`: they are in the first row.
    """
    with path.open(encoding=encoding, newline="") as lines:
        rows = csv.DictReader(lines, fieldnames=columns, delimiter=delimiter)
        for _ in range(position.number):
            next(rows, None)
        for row in rows:
            if None in row or None in row.values():
                raise ValueError(f"{path}, line {rows.line_num}: it needs as many fields as there are columns")
            position.number += 1
            yield row


class Offset(Memento):
    """The offset of the next row (negative: nothing was read), and the control items read since the last row."""

    offset: int = -1
    marks: int = 0


@slet
def read_log(offset: Offset, *, path: Path, follow: bool = False) -> Iterator[Batch[Any] | Punctuation | None]:
    """Emit the items and punctuations of a log on disk, the oldest first.

    Another application, or another process, may be writing the log. If that application is durable, the rows up to its
    last checkpoint are read: a crash may take back those behind it.

    Args:
        offset: The state.
        path: The folder of the log.
        follow: At the end of the log, wait for more instead of ending the stream.
    """
    # Imported lazily: only this needs the encoding.
    from exop.runtime.log.reader import LogReader

    with LogReader(path) as log:
        while True:
            if offset.offset < 0:
                offset.offset = log.start
            found, _ = log.events(LogPosition(offset.offset, offset.marks), LOT)
            for one in _together(found):
                if isinstance(one, Batch):
                    offset.offset, offset.marks = offset.offset + len(one), 0
                    yield one
                else:
                    offset.marks += 1
                    if not isinstance(one, EndOfStream):  # another run may go on behind it
                        yield one
            if not found:
                if not follow:
                    return
                yield None  # a safe point
                time.sleep(PAUSE)


def _together(payloads: list[Any]) -> Iterator[Batch[Any] | Punctuation | EndOfStream]:
    """Yield batches as they were appended, single items in small batches, and the control items between them."""
    single = Batch[Any]()
    for payload in payloads:
        rows = () if isinstance(payload, CONTROL) else payload if type(payload) is list else to_items(payload)
        if len(rows) == 1 and len(single) < TOGETHER:
            single += rows
            continue
        if single:
            yield single
        single = Batch(rows if len(rows) == 1 else ())
        if len(rows) != 1:
            yield Batch(rows) if rows else payload
    if single:
        yield single

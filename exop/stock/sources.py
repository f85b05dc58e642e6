"""The stock sources, which continue at the stored position."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any, Self

from exop.model.items import CONTROL, Batch, EndOfStream, Punctuation, Reference
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, PortType
from exop.model.slets.slet import slet, spec_of
from exop.model.slets.spec import SletSpec
from exop.model.values.columns import batch_type, rows_of_file
from exop.runtime.dataflow.batches import to_items
from exop.runtime.log.memory import Position as LogPosition

#: The number of events to read at a time.
LOT = 1000
#: The maximum number of single items in an emitted batch. A change waits for the end of a batch.
TOGETHER = 32
#: Seconds between two reads of a followed log that has no new items, and between two looks into a followed folder.
PAUSE, LOOK = 0.02, 0.1


class Encoding(str):
    """The name of an encoding of text; raises `ValueError` if there is none of this name."""

    def __new__(cls, name: str) -> Self:  # noqa: D102
        try:
            "a".encode(name)  # refuses codecs that are no encodings of text, too
        except (LookupError, ValueError):
            raise ValueError("there is no such encoding of text; write, for example, utf-8") from None
        return super().__new__(cls, name)


#: The default of the setting `encoding`.
UTF_8 = Encoding("utf-8")


class Position(Memento):
    """The number of rows that a source has emitted."""

    number: int = 0


@slet
def count_up(position: Position, *, to: int | None = None, start: int = 0, step: int = 1) -> Iterator[int]:
    """Emit the integers *start*, *start* + *step*, …

    Args:
        position: The state.
        to: The number of integers to emit; `None` for an endless stream.
        start: The first integer.
        step: The difference between consecutive integers.
    """
    while to is None or position.number < to:
        position.number += 1
        yield start + (position.number - 1) * step


@slet
def read_lines(position: Position, *, path: Path, encoding: Encoding = UTF_8) -> Iterator[str]:
    """Emit the lines of a text file, without line ends.

    Args:
        position: The state.
        path: The path of the file.
        encoding: The encoding of the file.
    """
    with path.open(encoding=encoding) as lines:
        for line in islice(lines, position.number, None):
            position.number += 1
            yield line.rstrip("\n")


@slet
def read_csv(
    position: Position,
    *,
    path: Path,
    encoding: Encoding = UTF_8,
    delimiter: str = ",",
    columns: list[str] | None = None,
) -> Iterator[dict[str, str]]:
    """Emit the rows of a CSV file as dictionaries of strings, by column name.

    A row with more or fewer fields than columns is an error.

    Args:
        position: The state.
        path: The path of the file.
        encoding: The encoding of the file.
        delimiter: The character between two fields.
        columns: The names of the columns; `None` if the first row contains the names.
    """
    with path.open(encoding=encoding, newline="") as lines:
        rows = csv.DictReader(lines, fieldnames=columns, delimiter=delimiter)
        for row in islice(rows, position.number, None):
            if None in row or None in row.values():
                raise ValueError(f"{path}, line {rows.line_num}: it needs as many fields as there are columns")
            position.number += 1
            yield row


class Offset(Memento):
    """The offset of the next row (negative before the first read), and the number of control items since the last."""

    offset: int = -1
    marks: int = 0


@slet
def read_log(offset: Offset, *, path: Path, follow: bool = False) -> Iterator[Batch[Any] | Punctuation | None]:
    """Emit the items and punctuations of a log on disk, beginning with the oldest.

    Another application, or another process, may write to the log at the same time. If that application is durable, only
    the rows up to its last checkpoint are read, because later rows may be removed after a crash.

    Args:
        offset: The state.
        path: The folder of the log.
        follow: Whether to wait for new items at the end of the log, instead of ending the stream.
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


read_log.gathers = LOT  # type: ignore[attr-defined]


def _together(payloads: list[Any]) -> Iterator[Batch[Any] | Punctuation | EndOfStream]:
    """Yield batches unchanged, single items grouped into small batches, and the control items between them."""
    single = Batch[Any]()
    for payload in payloads:
        rows = [] if isinstance(payload, CONTROL) else to_items(payload)
        if single and (len(rows) != 1 or len(single) == TOGETHER):
            yield single
            single = Batch()
        if len(rows) == 1:
            single += rows
        else:
            yield Batch(rows) if rows else payload
    if single:
        yield single


class Emitted(Memento):
    """The names of the files that a source has emitted, and that are still in its folder."""

    names: list[str] = field(default_factory=list)


def _with_columns(settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
    """Return the slet with the columns of its output."""
    from exop.engine.columns import schema_of

    out = PortType(batch_type(), "columns", schema_of(settings["columns"]), pauses=True, reference=Reference)
    return spec_of(read_parquet).with_outputs({OUT: out})


@slet(specialised=_with_columns)
def read_parquet(
    emitted: Emitted, *, path: Path, columns: str, follow: bool = False
) -> Iterator[Batch[Reference] | None]:
    """Emit the rows of the Parquet files in a folder, in the order of their names.

    The files are emitted by reference: the tasks of a Spark query read them themselves, other slets get the rows. A
    file must be complete when it gets its name, and not change or disappear before its rows are processed, as the files
    of `write_parquet` do. Names that begin with `.` or `_` are skipped.

    Args:
        emitted: The state.
        path: The path of the folder.
        columns: The columns of the files, such as `time int, speed double`.
        follow: Whether to wait for new files, instead of ending the stream.
    """
    # Imported lazily: only this needs pyarrow.
    from exop.engine.columns import schema_of

    declared = schema_of(columns)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is no folder; create it, or correct the setting `path`")
    while True:
        there = {one.name for one in path.glob("*.parquet") if one.name[0] not in "._"}
        emitted.names = [name for name in emitted.names if name in there]
        fresh = sorted(there.difference(emitted.names))
        for name in fresh:
            place = (path / name).absolute()
            rows = rows_of_file(place, declared)
            emitted.names.append(name)
            yield Batch([Reference(place.as_uri(), rows)]) if rows else None
        if not fresh:
            if not follow:
                return
            yield None  # a safe point
            time.sleep(LOOK)

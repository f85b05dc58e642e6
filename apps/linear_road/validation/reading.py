"""Reads the three files of a validation: input, history, output; plain, .gz, .xz or Parquet, told by the suffix."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

from apps.linear_road.validation.values import Row
from exop.errors import ExopError

FIELDS = 15
COPY_AGAIN = "write or copy it again"
INT32 = range(-(2**31), 2**31)
#: So many rejected lines are kept to be shown.
EXAMPLES = 3


class UnreadableFile(ExopError):
    """A file that cannot be validated with: `path`, `problem`, `cure`."""

    template = "{path}: {problem}; {cure}"


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number the lines of a text file from 1; the suffix tells how to unpack it."""
    try:
        with _opened(path) as stream:
            yield from enumerate(stream, start=1)
    except FileNotFoundError as error:
        raise UnreadableFile(path=path, problem="there is no such file", cure="look at the path") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UnreadableFile(path=path, problem=f"it cannot be read ({error})", cure=COPY_AGAIN) from error


def _opened(path: Path) -> TextIO:
    # a byte that is no text must spoil its line and not the run
    match path.suffix:
        case ".gz":
            return cast(TextIO, gzip.open(path, "rt", encoding="utf-8", errors="replace"))
        case ".xz":
            return cast(TextIO, lzma.open(path, "rt", encoding="utf-8", errors="replace"))
        case _:
            return path.open(encoding="utf-8", errors="replace")


def integers(text: str, number: int) -> tuple[int, ...]:
    """Split a line into exactly *number* decimal integers of 32 bits.

    Raises:
        ValueError: it is something else; the message says what.
    """
    fields = text.split(",")
    if len(fields) != number:
        raise ValueError(f"{len(fields)} fields, not {number}")
    if "_" in text or not text.isascii():
        raise ValueError("a field is no decimal integer")
    try:
        values = tuple(map(int, fields))
    except ValueError:
        raise ValueError("a field is no decimal integer") from None
    if min(values) not in INT32 or max(values) not in INT32:
        raise ValueError("a field does not fit into 32 bits")
    return values


class Tuples:
    """The well-formed tuples of an input; malformed ones are left out and counted, as the application does.

    Malformed is a line that is not 15 integers, of an unknown type, out of the order of time, or whose fields cannot
    be (lane 7, segment 100). Any speed is taken: a reading of -3 occurs in real traffic files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.accepted = 0
        self.rejected = 0
        self.examples: list[str] = []

    def __iter__(self) -> Iterator[Row]:
        now = 0
        for number, source in self._source():
            try:
                row = integers(source, FIELDS) if isinstance(source, str) else source
                problem = problem_of(row, now)
            except ValueError as error:
                problem = str(error)
            if problem:
                self._reject(number, problem)
            else:
                self.accepted += 1
                now = row[1]
                yield row

    def _source(self) -> Iterator[tuple[int, str | Row]]:
        if self._path.suffix == ".parquet":
            return enumerate(parquet_rows(self._path, FIELDS), start=1)
        return text_lines(self._path)

    def _reject(self, number: int, problem: str) -> None:
        self.rejected += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"line {number}: {problem}")


def problem_of(row: Row, now: int) -> str | None:
    """Say what cannot be about a tuple that follows second *now*; None: it is well-formed."""
    kind, time, vid, _, xway, lane, direction, segment, position, qid = row[:10]
    if not 0 <= kind <= 4:
        return f"type {kind} is none of 0..4"
    if time < now:
        return f"second {time} comes after second {now}"
    if vid < 0:
        return f"vehicle {vid}"
    if kind == 0 and not (
        xway >= 0 and 0 <= lane <= 4 and 0 <= direction <= 1 and 0 <= segment <= 99 and 0 <= position <= 527_999
    ):
        return f"there is no road {xway}, lane {lane}, direction {direction}, segment {segment}, position {position}"
    if kind in (2, 3) and qid < 0:
        return f"question {qid}"
    return None


def read_history(path: Path) -> dict[tuple[int, int, int], int]:
    """Sum the tolls (VID,Day,XWay,Toll) by vehicle, day and road.

    Raises:
        UnreadableFile: a line is something else: an incomplete history would make right answers wrong.
    """
    sums: dict[tuple[int, int, int], int] = {}
    for vid, day, xway, toll in _history_rows(path):
        sums[vid, day, xway] = sums.get((vid, day, xway), 0) + toll
    return sums


def _history_rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".parquet":
        yield from parquet_rows(path, 4)
        return
    for number, text in text_lines(path):
        try:
            yield integers(text, 4)
        except ValueError as error:
            problem = f"line {number}: {error}"
            raise UnreadableFile(path=path, problem=problem, cure="a line is VID,Day,XWay,Toll") from error


def parquet_rows(path: Path, columns: int) -> Iterator[Row]:
    """The rows of a Parquet file whose first *columns* columns are the fields, in their order."""
    import pyarrow as pa  # only for this format
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if len(file.schema_arrow) != columns:
                problem = f"{len(file.schema_arrow)} columns, not {columns}"
                raise UnreadableFile(path=path, problem=problem, cure="the columns are the fields, in their order")
            for batch in file.iter_batches():
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(path=path, problem=f"it cannot be read ({error})", cure=COPY_AGAIN) from error

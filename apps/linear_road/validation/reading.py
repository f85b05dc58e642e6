"""Reads input, history and output of a validation: plain, gzip, xz or Parquet, told by the first bytes."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

from apps.linear_road.validation.values import Row
from exop.errors import ExopError

FIELDS = 15
XZ, GZIP, PARQUET = b"\xfd7zXZ\x00", b"\x1f\x8b", b"PAR1"
WITHOUT_INTEGERS = str.maketrans("", "", "0123456789-, ")
INT32 = range(-(2**31), 2**31)
#: The highest road, and the longest leap of the clock in seconds, that are no mistyped digit.
LAST_XWAY, LEAP = 9_999, 3_600
#: So many rejected lines are kept to be shown.
EXAMPLES = 3


class UnreadableFile(ExopError):
    """A file that cannot be validated with: `path`, `problem`, `cure`."""

    template = "{path}: {problem}; {cure}"


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number the lines of a text file from 1, without their ends."""
    with _readable(path):
        head = _head(path)
        packed = lzma.open if head == XZ else gzip.open if head.startswith(GZIP) else open
        # a byte that is no text must spoil its line and not the run; a lone carriage return ends no line
        with cast(TextIO, packed(path, "rt", encoding="utf-8", errors="replace", newline="\n")) as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line.removesuffix("\n").rstrip("\r")


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(len(XZ))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Tell what is wrong with a file as one error that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableFile(path=path, problem="there is no such file", cure="look at the path") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        problem = f"it cannot be read ({getattr(error, 'strerror', None) or error})"
        raise UnreadableFile(path=path, problem=problem, cure="write or copy it again") from error


def integers(text: str, number: int) -> tuple[int, ...]:
    """Split a line into exactly *number* decimal integers of 32 bits, spaces around them allowed.

    Raises:
        ValueError: it is something else; the message says what.
    """
    fields = text.split(",")
    if len(fields) != number:
        raise ValueError(f"{len(fields)} fields, not {number}")
    if text.translate(WITHOUT_INTEGERS):
        raise ValueError("a field is no decimal integer")
    try:
        values = tuple(map(int, fields))
    except ValueError:
        raise ValueError("a field is no decimal integer") from None
    return fitting(values)


def fitting(values: tuple[int, ...]) -> tuple[int, ...]:
    """Give back *values* if all fit into 32 bits.

    Raises:
        ValueError: one does not, or is missing (in a Parquet file).
    """
    if None in values or min(values) not in INT32 or max(values) not in INT32:
        raise ValueError("a field is missing or does not fit into 32 bits")
    return values


class Tuples:
    """The well-formed tuples of an input; malformed ones are left out and counted, as the application does.

    Malformed is a line that is not 15 integers, of an unknown type, out of the order of time, or from a place that
    cannot be (lane 7, segment 100). Any speed is taken: a reading of -3 occurs in real traffic files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now = -1
        self.accepted = 0
        self.rejected = 0
        self.examples: list[str] = []

    def __iter__(self) -> Iterator[Row]:
        for number, source in rows_of(self._path, FIELDS):
            try:
                row = source if isinstance(source, tuple) else integers(source, FIELDS)
                self._check(fitting(row))
            except ValueError as error:
                self._reject(f"line {number}: {error}")
                continue
            self.accepted += 1
            self._now = row[1]
            yield row

    def _check(self, row: Row) -> None:
        """Refuse what cannot be, after all that came before; a refused tuple does not move the clock."""
        kind, time, vid, _, xway, lane, direction, segment = row[:8]
        if kind not in (0, 2, 3, 4):
            raise ValueError(f"type {kind} is unknown")
        if time < 0 or vid < 0:
            raise ValueError(f"there is no second {time} or no vehicle {vid}")
        if time < self._now:
            raise ValueError(f"second {time} comes after second {self._now}")
        if self._now >= 0 and time > self._now + LEAP:
            raise ValueError(f"second {time} leaps ahead of second {self._now}")
        if kind == 0 and not (0 <= xway <= LAST_XWAY and 0 <= lane <= 4 and 0 <= direction <= 1 and 0 <= segment <= 99):
            raise ValueError(f"there is no road {xway}, lane {lane}, direction {direction}, segment {segment}")

    def _reject(self, example: str) -> None:
        self.rejected += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


def read_history(path: Path) -> dict[tuple[int, int, int], int]:
    """Sum the tolls (VID,Day,XWay,Toll) by vehicle, day and road.

    Raises:
        UnreadableFile: a line is something else: an incomplete history would make right answers wrong.
    """
    sums: dict[tuple[int, int, int], int] = {}
    for number, source in rows_of(path, 4):
        try:
            vid, day, xway, toll = fitting(source) if isinstance(source, tuple) else integers(source, 4)
        except ValueError as error:
            problem = f"line {number}: {error}"
            raise UnreadableFile(path=path, problem=problem, cure="a line is VID,Day,XWay,Toll") from error
        sums[vid, day, xway] = sums.get((vid, day, xway), 0) + toll
    return sums


def rows_of(path: Path, columns: int) -> Iterator[tuple[int, str | tuple[int, ...]]]:
    """Number the rows of a file from 1: lines of text, or the values of a Parquet file."""
    with _readable(path):
        parquet = _head(path).startswith(PARQUET)
    return enumerate(parquet_rows(path, columns), start=1) if parquet else text_lines(path)


def parquet_rows(path: Path, columns: int) -> Iterator[tuple[int, ...]]:
    """The rows of a Parquet file; its columns are the fields, in their order."""
    import pyarrow as pa  # only for this format
    import pyarrow.parquet as pq

    cure = f"give {columns} columns of integers, in the order of the fields"
    try:
        with pq.ParquetFile(path) as file:
            kinds = file.schema_arrow.types
            if len(kinds) != columns or not all(map(pa.types.is_integer, kinds)):
                raise UnreadableFile(path=path, problem=f"its columns are {', '.join(map(str, kinds))}", cure=cure)
            for batch in file.iter_batches():
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(path=path, problem=f"it cannot be read ({error})", cure=cure) from error

"""Files of integer rows, read piece by piece: CSV (plain, .xz, .gz) or Parquet; bad rows are handed out, not raised."""

import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from exop.errors import ExopError

from .columns import Longs, Mask

BLOCK: Final = 1 << 20
#: A line longer than this is cut: it is no row, and a file without line ends must not fill the memory.
_LONGEST: Final = 1 << 16
_PARQUET: Final = b"PAR1"
_INT32: Final = range(-(1 << 31), 1 << 31)
#: No 32-bit integer has more digits, and Python refuses to convert a number of thousands of them.
_DIGITS: Final = 10
#: Stands for a value that is no integer.
_NO_NUMBER: Final = 1 << 40


class UnreadableInput(ExopError):
    """A file that cannot be read at all: `path`, `problem`."""

    template = "{path} cannot be read: {problem}"


@dataclass(frozen=True)
class Reject:
    """A row that was refused: its line number (from 1), why, and its text."""

    line: int
    reason: str
    text: bytes


@dataclass(frozen=True)
class Rows:
    """A piece of a file: its good rows with the line number of each, its bad ones, and the last line it reaches."""

    batch: pa.RecordBatch
    lines: Longs
    rejects: Sequence[Reject]
    last: int

    def without(self, bad: Mask, reasons: Sequence[str]) -> "Rows":
        """The same piece with more rows refused, *reasons* in the order of the bad rows."""
        wrong = np.flatnonzero(bad)
        if len(wrong) == 0:
            return self
        refused = [
            Reject(int(self.lines[row]), reason, _text(self.batch, row))
            for row, reason in zip(wrong.tolist(), reasons, strict=True)
        ]
        rejects = sorted([*self.rejects, *refused], key=lambda reject: reject.line)
        return replace(self, batch=self.batch.filter(pa.array(~bad)), lines=self.lines[~bad], rejects=rejects)


def read_rows(path: Path, schema: pa.Schema, skip: int = 0) -> Iterator[Rows]:
    """Read *path* piece by piece from the line after *skip* on, its columns in the order of *schema*.

    The format is recognized by the first bytes of the file, not by its name.

    Raises:
        UnreadableInput: the file is missing, or broken as a whole.
    """
    try:
        with path.open("rb") as file:
            head = file.read(6)
        if head.startswith(_PARQUET):
            yield from _parquet(path, schema, skip)
            return
        with _opened(path, head) as file:
            yield from _text_rows(file, schema, skip)
    except (OSError, EOFError, lzma.LZMAError, zlib.error, pa.ArrowException) as problem:
        raise UnreadableInput(path=path, problem=problem) from problem


def check_readable(path: Path) -> None:
    """Open the file and leave it.

    Raises:
        UnreadableInput: it cannot be opened.
    """
    try:
        path.open("rb").close()
    except OSError as problem:
        raise UnreadableInput(path=path, problem=problem) from problem


def _opened(path: Path, head: bytes) -> IO[bytes]:
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(path)
    if head.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def _text_rows(file: IO[bytes], schema: pa.Schema, skip: int) -> Iterator[Rows]:
    parser = _Parser(schema)
    line = 0
    for block in _whole_lines(file):
        count = block.count(b"\n")
        if line + count > skip:
            first = max(0, skip - line)
            data = block.split(b"\n", first)[first] if first else block
            yield parser.parse(data, line + first + 1, count - first)
        line += count


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Blocks that end with a line end; of a file that breaks off, all whole lines before that, and then its error."""
    rest = b""
    for block in _blocks(file):
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            rest = (rest + block)[:_LONGEST]
            continue
        yield rest + block[:cut]
        rest = block[cut:]
    if rest:
        yield rest + b"\n"


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Blocks of about `BLOCK` bytes; what was read before an error is there before it is raised."""
    parts: list[bytes] = []
    try:
        # One step at a time: `read` would lose with an error what it has read before it.
        while part := cast(io.BufferedReader, file).read1(BLOCK):
            parts.append(part)
            if sum(map(len, parts)) >= BLOCK:
                whole, parts = b"".join(parts), []
                yield whole
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        if parts:
            whole = b"".join(parts)
            yield whole[: whole.rfind(b"\n") + 1]
        raise
    if parts:
        yield b"".join(parts)


class _Parser:
    """Lines to rows: all at once when they are clean, one by one when they are not."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.read = pa.csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=1 << 30)
        self.split = pa.csv.ParseOptions(quote_char=False, ignore_empty_lines=False)
        self.convert = pa.csv.ConvertOptions(column_types=schema, null_values=[], strings_can_be_null=False)
        self.clean = re.compile(rb" *-?[0-9]{1,9} *(?:, *-?[0-9]{1,9} *){%d}\r?" % (len(schema) - 1))

    def parse(self, data: bytes, first: int, count: int) -> Rows:
        """Parse *count* whole lines, of which the first has the number *first*."""
        # Arrow reads 0x5 as five and a bare carriage return as a line end; line by line they are refused.
        suspicious = b"x" in data or b"X" in data or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n"))
        batch = None if suspicious else self._arrow(data)
        if batch is not None and batch.num_rows == count:
            return Rows(batch, np.arange(first, first + count), (), first + count - 1)
        return self._one_by_one(data, first)

    def _arrow(self, data: bytes) -> pa.RecordBatch | None:
        if not data:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(data), read_options=self.read, parse_options=self.split, convert_options=self.convert
            )
        except pa.ArrowInvalid:
            return None
        return pa.RecordBatch.from_arrays([_whole(column) for column in table.columns], schema=self.schema)

    def _one_by_one(self, data: bytes, first: int) -> Rows:
        good: list[bytes] = []
        lines: list[int] = []
        rejects: list[Reject] = []
        texts = data.split(b"\n")[:-1]
        for line, text in enumerate(texts, first):
            if self.clean.fullmatch(text) or (reason := self._wrong(text)) is None:
                good.append(text)
                lines.append(line)
            else:
                rejects.append(Reject(line, reason, text.rstrip(b"\r")))
        batch = self._arrow(b"".join(text + b"\n" for text in good))
        if batch is None:
            raise UnreadableInput(path=f"lines {first}-{first + len(texts) - 1}", problem="rows that passed the check")
        return Rows(batch, np.array(lines, np.int64), rejects, first + len(texts) - 1)

    def _wrong(self, text: bytes) -> str | None:
        """Why a line is no row, or `None`."""
        fields = text.rstrip(b"\r").split(b",")
        if len(fields) != len(self.schema):
            return f"{len(self.schema)} fields expected, {len(fields)} found"
        for name, value in zip(self.schema.names, fields, strict=True):
            if not re.fullmatch(rb" *-?[0-9]+ *", value):
                return f"{name} is no integer"
            if not _fits(value):
                return f"{name} is out of range"
        return None


def _fits(number: bytes) -> bool:
    """Whether a written integer is one of 32 bits."""
    digits = number.strip(b" -").lstrip(b"0") or b"0"
    return len(digits) <= _DIGITS and int(digits) * (-1 if b"-" in number else 1) in _INT32


def _parquet(path: Path, schema: pa.Schema, skip: int) -> Iterator[Rows]:
    file = pa.parquet.ParquetFile(path)
    line = 0
    for piece in file.iter_batches(batch_size=BLOCK // 32):
        start, line = line, line + piece.num_rows
        if line > skip:
            first = max(0, skip - start)
            yield _checked(path, piece.slice(first), schema, start + first + 1)


def _checked(path: Path, piece: pa.RecordBatch, schema: pa.Schema, first: int) -> Rows:
    """Rows of a Parquet file: columns by name, or by place when the names are others; what is no int32 is refused."""
    if piece.num_columns != len(schema):
        raise UnreadableInput(path=path, problem=f"{len(schema)} columns expected, {piece.num_columns} found")
    if set(piece.schema.names) == set(schema.names):
        piece = piece.select(schema.names)
    bad = np.zeros(piece.num_rows, np.bool_)
    arrays = []
    for column in piece.columns:
        numbers = _numbers(column)
        outside = (numbers < _INT32.start) | (numbers >= _INT32.stop)
        bad |= outside
        arrays.append(np.where(outside, 0, numbers).astype(np.int32))
    batch = pa.RecordBatch.from_arrays([pa.array(values) for values in arrays], schema=schema)
    lines = np.arange(first, first + piece.num_rows)
    reason = "a value is missing or no 32-bit integer"
    rejects = [Reject(int(lines[row]), reason, _text(piece, row)) for row in np.flatnonzero(bad).tolist()]
    return Rows(batch.filter(pa.array(~bad)), lines[~bad], rejects, first + piece.num_rows - 1)


def _numbers(column: pa.Array) -> Longs:
    """The values of a column as integers; what is none is beyond all that are good."""
    try:
        return cast(Longs, column.cast(pa.int64()).fill_null(_NO_NUMBER).to_numpy())
    except pa.ArrowInvalid:  # one by one: most of them are good, perhaps
        return np.array([_number(value) for value in column.to_pylist()], np.int64)


def _number(value: object) -> int:
    if isinstance(value, (str, bytes)):
        text = value.encode() if isinstance(value, str) else value
        return int(text) if re.fullmatch(rb" *-?[0-9]+ *", text) and _fits(text) else _NO_NUMBER
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _NO_NUMBER else _NO_NUMBER
    return value if isinstance(value, int) and value in _INT32 else _NO_NUMBER


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _text(batch: pa.RecordBatch, row: int) -> bytes:
    return ",".join(str(column[row].as_py()) for column in batch.columns).encode()

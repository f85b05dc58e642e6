"""A few slets that every application may want."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from exop.model.items import EndOfStream, Punctuation
from exop.model.memento import Memento
from exop.model.ports import OutputPort, PortSpec
from exop.model.slet import Slet, input_port, slet, spec_of
from exop.model.spec import SletSpec
from exop.runtime.channels.table import key_reader
from exop.stock.files import Position, read_csv, read_lines
from exop.stock.logs import read_log
from exop.stock.parquet import WriteParquet
from exop.stock.sqlite import WriteSqlite


@slet
def count_up(position: Position, *, to: int | None = None, start: int = 0, step: int = 1) -> Iterator[int]:
    """Emit *start*, *start* + *step*, …: *to* numbers, or without end."""
    while to is None or position.number < to:
        position.number += 1
        yield start + (position.number - 1) * step


@slet
def pass_on(item: Any) -> Any:
    """Pass every item on as it is: joins what comes from several channels."""
    return item


@slet
def show(item: Any) -> None:
    """Print every item on a line of its own."""
    print(item, flush=True)  # noqa: T201 (that is what it is for)


class Followed(Memento):
    """The progress of a watermark: items older than `floor` are late."""

    floor: float = -math.inf


class Watermark(Slet, name="watermark"):
    """Follow the times of the items with punctuations: of an item at *t*, nothing older than *t* - `delay` follows.

    An item that is older than that leaves by `late` instead of `out`, and is counted there, connected or not. So the
    items of this stream alone decide which of them are late, however fast other streams are. Punctuations that reach
    the slet end here.

    Args:
        time: The field that holds the time of an item, a number.
        delay: By so much an item may be older than one before it.
        idle: Where this stream meets others, they wait for its next punctuation for so many seconds; `None`: until it
            comes.
    """

    time: str
    followed: Followed
    late: OutputPort[Any]
    delay: float = 0.0
    idle: float | None = None

    def __enter__(self) -> Self:
        if self.delay < 0 or (self.idle is not None and self.idle <= 0):
            raise ValueError(
                f"delay={self.delay:g} must not be negative, and idle={self.idle} is positive, or left out"
            )
        self._read = key_reader(self.time)
        return self

    @input_port
    def item(self, item: Any | Punctuation) -> Iterable[Any | Punctuation]:
        """Take one item."""
        if isinstance(item, Punctuation):
            return ()
        time, followed = self._read(item), self.followed
        if not math.isfinite(time):
            raise ValueError(f"the time of an item, its field {self.time!r}, is {time}")
        if time < followed.floor:
            self.late.push(item)
            return ()
        if (floor := time - self.delay) <= followed.floor:
            return (item,)
        followed.floor = floor
        return item, Punctuation.before(floor, self.idle)


class WatermarkColumns(Watermark, name="watermark_columns"):
    """Do the same for record batches, without taking their rows apart: a punctuation follows each batch that raises it.

    The same rows are late as if they came one by one. It needs numpy.
    """

    @input_port
    def item(self, item: Any | Punctuation) -> Iterable[Any | Punctuation]:
        """Take one record batch."""
        if isinstance(item, Punctuation):
            return ()
        # Imported lazily: only columns need it.
        import numpy as np

        times, before = item.column(self.time).to_numpy(zero_copy_only=False), self.followed.floor
        if not np.isfinite(times).all():
            raise ValueError(f"a time of the batch, in its column {self.time!r}, is missing or not finite")
        floors = np.maximum.accumulate(np.concatenate(([before], times - self.delay)))
        late, floor = times < floors[:-1], float(floors[-1])
        if late.any():
            self.late.push_batch(item.filter(late))
            item = item.filter(~late)
        self.followed.floor = floor
        left = (item,) if item.num_rows else ()
        return left if floor <= before else (*left, Punctuation.before(floor, self.idle))


def _in_columns(spec: SletSpec) -> SletSpec:
    """Return the same slet with ports that carry columns: no annotation can say so where pyarrow is not installed."""

    def port(one: PortSpec) -> PortSpec:
        return replace(one, type=replace(one.type, form="columns"))

    return replace(spec, inputs=tuple(map(port, spec.inputs)), outputs=tuple(map(port, spec.outputs)))


class Written(Memento):
    """The size of our part of the output file."""

    size: int = 0


class WriteLines(Slet, name="write_lines"):
    """Write every item as a line of a text file; others can read it within a second.

    What the file held before is cut off with the first line, or at the end of the stream. A successor, or the same slet
    after a crash, goes on where the memento ends: what stands behind that place is cut off, so that nothing is there
    twice.
    """

    path: Path
    written: Written
    encoding: str = "utf-8"

    def __enter__(self) -> WriteLines:
        self._file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666), "wb")
        self._placed = False
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    @input_port
    def item(self, item: Any | EndOfStream) -> None:
        """Take one item."""
        if not self._placed:
            self._place()
        if isinstance(item, EndOfStream):
            self._file.flush()
        else:
            self.written.size += self._file.write(f"{item}\n".encode(self.encoding))

    def _place(self) -> None:
        """Go to the end of what is ours, once, when it is our turn to write."""
        there = os.fstat(self._file.fileno()).st_size
        if there < self.written.size:
            raise OSError(f"{self.path} has {there} bytes, and {self.written.size} were written to it: put it back")
        self._file.truncate(self.written.size)
        self._file.seek(self.written.size)
        self._placed = True

    def flush(self) -> None:
        """Hand everything to the file, so that a checkpoint counts nothing that could still be lost with us."""
        self._file.flush()

    def make_visible(self) -> None:
        """Let others read the lines that are buffered; the file has a lock of its own against `item`."""
        self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fsync(self._file.fileno())


WATERMARKS = (Watermark, _in_columns(spec_of(WatermarkColumns)))
STOCK = (count_up, read_lines, read_csv, read_log, pass_on, show, *WATERMARKS, WriteLines, WriteSqlite, WriteParquet)

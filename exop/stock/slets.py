"""General slets of the base library: counters, files, printing, `stock:split`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from exop.errors import SettingError
from exop.model.condition import Condition, Names, read_condition
from exop.model.items import EndOfStream
from exop.model.memento import Memento
from exop.model.ports import OutputPort, PortType
from exop.model.slet import Slet, input_port, slet, spec_of
from exop.model.spec import SletSpec
from exop.shown import described
from exop.stock.files import Position, read_csv, read_lines
from exop.stock.join import Join
from exop.stock.logs import read_log
from exop.stock.parquet import WriteParquet
from exop.stock.sqlite import WriteSqlite
from exop.stock.watermark import Watermark

T = TypeVar("T")


@slet
def count_up(position: Position, *, to: int | None = None, start: int = 0, step: int = 1) -> Iterator[int]:
    """Emit *start*, *start* + *step*, and so on: *to* numbers, or numbers without end."""
    while to is None or position.number < to:
        position.number += 1
        yield start + (position.number - 1) * step


@slet
def pass_on(item: T) -> T:
    """Pass every item on unchanged, for example to merge several channels into one."""
    return item


@slet
def show(item: Any) -> None:
    """Print every item on a line of its own."""
    print(item, flush=True)  # noqa: T201 (that is what it is for)


class Split(Slet, Generic[T], name="split"):
    """Send each item to the ports whose conditions hold for it, or to `rest` if none holds.

    Args:
        conditions: A condition on the item for each output port, `{"fast": "item.speed > 60"}`.
    """

    reopens: ClassVar[bool] = True
    conditions: dict[str, str]
    rest: OutputPort[T]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return the slet with an output for each condition; the items are sent unchanged."""
        for port, text in settings["conditions"].items():
            _condition(port, text, inputs.get("item", PortType()))
        spec = spec_of(cls)
        return spec.with_outputs(dict.fromkeys(settings["conditions"], spec.ports["rest"].type))

    def __enter__(self) -> Self:
        self._tests = [
            (port, _condition(port, text, PortType()).test({}), self.outputs[port].push)
            for port, text in self.conditions.items()
        ]
        return self

    @input_port
    def item(self, item: T) -> None:
        """Take one item."""
        ways = []
        for port, holds, push in self._tests:
            try:
                if holds(item):
                    ways.append(push)
            except Exception as error:
                raise ValueError(f"{port} = {self.conditions[port]!r} cannot be tested: {described(error)}") from error
        for push in ways or [self.rest.push]:
            push(item)


def _condition(port: str, text: str, item: PortType) -> Condition:
    if port == "rest":
        problem = "'rest' is the port of the items for which no condition holds; choose another name"
        raise SettingError(place="", setting="conditions", problem=problem)
    return read_condition(text, Names(f"conditions.{port}", {"item": item}, punctuation=False))


class Written(Memento):
    """The number of bytes that the slet has written to its file."""

    size: int = 0


class WriteLines(Slet, name="write_lines"):
    """Write every item as a line of a text file; others can read it within a second.

    The previous content of the file is removed with the first line, or at the end of the stream. A successor, or the
    same slet after a crash, continues at the position in the memento: content after it is removed, so that no line is
    written twice.
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
        """Truncate the file to the position in the memento, once, before the first write."""
        there = os.fstat(self._file.fileno()).st_size
        if there < self.written.size:
            raise OSError(f"{self.path} has {there} bytes, but {self.written.size} were written to it: put it back")
        self._file.truncate(self.written.size)
        self._file.seek(self.written.size)
        self._placed = True

    def flush(self) -> None:
        """Write buffered lines to the file, so that a checkpoint covers no line that is lost with the process."""
        self._file.flush()

    def make_visible(self) -> None:
        """Write buffered lines to the file, for its readers; the file has a lock of its own against `item`."""
        self._file.flush()

    def sync(self) -> None:
        """Force the lines to the disk."""
        os.fsync(self._file.fileno())


STOCK = (
    count_up,
    read_lines,
    read_csv,
    read_log,
    pass_on,
    show,
    Split,
    Join,
    Watermark,
    WriteLines,
    WriteSqlite,
    WriteParquet,
)

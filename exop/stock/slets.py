"""A few slets that every application may want."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from exop.errors import SettingError
from exop.model.items import EndOfStream
from exop.model.meshes.condition import Condition, Names, read_condition
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OutputPort, PortType
from exop.model.slets.slet import Slet, input_port, slet, spec_of
from exop.model.slets.spec import SletSpec
from exop.safe_repr import described
from exop.stock.files import Position, read_csv, read_lines
from exop.stock.join import Join
from exop.stock.logs import read_log
from exop.stock.parquet import WriteParquet
from exop.stock.sqlite import WriteSqlite
from exop.stock.watermark import Watermark

T = TypeVar("T")


@slet
def count_up(position: Position, *, to: int | None = None, start: int = 0, step: int = 1) -> Iterator[int]:
    """Emit *start*, *start* + *step*, …: *to* numbers, or without end."""
    while to is None or position.number < to:
        position.number += 1
        yield start + (position.number - 1) * step


@slet
def pass_on(item: T) -> T:
    """Pass every item on as it is: joins what comes from several channels."""
    return item


@slet
def show(item: Any) -> None:
    """Print every item on a line of its own."""
    print(item, flush=True)  # noqa: T201 (that is what it is for)


class Split(Slet, Generic[T], name="split"):
    """Let each item leave by the ports whose conditions hold for it; where none holds, by `rest`.

    Args:
        conditions: A condition on the item for each output port, `{"fast": "item.speed > 60"}`.
    """

    reopens: ClassVar[bool] = True
    conditions: dict[str, str]
    rest: OutputPort[T]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """An output for each condition; the items leave as they come."""
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
